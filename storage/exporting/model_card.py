"""The model card of a push, in the hub's format: YAML, then Markdown.  Annotators are not named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from storage.analysis.agreement import Agreement
from storage.analysis.intervals import WinRate
from storage.exporting.card_evidence import (
    JudgmentGroup,
    agreed,
    judged_by,
    ruled,
    under_guidelines,
)
from storage.gate_report import Standing
from storage.records import ModelVersion
from storage.reports import Evaluation, RewardVerdict
from storage.wording import plural

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
    "best-of-n": "best-of-N", "openrlhf": "OpenRLHF's PPO",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card says about a model besides its own record; None where nothing was measured.

    `names` maps the ids of models to their names, and `previous` is the id of the policy before this
    one.  `judged` are the judgments that compare the policy with other models, `learned` those of the
    snapshot behind the reward model.  `networks` is the number of networks of a reward model.
    """

    base: str | None = None
    lineage: str = ""
    networks: int = 1
    names: Mapping[str, str] = field(default_factory=dict)
    previous: str | None = None
    reward_model: ModelVersion | None = None
    standing: Standing | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    judged: JudgmentGroup | None = None
    learned: JudgmentGroup | None = None
    agreement: Agreement = field(default_factory=lambda: Agreement(items=0))
    verdict: RewardVerdict | None = None
    """Of the reward model."""


def card(version: ModelVersion, facts: CardFacts, *, repository: str = REPOSITORY) -> str:
    """The card: what the model is, the evidence about it, how to use it and its lineage."""
    lines = [*_metadata(version, facts.base), "", MARK, "", *_title(version)]
    if version.role == "policy":
        lines += [*_comparisons(version, facts), ""]
    if facts.reward_model or version.role == "reward":
        lines += [*_reward_model(version, facts), ""]
    lines += ["Not evaluated for safety. Say for which use the model is meant.", ""]
    lines += [
        *_use(version, repository, facts.networks),
        "## Lineage",
        "",
        "```",
        facts.lineage,
        "```",
        "",
    ]
    return "\n".join(lines)


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


def _title(version: ModelVersion) -> list[str]:
    lines = [f"# {version.name}", ""]
    turn = f" in iteration {version.iteration}" if version.iteration else ""
    if version.role == "policy":
        name = str(version.summary.get("method", "ppo"))
        lines += [
            f"A policy trained by {_METHODS.get(name, name)} from preferences of annotators{turn}, with "
            "Kitestring."
        ]
        if name == "best-of-n":
            lines += [
                "The weights are those of the SFT model; the reward model chooses among its samples."
            ]
    elif version.role == "reward":
        lines += [f"A reward model trained on preferences of annotators{turn} (Bradley-Terry)."]
    else:
        lines += ["The SFT model: the reference from which the policies were trained."]
    return [*lines, ""]


# --- a policy in blind comparisons --------------------------------------------------------------


def _comparisons(version: ModelVersion, facts: CardFacts) -> Iterator[str]:
    judged = facts.judged
    yield "## Blind comparisons\n"
    yield (
        "Annotators compared two responses to a prompt without seeing which model wrote which. A win "
        "counts 1, a tie or *both bad* ½. Intervals are clustered by prompt.\n"
    )
    if judged and judged.judgments and (notice := _simulated(judged)):
        yield f"{notice}\n"
    yield f"* Win rate against SFT: {_win_rate(facts.standing and facts.standing.win_rate, 'SFT')}"
    yield f"* Win rate against the previous policy: {_against_previous(facts)}"
    yield f"* Verdict of the promotion gate: {_verdict(facts.standing)}"
    yield f"* KL to SFT: {_kl(version, facts.evaluation)}"
    if judged and judged.judgments:
        yield f"* Judgments on this policy: {judged_by(judged.kinds)}."
        yield f"* Guidelines of these judgments: {under_guidelines(judged.guidelines)}."
        yield f"* Rulings of adjudicators: {ruled(judged.rulings)}"
    else:
        yield "* Judgments on this policy: none yet."
    yield f"* Agreement of annotators: {agreed(facts.agreement)}"


def _simulated(group: JudgmentGroup) -> str:
    """A notice if not all judgments are by people; "" if they are."""
    people = sum(each.judgments for each in group.kinds if each.kind == "person")
    if people == group.judgments:
        return ""
    share = "None" if not people else f"Only {people:,} of {group.judgments:,}"
    return f"**{share} of these judgments are by people: {judged_by(group.kinds)}.**"


def _win_rate(found: WinRate | None, opponent: str) -> str:
    if found is None:
        return f"not measured, because nobody has compared it with {opponent}."
    return (
        f"{found.win_rate:.1%} (95% interval {found.low:.1%} to {found.high:.1%}; "
        f"{plural(found.comparisons, 'judgment')} on {plural(found.prompts, 'prompt')})."
    )


