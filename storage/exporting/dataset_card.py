"""The dataset card beside an export: what the data are, in the hub's form (YAML, then Markdown)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from storage.analysis.agreement import Kappa
from storage.records import Arm

MARK = "<!-- written by Kitestring -->"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**6, "100K<n<1M"))
_MOST_KAPPAS = 30

_TITLES = {
    "trl": "Preference pairs as text (TRL, standard format, explicit prompt)",
    "trl-conversational": "Preference pairs as chat messages (TRL, conversational format)",
    "trl-unpaired": "Completions labelled good or bad (TRL, unpaired preference, standard format)",
    "raw": "Judgments as they were given, one row each",
}
_COLUMNS = {
    "prompt": "the conversation so far; as text a transcript if it has several turns",
    "chosen": "the preferred response",
    "rejected": "the other response",
    "completion": "one response",
    "label": "whether that response was found good",
    "id": "the judgment",
    "comparison": "the pair that was judged",
    "item": "the item of an imported judgment",
    "iteration": "the turn of the loop that asked; 0 for pairs that came from a file",
    "arm": f"how the pair was chosen ({', '.join(get_args(Arm))})",
    "messages": "the prompt as chat messages",
    "prompt_role": "train, sft, or held-out or audit, which are not to be trained on",
    "response_a": "the response on the left of the screen",
    "response_b": "the response on the right",
    "model_a": "the model that wrote response_a",
    "model_b": "the model that wrote response_b",
    "annotator": "who judged",
    "annotator_kind": "person, simulated or model",
    "strength": "1 slightly, 2 clearly, 3 much; empty where it was not asked or not given",
    "criteria": "what was said on single criteria: a, b or tie",
    "comment": "free text of the annotator",
    "milliseconds": "from the pair on the screen to the answer",
    "shown_swapped": "whether the canonical first response stood on the right",
    "status": "current, revised (by a later judgment) or withdrawn",
    "replaces": "the judgment that this one revises",
    "withdrawn_at": "when the annotator took it back",
    "created_at": "when it was given (UTC)",
}
_OUTCOME = {
    "raw": "a, b, tie or both_bad, as pressed on the screen",
    "trl": "preference, tie or both_bad; in the latter two chosen and rejected mean nothing",
}

_PAIRED_TIES = {
    "drop": "Ties and both-bad judgments were left out.",
    "split": "A tie or both-bad judgment is two rows, one each way.",
    "keep": "A tie or both-bad judgment is one row that says so in the column outcome; which "
    "response is called chosen was drawn by a fair coin.",
}
_UNPAIRED_TIES = {
    "drop": "Ties were left out.",
    "split": "In a tie each response has two rows, one true and one false.",
    "keep": "In a tie both responses are true.",
}


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card tells; `annotators` maps published names to their judgments in the data."""

    format: str
    ties: str
    columns: Sequence[str]
    rows: int
    outcomes: Mapping[str, int]
    left_out: Mapping[str, int]
    annotators: Mapping[str, int]
    comparisons: int
    prompts: int
    models: Sequence[str]
    agreement: Mapping[str, Any]
    kappas: Sequence[Kappa]
    pseudonymised: bool
    data_files: str | None


