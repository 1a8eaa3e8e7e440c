"""Records of Argilla 2: `dataset.records.to_json`, `to_list(flatten=True)`, hub datasets, and records
as its server sends them.

A label or ranking question has the preference.  Only submitted responses are judgments, and a record
without one is a pair to be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from storage.importing.files.filetypes import is_missing
from storage.importing.sources.source import (
    ANSWERS,
    PERSON,
    Source,
    Translated,
    Values,
    outcome_of,
    pair_of,
    prompt_of,
)

_RECORD = (
    "id",
    "status",
    "_server_id",
    "metadata",
    "vectors",
    "score",
    "inserted_at",
    "updated_at",
)


_NO_STATUS = (
    "the responses have no status, so drafts and discarded ones count as submitted; export with "
    "dataset.records.to_list(flatten=True), which has it"
)


class _Said(NamedTuple):
    value: Any
    user: str
    status: str | None


def _translate(row: Values, names: Mapping[str, str]) -> Translated:
    fields, questions = _nested(row) if isinstance(row.get("fields"), Mapping) else _flat(row)
    a, b = pair_of(fields, names)
    prompt = prompt_of(fields, names, besides=(a, b))
    pair = {
        "messages" if isinstance(prompt, list) else "prompt": prompt,
        "response_a": fields[a],
        "response_b": fields[b],
    }
    found = Translated()
    question = _question(questions, a, b, names)
    comments = {said.user: said.value for said in questions.get(names.get("comment", ""), [])}
    for said in questions.get(question, []):
        who = names.get(f"user-{said.user}", said.user)
        if said.status not in (None, "submitted"):
            found.left_out.append(f"the {said.status} response of {who}")
            continue
        outcome = _outcome(said.value, a, b, names)
        if outcome is None:
            raise ValueError(
                f"{question} is {said.value!r}, which is no choice between {a} and {b}; say what it means "
                "with --map answer-a=VALUE (or answer-b, answer-tie, answer-both-bad)"
            )
        if said.status is None:
            found.warnings.append(_NO_STATUS)
        vote = pair | {"annotator": who, "outcome": outcome}
        found.judgments.append(vote | ({"comment": c} if (c := comments.get(said.user)) else {}))
    if not found.judgments:
        found.pairs.append(pair)
    if not found.judgments and not found.left_out:
        found.left_out.append(
            "a record without a response; import the file as pairs too, and it is judged here"
        )
    return found


def _nested(row: Values) -> tuple[Values, dict[str, list[_Said]]]:
    responses = row.get("responses") or {}
    if isinstance(responses, list):
        return row["fields"], _by_question(responses)
    questions = {
        name: [
            _Said(each.get("value"), str(each.get("user_id")), each.get("status"))
            for each in given or ()
        ]
        for name, given in responses.items()
    }
    return row["fields"], questions


def _by_question(responses: list[Any]) -> dict[str, list[_Said]]:
    """The answers in the responses of the server: one for each person, with all questions."""
    questions: dict[str, list[_Said]] = {}
    for each in responses:
        for name, answer in (each.get("values") or {}).items():
            said = _Said(answer.get("value"), str(each.get("user_id")), each.get("status"))
            questions.setdefault(name, []).append(said)
    return questions


def _flat(row: Values) -> tuple[Values, dict[str, list[_Said]]]:
    """Columns such as `preference.responses`, `….responses.users` and `….responses.status`."""
    questions: dict[str, list[_Said]] = {}
    for column in row:
        name, dot, rest = column.rpartition(".responses")
        if dot and not rest:
            users = row.get(f"{column}.users") or ()
            states = row.get(f"{column}.status") or ()
            given = zip_longest(row[column] or (), users, states)
            questions[name] = [_Said(value, str(user), state) for value, user, state in given]
    fields = {
        name: value
        for name, value in row.items()
        if name not in _RECORD
        and ".responses" not in name
        and ".suggestion" not in name
        and not is_missing(value)
    }
    return fields, questions


def _question(
    questions: Mapping[str, list[_Said]], a: str, b: str, names: Mapping[str, str]
) -> str:
    """The question with the preference: the one named, or the only one whose answers can be read."""
    if chosen := names.get("question"):
        if questions and chosen not in questions:
            raise ValueError(
                f"there is no question {chosen!r}; the questions are {', '.join(questions)}"
            )
        return chosen
    readable = [
        name
        for name, given in questions.items()
        if given
        and all(_outcome(said.value, a, b, names) for said in given if said.value is not None)
    ]
    answered = [name for name, given in questions.items() if given]
    if len(readable) == 1 or len(answered) <= 1:
        return "".join(readable or answered)
    if readable:
        raise ValueError(
            "it is not clear which question has the preference; name it with --map question=NAME. The "
            f"questions are {', '.join(questions)}"
        )
    said = "; ".join(f"{name} is {questions[name][0].value!r}" for name in answered)
    raise ValueError(
        f"no question has an answer that is a choice between {a} and {b}: {said}. Name the question with "
        "--map question=NAME, or say what its answers mean with --map answer-a=VALUE (or answer-b, "
        "answer-tie, answer-both-bad)"
    )


def _outcome(value: Any, a: str, b: str, names: Mapping[str, str]) -> str | None:
    """The outcome of a label, or of a ranking: names from best to worst, or {"value", "rank"}."""
    if not isinstance(value, list):
        return None if value is None else outcome_of(str(value), a, b, names)
    ranks: dict[str | None, float] = {}
    for place, each in enumerate(value, start=1):
        name, rank = (
            (each.get("value"), each.get("rank")) if isinstance(each, Mapping) else (each, place)
        )
        ranks[outcome_of(str(name), a, b, names)] = place if rank is None else rank
    if ranks.keys() != {"a", "b"}:
        return None
    return "tie" if ranks["a"] == ranks["b"] else "a" if ranks["a"] < ranks["b"] else "b"


ARGILLA = Source(
    "Argilla records",
    [],
    _translate,
    {
        "prompt": "the field with the prompt",
        "a": "the field with the first response",
        "b": "the field with the second response",
        "question": "the question with the preference",
        "comment": "a text question",
        PERSON: "the name of the person with this id",
        **ANSWERS,
    },
    ("judgments", "pairs"),
)
