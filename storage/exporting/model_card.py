"""The model card of a push, in the hub's format: YAML, then Markdown.  Annotators are not named."""

from __future__ import annotations

import json

from storage.records import ModelVersion

MARK = "<!-- written by Kitestring -->"
REPOSITORY = "OWNER/NAME"
"""Stands for the repository in a card that is shown before one is named."""
_USE_GENERATOR = """\
from transformers import pipeline

answer = pipeline("text-generation", model="{repository}")
chat = answer([{{"role": "user", "content": "…"}}], max_new_tokens=256)
print(chat[0]["generated_text"][-1]["content"])"""
# `score` is applied by hand: the class reads the last token that is not padding, and in many
# tokenizers padding and end of text are the same token.
_USE_REWARD = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{repository}")
model = AutoModelForSequenceClassification.from_pretrained("{repository}").eval()
chat = [{{"role": "user", "content": "…"}}, {{"role": "assistant", "content": "…"}}]
text = tokenizer.apply_chat_template(chat, tokenize=False).rstrip()
tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")
with torch.no_grad():
    print(model.score(model.base_model(**tokens).last_hidden_state[:, -1]))"""
_METHODS = {
    "ppo": "PPO", "grpo": "GRPO", "reinforce++": "REINFORCE++", "rloo": "RLOO", "dpo": "DPO",
    "best-of-n": "best-of-N",
}  # fmt: skip


def card(
    version: ModelVersion,
    *,
    base: str | None,
    verdict: str | None,
    lineage: str,
    reward_model: ModelVersion | None,
    repository: str = REPOSITORY,
    networks: int = 1,
) -> str:
    """The card: what the model is, how it was trained, its verdict, how to use it and its lineage.

    `networks` is the number of networks of a reward model.
    """
    return "\n".join([*_metadata(version, base), "", MARK, "", *_text(version, verdict, reward_model),
                      *_use(version, repository, networks),
                      "## Lineage", "", "```", lineage, "```", ""])  # fmt: skip


def _metadata(version: ModelVersion, base: str | None) -> list[str]:
    method = version.summary.get("method", "ppo") if version.role == "policy" else None
    tags = ["kitestring", "rlhf", *([str(method)] if method else [])]
    tags += ["reward-model"] if version.role == "reward" else []
    task = "text-classification" if version.role == "reward" else "text-generation"
    return [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {task}",
        f"tags: {json.dumps(tags)}",
        *([f"base_model: {json.dumps(base)}"] if base else []),
        "# license: fill in the license of this model",
        "---",
    ]


def _text(
    version: ModelVersion, verdict: str | None, reward_model: ModelVersion | None
) -> list[str]:
    lines = [f"# {version.name}", ""]
    turn = f" in iteration {version.iteration}" if version.iteration else ""
    if version.role == "policy":
        name = str(version.summary.get("method", "ppo"))
        lines += [
            f"A policy trained by {_METHODS.get(name, name)} from human preferences{turn}, with Kitestring."
        ]
        if name == "best-of-n":
            lines += [
                "The weights are those of the SFT model; the reward model chooses among its samples."
            ]
    elif version.role == "reward":
        lines += [f"A reward model trained on human preferences{turn} (Bradley-Terry)."]
    else:
        lines += ["The SFT model: the reference from which the policies were trained."]
    facts = []
    measured = version if version.role == "reward" else reward_model
    if measured is not None:
        if version.role != "reward":
            facts.append(f"* Reward model: {measured.name}")
        if accuracy := _accuracy(measured):
            facts.append(f"* Accuracy of the reward model on held-out preferences: {accuracy}")
    if version.role == "policy":
        facts.append(
            "* Verdict of the promotion gate against SFT, by people's judgments: "
            f"{verdict or 'none yet'}"
        )
    facts.append("* Not evaluated for safety. Say for which use the model is meant.")
    return [*lines, "", *facts, ""]


def _use(version: ModelVersion, repository: str, networks: int) -> list[str]:
    reward = version.role == "reward"
    code = (_USE_REWARD if reward else _USE_GENERATOR).format(repository=repository)
    lines = ["## Use", "", "```python", code, "```", ""]
    if not reward:
        return lines
    lines += [
        "Compare the rewards of two responses to one prompt: a reward alone has no meaning. "
        "transformers reports unused weights (`ties`, `score.bias`); they hold the probability of a "
        "tie and a constant that is added to every reward.",
        "",
    ]
    if networks > 1:
        lines += [
            f"Kitestring's reward is the mean of {networks} networks. The code above loads the first. "
            f'Load the others with `subfolder="member-2"` to `subfolder="member-{networks}"`.',
            "",
        ]
    return lines


def _accuracy(version: ModelVersion) -> str:
    """The share with its interval, as far as the model's summary has them; "" without a share."""
    names = ("accuracy", "accuracy_low", "accuracy_high", "held_out_preferences")
    share, low, high, count = (version.summary.get(name) for name in names)
    if not isinstance(share, int | float):
        return ""
    details = (
        [f"95% interval {low:.1%} to {high:.1%}"] if low is not None and high is not None else []
    )
    details += [f"of {count:,}"] if count is not None else []
    return f"{share:.1%}" + (f" ({', '.join(details)})" if details else "")
