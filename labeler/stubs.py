"""Imports Gradio without writing its type stubs.

At each import Gradio parses the source of all its components to write .pyi files for editors. That
takes more than half of the import's time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_MODULE, _WRITER = "gradio.component_meta", "create_or_modify_pyi"


class _WithoutStubs(MetaPathFinder):
    """Finds the module as usual and replaces its function that writes stubs."""

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
    """Make the next import of Gradio write no stubs; no effect if it is already imported."""
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _WithoutStubs())
