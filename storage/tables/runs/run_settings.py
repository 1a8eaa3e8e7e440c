"""The settings of a run, and how they differ from those of the run before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storage.records import Run, Stage
from storage.tables.runs import runs

READ_BY: Mapping[Stage, tuple[str, ...]] = {
    "sft": ("model", "sft", "worker", "seed"),
    "sampling": ("sampling", "labeling", "gate.labels", "gate.most", "model.dtype", "worker", "seed"),
    "reward": (
        "reward", "sampling.batch", "ppo.temperature", "ppo.max_new_tokens", "model.dtype",
        "model.long_rows", "worker", "seed",
    ),
    "policy": (
        "optimize", "ppo", "shaping", "reward.learn_from", "gate.kl_raise", "gate.canary",
        "gate.canary_loss", "gate.canary_every", "model.dtype", "model.long_rows", "worker", "seed",
    ),
    "evaluate": (
        "evaluate", "ppo.temperature", "sampling", "shaping", "gate.kl_discount", "gate.canary",
        "gate.canary_loss", "model.dtype", "worker", "seed",
    ),
}  # fmt: skip
"""The settings or sections that each stage reads; the page offers them for another attempt."""


def reads(stage: Stage, name: str) -> bool:
    """Whether a stage reads the setting ``section.name``."""
    return any(kind in READ_BY[stage] for kind in (name, name.partition(".")[0]))


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A setting whose value differs; None where a version did not have it."""

    name: str
    before: Any
    now: Any


def settings_of(run: Run) -> dict[str, Any]:
    """Every setting as ``section.name`` with its value, in the order of the configuration."""
    return _flat(run.config)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            found[name] = value
    return found


def run_before(listed: Iterable[Run], run: Run) -> Run | None:
    """The newest run of the same kind before this one; `listed` has the runs, oldest first."""
    earlier = None
    for each in listed:
        if each.id == run.id:
            break
        if runs.kind(each) == runs.kind(run) and each.config:
            earlier = each
    return earlier


def last_trained(listed: Iterable[Run]) -> Run | None:
    """The newest run that trained a policy; without one, the newest that trained a reward model."""
    newest = {run.stage: run for run in listed if run.config}
    return newest.get("policy") or newest.get("reward")


def changed(listed: Iterable[Run], run: Run) -> list[Changed]:
    """The settings that differ from those of `run_before` and that the stage reads; empty without one."""
    earlier = run_before(listed, run)
    return [] if earlier is None else _read_difference(earlier, run)


def _read_difference(earlier: Run, run: Run) -> list[Changed]:
    found = difference(earlier.config, run.config)
    return [each for each in found if reads(run.stage, each.name)]


def changed_in_all(listed: Iterable[Run]) -> dict[str, list[Changed]]:
    """`changed` of each run by its id; `listed` has all runs, oldest first."""
    newest: dict[str, Run] = {}
    found: dict[str, list[Changed]] = {}
    for run in listed:
        kind = runs.kind(run)
        found[run.id] = _read_difference(newest[kind], run) if kind in newest else []
        if run.config:
            newest[kind] = run
    return found


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Changed]:
    """The settings that differ between two stored configurations; empty if one is missing."""
    if not before or not now:
        return []
    was, found = _flat(before), _flat(now)
    names = [*found, *(name for name in was if name not in found)]
    return [
        Changed(name=name, before=was.get(name), now=found.get(name))
        for name in names
        if was.get(name) != found.get(name)
    ]
