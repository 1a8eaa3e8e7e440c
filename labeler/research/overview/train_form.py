"""The "Train" form: all settings of the pipeline, with the important ones always visible.

Settings that are read before training, such as those of sampling, are read-only.  If a stage has
stopped, the form has the settings that this stage reads, to retry it with other values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from labeler.research.tab import Updates
from storage.reports import SettingValue, SettingView, Stopped

SECTIONS = {
    "": "General",
    "model": "Model",
    "labeling": "Labeling",
    "sft": "Supervised fine-tuning",
    "sampling": "Sampling",
    "reward": "Reward model",
    "optimize": "Methods other than PPO",
    "ppo": "PPO",
    "shaping": "Reward shaping",
    "gate": "Promotion gate",
    "evaluate": "Evaluation",
    "worker": "This machine",
    "plugins": "Custom reward functions",
}


class TrainForm:
    """A component for each setting. Numbers use text fields, so that 1e-6 stays as typed."""

    def __init__(self, settings: Sequence[SettingView]) -> None:
        self._fields: dict[str, Component] = {}
        with gr.Row(elem_classes="ks-fields"):
            for setting in settings:
                if setting.basic:
                    self._fields[setting.name] = _field(setting)
        self._advanced: list[str] = []
        self._headings: dict[str, gr.Markdown] = {}
        with gr.Accordion("All settings", open=False) as self._folded:
            advanced = sorted((s for s in settings if not s.basic), key=_section)
            for section, members in groupby(advanced, key=_section):
                self._headings[section] = gr.Markdown(f"**{SECTIONS.get(section, section)}**")
                with gr.Row(elem_classes="ks-fields"):
                    for setting in members:
                        self._advanced.append(setting.name)
                        self._fields[setting.name] = _field(setting)

    @property
    def components(self) -> list[Component]:
        return list(self._fields.values())

    @property
    def outputs(self) -> list[Component | Block]:
        """The components that `show`, `mark` and `switch` update."""
        return [*self.components, *self._headings.values(), self._folded]

    def mark(self, refused: str) -> dict[Any, Any]:
        """Mark and unfold the fields that a refusal names."""
        wrong = self._named(refused)
        marked: dict[Any, Any] = {
            field: gr.update(elem_classes=["ks-wrong"] if name in wrong else [])
            for name, field in self._fields.items()
        }
        if wrong & set(self._advanced):
            marked[self._folded] = gr.update(open=True)
        return marked

    def _named(self, sentence: str) -> set[str]:
        """The settings that a sentence names."""
        return {
            name
            for name in self._fields
            if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", sentence)
        }

    def show(self, settings: Sequence[SettingView], *, defaults: bool = False) -> Updates:
        """The current values, or the defaults of the settings that can be changed."""
        return {
            self._fields[s.name]: _shown(s.default if defaults and not s.why_fixed else s.value, s)
            for s in settings
            if s.name in self._fields
        }

    def switch(self, settings: Sequence[SettingView], stopped: Stopped | None) -> dict[Any, Any]:
        """The form for training, or for another attempt at a stopped stage.

        For a stopped stage it shows the settings that the stage reads, fills in the values that its
        red flag suggests, and marks the settings that the error message names.
        """
        suggestion = stopped.suggestion if stopped else {}
        wrong = self._named(stopped.reason) if stopped else set[str]()
        listed = [s for s in settings if s.name in self._fields]
        changes: dict[Any, Any] = {}
        for s in listed:
            field = {"value": _shown(s.value, s), "info": _help(s), "elem_classes": []}
            if s.name in wrong:
                field["elem_classes"] = ["ks-wrong"]
            if s.name in suggestion:
                field = {
                    "value": suggestion[s.name],
                    "info": f"Suggested value (previously {as_text(s.value)}). {_help(s)}",
                    "elem_classes": ["ks-suggested"],
                }
            changes[self._fields[s.name]] = gr.update(
                **field, interactive=not s.why_fixed, visible=s.offered
            )
        folded = [s for s in listed if s.offered and s.name in self._advanced]
        for section, heading in self._headings.items():
            changes[heading] = gr.update(visible=section in {_section(s) for s in folded})
        unfolded = any(s.offered and s.basic for s in listed)
        inside = (suggestion.keys() | wrong) & {s.name for s in folded}
        changes[self._folded] = gr.update(open=bool(stopped) and bool(inside or not unfolded))
        return changes

    def overrides(self, settings: Sequence[SettingView], values: Sequence[Any]) -> dict[str, str]:
        """The changed settings, as text for the pipeline.

        ``ValueError`` for an empty field whose setting is not text.
        """
        holding = {s.name: s for s in settings}
        changed = {}
        for name, value in zip(self._fields, values, strict=True):
            setting = holding[name]
            text = as_text(value).strip()
            if setting.why_fixed or not setting.offered or text == as_text(setting.value):
                continue
            if not text and setting.kind != "str":
                raise ValueError(f"{name} is empty. Its default is {as_text(setting.default)}")
            changed[name] = text
        return changed


def as_text(value: Any) -> str:
    """A value as on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _section(setting: SettingView) -> str:
    return setting.name.rpartition(".")[0]


def _shown(value: SettingValue, setting: SettingView) -> Any:
    return value if setting.kind == "bool" else as_text(value)


def _help(setting: SettingView) -> str:
    help = setting.help
    if as_text(setting.value) != as_text(setting.default):
        help += f" Default: {as_text(setting.default)}."
    return f"{help} Cannot be changed here: {setting.why_fixed}." if setting.why_fixed else help


def _field(setting: SettingView) -> Component:
    options: dict[str, Any] = {
        "label": setting.name,
        "info": _help(setting),
        "elem_id": "setting-" + setting.name.replace(".", "-"),
        "interactive": not setting.why_fixed,
        "visible": setting.offered,
    }
    if setting.kind == "bool":
        return gr.Checkbox(value=bool(setting.value), **options)
    if setting.choices:
        return gr.Dropdown(
            [str(choice) for choice in setting.choices], value=as_text(setting.value), **options
        )
    return gr.Textbox(value=as_text(setting.value), max_lines=1, **options)
