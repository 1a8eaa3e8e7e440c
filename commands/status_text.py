"""The status of a workspace as text to read: labels and values. Pure functions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from commands.app import table_lines
from storage.analysis.agreement import Agreement
from storage.analysis.agreement_statistics import MIN_ITEMS
from storage.reports import LabelBudget
from storage.status import (
    CheckFigures,
    ChecksStatus,
    IterationStatus,
    RewardModelStatus,
    RunState,
    Status,
)
from storage.tables.runs.run_resources import GpuUse, ResourceUse
from storage.wording import plural

WIDTH = 20
"""Characters of a label."""
_KINDS = {"person": "people", "model": "models", "simulated": "simulated annotators"}
LINE = 98
"""Characters of a line of prose."""
Row = tuple[str, str]


def lines(found: Status) -> Iterator[str]:
    """The status in sections with an empty line between them; what is empty is left out."""
    sections = [
        [f"Needs attention: {found.trouble}"] if found.trouble else [],
        _section(*_iteration(found.iteration, found.prompts)),
        _budget(found.label_budget),
        _section("Data", _data(found)),
        _section("Agreement", _agreement(found.agreement)) + _kappas(found.agreement),
        _section("Checks of annotators", _checks(found.checks)) + _checked(found.checks),
        _section("Models", _models(found)),
        _runs(found.runs),
        _section("Running stage", _resources(found.resources)),
    ]
    for i, section in enumerate(each for each in sections if each):
        yield from ["", *section] if i else section


def _section(title: str, rows: Iterable[Row]) -> list[str]:
    shown = [f"  {label:<{WIDTH}}{value}" for label, value in rows if value]
    return [title, *shown] if shown else []


def _table(rows: Iterable[dict[str, str]]) -> list[str]:
    return [f"    {line}" for line in table_lines(list(rows))]


def _runs(found: Sequence[RunState]) -> list[str]:
    rows = [
        {
            "run": run.id,
            "stage": run.name,
            "status": run.status,
            "done": f"{run.progress:.0%}",
            "message": run.reason or run.message,
        }
        for run in found
    ]
    return ["Runs of the iteration", *_table(rows)] if rows else []


def _resources(found: ResourceUse | None) -> list[Row]:
    if found is None:
        return []
    cores = f" of {found.cores} cores" if found.cores else " cores"
    memory = f"{_gigabytes(found.memory)}, peak {_gigabytes(found.peak)}"
    if found.total and found.available is not None:
        free = f"{_gigabytes(found.available)} of {_gigabytes(found.total)}"
        memory += f"; machine: {free} free"
    return [
        ("CPU", f"{found.cpu:.1f}{cores}, {found.mean_cpu:.1f} on average"),
        ("Memory", memory),
        *((f"GPU {i}", _gpu(gpu)) for i, gpu in enumerate(found.gpus)),
        ("GPU", "" if found.gpus else "none in use"),
    ]


def _gpu(found: GpuUse) -> str:
    busy = "" if found.utilisation is None else f", {found.utilisation:.0%} busy"
    memory = f"{_gigabytes(found.memory)} of {_gigabytes(found.total)}"
    return f"{found.name}: {memory}, peak {_gigabytes(found.peak)}{busy}"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _iteration(
    current: IterationStatus | None, prompts: Mapping[str, int]
) -> tuple[str, list[Row]]:
    if current is None:
        start = (
            "`serve` starts the loop"
            if prompts.get("train")
            else "import prompts; for the demo, `serve` adds them"
        )
        return "No iteration yet", [("Next step", start)]
    arms = ", ".join(f"{arm} {count:,}" for arm, count in current.labels_by_arm.items())
    labels = f"{current.labels:,} of {current.labels_wanted:,}"
    return f"Iteration {current.number}", [
        ("Phase", current.phase),
        ("Method", current.method),
        ("Labels", f"{labels} ({arms})" if arms else labels),
        ("Verdict", current.verdict or ""),
    ]


def _budget(found: LabelBudget | None) -> list[str]:
    said = [found.says, found.blocked, found.starts] if found and found.phase == "labeling" else []
    lines = [f"  {line}" for text in said for line in textwrap.wrap(text, LINE)]
    return ["Labels needed", *lines] if lines else []


def _data(found: Status) -> list[Row]:
    kinds = ", ".join(
        f"{count:,} by {_KINDS.get(kind, kind)}" for kind, count in found.judgments_by_kind.items()
    )
    judgments = kinds or ("none yet" if found.comparisons else "")
    return [
        ("Prompts", ", ".join(f"{count:,} {role}" for role, count in found.prompts.items())),
        ("Pairs", f"{found.comparisons:,}" if found.comparisons else ""),
        ("Judgments", judgments),
        ("Edited responses", f"{found.edits:,}" if found.edits else ""),
        ("Have judged", plural(found.annotators, "annotator") if found.annotators else ""),
    ]


def _agreement(found: Agreement) -> list[Row]:
    if not found.items:
        return []
    few = " (too few for a reliable figure)" if found.items < MIN_ITEMS else ""
    return [
        ("Measured on", f"{plural(found.items, 'pair')} judged by two or more people{few}"),
        ("Same answer", _percent(found.percent, found.percent_interval)),
        ("Krippendorff's α", _number(found.alpha, found.alpha_interval)),
        ("Ordinal α", _number(found.alpha_ordinal, found.alpha_ordinal_interval)),
    ]


def _kappas(found: Agreement) -> list[str]:
    rows = [
        {
            "annotators": ", ".join(each.annotators),
            "κ": _number(each.kappa, each.interval) or "–",
            "pairs": f"{each.items:,}",
        }
        for each in found.kappas
    ]
    return ["  Cohen's κ of two annotators", *_table(rows)] if rows else []


def _checks(found: ChecksStatus) -> list[Row]:
    asked = "asked of annotators first" if found.practice_asked else "not asked"
    practice = f"{plural(found.practice_pairs, 'pair')}, {asked}" if found.practice_pairs else ""
    return [
        ("Gold pairs", f"{found.gold_pairs:,}" if found.gold_pairs else ""),
        ("Gold answers", _matched(found.gold)),
        ("Re-asked answers", _matched(found.reask)),
        ("Practice", practice),
    ]


def _checked(found: ChecksStatus) -> list[str]:
    return (
        _table(
            {
                "annotator": each.name,
                "gold": _matched(each.gold) or "–",
                "re-asked": _matched(each.reask) or "–",
                "practice": _matched(each.practice) or "–",
                "practice round": each.practice_state,
            }
            for each in found.annotators
        )
        if found.annotators
        else []
    )


def _matched(found: CheckFigures) -> str:
    if not found.answered:
        return ""
    return f"{found.matched:,} of {found.answered:,} as expected, {_percent(found.share, found.interval)}"


def _models(found: Status) -> list[Row]:
    policy = found.policy
    named = (
        ""
        if policy is None
        else f"{policy.name} (reference)"
        if policy.role == "sft"
        else policy.name
    )
    return [("Policy", named), ("Reward model", _reward_model(found.reward_model))]


def _reward_model(found: RewardModelStatus | None) -> str:
    if found is None:
        return ""
    parts = []
    if found.accuracy is not None:
        measured = found.held_out_preferences
        on = f" on {plural(measured, 'held-out preference')}" if measured is not None else ""
        parts.append(f"accuracy {found.accuracy:.0%}{on}")
    if found.log_loss is not None:
        parts.append(f"log-loss {found.log_loss:.3g}")
    if found.ece is not None:
        parts.append(f"calibration error {found.ece:.0%}")
    return f"{found.id}: {', '.join(parts)}" if parts else found.id


def _percent(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" + (f" ({interval[0]:.0%} to {interval[1]:.0%})" if interval else "")


def _number(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
