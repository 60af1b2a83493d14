"""The source tree as the house rules see it."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("protocol", "shard", "client", "broker", "supervisor", "cluster", "spark", "cli")  # as tailrace
PACKAGES = (*INSTALLED, "bench")
PACKAGE = "tailrace"
TEXT_SUFFIXES = frozenset({".conf", ".md", ".pxd", ".py", ".service", ".toml", ".yml", ".h", ".timer"})
HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)  # no expression holds a statement
SKIPPED = frozenset({".git", ".venv", "build", "data", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache",
                     ".pytest_cache", "results"})  # fmt: skip


def modules(*packages: str) -> list[Path]:
    """The Python sources of these packages (all of them without an argument), tests not among them."""
    return sorted(path for package in packages or PACKAGES for path in (ROOT / package).rglob("*.py"))


def python_files() -> list[Path]:
    return [*modules(), *sorted((ROOT / "tests").rglob("*.py")), ROOT / "setup.py"]


def text_files() -> Iterator[Path]:
    """Every file that a person writes, configuration and documentation included."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - SKIPPED)  # the remaining folders are entered
        for path in (Path(folder, name) for name in sorted(set(names) - SKIPPED)):
            if path.is_file() and is_text(path.relative_to(ROOT)):
                yield path


def is_text(path: Path) -> bool:
    return path.suffix in TEXT_SUFFIXES or path.name == "Makefile" or path.parts[0] in ("scripts", ".ci")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_name(path: Path) -> str:
    """A module's place in the tree, with dots: `client.core.session` for client/core/session.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_name(path: Path) -> str:
    """A module's import name, by pyproject.toml's package-dir: `tailrace.core.session` for client/core/session.py."""
    first, *rest = room_name(path).split(".")
    room = {"client": [PACKAGE]}.get(first, [PACKAGE, first] if first in INSTALLED else [first])
    return ".".join((*room, *rest))


def room_of(module: str) -> str:
    """The other way round, for any name that is imported: `client.core.session` for `tailrace.core.session`."""
    first, *rest = module.split(".")
    if first != PACKAGE:
        return module
    return ".".join(rest if rest and rest[0] in INSTALLED else ("client", *rest))


@cache
def parse(path: Path) -> ast.Module:
    found = ast.parse(path.read_text(), filename=str(path))
    gc.freeze()  # these nodes are kept, and the garbage collector would look at all of them again and again
    return found


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a module."""
    return tuple(ast.walk(parse(path)))


def enclosing_function(tree: ast.Module, line: int) -> str:
    """The name of the innermost function around a line, "" at module level."""
    found, start = "", 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        if start < node.lineno <= line <= node.end_lineno:
            found, start = node.name, node.lineno
    return found
