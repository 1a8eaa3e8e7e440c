"""Gradio without its type stubs.

Each time it is imported, Gradio parses the source of all its components to write .pyi files beside them:
more than half of the time that the import takes, for editors that nobody has open in a server.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_MODULE, _WRITER = "gradio.component_meta", "create_or_modify_pyi"


class _WithoutStubs(MetaPathFinder):
    """Finds the one module as ever, and takes the function out of it that writes them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_without(module: ModuleType) -> None:
            execute(module)
            if hasattr(module, _WRITER):
                setattr(module, _WRITER, lambda *_: None)

        spec.loader.exec_module = execute_without
        return spec


def leave_out_stubs() -> None:
    """Spare the next import of Gradio its stubs; without effect where it is imported already."""
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _WithoutStubs())
