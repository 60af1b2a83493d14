"""The library as a whole: its names, and the modules it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tailrace

ROOT = Path(__file__).parents[2]
ALLOWED = {"google_crc32c", "msgpack", "tailrace"}
OTHERS = {"tailrace.broker", "tailrace.cli", "tailrace.spark", "tailrace.supervisor"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True, text=True)
    return done.stdout


def test_every_name_is_there() -> None:
    for name in tailrace.__all__:
        assert getattr(tailrace, name) is not None
    assert set(tailrace.__all__) <= set(dir(tailrace))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tailrace.nothing


def test_type_checkers_are_told_the_same_names() -> None:
    tree = ast.parse((ROOT / "client" / "__init__.py").read_text())
    told = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "importlib", "typing")
        for alias in node.names
    }
    assert told == set(tailrace.__all__)
    assert (ROOT / "client" / "py.typed").exists()


def test_every_error_is_among_the_names() -> None:
    from tailrace import errors

    kinds = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert kinds <= set(tailrace.__all__)


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tailrace.__version__ == project["version"]


@pytest.mark.parametrize("use", ["connect", "connect_async"])
def test_nothing_else_is_loaded(use: str) -> None:
    """No module that the client's dependencies do not have; not the command's, nor a broker's."""
    code = (
        f"import sys\nbefore = set(sys.modules)\nimport tailrace\ntailrace.{use}\nprint(*(set(sys.modules) - before))"
    )
    names = set(run(code).split())
    packages = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    unknown = {each for each in packages if each.strip("_") and not each.startswith(("_cython", "cython", "_msgpack"))}
    assert unknown <= ALLOWED | {"Cython"}  # a leaf imports it if it is installed
    assert not names & OTHERS
    assert use != "connect" or "asyncio" not in names


@pytest.mark.parametrize(("code", "modules_max"), [("", 10), ("tailrace.connect, tailrace.NOW, tailrace.Trimmed", 130)])
def test_it_loads_little(code: str, modules_max: int) -> None:
    """So that it loads quickly: counts modules, since times on a busy machine are unreliable."""
    program = f"import sys\nbefore = set(sys.modules)\nimport tailrace\n{code}\nprint(*(set(sys.modules) - before))"
    assert len(run(program).split()) <= modules_max