def _against_previous(facts: CardFacts) -> str:
    if facts.previous is None:
        return "does not apply, because this is the first policy."
    versus = facts.standing.versus if facts.standing else ()
    found = next((each for each in versus if each.opponent == facts.previous), None)
    name = facts.names.get(facts.previous, facts.previous)
    return _win_rate(found, name) if found is None else f"{_win_rate(found, name)[:-1]}, {name}."


def _verdict(found: Standing | None) -> str:
    """The verdict with its reason.  A ruling's author is not named."""
    if found is None:
        return "none yet."
    evidence = _by_evidence(found)
    if found.ruling is None or found.ruling.ruling == "evidence":
        return f"{found.verdict}. {evidence}"
    reason = " ".join(found.ruling.reason.split()).rstrip(".")
    return (
        f"{found.verdict}, by a researcher's decision with the reason “{reason}”. By the evidence it "
        f"is {found.by_evidence}. {evidence}"
    )


def _by_evidence(found: Standing) -> str:
    test, alarm = found.sequential, found.alarm
    if found.win_rate is None:
        said = "There is no evidence yet."
    elif test.decision == "go on":
        said = (
            f"The sequential test against SFT is undecided: log E is {test.log_e:z.1f}, and the test "
            f"decides at {test.limit:.1f}."
        )
    else:
        said = (
            f"The sequential test decided after {plural(test.stopped_at or test.prompts, 'prompt')}: "
            f"{test.decision} than SFT."
        )
    if (canary := found.canary) is not None:
        said += (
            f" Of {plural(canary.prompts, 'fixed prompt')} (`{canary.function}`), its answers pass on "
            f"{canary.policy:.0%}, and SFT's on {canary.reference:.0%}; a policy that loses "
            f"{100 * canary.allowed_loss:g} points is not promoted."
        )
    if alarm is None or not alarm.alarm:
        return said
    return (
        f"{said} Over-optimization alarm: on {plural(alarm.comparisons, 'judgment')} the reward model "
        f"predicted {alarm.predicted:.0%} wins, and annotators gave {alarm.human:.0%} (z = {alarm.z:.1f})."
    )


def _kl(version: ModelVersion, found: Evaluation) -> str:
    if (measured := found.policy.kl) is not None:
        bound = "at most " if found.policy.kl_is_bound else ""
        return (
            f"{bound}{_nats(measured)} per response, mean over responses to the held-out prompts."
        )
    trained = version.summary.get("kl/reference")
    if isinstance(trained, int | float):
        return (
            f"{_nats(trained)} per response in the last update of training; not measured on held-out "
            "prompts."
        )
    return "not measured."


def _nats(kl: float) -> str:
    """With two digits if it is small: 0.00 would look like the reference itself."""
    return f"{kl:.2f} nats" if abs(kl) >= 0.1 else f"{kl:.2g} nats"


# --- the reward model ---------------------------------------------------------------------------


def _reward_model(version: ModelVersion, facts: CardFacts) -> Iterator[str]:
    own = version.role == "reward"
    measured = version if own else facts.reward_model
    assert measured is not None
    yield "## Evidence\n" if own else "## Reward model\n"
    if facts.learned and facts.learned.judgments and (notice := _simulated(facts.learned)):
        yield f"{notice}\n"
    if not own:
        yield f"* Name: {measured.name}"
    yield f"* Accuracy on held-out preferences: {_accuracy(measured)}"
    yield f"* Verdict on the reward model: {_quality(facts.verdict)}"
    if facts.learned is None:
        yield "* Judgments: their snapshot is not in this workspace."
        return
    yield f"* Judgments of its snapshot: {judged_by(facts.learned.kinds)}{_learned(measured)}."
    yield f"* Guidelines of these judgments: {under_guidelines(facts.learned.guidelines)}."
    yield f"* Rulings of adjudicators: {ruled(facts.learned.rulings)}"
    if own:
        yield f"* Agreement of annotators: {agreed(facts.agreement)}"


def _learned(version: ModelVersion) -> str:
    """How many of them it learned from; the others measure it, or were left out."""
    by = version.summary.get("learned_by")
    return f"; it learned from {sum(by.values()):,} of them" if isinstance(by, Mapping) else ""


def _quality(found: RewardVerdict | None) -> str:
    """What the model is good enough for, with the reasons against more."""
    if found is None:
        return "none, because its quality was not measured."
    limits = [each.says for each in found.checks if each.known and each.allows != "ppo"]
    unknown = [each.says for each in found.checks if not each.known]
    reasons = [f"{each[:1].upper()}{each[1:]}." for each in (*limits, *unknown)]
    return " ".join([f"{found.verdict}.", *reasons])


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
    """The share with its interval, as far as the model's summary has them."""
    names = ("accuracy", "accuracy_low", "accuracy_high", "held_out_preferences")
    share, low, high, count = (version.summary.get(name) for name in names)
    if not isinstance(share, int | float):
        return "not measured."
    details = (
        [f"95% interval {low:.1%} to {high:.1%}"] if low is not None and high is not None else []
    )
    details += [f"of {count:,}"] if count is not None else []
    return f"{share:.1%}" + (f" ({', '.join(details)})" if details else "") + "."
