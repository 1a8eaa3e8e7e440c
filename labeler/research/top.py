"""The header above the tabs."""

from __future__ import annotations

from labeler.html import components
from labeler.html.components import Markup, render
from labeler.research import reading
from labeler.research.phases import STATUS_TONES, capitalized, has_stopped, phase_title, run_title
from labeler.research.reading import State
from storage.engine.database import Database
from storage.labeling.queue import midnight
from storage.records import AnnotatorRole, now


def headline(db: Database, state: reading.State | None = None) -> str:
    """The header as HTML, with a problem of the workspace below it."""
    state = state or reading.state(db, midnight=midnight(now()))
    return render(top(state, db.workspace.name, trouble=db.health.trouble))


def role_note(role: AnnotatorRole) -> str:
    """What a viewer can do, as HTML; the style sheet hides buttons that act beside it."""
    if role != "viewer":
        return ""
    body = Markup(
        "You can read every page and download exports without names. "
        '<a class="ks-link" href="/label/password">Change password</a>'
    )
    return render(
        Markup('<div class="ks-viewer">{}</div>').format(
            components.note(
                "info", "Your role is viewer: buttons that change something are hidden.", body
            )
        )
    )


def top(state: State, workspace: str, *, trouble: str | None = None) -> Markup:
    """The header: workspace, state of the loop, links, and the problem `trouble`."""
    where = Markup("")
    if state.iteration:
        doing = phase_title(state.iteration.phase)
        if state.iteration.phase == "policy" and state.method:
            doing = capitalized(state.method)
        halted = has_stopped(state.run) and state.iteration.phase != "labeling"
        tone: components.Tone = "warn" if state.cancelling else "info"
        text = f"Iteration {state.iteration.number} · {doing}"
        if halted and state.run:
            text += f" {state.run.status}"
            tone = STATUS_TONES[state.run.status]
        elif state.cancelling:
            text += ": cancelling"
        running = state.run is not None and state.run.status == "running"
        said = f"{run_title(state.run)} {state.run.status}" if state.run else ""
        where = Markup('<span id="ks-state" data-state="{}" data-running="{}">{}</span>').format(
            said if running or halted else "",
            str(running).lower(),
            components.badge(text, tone, dot=running),
        )
    wrong = components.note("bad", "This workspace needs attention.", trouble) if trouble else ""
    return Markup(
        '<div class="ks-top"><h1 class="ks-brand"><img src="/static/kite.svg" alt="">Kitestring'
        '</h1><span class="ks-where">{}</span>{}<nav class="ks-right">'
        '<a href="/label/">Label</a><form method="post" action="/sign-out">'
        '<button class="ks-plain">Sign out</button></form></nav></div>{}'
    ).format(workspace, where, wrong)
