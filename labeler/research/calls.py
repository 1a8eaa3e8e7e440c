"""The research page's functions: who may call each, and the log of failed calls."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from labeler.security.access import GRANTS, Access
from storage.audit_records import Actor, acting
from storage.records import Annotator, AnnotatorRole

FirstView = Callable[[Annotator, Mapping[str, str]], str]
"""The first view for a person and the query of the address, as HTML; "" without one."""

_MAX_LOGGED = 200
_LOG = logging.getLogger(__name__)


class Page(gr.Blocks):
    """Blocks that know which roles may call which function, and log a failed call: a value of a
    wrong type in one line, a bug with its traceback.  Gradio would print a traceback for each.

    Users can send anything, as often as they like. `labeler.serving.Throttle` therefore logs
    refused values once a minute, and each location of a bug once a minute.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._access: dict[int, Access] = {}
        self.first_view: FirstView = lambda *_: ""
        self.typed: Mapping[str, str] = {}
        """Addresses below /research that people type, with that of what they mean."""

    def allow(self, function: int, access: Access) -> None:
        """Let the roles that `GRANTS` gives `access` call the function with this index."""
        self._access[function] = access

    def callable_by(self, role: AnnotatorRole) -> frozenset[int]:
        """The indices of the functions that people with this role may call.

        A function that nothing was said about is for researchers.
        """
        granted = GRANTS[role]
        return frozenset(i for i in self.fns if self._access.get(i, "researcher") in granted)

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], *rest: Any, **kwargs: Any
    ) -> list[Any]:
        for part, value in zip(block_fn.inputs, inputs, strict=False):
            # Gradio checks only the members of a list, so an empty list would pass.
            if isinstance(part, gr.Dropdown) and not part.multiselect and isinstance(value, list):
                raise gr.Error(f"{part.label or 'A list'} takes one choice.")
        return await super().preprocess_data(block_fn, inputs, *rest, **kwargs)

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            with acting(_actor(kwargs.get("request"))):
                return await super().process_api(*args, **kwargs)
        except Exception as error:
            _report(error)
            if isinstance(error, gr.Error):
                error.print_exception = False
                raise
            # Gradio prints the traceback of every other class of errors.
            raise gr.Error(str(error), print_exception=False) from error


def _actor(request: Any) -> Actor | None:
    """The person who called a function; Gradio calls it outside of the request's own task."""
    if not isinstance(request, gr.Request) or request.request is None:
        return None
    identity = getattr(request.request.state, "identity", None)
    return identity and identity.actor


def _report(error: Exception) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    # preprocess_data belongs to Gradio and runs before our function.
    if any(frame.name == "preprocess_data" for frame in frames):
        # As repr, because the value may contain line breaks and terminal colors.
        _LOG.warning("A call of the research page was refused: %s", repr(error)[:_MAX_LOGGED])
        return
    place = f"{frames[-1].filename}:{frames[-1].lineno}"
    _LOG.error("A call of the research page failed", exc_info=error, extra={"place": place})
