"""Reward shaping: named components added to the reward model's score, each weighted and logged.

    components = load({"repetition": -1.0, "my_package.rewards:politeness": 0.5}, config)
    components["repetition"](conversations, completions)  # one score per completion

A component is a callable of (conversations, completions).  A user's `module:function` takes one
(prompt, completion) or one (completion).  Only the classifier loads torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.plugins import load_function, require_in_subprocess
from pipeline.config.shaping import ShapingConfig
from pipeline.shaping import lexical, sycophancy
from pipeline.shaping.component import Component, Conversation, of_pair, of_text
from pipeline.shaping.references import Contrast


def built_in(config: ShapingConfig) -> dict[str, Component]:
    """The built-in components that need no file, by name."""
    return {
        "length": of_text(lambda text: lexical.words(text) / 100),
        "overlong": of_text(
            lambda text: lexical.overlong(text, limit=config.words, buffer=config.words_buffer)
        ),
        "format": of_text(lambda text: lexical.matches(text, config.format)),
        "relevance": of_pair(lexical.relevance),
        "repetition": of_text(lexical.repetition),
        "sentiment": of_text(lexical.sentiment),
        "toxicity": of_text(lexical.toxicity),
        "hedging": of_text(lexical.hedging),
        "buzzwords": of_text(lexical.buzzwords),
        "sycophancy": of_pair(sycophancy.agrees_or_flatters),
        "echo": of_pair(sycophancy.echoes),
        "honesty": of_pair(sycophancy.corrects_or_admits),
    }


def from_files(config: ShapingConfig, device: Any) -> dict[str, Callable[[], Component]]:
    """Components that need a user's file, by name; `ShapingConfig` requires that it is set."""

    def classifier() -> Component:
        from pipeline.shaping.classifier import SycophancyClassifier  # noqa: PLC0415 (loads torch)

        return SycophancyClassifier.load(Path(config.classifier or ""), device=device)

    return {
        "contrast": lambda: Contrast.load(Path(config.references or "")),
        "sycophancy_classifier": classifier,
    }


def load(
    weights: Mapping[str, float], config: ShapingConfig, *, device: Any = "cpu"
) -> dict[str, Component]:
    """The components that `weights` names; ValueError for one that cannot be loaded.

    A classifier runs on `device`.
    """
    known, made = built_in(config), from_files(config, device)
    found: dict[str, Component] = {}
    for name in weights:
        if name in known:
            found[name] = known[name]
        elif name in made:
            found[name] = made[name]()
        else:
            found[name] = imported(name)
    return found


def require_prompts(
    components: Mapping[str, Component], conversations: Sequence[Conversation]
) -> None:
    """ValueError if a component can score none of a run's prompts."""
    for component in components.values():
        if isinstance(component, Contrast):
            component.require(conversations)


def require_available(config: ShapingConfig) -> None:
    """ValueError if a ``module:function`` or a file of the settings is not available.

    Functions are imported in a separate process (`pipeline.config.plugins`).
    """
    references, classifier = config.references, config.classifier
    if references is not None and not Path(references).is_file():
        raise ValueError(f"shaping.references={references!r}: there is no such file")
    if classifier is not None and not Path(classifier).is_dir():
        raise ValueError(f"shaping.classifier={classifier!r}: there is no such folder")
    if config.functions:
        require_in_subprocess("pipeline.shaping.functions", sorted(config.functions))


def imported(path: str) -> Component:
    """`module:function` as a component; it takes (completion) or (prompt, completion)."""
    function = load_function(path, what="shaping component")
    count = len(inspect.signature(function).parameters)
    if count == 1:
        return of_text(function)
    if count == 2:
        return of_pair(function)
    raise ValueError(
        f"the shaping component {path!r} takes {count} arguments; it must take (completion) or "
        "(prompt, completion)"
    )
