"""What is refused at the door, in one sentence each, before any compute is spent."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import RESERVED_COMPONENTS

Reward = Callable[[list[int], list[str]], Sequence[float] | Mapping[str, Sequence[float]]]
"""Scores completions: (prompt indices, completion texts) to a finite number each, or to named lists of them."""


def check_tokenizer(tokenizer: Any) -> int:
    """The padding id of a tokenizer that PPO can use."""
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end-of-text token; set tokenizer.eos_token")
    if tokenizer.pad_token_id is None:
        raise ValueError(
            "the tokenizer has no padding token; set tokenizer.pad_token = tokenizer.eos_token "
            "(safe here: masks are made from lengths)"
        )
    return int(tokenizer.pad_token_id)


def check_prompts(prompts: Sequence[Sequence[int]], model: Any, config: PPOConfig) -> None:
    if not prompts:
        raise ValueError("there are no prompts; PPO needs at least one")
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    for index, prompt in enumerate(prompts):
        length = len(prompt)
        if not length:
            raise ValueError(f"prompt {index} is empty; give it at least one token")
        if length > config.max_prompt_tokens:
            raise ValueError(
                f"prompt {index} has {length} tokens, more than "
                f"ppo.max_prompt_tokens={config.max_prompt_tokens}; shorten it or raise the limit"
            )
        if context is not None and length + config.max_new_tokens > context:
            raise ValueError(
                f"prompt {index} has {length} tokens, which with "
                f"ppo.max_new_tokens={config.max_new_tokens} exceeds the model's context of {context}"
            )
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise ValueError(
                f"prompt {index} holds a token id outside the model's vocabulary of {vocabulary}"
            )


def check_categories(
    categories: Sequence[str] | None, prompts: Sequence[Any], config: PPOConfig
) -> list[str]:
    """One category a prompt; all prompts are of one where none are given."""
    if categories is None:
        if config.baseline == "category_mean":
            raise ValueError("ppo.baseline='category_mean' needs `categories`, one a prompt")
        return [""] * len(prompts)
    if len(categories) != len(prompts):
        raise ValueError(f"there are {len(categories)} categories for {len(prompts)} prompts")
    return list(categories)


def named_scores(returned: Any, texts: Sequence[str]) -> dict[str, list[float]]:
    """What a reward callable returned, as component name to one score a completion.

    A plain sequence is the one component "score".  Raises ValueError for a wrong
    number of scores, one that is not finite, or a name that a metric has already.
    """
    components = returned if isinstance(returned, Mapping) else {"score": returned}
    if not components:
        raise ValueError("the reward callable returned no components")
    named: dict[str, list[float]] = {}
    for name, values in components.items():
        if name in RESERVED_COMPONENTS:
            raise ValueError(
                f"a reward component may not be named {name!r}: a metric has that name"
            )
        scores = [float(value) for value in values]
        if len(scores) != len(texts):
            raise ValueError(
                f"the reward callable returned {len(scores)} scores for {len(texts)} completions "
                f"(component {name!r})"
            )
        for score, text in zip(scores, texts, strict=True):
            if not math.isfinite(score):
                raise ValueError(
                    f"the reward callable returned {score} (component {name!r}) for the "
                    f"completion {text[:200]!r}; it must return finite numbers"
                )
        named[name] = scores
    return named


def check_reward(reward: Reward) -> None:
    """Call the reward once on two short texts, so that a broken one is found before sampling."""
    probe = ["", "Yes."]
    named_scores(reward([0, 0], list(probe)), probe)


def check_weights(weights: Mapping[str, float], components: Mapping[str, Any]) -> None:
    unknown = sorted(set(weights) - set(components))
    if unknown:
        raise ValueError(
            f"reward_weights names {', '.join(unknown)}, but the reward callable returned "
            f"{', '.join(sorted(components))}"
        )
