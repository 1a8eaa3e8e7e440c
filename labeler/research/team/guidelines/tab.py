"""The "Guidelines" section: what annotators should prefer, and what changed between versions."""

from __future__ import annotations

import gradio as gr

from labeler.annotate.session import DEFAULT_GUIDELINES
from labeler.html import components, formulas
from labeler.html.components import Column, Markup, render
from labeler.html.differences import count, differences
from labeler.html.markdown import render as render_markdown
from labeler.research.tab import Tab, Updates, attempt, heading_slot, html_slot, on
from labeler.translation import LANGUAGES, translated
from storage.engine.database import Database
from storage.records import digest
from storage.tables import guidelines
from storage.tables.guidelines import GuidelinesVersion
from storage.wording import plural

_LANGUAGES = tuple((name, language) for language, name in LANGUAGES.items())
_TYPESET = f"""
{formulas.SCRIPT}
new MutationObserver(() => typesetEach(element)).observe(element, {{ childList: true, subtree: true }});
typesetEach(element);
"""


class GuidelinesTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._lay_out()
        self.inputs = [self.before, self.after]
        self.outputs = [self.versions, self.choices, self.before, self.after, self.changes]
        self.loaded = [self.language, self.guidelines, self.preview]
        on(self.guidelines.change, _preview, [self.guidelines], [self.preview], access="viewer")
        on(
            self.language.change,
            self._in_language,
            [self.language],
            [self.guidelines],
            access="viewer",
        )
        on(
            self.save.click,
            self._save,
            [self.guidelines, self.language, *self.inputs],
            [self.answer, *self.outputs],
        )
        for choice in self.inputs:
            on(choice.input, self._compare, self.inputs, [self.changes], access="viewer")

    def _lay_out(self) -> None:
        heading_slot("Guidelines", "in Markdown; annotators can open them beside each pair")
        with gr.Row():
            with gr.Column(elem_classes="ks-panel", min_width=300):
                self.language = gr.Dropdown(
                    [("All languages without their own", ""), *_LANGUAGES],
                    value="",
                    label="For annotators in",
                    elem_id="guidelines-language",
                )
                self.guidelines = gr.Textbox(
                    label="Text", lines=14, max_lines=40, elem_id="guidelines", interactive=True
                )
                with gr.Row(elem_classes="ks-buttons"):
                    self.save = gr.Button("Save", variant="primary", elem_id="guidelines-save")
                self.answer = html_slot(elem_id="guidelines-answer")
            with gr.Column(elem_classes="ks-panel", min_width=300):
                html_slot(value='<div class="ks-label">Preview</div>')
                self.preview = html_slot(elem_id="guidelines-preview", js_on_load=_TYPESET)
        self.versions = html_slot(elem_id="guidelines-versions")
        with gr.Column(visible=False) as self.choices:
            heading_slot("Compare versions", "words that were added or removed")
            with gr.Row(elem_classes="ks-panel"):
                self.before = gr.Dropdown([], label="From", elem_id="guidelines-before")
                self.after = gr.Dropdown([], label="To", elem_id="guidelines-after")
            self.changes = html_slot(elem_id="guidelines-changes")

    def load(self) -> Updates:
        text = guidelines.current(self._db, DEFAULT_GUIDELINES)
        return {self.language: "", self.guidelines: text, self.preview: _preview(text)}

    def refresh(self, before: str | None = None, after: str | None = None) -> Updates:
        versions = guidelines.versions(self._db)
        saved = guidelines.saved(self._db, DEFAULT_GUIDELINES)
        names = [(_saved_name(each), each.version) for each in reversed(saved)]
        known = [each.version for each in saved]
        if len(known) > 1:
            before = before if before in known else known[-2]
            after = after if after in known else known[-1]
        return {
            self.versions: render(_versions(versions)),
            self.choices: gr.Column(visible=len(known) > 1),
            self.before: gr.Dropdown(choices=names, value=before if len(known) > 1 else None),
            self.after: gr.Dropdown(choices=names, value=after if len(known) > 1 else None),
            self.changes: self._compare(before, after),
        }

    def _compare(self, before: str | None, after: str | None) -> str:
        texts = {each.version: each.text for each in guidelines.saved(self._db, DEFAULT_GUIDELINES)}
        if before not in texts or after not in texts:
            return ""
        old, new = texts[before], texts[after]
        if old == new:
            return render(components.empty("No difference", "The two texts are equal."))
        added, removed = count(old, new)
        summary = f"{plural(added, 'word')} added, {components.number(removed)} removed"
        return render(components.card(components.detail(summary), differences(old, new)))

    def _in_language(self, language: str) -> str:
        default = translated(DEFAULT_GUIDELINES, language or "en")
        return guidelines.current(self._db, default, language)

    def _save(
        self,
        text: str | None,
        language: str = "",
        before: str | None = None,
        after: str | None = None,
    ) -> Updates:
        def save() -> str:
            if text is None:  # the page's field always sends a text
                raise ValueError("The page sent no text. Reload the page.")
            guidelines.save(self._db, text, language=language, default=DEFAULT_GUIDELINES)
            return (
                "Saved. Within about a minute, the annotators' pages show the new guidelines or mark "
                "them as new."
            )

        answer = attempt(save, "The guidelines were not saved.")
        # A new version is compared with the one before it.
        chosen = (before, after) if answer.refusal else (None, None)
        return {self.answer: answer.html} | self.refresh(*chosen)


def _preview(text: str | None) -> str:
    """The guidelines as annotators see them."""
    if text is None or not text.strip():
        return render(
            components.empty(
                "No guidelines yet", "Describe what a good response is, with examples."
            )
        )
    # `render_markdown` returns safe HTML for any Markdown.
    rendered = Markup(render_markdown(text, document=True))
    return render(Markup('<div class="ks-guidelines">{}</div>').format(rendered))


def _versions(versions: list[GuidelinesVersion]) -> Markup:
    """The versions that judgments were given under; nothing while there is only one."""
    if len(versions) < 2:
        return Markup("")
    columns = [
        Column("Version"), Column("Judgments", "right"), Column("First used"), Column("Begins with"),
    ]  # fmt: skip
    rows = [
        (
            each.version,
            components.number(each.judgments),
            components.moment(each.first),
            _first_line(each),
        )
        for each in versions
    ]
    return components.table(columns, rows, caption="Current judgments by version of the guidelines")


def _saved_name(saved: guidelines.SavedGuidelines) -> str:
    begins = saved.text.strip().partition("\n")[0][:60] or "(empty)"
    now = "current: " if saved.current else ""
    return f"{now}{saved.version[:6]} · {begins}"


def _first_line(version: GuidelinesVersion) -> str:
    if version.text is None:
        default = version.version == digest(DEFAULT_GUIDELINES)
        return "(the default guidelines)" if default else "(text not stored)"
    return version.text.strip().partition("\n")[0][:80]
