"""House rules on the code itself that no linter of ours checks."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy import tree

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 10
FILE_LINES_MAX = 700
LEAF_LINES_MAX = 900  # a leaf holds two bodies of each function
LINE_CHARACTERS_MAX = 120
HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)  # what a function may stand in; no expression holds any
LEFT_OVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
ELSEWHERE = re.compile(r"(?<![\w.])/wo" r"rk/")  # a path of one machine
# file::function: why nothing narrower can be caught there. Handlers that raise again need no entry.
BROAD_EXCEPTS = {
    "supervisor/process.py::fork_child": "a forked child must end here, whatever it dies of, and say why",
}
LONG_RUNNING = ("protocol", "shard", "client", "broker", "supervisor", "cluster")
WITHOUT_LENGTH = ("map", "filter", "zip", "enumerate", "chain", "islice", "starmap", "takewhile")
# Programs; everything else logs.
PRINTERS = ("cli/", "bench/", "shard/leaves.py", "supervisor/config_example.py")


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function, its decorators left out."""
    left: list[ast.AST] = [tree.parse(path)]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.name, node.end_lineno - node.lineno + 1
        left += (each for each in ast.iter_child_nodes(node) if isinstance(each, HOLDERS))


def is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def raises_again(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def test_functions_are_short() -> None:
    long = [
        f"{tree.shown(path)}: {name} has {lines} lines"
        for path in tree.python_files()
        for name, lines in functions(path)
        if lines > FUNCTION_LINES_MAX
    ]
    assert not long


def test_most_functions_are_very_short() -> None:
    lines = [count for path in tree.modules() for _, count in functions(path)]
    assert statistics.median(lines) <= FUNCTION_LINES_MEDIAN_MAX


def test_files_are_short() -> None:
    long = {tree.shown(path): lines for path in tree.python_files() if (lines := count_lines(path)) > most_lines(path)}
    assert not long


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def most_lines(path: Path) -> int:
    return LEAF_LINES_MAX if path.stem.endswith("_cy") else FILE_LINES_MAX


def test_lines_are_short() -> None:
    # Python is ruff's (E501); tables and the texts of alerts have long lines.
    files = [path for path in tree.text_files() if path.suffix not in (".py", ".md", ".yml")]
    long = [
        f"{tree.shown(path)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > LINE_CHARACTERS_MAX
    ]
    assert not long


def test_broad_excepts_are_listed() -> None:
    found = {
        f"{tree.shown(path)}::{tree.enclosing_function(tree.parse(path), node.lineno)}"
        for path in tree.modules()
        for node in tree.nodes(path)
        if isinstance(node, ast.ExceptHandler) and is_broad(node) and not raises_again(node)
    }
    assert found == set(BROAD_EXCEPTS), "catch what can happen, raise again, or list it with its reason"


def test_only_programs_print() -> None:
    found = [
        f"{tree.shown(path)}:{node.lineno}"
        for path in tree.modules()
        if not tree.shown(path).startswith(PRINTERS)
        for node in tree.nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert not found


@pytest.mark.parametrize("pattern", [LEFT_OVER, ELSEWHERE], ids=["left over", "elsewhere"])
def test_nothing_is_left_over(pattern: re.Pattern[str]) -> None:
    found = [
        f"{tree.shown(path)}:{number}"
        for path in tree.text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_modules_say_what_they_are() -> None:
    modules = [path for path in tree.modules() if path.name != "__main__.py"]
    assert not [tree.shown(path) for path in modules if not ast.get_docstring(tree.parse(path))]


def is_without_length(node: ast.expr) -> bool:
    """Whether this makes an iterator whose length Python cannot know: a generator, `map` and the like."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in WITHOUT_LENGTH
    return isinstance(node, ast.GeneratorExp)


def makes_tuple_without_length(call: ast.Call) -> bool:
    """`tuple(...)`, and `f(*...)` without other arguments by place; with others, Python makes a list of all first."""
    if len(call.args) != 1:
        return False
    argument = call.args[0]
    if isinstance(argument, ast.Starred):
        return is_without_length(argument.value)
    return isinstance(call.func, ast.Name) and call.func.id == "tuple" and is_without_length(argument)


def test_programs_that_run_for_long_make_tuples_of_lists() -> None:
    """CPython keeps one more for each that is made otherwise: see `shard.replacing`."""
    found = [
        f"{tree.shown(path)}:{node.lineno}"
        for path in tree.modules(*LONG_RUNNING)
        for node in ast.walk(tree.parse(path))
        if isinstance(node, ast.Call) and makes_tuple_without_length(node)
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("tuple(a for a in b)", True),
        ("tuple(map(a, b))", True),
        ("f(*(a for a in b))", True),
        ("f(*zip(a, b))", True),
        ("tuple([a for a in b])", False),
        ("(*map(a, b),)", False),
        ("f(c, *map(a, b))", False),
        ("f(*b)", False),
    ],
)
def test_what_makes_a_tuple_without_length(text: str, is_found: bool) -> None:
    node = ast.parse(text, mode="eval").body
    assert (isinstance(node, ast.Call) and makes_tuple_without_length(node)) == is_found
