"""Stands in for `import cython` where Cython is not installed, or not wanted: a leaf then runs as plain Python.

It holds what the leaves use outside of `if cython.compiled`, no more. Decorators return the function as it is; types
are names without effect, so `cast` and `declare` neither convert nor truncate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

compiled = False
NULL = None

_Function = TypeVar("_Function", bound=Callable[..., Any])
_CastValue = TypeVar("_CastValue")


class CType:
    """A C type's name: nothing looks at it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<C type {self.name}>"


bint = CType("bint")
int = CType("int")
uint = CType("uint")
uchar = CType("uchar")
ulonglong = CType("ulonglong")
Py_ssize_t = CType("Py_ssize_t")
size_t = CType("size_t")
void = CType("void")
p_char = CType("p_char")
p_uchar = CType("p_uchar")
p_uint = CType("p_uint")
p_const_char = CType("p_const_char")
p_const_uchar = CType("p_const_uchar")
p_int = CType("p_int")
p_ulonglong = CType("p_ulonglong")


def pointer(base: object) -> CType:
    return CType(f"pointer({base!r})")


def _plain(function: _Function) -> _Function:
    return function


cfunc = inline = _plain


def exceptval(*_values: object, **_named: object) -> Callable[[_Function], _Function]:
    """`@cython.exceptval(-1, check=False)`."""
    return _plain


def declare(_type: object = None, value: Any = None, **_named: object) -> Any:
    """`cython.declare(cython.uint, 0)` is its value."""
    return value


def cast(_type: object, value: _CastValue, typecheck: bool = False) -> _CastValue:
    """The value as it is: no conversion, no truncation."""
    return value
