"""The settings of a run, and how they differ from those of the run before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storage.records import Run
from storage.tables import runs


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
    """The settings that differ from those of `run_before`; empty without one."""
    earlier = run_before(listed, run)
    return [] if earlier is None else difference(earlier.config, run.config)


def changed_in_all(listed: Iterable[Run]) -> dict[str, list[Changed]]:
    """`changed` of each run by its id; `listed` has all runs, oldest first."""
    newest: dict[str, Run] = {}
    found: dict[str, list[Changed]] = {}
    for run in listed:
        kind = runs.kind(run)
        found[run.id] = difference(newest[kind].config, run.config) if kind in newest else []
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
