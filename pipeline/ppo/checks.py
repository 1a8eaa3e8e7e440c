"""Checks of the caller's arguments before any computation; each error is one sentence."""

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import RESERVED_COMPONENTS

Reward = Callable[[list[int], list[str]], Sequence[float] | Mapping[str, Sequence[float]]]
"""(prompt indices, completions) → one finite score per completion, or named lists of scores."""

MAX_SCORE = torch.finfo(torch.float32).max


def check_tokenizer(tokenizer: Any) -> int:
    """The padding id of the tokenizer; ValueError if PPO cannot use it."""
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end-of-text token; set tokenizer.eos_token")
    if tokenizer.pad_token_id is None:
        raise ValueError(
            "the tokenizer has no padding token; set tokenizer.pad_token = tokenizer.eos_token "
            "(safe here: masks are made from lengths)"
        )
    return int(tokenizer.pad_token_id)


def context_of(config: Any) -> int | None:
    """The number of tokens that a model's positions allow; None without a limit.

    With longrope (Phi-3 and Phi-4 of 128k) it is the length of pretraining.  For a batch with a longer
    text transformers changes the frequencies of every text in it, and of the keys that a cache does
    not change: log-probabilities would depend on the batch, and sampling would record wrong ones.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    limits = [getattr(text, "max_position_embeddings", None)]
    limits += [
        each.get("original_max_position_embeddings")
        for each in (rope, *rope.values())  # some models have parameters for each kind of layer
        if isinstance(each, Mapping) and each.get("rope_type") == "longrope"
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def check_prompts(
    prompts: Sequence[Sequence[int]], model: Any, config: PPOConfig
) -> list[list[int]]:
    """The prompts as lists of ints; ValueError if one exceeds a limit."""
    if len(prompts) == 0:
        raise ValueError("there are no prompts; PPO needs at least one")
    context = context_of(model.config)
    vocabulary = vocabulary_of(model)
    found = [_token_ids(prompt, index) for index, prompt in enumerate(prompts)]
    for index, prompt in enumerate(found):
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
                f"prompt {index} contains a token id outside the model's vocabulary of {vocabulary}"
            )
    return found


def _token_ids(prompt: Any, index: int) -> list[int]:
    """A list, array or 1-D tensor of whole numbers as a list of ints."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise ValueError(
            f"prompt {index} is {str(prompt)[:60]!r}, not a list of token ids; "
            "tokenize it first (tokenizer(text)['input_ids'])"
        ) from None


def vocabulary_of(model: Any) -> int:
    """The number of token ids that a model's embedding has."""
    return model.get_input_embeddings().weight.shape[0]


def check_models(model: Any, reference: Any) -> None:
    """The reference must have the policy's tokens, and all weights must be finite."""
    if reference is not None and vocabulary_of(reference) != vocabulary_of(model):
        raise ValueError(
            f"the reference has a vocabulary of {vocabulary_of(reference)} tokens and the policy "
            f"of {vocabulary_of(model)}; both must belong to one model family"
        )
    for what, some in (("policy", model), ("reference", reference)):
        for name, weight in some.named_parameters() if some is not None else ():
            if not weight.is_meta and not torch.isfinite(weight).all():
                raise ValueError(f"the {what}'s weight {name} contains NaN or infinity")


def check_critic(critic: Any, model: Any, *, longest: int) -> None:
    """The caller's critic must have the policy's tokens and accept texts of `longest` tokens."""
    known, wanted = vocabulary_of(critic), vocabulary_of(model)
    if known < wanted:
        raise ValueError(
            f"the critic has a vocabulary of {known} tokens and the policy of {wanted}; give a "
            "critic with the policy's tokenizer, or none to start from a copy of the policy"
        )
    context = context_of(critic.config)
    if context is not None and longest > context:
        raise ValueError(
            f"the critic's context is {context} tokens, and prompts with ppo.max_new_tokens have "
            f"up to {longest}; lower it, or give another critic"
        )


