"""Calls of the page that fail: a line of the log, where Gradio prints a traceback for each."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import gradio as gr

_LONGEST = 200
_LOG = logging.getLogger(__name__)


class Page(gr.Blocks):
    """Blocks whose failed calls are logged here: values of a wrong type in a line, defects in full.

    Anybody who is signed in can send what no control of the page sends, as often as they like; a
    `labeler.serving.Throttle` lets both pass once a minute, defects once for each place.
    """

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], *rest: Any, **kwargs: Any
    ) -> list[Any]:
        for part, value in zip(block_fn.inputs, inputs, strict=False):
            # Gradio looks at the members of a list alone, so that an empty one passes.
            if isinstance(part, gr.Dropdown) and not part.multiselect and isinstance(value, list):
                raise gr.Error(f"{part.label or 'A list'} takes one choice.")
        return await super().preprocess_data(block_fn, inputs, *rest, **kwargs)

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().process_api(*args, **kwargs)
        except Exception as error:
            _report(error)
            if isinstance(error, gr.Error):
                error.print_exception = False
                raise
            # Nothing but this class has Gradio print no traceback.
            raise gr.Error(str(error), print_exception=False) from error


def _report(error: Exception) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    if any(
        frame.name == "preprocess_data" for frame in frames
    ):  # Gradio's, before a function of ours
        # As repr: who sent the value may have put line breaks and colours into it.
        _LOG.warning("A call of the research page was refused: %s", repr(error)[:_LONGEST])
        return
    place = f"{frames[-1].filename}:{frames[-1].lineno}"
    _LOG.error("A call of the research page failed", exc_info=error, extra={"place": place})
