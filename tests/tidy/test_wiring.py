"""Parts get their collaborators by constructor: nothing is filled in later that would do nothing without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy import tree

WIRED = ("broker", "supervisor")


def silent_defaults(module: ast.Module) -> Iterator[int]:
    """Lines in which an object's own attribute begins as a function written there, for somebody else to replace."""
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Lambda):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            if any(map(_is_own, targets)):
                yield node.lineno


def late_callbacks(module: ast.Module) -> Iterator[int]:
    """Lines that fill in a callback, `on_` and a name, of another object."""
    for node in ast.walk(module):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Attribute) and target.attr.startswith("on_") and not _is_own(target):
                yield target.lineno


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"


@pytest.mark.parametrize("path", tree.modules(*WIRED), ids=tree.shown)
def test_no_attribute_does_nothing_until_somebody_fills_it_in(path: Path) -> None:
    assert list(silent_defaults(tree.parse(path))) == [], "take it by the constructor, without a default"


@pytest.mark.parametrize("path", tree.modules(*WIRED), ids=tree.shown)
def test_no_callback_is_filled_in_later(path: Path) -> None:
    assert list(late_callbacks(tree.parse(path))) == [], "take it by the constructor"


def test_both_kinds_are_found() -> None:
    module = ast.parse(
        "class A:\n    def __init__(self) -> None:\n        self.on_cut: Callable[[], None] = lambda: None\n"
        "        self.spared = lambda name: None\n        self.on_own = given\n        other.on_cut = given\n"
    )
    assert list(silent_defaults(module)) == [3, 4] and list(late_callbacks(module)) == [6]