def render_card(facts: CardFacts) -> str:
    """The card as text; the licence is left for the researcher to fill in."""
    sections = [
        _front_matter(facts),
        f"{MARK}\n\n# {_TITLES[facts.format]}",
        _overview(facts),
        _columns(facts),
        _ties(facts),
        _annotators(facts),
        _agreement(facts),
        "## Licence\n\nTo be filled in by whoever publishes this dataset. It must suit the "
        "prompts, the models that wrote the responses, and what the annotators agreed to.",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(facts: CardFacts) -> str:
    size = next((name for below, name in _SIZES if facts.rows < below), "n>1M")
    lines = ["---", "tags:", *(f"- {tag}" for tag in ("preference", "rlhf", "trl", "kitestring"))]
    lines += ["size_categories:", f"- {size}"]
    if facts.data_files:
        lines += ["configs:", "- config_name: default", "  data_files:", "  - split: train"]
        lines += [f"    path: {facts.data_files}"]
    return "\n".join([*lines, "---"])


def _overview(facts: CardFacts) -> str:
    said = ", ".join(f"{n} {_outcome(name)}" for name, n in sorted(facts.outcomes.items()))
    models = ", ".join(f"`{_one_line(name)}`" for name in facts.models)
    return (
        f"{facts.rows} rows from {sum(facts.annotators.values())} judgments of "
        f"{facts.comparisons} pairs of responses to {facts.prompts} prompts, by "
        f"{len(facts.annotators)} annotators. What was said: {said}.\n\n"
        f"The responses were written by {models}."
    )


def _outcome(name: str) -> str:
    return {"preference": "preferences", "tie": "ties", "both_bad": "both bad"}.get(name, name)


def _columns(facts: CardFacts) -> str:
    outcome = _OUTCOME["raw" if facts.format == "raw" else "trl"]
    meanings = _COLUMNS | {"outcome": outcome}
    rows = "\n".join(f"| {name} | {meanings[name]} |" for name in facts.columns)
    return f"## Columns\n\n| column | meaning |\n|---|---|\n{rows}"


def _ties(facts: CardFacts) -> str:
    if facts.format == "raw":
        text = "Ties and both-bad judgments are in the data with their own outcome."
    elif facts.format == "trl-unpaired":
        text = f"{_UNPAIRED_TIES[facts.ties]} In a both-bad judgment both responses are false."
    else:
        text = _PAIRED_TIES[facts.ties]
    left = ", ".join(f"{n} {_outcome(name)}" for name, n in sorted(facts.left_out.items()))
    return f"## Ties and both bad\n\n{text}" + (f" Left out: {left}." if left else "")


def _annotators(facts: CardFacts) -> str:
    if facts.pseudonymised:
        text = (
            "Annotators have pseudonyms, the same in every export of this workspace; only a key "
            "that stays in the workspace leads back to a name."
        )
    else:
        text = "Annotators appear under the names they had in the workspace."
    if facts.format == "raw":
        text += " Comments are free text and may name people: read them before you publish."
    counts = sorted(facts.annotators.items(), key=lambda each: (-each[1], each[0]))
    if facts.format != "raw":
        return f"## Annotators\n\n{text} This format does not say who judged what."
    rows = "\n".join(f"| {_cell(name)} | {n} |" for name, n in counts)
    return f"## Annotators\n\n{text}\n\n| annotator | judgments |\n|---|---|\n{rows}"


def _agreement(facts: CardFacts) -> str:
    found = facts.agreement
    if not found["items"]:
        return "## Agreement\n\nNo pair was judged by two annotators, so agreement is unknown."
    text = (
        f"{found['items']} pairs were judged by two or more annotators. Percent agreement "
        f"{found['percent']:.1%}, Krippendorff's alpha (nominal) {_number(found['alpha'])}"
        f"{_interval(found['alpha_interval'])}, ordinal {_number(found['alpha_ordinal'])}"
        f"{_interval(found['alpha_ordinal_interval'])}."
    )
    if not facts.kappas or len(facts.kappas) > _MOST_KAPPAS:
        return f"## Agreement\n\n{text}"
    pairs = sorted((*sorted((k.one, k.other)), k.items, k.kappa) for k in facts.kappas)
    rows = "\n".join(
        f"| {_cell(one)} | {_cell(other)} | {_number(kappa)} | {items} |"
        for one, other, items, kappa in pairs
    )
    header = "| annotator | annotator | Cohen's kappa | pairs |\n|---|---|---|---|"
    return f"## Agreement\n\n{text}\n\n{header}\n{rows}"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return f" (95% interval {bounds[0]:.3f} to {bounds[1]:.3f})" if bounds else ""


def _one_line(name: str) -> str:
    """A name that cannot end a table cell, a code span or a line."""
    return " ".join(name.replace("|", "/").replace("`", "'").replace("<", "‹").split())


_MARKS = str.maketrans({">": "›", "[": "(", "]": ")", "&": "+"})


def _cell(name: str) -> str:
    """A name in running text that is no Markdown: no link, image, emphasis, HTML or entity.

    What looks like an address is broken: the hub makes a link of one that stands alone.
    """
    text = re.sub(r"([*_~!#\\])", r"\\\1", _one_line(name).translate(_MARKS))
    return re.sub(r"(?i)(://|www\.|@)", lambda found: f"{found[0][0]}\u200b{found[0][1:]}", text)
