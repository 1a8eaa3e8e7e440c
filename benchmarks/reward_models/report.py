"""Markdown tables of the seeds' results, and checks of the targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.common import exit_status, markdown
from pipeline.simulation.trials import Estimate, paired

Found = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""Figures by seed and arm."""

FIGURES = {
    "ties": (
        *("accuracy", "log_loss", "ece", "trained_log_loss", "trained_ece", "scale", "best_scale"),
        *("correlation", "prompt_correlation"),
    ),
    "annotators": (
        *("accuracy", "log_loss", "ece", "scale", "best_scale", "auc", "auc_of_slopes"),
    ),
    "times": ("accuracy", "log_loss", "ece", "correlation"),
    "judges": ("accuracy", "log_loss", "ece", "judge_slope"),
    "anchors": ("accuracy", "log_loss", "ece", "correlation", "prompt_correlation", "both_bad"),
    "shift": ("accuracy", "policy_accuracy", "best_of_4", "effective"),
    "pessimism": ("accuracy", "best_of_4"),
}
GAINS = {
    "ties": (
        ("half", "drop"),
        ("davidson", "drop"),
        ("rao_kupper", "drop"),
        ("ordinal", "drop"),
        ("ordinal", "rao_kupper"),
        ("rao_kupper", "bad-as-tie"),
    ),
    "annotators": (
        ("joint-30", "pooled-30"),
        ("oracle-30", "pooled-30"),
        ("joint-0", "pooled-0"),
    ),
    "times": (
        ("times", "choices"),
        ("times-strengths", "choices-strengths"),
        ("times-noise", "choices-noise"),
        ("times-strengths-noise", "choices-strengths-noise"),
    ),
    "judges": (
        ("people-400", "people-100"),
        ("sharp", "people-100"),
        ("verbose", "people-100"),
        ("guessing", "people-100"),
        ("sharp", "sharp-joint"),
        ("verbose", "verbose-joint"),
        ("guessing", "guessing-joint"),
        ("guessing-joint", "guessing-pooled"),
        ("verbose-routed", "verbose"),
        ("verbose", "verbose-alone"),
    ),
    "anchors": (("absolute", "tie"),),
    "shift": (("weighted", "all"), ("recent", "all")),
    "pessimism": (
        ("further", "stopped"),
        ("pessimistic", "stopped"),
        ("pessimistic", "further"),
        ("very-pessimistic", "further"),
    ),
}
COMPARED = {
    "ties": (
        *("accuracy", "log_loss", "ece", "trained_log_loss", "trained_ece"),
        *("correlation", "prompt_correlation"),
    ),
    "annotators": ("accuracy", "log_loss", "ece"),
    "times": ("accuracy", "log_loss", "ece", "correlation"),
    "judges": ("accuracy", "log_loss", "ece"),
    "anchors": ("accuracy", "log_loss", "ece", "correlation", "prompt_correlation"),
    "shift": ("accuracy", "policy_accuracy", "best_of_4"),
    "pessimism": ("accuracy", "best_of_4"),
}
SEEDS_NEEDED, WANTED_GAIN, WANTED_AUC = 10, 0.007, 0.95


def report(part: str, arms: Iterable[str], found: Found) -> int:
    """Print both tables; return 1 if there are enough seeds and a target is missed."""
    rows: list[tuple[Any, ...]] = []
    for arm in arms:
        of_arm = [each[arm] for each in found.values() if arm in each]
        if of_arm:
            cells = [mean(of_arm, name) for name in (*FIGURES[part], "epochs", "cpu_seconds")]
            rows.append((arm, len(of_arm), *cells))
    gains: list[tuple[Any, ...]] = []
    for ours, theirs in GAINS[part]:
        both = values(found, ours, "accuracy").keys() & values(found, theirs, "accuracy").keys()
        if both:
            differences = (gain(found, ours, theirs, name) for name in COMPARED[part])
            cells = [each.text(4, signed=True) for each in differences]
            gains.append((f"{ours} − {theirs}", len(both), *cells))
    names, compared = (
        [name.replace("_", " ") for name in figures] for figures in (FIGURES[part], COMPARED[part])
    )
    print(markdown(("arm", "seeds", *names, "epochs", "CPU seconds per training"), rows))
    print(f"\n{markdown(('paired difference', 'seeds', *compared), gains)}")
    return exit_status(list(_WANTED[part](found) if part in _WANTED else ()))


