"""Tasks of Label Studio's JSON export, annotated with `Pairwise` or `Ranker`.

Cancelled annotations are left out.  Ground truths are gold pairs, not judgments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from storage.importing.sources.source import Source, Translated, Values, pair_of, prompt_of
from storage.records import MAX_VIEW_MS

_SIDES = {"left": "a", "right": "b"}


def _translate(row: Values, names: Mapping[str, str]) -> Translated:
    data, annotations = row.get("data"), row.get("annotations")
    if not isinstance(data, Mapping) or not isinstance(annotations, list):
        raise ValueError(
            "a task needs data and annotations; export the project as JSON, not JSON-MIN"
        )
    found = Translated()
    for each in annotations:
        who = _annotator(each.get("completed_by"))
        if each.get("was_cancelled"):
            found.left_out.append(f"an annotation that {who} cancelled")
            continue
        rows = list(_rows(data, each.get("result") or (), names))
        if not rows:
            found.left_out.append(f"an annotation by {who} without a choice")
        elif each.get("ground_truth"):
            found.left_out.append(f"a ground truth by {who}: `import --gold` reads it")
            found.gold += [_gold(row) for row in rows if row["outcome"] != "tie"]
        else:
            found.judgments += [row | {"annotator": who} | _facts(each) for row in rows]
    if not annotations:
        found.left_out.append("a task without annotations")
    return found


def _annotator(who: Any) -> str:
    """The person's e-mail address if the export has it, else their number."""
    if isinstance(who, Mapping):
        who = who.get("email") or who.get("id")
    return who if isinstance(who, str) and not who.isdigit() else f"label-studio-{who}"


def _facts(annotation: Values) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if created := annotation.get("created_at"):
        facts["created_at"] = created
    seconds = annotation.get("lead_time")
    if isinstance(seconds, int | float) and 0 <= seconds * 1000 <= MAX_VIEW_MS:
        facts["milliseconds"] = round(seconds * 1000)
    return facts


def _rows(
    data: Values, results: Sequence[Values], names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """One row of a pairwise choice; of a ranking, one for each pair of its items."""
    notes = [
        text
        for each in results
        if each.get("type") == "textarea"
        for text in each.get("value", {}).get("text", ())
    ]
    comment = {"comment": "\n\n".join(notes)} if notes else {}
    for each in results:
        value = each.get("value") or {}
        if each.get("type") == "pairwise" and value.get("selected") in _SIDES:
            a, b = _sides(data, each, names)
            pair = {"response_a": data[a], "response_b": data[b]}
            yield (
                _prompt(data, names, (a, b))
                | pair
                | comment
                | {"outcome": _SIDES[value["selected"]]}
            )
        elif each.get("type") == "ranker":
            for pair in _ranked(data, value.get("ranker") or {}, names):
                yield _prompt(data, names, ()) | pair | comment


def _sides(data: Values, result: Values, names: Mapping[str, str]) -> tuple[str, str]:
    """The data of the left and the right text: those that the tag compares, if they are named alike."""
    compared = result.get("to_name") or ()
    compared = compared.split(",") if isinstance(compared, str) else compared
    if "a" not in names and len(compared) == 2 and all(name in data for name in compared):
        return compared[0], compared[1]
    return pair_of(data, names)


def _prompt(data: Values, names: Mapping[str, str], besides: Sequence[str]) -> dict[str, Any]:
    prompt = prompt_of(data, names, besides=besides)
    return {"messages" if isinstance(prompt, list) else "prompt": prompt}


def _ranked(
    data: Values, buckets: Mapping[str, Sequence[str]], names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """All pairs of items, of which an earlier one is better."""
    items = _items(data, names)
    used = {name: ids for name, ids in buckets.items() if ids and name != "_"}
    if len(used) > 1 and "buckets" not in names:
        raise ValueError(
            f"the ranking has the buckets {', '.join(used)}; say their order with --map "
            "buckets=BEST,…,WORST"
        )
    order = names["buckets"].split(",") if "buckets" in names else list(used)
    if unknown := [name for name in used if name not in order]:
        raise ValueError(f"--map buckets does not name the bucket {unknown[0]}")
    if len(used) == 1 and "buckets" not in names:
        ranked = [[id] for id in next(iter(used.values()))]  # no buckets: a list from best to worst
    else:
        ranked = [list(used.get(name, ())) for name in order]
    for better, worse in combinations(ranked, 2):
        for one in better:
            for other in worse:
                pair = {"response_a": items[one], "response_b": items[other]}
                yield pair | {"outcome": "a", "sides": "unknown"}  # they were shown as a list


def _items(data: Values, names: Mapping[str, str]) -> dict[str, str]:
    """The texts of the ranked items by id."""
    lists = [name for name, value in data.items() if _is_items(value)]
    name = names.get("items") or (lists[0] if len(lists) == 1 else None)
    if name is None or not _is_items(data.get(name)):
        raise ValueError("it is not clear which data has the ranked items; use --map items=NAME")
    body = names.get("text", "body")
    return {str(item["id"]): str(item.get(body) or item.get("title") or "") for item in data[name]}


def _is_items(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, Mapping) and "id" in v for v in value)


def _gold(row: Values) -> dict[str, Any]:
    answer = {"answer": row["outcome"]}
    left = ("outcome", "comment", "sides")
    return {name: value for name, value in row.items() if name not in left} | answer


LABEL_STUDIO = Source(
    "Label Studio tasks",
    [("data",), ("annotations",)],
    _translate,
    {
        "prompt": "the data with the prompt",
        "a": "the data on the left",
        "b": "the data on the right",
        "items": "the data with the items that a Ranker orders",
        "text": "the key of an item's text (default body)",
        "buckets": "a Ranker's buckets, from best to worst, with commas",
    },
    ("judgments", "gold"),
)
