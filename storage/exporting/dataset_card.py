"""The dataset card of an export, in the hub's format: YAML, then Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import get_args

from storage.analysis.agreement import Agreement
from storage.exporting.card_evidence import (
    KindCount,
    Rulings,
    judged_by,
    ruled,
    under_guidelines,
)
from storage.exporting.formats import (
    EDIT_FORMATS,
    DatasetRow,
    ExportedJudgment,
    Format,
    Ties,
    schema,
)
from storage.exporting.writing import is_formula
from storage.records import AnnotatorKind, Arm, Message
from storage.wording import plural

MARK = "<!-- written by Kitestring -->"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**6, "100K<n<1M"))
_MAX_KAPPAS = 30

_TITLES = {
    "trl": "Preference pairs as text (TRL, standard format, explicit prompt)",
    "trl-conversational": "Preference pairs as chat messages (TRL, conversational format)",
    "trl-unpaired": "Completions labeled good or bad (TRL, unpaired preference, standard format)",
    "trl-edits": "Responses edited by people, preferred to the originals (TRL, conversational format)",
    "sft": "Conversations with a response edited by a person (TRL, language modeling)",
    "raw": "Judgments in their original form, one row each",
}
_COLUMNS = {
    "prompt": "the conversation so far; in text formats a transcript if it has several turns",
    "chosen": "the preferred response",
    "rejected": "the other response",
    "completion": "one response",
    "label": "true for the preferred response, false for the other; for ties and both bad see below",
    "id": "the judgment",
    "comparison": "the id of the judged pair",
    "item": "the item of an imported judgment",
    "iteration": "the iteration of the loop; 0 for pairs from a file",
    "arm": f"how the pair was chosen ({', '.join(get_args(Arm))})",
    "expected": "the answer of a gold or practice pair, a or b",
    "explanation": "the explanation of a practice pair",
    "repeats": "the judgment that a re-ask repeats",
    "conversation": "the live conversation of a pair of the arm live",
    "turn": "the turn of that conversation, from 1",
    "messages": "the prompt as chat messages",
    "prompt_role": "train, sft, live, probe, held-out or audit; do not train on the last two",
    "response_a": "the response on the left of the screen",
    "response_b": "the response on the right",
    "model_a": "the model that wrote response_a",
    "model_b": "the model that wrote response_b",
    "annotator": "the annotator",
    "annotator_kind": "person, simulated or model",
    "strength": "1 slightly, 2 clearly, 3 much; empty if not given",
    "criteria": "outcomes for single criteria: a, b or tie",
    "reasons": "the annotator's reason tags of each response, by a and b",
    "safety": "the safety label of each response, by a and b: safe, borderline or unsafe",
    "marks": "the passages that the annotator marked in each response, by a and b, with the reason, the "
    "quote, and its offsets in the response (start, end) and in the text that the page showed",
    "comment": "free text by the annotator",
    "flags": "flags of the pair by any annotator, with comment, state (open, cleared or undone) and the "
    "researchers' answers",
    "edit": "the preferred response as the annotator improved it; empty if they did not",
    "guidelines": "the version of the guidelines on the annotator's page; empty if not known",
    "milliseconds": "time from the display of the pair to the answer",
    "shown_swapped": "whether the response stored first was shown on the right",
    "status": "current, revised (by a later judgment) or withdrawn",
    "ruling": "the newest ruling of an adjudicator on the pair: a, b, tie or both_bad",
    "ruling_reason": "the reason of the ruling",
    "excluded": "whether a researcher excluded it from training and figures",
    "exclusion_reason": "why it was excluded",
    "replaces": "the judgment that this one revises",
    "withdrawn_at": "when the annotator withdrew it",
    "created_at": "when it was given (UTC)",
}
_OUTCOME = {
    "raw": "a, b, tie or both_bad, as on the screen",
    "trl": "preference, tie or both_bad; for the last two, chosen and rejected have no meaning",
}

_PAIRED_TIES = {
    "drop": "Ties and both-bad judgments were left out.",
    "split": "A tie or both-bad judgment is two rows, one for each order of the responses.",
    "keep": "A tie or both-bad judgment is one row with that outcome in the column outcome; a "
    "fair coin decided which response is called chosen.",
}
_UNPAIRED_TIES = {
    "drop": "Ties were left out.",
    "split": "In a tie each response has two rows, one true and one false.",
    "keep": "In a tie both responses are true.",
}


@dataclass
class Contents:
    """What an export contains, counted while its rows are written.

    `outcomes` counts all judgments by outcome.  `left_out` counts the judgments without a row by
    reason, `annotators` the judgments with rows by kind and published name, `guidelines` those by
    version.
    """

    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    annotators: Counter[tuple[AnnotatorKind, str]] = field(default_factory=Counter)
    guidelines: Counter[str | None] = field(default_factory=Counter)
    comparisons: set[str] = field(default_factory=set)
    prompts: set[tuple[Message, ...]] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    formulas: int = 0
    """The number of cells that a spreadsheet would run as formulas."""

    def add(
        self, judged: ExportedJudgment, rows: Sequence[DatasetRow], *, left_out: str | None
    ) -> None:
        """Count a judgment and its rows."""
        outcome = "preference" if judged.decided else judged.outcome
        self.outcomes[outcome] += 1
        if not rows:
            self.left_out[left_out or outcome] += 1
            return
        self.rows += len(rows)
        self.annotators[judged.annotator_kind, judged.annotator] += 1
        self.guidelines[judged.guidelines] += 1
        self.comparisons.add(judged.comparison)
        self.prompts.add(judged.messages)
        self.models |= {judged.first_model, judged.second_model}
        self.formulas += sum(map(is_formula, chain.from_iterable(row.values() for row in rows)))


def render_card(
    contents: Contents,
    *,
    format: Format,
    ties: Ties,
    agreement: Agreement,
    rulings: Rulings,
    pseudonymized: bool,
    data_files: str | None,
) -> str:
    """The card as text; the researcher fills in the license.

    `data_files` is the path of the rows relative to the card, for the hub.
    """
    sections = [
        _front_matter(contents.rows, data_files),
        f"{MARK}\n\n# {_TITLES[format]}",
        _overview(contents),
        _columns(format, ties),
        _ties(format, ties, contents.left_out),
        _annotators(contents, format, pseudonymized=pseudonymized),
        f"## Guidelines\n\nJudgments by version: {under_guidelines(contents.guidelines)}.",
        _agreement(agreement),
        f"## Rulings\n\nRulings of adjudicators on pairs of the workspace: {ruled(rulings)}",
        "## License\n\nTo be added by the publisher of this dataset. It must be compatible with the "
        "prompts, the models that wrote the responses, and the consent of the annotators.",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(count: int, data_files: str | None) -> str:
    size = next((name for below, name in _SIZES if count < below), "n>1M")
    lines = ["---", "tags:", *(f"- {tag}" for tag in ("preference", "rlhf", "trl", "kitestring"))]
    lines += ["size_categories:", f"- {size}"]
    if data_files:
        lines += ["configs:", "- config_name: default", "  data_files:", "  - split: train"]
        lines += [f"    path: {data_files}"]
    return "\n".join([*lines, "---"])


def _overview(contents: Contents) -> str:
    models = ", ".join(f"`{_one_line(name)}`" for name in sorted(contents.models))
    used, stored = contents.annotators.total(), contents.outcomes.total()
    return (
        f"{plural(contents.rows, 'row')} from {used} of {plural(stored, 'judgment')}: on "
        f"{plural(len(contents.comparisons), 'pair')} of responses to "
        f"{plural(len(contents.prompts), 'prompt')}, by "
        f"{plural(len(contents.annotators), 'annotator')}. Outcomes of all judgments: "
        f"{_counted(contents.outcomes)}.\n\n"
        f"The responses were written by {models}."
    )


def _counted(outcomes: Mapping[str, int]) -> str:
    counted = {"preference", "tie"}
    words = {"both_bad": "both bad"}
    return ", ".join(
        plural(n, name) if name in counted else f"{n} {words.get(name, name)}"
        for name, n in sorted(outcomes.items())
    )


def _columns(format: Format, ties: Ties) -> str:
    meanings = _COLUMNS | {"outcome": _OUTCOME["raw" if format == "raw" else "trl"]}
    rows = "\n".join(f"| {name} | {meanings[name]} |" for name in schema(format, ties).names)
    return f"## Columns\n\n| column | meaning |\n|---|---|\n{rows}"


def _ties(format: Format, ties: Ties, left_out: Mapping[str, int]) -> str:
    if format == "raw":
        text = "Ties and both-bad judgments are in the data with their own outcome."
    elif format in EDIT_FORMATS:
        text = "Only judgments with an edited response are in the data; they all prefer a response."
    elif format == "trl-unpaired":
        text = f"{_UNPAIRED_TIES[ties]} In a both-bad judgment both responses are false."
    else:
        text = _PAIRED_TIES[ties]
    return f"## Ties and both bad\n\n{text}" + (
        f" Left out: {_counted(left_out)}." if left_out else ""
    )


def _annotators(contents: Contents, format: Format, *, pseudonymized: bool) -> str:
    if pseudonymized:
        text = (
            "Annotators have pseudonyms, the same in every export of this workspace. Names can be "
            "recovered only with a key that stays in the workspace."
        )
    else:
        text = "Annotators appear under their names in the workspace."
    text = f"## Annotators\n\n{_by_kind(contents)}\n\n{text}"
    if format != "raw":
        return f"{text} This format does not name the annotator of a row."
    text += " Comments are free text and may name people: read them before you publish."
    ordered = sorted(contents.annotators.items(), key=lambda each: (-each[1], each[0][1]))
    rows = "\n".join(f"| {_cell(name)} | {kind} | {n} |" for (kind, name), n in ordered)
    return f"{text}\n\n| annotator | kind | judgments |\n|---|---|---|\n{rows}"


def _by_kind(contents: Contents) -> str:
    """The judgments by kind of annotator; a reader must not take a simulation for people."""
    kinds: list[AnnotatorKind] = sorted({kind for kind, _ in contents.annotators})
    counts = [
        KindCount(
            kind=kind,
            judgments=sum(n for (each, _), n in contents.annotators.items() if each == kind),
            annotators=sum(each == kind for each, _ in contents.annotators),
        )
        for kind in kinds
    ]
    return f"{judged_by(counts)}."


def _agreement(found: Agreement) -> str:
    if not found.items:
        return "## Agreement\n\nNo pair was judged by two annotators, so agreement is unknown."
    text = (
        f"{plural(found.items, 'pair')} {'was' if found.items == 1 else 'were'} judged by two or more annotators. Percent agreement "
        f"{found.percent:.1%}, Krippendorff's alpha (nominal) {_number(found.alpha)}"
        f"{_interval(found.alpha_interval)}, ordinal {_number(found.alpha_ordinal)}"
        f"{_interval(found.alpha_ordinal_interval)}."
    )
    if not found.kappas or len(found.kappas) > _MAX_KAPPAS:
        return f"## Agreement\n\n{text}"
    rows = "\n".join(
        f"| {' | '.join(map(_cell, each.annotators))} | {_number(each.kappa)} | {each.items} |"
        for each in found.kappas
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
    """A name with its Markdown neutralized: no link, image, emphasis, HTML or entity.

    Addresses are broken up, because the hub turns them into links.
    """
    text = re.sub(r"([*_~!#\\])", r"\\\1", _one_line(name).translate(_MARKS))
    return re.sub(r"(?i)(://|www\.|@)", lambda found: f"{found[0][0]}\u200b{found[0][1:]}", text)
