"""The stand-in for `import cython`: everything it offers leaves Python as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.shard import _cython_shim as shim
from tailrace.shard import leaves

COMPILED_ONLY = {"cimports", "address", "sizeof", "operator"}  # behind `if cython.compiled`


def double(value: int) -> int:
    return 2 * value


def test_nothing_is_compiled() -> None:
    assert shim.compiled is False


@pytest.mark.parametrize("name", ["cfunc", "inline"])
def test_decorators_give_the_function_back(name: str) -> None:
    assert getattr(shim, name)(double) is double


def test_directives_give_the_function_back() -> None:
    assert shim.exceptval(-1, check=False)(double) is double


def test_types_have_no_effect() -> None:
    assert shim.cast(shim.p_uchar, 300) == 300
    assert shim.declare(shim.uint, 7) == 7
    assert "uint" in repr(shim.pointer(shim.uint))


def used_by(name: str) -> set[str]:
    source = Path(leaves.source_path(name)).read_text()
    return set(re.findall(r"\bcython\.([A-Za-z_]\w*)", source)) - COMPILED_ONLY


@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
def test_it_has_what_the_leaves_use(name: str) -> None:
    # Annotations are not evaluated; calls and decorators are.
    assert not [each for each in used_by(name) if not hasattr(shim, each)]


def test_it_has_nothing_else() -> None:
    used = set[str]().union(*map(used_by, leaves.LEAF_MODULES))
    imported = {"annotations", "Any", "Callable", "TypeVar", "CType"}
    assert {name for name in vars(shim) if not name.startswith("_")} - imported == used
