"""Events in words: for the page, the notifications of the browser, and e-mails."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from storage.notification_records import Event, EventType
from storage.wording import shortened

TITLES: dict[EventType, str] = {
    "labels.reached": "Labels reached",
    "stage.failed": "Stage failed",
    "gate.verdict": "Gate verdict",
    "alarm.raised": "Alarm raised",
    "flag.opened": "Pair flagged",
    "ping": "Test",
}
_SHOWN = 200
"""Characters of a message."""


@dataclass(frozen=True)
class Told:
    """An event in words."""

    title: str
    text: str


def told(event: Event) -> Told:
    """What happened, for people."""
    data = event.data
    match event.type:
        case "labels.reached":
            text = f"Iteration {data['iteration']} has {data['labels']} of {data['wanted']} labels."
            return Told(TITLES[event.type], text)
        case "stage.failed":
            name = str(data["stage"])
            title = f"{name if name[:1].isupper() else name.capitalize()} failed"
            return Told(title, _short(f"Iteration {data['iteration']}: {data['reason']}"))
        case "gate.verdict":
            return Told(f"{data['policy']} is {data['verdict']}", _short(str(data["reason"])))
        case "alarm.raised":
            return Told(f"Alarm: {data['alarm']}", _short(str(data["message"])))
        case "ping":
            return Told(TITLES[event.type], "Notifications of this workspace arrive here.")
        case _:
            return Told(TITLES[event.type], "An annotator reported a problem with a pair.")


def subject(event: Event) -> str:
    """The title with the iteration, as in ``PPO failed (iteration 3)``."""
    iteration = event.data.get("iteration")
    return told(event).title + (f" (iteration {iteration})" if iteration is not None else "")


def page(event: Event) -> str:
    """The path of the page that shows what happened."""
    run = event.data.get("run")
    if run is not None:
        return f"/research/?tab=runs&run={quote(str(run))}"
    return {
        "gate.verdict": "/research/?tab=models&section=verdicts",
        "alarm.raised": "/research/?tab=models&section=verdicts",
        "flag.opened": "/research/?tab=team&section=people",
        "ping": "/research/?tab=team&section=notifications",
    }.get(event.type, "/research/")


def _short(text: str) -> str:
    return shortened(text, _SHOWN)
