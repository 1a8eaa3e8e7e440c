"""What the server keeps of each open page.

Gradio keeps the configuration of all components and their last values for links that reopen a page as
it is now, which Kitestring does not offer.  Without them, a page takes less memory, up to 3 MB, and its
first event takes 25 ms less.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
from fastapi import FastAPI
from gradio.state_holder import SessionState, StateHolder
from starlette.routing import Mount

OPEN_PAGES = 100
"""Pages whose state Gradio keeps; it forgets those that have not asked for longest.  Its default of
10,000 is never reached before the memory is."""


class OpenPage(SessionState):
    """The state of one page, without a copy of its configuration."""

    def __init__(self, blocks: gr.Blocks):
        # The constructor describes each component that is in `blocks.blocks`.
        none = SimpleNamespace(default_config=blocks.default_config, blocks=())
        super().__init__(cast(gr.Blocks, none))

    def __setitem__(self, key: int, value: Any) -> None:
        super().__setitem__(key, value)
        self.config_values.clear()

    def _update_config(self, key: int) -> None: ...

    def _update_value_in_config(self, key: int, value: Any) -> None: ...


class OpenPages(StateHolder):
    """The states of the newest `OPEN_PAGES` pages."""

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = OpenPage(self.blocks)
        return super().__getitem__(session_id)


def keep_little(app: FastAPI, blocks: gr.Blocks) -> None:
    """Use `OpenPages` for the page of `blocks`, which was mounted last."""
    blocks.state_session_capacity = OPEN_PAGES
    mounted = cast(Any, cast(Mount, app.routes[-1]).app)
    mounted.state_holder = OpenPages()
    mounted.state_holder.set_blocks(blocks)
