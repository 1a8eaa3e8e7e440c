"""Who imports whom, read from the source.

``python tests/import_graph.py`` draws the folders into docs/architecture.md.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("commands", "kitestring", "labeler", "pipeline", "storage")
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- folders: begin -->", "<!-- folders: end -->"

Graph = dict[str, set[str]]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the product by its dotted name; a package is the module `__init__`."""
    found = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def named_in(path: Path) -> set[str]:
    """Every module named in an import statement of the file, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from storage import tables` names the module storage.tables
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def imports(root: Path = ROOT) -> Graph:
    """The modules of Kitestring that each module imports; imports for type checkers count too."""
    known = modules(root)
    graph: Graph = {}
    for module, path in known.items():
        named = named_in(path) & known.keys()
        # `from pipeline.runs import jobs` also names pipeline.runs, which is not what it is about.
        graph[module] = {
            name for name in named if not any(other.startswith(f"{name}.") for other in named)
        } - {module}
    return graph


def siblings(graph: Graph) -> dict[str, Graph]:
    """For each package, the imports between the modules and folders that stand directly in it."""
    levels: dict[str, Graph] = defaultdict(lambda: defaultdict(set))
    for module, targets in graph.items():
        for target in targets:
            one, other = module.split("."), target.split(".")
            depth = 0
            while depth < min(len(one), len(other)) and one[depth] == other[depth]:
                depth += 1
            if depth < min(len(one), len(other)):
                levels[".".join(one[:depth])][one[depth]].add(other[depth])
    return {package: dict(level) for package, level in levels.items()}


def cycle(graph: Graph) -> list[str]:
    """A path that ends where it began; empty where there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if found := walk(target, [*path, node]):
                return found
        done.add(node)
        return []

    for node in sorted(graph):
        if found := walk(node, []):
            return found
    return []


def reduced(graph: Graph) -> Graph:
    """An acyclic graph without the edges that a longer path makes."""

    def reach(node: str) -> set[str]:
        return {node}.union(*(reach(target) for target in graph.get(node, ())))

    return {
        node: {
            target
            for target in targets
            if not any(target in reach(other) for other in targets - {target})
        }
        for node, targets in graph.items()
    }


def drawing(root: Path = ROOT) -> str:
    """Mermaid drawings: the packages, and the folders of each."""
    levels = siblings(imports(root))
    parts = []
    for package, title in (("", "Packages"), *((name, f"`{name}/`") for name in PACKAGES)):
        edges = {
            node: targets & _folders(package, root)
            for node, targets in levels.get(package, {}).items()
            if node in _folders(package, root)
        }
        if any(edges.values()):
            lines = [
                f"    {node} --> {target}"
                for node, targets in sorted(reduced(edges).items())
                for target in sorted(targets)
            ]
            parts.append(f"{title}:\n\n```mermaid\nflowchart TD\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts)


def _folders(package: str, root: Path) -> set[str]:
    if not package:
        return set(PACKAGES)
    place = root / package.replace(".", "/")
    return {path.parent.name for path in place.glob("*/__init__.py")}


def drawn(page: str, root: Path = ROOT) -> str:
    """The page with the drawings of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawing(root)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
