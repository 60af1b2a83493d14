"""The stand-in for `import cython`: everything it offers leaves Python as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.shard import _cython_shim as shim
from tailrace.shard import leaves

DIRECTIVES = ("boundscheck", "wraparound", "cdivision", "initializedcheck", "nonecheck", "overflowcheck", "infer_types",
              "binding", "profile", "exceptval")  # fmt: skip
COMPILED_ONLY = {"cimports", "address", "sizeof", "operator"}  # behind `if cython.compiled`


def double(value: int) -> int:
    return 2 * value


def test_nothing_is_compiled() -> None:
    assert shim.compiled is False


@pytest.mark.parametrize("name", ["cfunc", "ccall", "inline", "final", "nogil"])
def test_decorators_give_the_function_back(name: str) -> None:
    assert getattr(shim, name)(double) is double


@pytest.mark.parametrize("name", DIRECTIVES)
def test_directives_give_the_function_back(name: str) -> None:
    assert getattr(shim, name)(False)(double) is double


def test_types_of_arguments_have_no_effect() -> None:
    assert shim.locals(value=shim.uchar)(double) is double
    assert shim.returns(shim.uint)(double) is double
    assert shim.cast(shim.uchar, 300) == 300
    assert shim.declare(shim.uint, 7) == 7
    assert repr(shim.const[shim.uchar]) == "<C type const>"
    assert "uchar" in repr(shim.pointer(shim.uchar))


def test_errors_pass_through_nogil() -> None:
    with pytest.raises(KeyError), shim.nogil:
        raise KeyError


@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
def test_it_has_what_the_leaves_use(name: str) -> None:
    source = Path(leaves.source_path(name)).read_text()
    used = set(re.findall(r"\bcython\.([A-Za-z_]\w*)", source)) - COMPILED_ONLY
    # Annotations are not evaluated; calls and decorators are.
    assert not [each for each in used if not hasattr(shim, each)]
