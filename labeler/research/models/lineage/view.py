"""The tree of models as HTML. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labeler.html import components
from labeler.html.components import Markup
from storage.records import ModelVersion
from storage.reports import RewardFigures, from_json
from storage.tables.models import MODELS
from storage.tables.runs.runs import method_made


def tree(versions: Sequence[ModelVersion]) -> Markup:
    """Policies and reward models, each below its parent."""
    ours = {m.id: m for m in versions if m.role != "external"}
    if not ours:
        return components.empty("No models yet", "The first one is the SFT reference.")
    children: dict[str | None, list[ModelVersion]] = {}
    for model in ours.values():
        children.setdefault(_parent(model, ours), []).append(model)
    return _branch(children, None)


def _parent(model: ModelVersion, known: Mapping[str, ModelVersion]) -> str | None:
    """The parent in the tree; None if the stored parents form a cycle."""
    met, above = {model.id}, model.parent
    while above is not None and above in known:
        if above in met:
            return None
        met.add(above)
        above = known[above].parent
    return model.parent if model.parent in known else None


def _branch(children: Mapping[str | None, Sequence[ModelVersion]], parent: str | None) -> Markup:
    models = sorted(children.get(parent, ()), key=lambda m: (m.created_at, m.id))
    if not models:
        return Markup("")
    items = [
        Markup("<li>{}{}</li>").format(_node(model), _branch(children, model.id))
        for model in models
    ]
    tag = "ks-tree" if parent is None else ""
    return Markup('<ul class="{}">{}</ul>').format(tag, components.lines(items))


_TONES: Mapping[str, components.Tone] = {"sft": "neutral", "policy": "info", "reward": "good"}


def _node(model: ModelVersion) -> Markup:
    facts = []
    if model.iteration:
        facts.append(f"iteration {model.iteration}")
    if method := method_made(model):
        facts.append(f"by {method}")
    if model.reward_model:
        verb = "measured" if model.summary.get("method") == "dpo" else "rewarded"
        facts.append(f"{verb} by {model.reward_model}")
    accuracy = from_json(RewardFigures, model.summary).accuracy
    if model.role == "reward" and accuracy is not None:
        facts.append(f"accuracy {components.percent(accuracy, 1)}")
    if model.snapshot:
        facts.append(f"labels {model.snapshot}")
    push = Markup('<a class="ks-acts" href="{}">Push to the Hub</a>').format(
        f"?tab=models&section=publish&model={model.id}"
    )
    return Markup(
        '<div class="ks-node">{}<b>{}</b><span class="ks-detail">{}</span>{}</div>'
    ).format(
        components.badge(model.role, _TONES.get(model.role, "neutral")),
        model.name,
        " · ".join(facts),
        push if model.path.startswith(f"{MODELS}/") else "",
    )
