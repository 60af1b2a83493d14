"""Circles of imports: modules that need each other, imports that are only for types included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.tidy import tree

Graph = Mapping[str, set[str]]


def import_graph(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Module name -> the names, among those of `paths`, of the modules it imports anywhere in its text."""
    modules = {tree.module_name(path): path for path in paths}
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterable[str]:
    for node in tree.nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                found = f"{node.module}.{alias.name}"
                if found in modules or node.module in modules:
                    yield found if found in modules else node.module


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module, largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return sorted((circle for circle in found if len(circle) > 1), key=lambda circle: (-len(circle), circle))
