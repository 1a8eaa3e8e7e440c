"""The state of the loop as HTML. Pure functions of `reading.State`."""

from __future__ import annotations

from labeler.html import components
from labeler.html.components import Markup, Tone
from labeler.research.phases import (
    PHASES,
    SEE_LOG,
    STAGE_LABELS,
    STATUS_TONES,
    has_stopped,
    nothing_new,
    opening,
    reading_name,
    run_title,
    stopping,
)
from labeler.research.reading import State
from storage.records import Iteration, Run
from storage.reports import LabelBudget, Stopped
from storage.wording import plural


def stepper(iteration: Iteration | None, run: Run | None, method: str = "") -> Markup:
    """The phases of the iteration in a row: done, current or stopped, and next.

    `method` is what trains or trained the policy.
    """
    current = iteration.phase if iteration else None
    index = next((i for i, (phase, _) in enumerate(PHASES) if phase == current), -1)
    items = []
    for i, (phase, title) in enumerate(PHASES):
        past = i < index or phase == current == "done"
        state = "past" if past else "now" if i == index else "next"
        mark = "✓" if past else str(i + 1)
        if phase == "policy" and method:
            title = f"{title} ({method})"
        here = Markup(' aria-current="step"') if state == "now" else ""
        if state == "now" and run is not None and has_stopped(run) and phase != "labeling":
            state, mark = f"stopped ks-{STATUS_TONES[run.status]}", "!"
        items.append(
            Markup('<li class="ks-{}" data-mark="{}"{}>{}</li>').format(state, mark, here, title)
        )
    return Markup('<ol class="ks-steps-row">{}</ol>').format(components.lines(items))


def headline(state: State) -> Markup:
    """Iteration, phases and the current run."""
    if state.iteration is None:
        heading = components.heading("Not started", "no iteration yet")
        return components.card(heading, stepper(None, None))
    title = f"Iteration {state.iteration.number}"
    detail = Markup("started {}").format(components.moment(state.iteration.created_at))
    # A reward stage that was left for labeling is shown in the history.
    left = state.iteration.phase == "labeling" and has_stopped(state.run)
    show = state.run is not None and state.run.status != "succeeded" and not left
    return components.card(
        components.heading(title, detail),
        stepper(state.iteration, state.run, state.method),
        _run_line(state.run, state.cancelling) if state.run and show else "",
    )


def _run_line(run: Run, cancelling: bool) -> Markup:
    doing = stopping(run) if cancelling else run.message or run.status
    if has_stopped(run):
        doing = f"{run.status} at {run.progress:.0%}" + (f", {run.message}" if run.message else "")
    bar = components.bar(run.progress, tone=STATUS_TONES[run.status], label=STAGE_LABELS[run.stage])
    line = components.detail(f"{run_title(run)}: {doing}")
    return Markup('<div class="ks-run-line">{}{}</div>').format(bar, line)


def next_step(
    state: State,
    reason: str | None,
    stopped: Stopped | None = None,
    left: Markup | None = None,
    budget: LabelBudget = LabelBudget(),
) -> Markup:
    """The next step; `reason` says why training cannot start, or is None. `left` is the time left.

    `budget` says what the labels that are missing are for, while labels are collected.
    """
    tone, title, body = _what_stopped(stopped) if stopped else _next_step(state, reason)
    training = state.iteration is not None and state.iteration.phase not in ("labeling", "done")
    said = components.note(tone, title, body)
    return components.stack(
        Markup('<div class="ks-next-line">{}{}</div>').format(said, left) if left else said,
        nothing_new(state.new_labels) if training else "",
        _label_budget(budget) if budget.phase == "labeling" else "",
    )


def _label_budget(budget: LabelBudget) -> Markup:
    starts = components.detail(budget.starts) if budget.starts else ""
    return Markup('<div class="ks-label-budget"><p>{}</p>{}</div>').format(budget.says, starts)


def _next_step(state: State, reason: str | None) -> tuple[Tone, str, str]:
    current, run = state.iteration, state.run
    if current is None:
        if not state.prompts.get("train"):
            return "info", "Import prompts.", "The Data page shows the command."
        return "info", "The loop is about to start.", "It samples the first pairs automatically."
    if current.phase == "labeling":
        return _while_labeling(state, reason)
    if run is not None and has_stopped(run):
        title = f"{opening(run.stage)} {_ended(run.status)}."
        return STATUS_TONES[run.status], title, components.sentence(run.reason or SEE_LOG)
    if current.phase == "done":
        return "good", f"Iteration {current.number} is done.", "The next one starts automatically."
    if run is not None and state.cancelling:
        return (
            "warn",
            f"{stopping(run)}.",
            "When it has stopped, this page says how to continue.",
        )
    return (
        "info",
        f"{opening(current.phase)} is running.",
        f"{_meanwhile(state)} The Runs page shows its progress.",
    )


def _ended(status: str) -> str:
    return "failed" if status == "failed" else "was cancelled"


def _what_stopped(stopped: Stopped) -> tuple[Tone, str, str]:
    ways = ["retry it"]
    if stopped.resumable:
        ways.insert(0, "resume it from its last checkpoint")
    if stopped.may_label:
        ways.append("go back to labeling")
    listed = ", ".join(ways[:-1]) + (" or " if len(ways) > 1 else "") + ways[-1]
    why = components.sentence(stopped.reason or SEE_LOG)
    tried = f" {reading_name(stopped.flag)}: {stopped.remedy}" if stopped.remedy else ""
    return (
        STATUS_TONES[stopped.status],
        f"{opening(stopped.stage)} {_ended(stopped.status)}: {listed}.",
        f"{why}{tried}",
    )


def _meanwhile(state: State) -> str:
    """The pairs left to label while the loop trains, and the labels for the next training."""
    labeling = (
        f"Annotators continue: {plural(state.open_pairs, 'pair')} left to judge."
        if state.open_pairs
        else "No pairs are left to judge until new ones are sampled."
    )
    current, run = state.iteration, state.run
    # Until the reward stage has started, no training has taken the labels yet.
    starting = current and current.phase == "reward" and (run is None or run.stage != "reward")
    if not state.waiting or starting:
        return labeling
    new = plural(state.waiting, "new label")
    return f"{labeling} The next training uses {new}."


def _while_labeling(state: State, reason: str | None) -> tuple[Tone, str, str]:
    missing = state.wanted - state.labels
    wanted = plural(state.wanted, "label")
    if reason and missing <= 0:
        return "info", reason, f"The iteration asks for {wanted}, and all are in."
    if reason:
        return (
            "info",
            f"Label pairs. {reason}",
            f"The iteration asks for {wanted}; you can train with fewer. Annotators find pairs at /label.",
        )
    if missing <= 0:
        return "good", "All labels are in. Press Train.", "Training uses all judgments so far."
    title = f"{plural(missing, 'more label')} to go."
    return (
        "info",
        title,
        "Annotators find pairs at /label. You can also train on the labels so far.",
    )