def wanted_ties(found: Found) -> Iterator[str]:
    """Missed targets: Rao and Kupper's or the ordinal model beats dropping ties."""
    arms = [arm for arm in ("rao_kupper", "ordinal") if enough(found, arm, "drop")]
    gains = {arm: [gain(found, arm, "drop", name) for name in ("log_loss", "ece")] for arm in arms}
    if gains and not any(
        all(surely(each, above=False) for each in both) for both in gains.values()
    ):
        yield "neither rao_kupper nor ordinal has a log-loss and an ECE surely below those of drop"


def wanted_annotators(found: Found) -> Iterator[str]:
    """Missed targets: a gain with bad annotators, no loss without, separation of the bad ones."""
    if enough(found, "joint-30", "pooled-30"):
        more = gain(found, "joint-30", "pooled-30", "accuracy")
        if not (more.mean >= WANTED_GAIN and surely(more, above=True)):
            yield f"with 30% bad annotators accuracy gains {more.text(3)}, not {WANTED_GAIN}"
        told = Estimate.of(list(values(found, "joint-30", "auc").values()))
        if told.mean < WANTED_AUC:
            yield f"the AUC of the reported weights is {told.text(3)}, not {WANTED_AUC}"
    if enough(found, "joint-0", "pooled-0"):
        less = gain(found, "joint-0", "pooled-0", "accuracy")
        if surely(less, above=False):
            yield f"without bad annotators accuracy loses: {less.text(3)}"


def wanted_times(found: Found) -> Iterator[str]:
    """Missed targets: a gain where clear pairs are decided faster, and no loss where they are not."""
    for ours, theirs in GAINS["times"]:
        if enough(found, ours, theirs):
            more = gain(found, ours, theirs, "accuracy")
            if ours.endswith("noise"):
                if surely(more, above=False):
                    yield f"{ours} loses accuracy: {more.text(3)}"
            elif not surely(more, above=True):
                yield f"{ours} does not surely gain accuracy: {more.text(3)}"


def wanted_judges(found: Found) -> Iterator[str]:
    """Missed targets: a judge that guesses costs no accuracy."""
    if enough(found, "guessing", "people-100"):
        less = gain(found, "guessing", "people-100", "accuracy")
        if surely(less, above=False):
            yield f"a judge that guesses costs accuracy: {less.text(3)}"


_WANTED = {
    "ties": wanted_ties,
    "annotators": wanted_annotators,
    "times": wanted_times,
    "judges": wanted_judges,
}


def values(found: Found, arm: str, name: str) -> dict[int, float]:
    """A figure of an arm by seed, for seeds that have it."""
    known = {seed: arms[arm].get(name) for seed, arms in found.items() if arm in arms}
    return {seed: value for seed, value in known.items() if value is not None}


def gain(found: Found, ours: str, theirs: str, name: str) -> Estimate:
    return Estimate.of(paired(values(found, ours, name), values(found, theirs, name)))


def surely(difference: Estimate, *, above: bool) -> bool:
    """Whether the whole interval is above 0, or below it."""
    if difference.low is None or difference.high is None:
        return False
    return difference.low > 0 if above else difference.high < 0


def enough(found: Found, *arms: str) -> bool:
    return sum(all(arm in each for arm in arms) for each in found.values()) >= SEEDS_NEEDED


def mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    known = [row[name] for row in rows if row.get(name) is not None]
    digits = 1 if name == "cpu_seconds" else 3
    return f"{sum(known) / len(known):.{digits}f}" if known else ""