def check_processes(config: PPOConfig, count: int) -> None:
    """Every process needs a response to sample, and with sharding a row of every minibatch.

    With sharding all processes must make the same number of passes.  Without it, a process without
    a row adds nothing to the gradient.
    """
    name, rows = "rollouts", config.rollouts
    if config.sharding != "none":
        name, rows = "minibatch", config.minibatch
    if rows < count:
        raise ValueError(
            f"ppo.{name}={rows} leaves some of the {count} processes without a row; "
            f"raise it to at least {count}, or start fewer processes"
        )


def check_ends(ids: Sequence[int], model: Any) -> list[int]:
    """The ids that end a response; ValueError for one that the model cannot sample."""
    found = list(ids)
    for id in found:
        if not isinstance(id, int) or not 0 <= id < vocabulary_of(model):
            raise ValueError(
                f"eos_token_ids contains {id!r}, which is not a token id of the model "
                f"(0 to {vocabulary_of(model) - 1})"
            )
    return found


def check_categories(
    categories: Sequence[str] | None, prompts: Sequence[Any], config: PPOConfig
) -> list[str]:
    """One category per prompt; the same for all prompts by default."""
    if categories is None:
        if config.baseline == "category_mean":
            raise ValueError("ppo.baseline='category_mean' needs `categories`, one per prompt")
        return [""] * len(prompts)
    if len(categories) != len(prompts):
        raise ValueError(f"there are {len(categories)} categories for {len(prompts)} prompts")
    return list(categories)


def named_scores(returned: Any, texts: Sequence[str]) -> dict[str, list[float]]:
    """The result of a reward callable as component name to one score per completion.

    A plain sequence becomes the component "score".  Raises ValueError for a wrong number of scores,
    a score that is not finite, or the name of a metric.
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
        scores = _scores(values, name)
        if len(scores) != len(texts):
            raise ValueError(
                f"the reward callable returned {len(scores)} scores for {len(texts)} completions "
                f"(component {name!r})"
            )
        for score, text in zip(scores, texts, strict=True):
            if not abs(score) <= MAX_SCORE:  # NaN fails every comparison
                raise ValueError(
                    f"the reward callable returned {score} (component {name!r}) for the "
                    f"completion {text[:200]!r}; it must return finite numbers (float32)"
                )
        named[name] = scores
    return named


def _scores(values: Any, name: str) -> list[float]:
    """A list, array or tensor as one float per completion."""
    wrong = isinstance(values, str | bytes) or getattr(values, "ndim", 1) != 1
    try:
        if not wrong:
            return [float(value) for value in values]
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"the reward callable returned {str(values)[:60]!r} (component {name!r}); it must return "
        "a list with one number per completion"
    )


def check_reward(reward: Reward) -> dict[str, list[float]]:
    """Call the reward once on two short texts, to find a broken one before sampling."""
    probe = ["", "Yes."]
    try:
        inspect.signature(reward).bind([0, 0], probe)
    except ValueError:  # a builtin without a signature
        pass
    except TypeError:
        raise ValueError(
            f"the reward is {reward!r}; it must be a callable of (prompt indices, completions)"
        ) from None
    return named_scores(reward([0, 0], list(probe)), probe)


def check_weights(weights: Any) -> dict[str, float]:
    """`reward_weights` as a dict; ValueError unless they map names to finite numbers."""
    if not isinstance(weights, Mapping):
        raise ValueError(f"reward_weights={weights!r} must map component names to numbers")
    for name, weight in weights.items():
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"reward_weights[{name!r}]={weight!r} must be a finite number")
    return dict(weights)


def check_components(
    weights: Mapping[str, float], components: Mapping[str, Any], before: Sequence[str] | None
) -> None:
    """Every weight must belong to a component, and the components must be those of `before`."""
    found = ", ".join(sorted(components))
    unknown = sorted(set(weights) - set(components))
    if unknown:
        raise ValueError(
            f"reward_weights names {', '.join(unknown)}, but the reward callable returned {found}"
        )
    if before is not None and set(before) != set(components):
        raise ValueError(
            f"the reward callable returned {found}, but {', '.join(sorted(before))} before; "
            "it must return the same components every time"
        )
