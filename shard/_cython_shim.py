"""Stands in for `import cython` where Cython is not installed, or not wanted: a leaf then runs as plain Python.

It holds what the leaves use outside of `if cython.compiled`, no more. Decorators return the function as it is; types
are names without effect, so `cast` and `declare` neither convert nor truncate.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

compiled = False
NULL = None

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


class CType:
    """A C type's name. Indexing (`const[uchar]`, `uchar[:]`) gives the same name: nothing looks at it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, _item: object) -> CType:
        return self

    def __repr__(self) -> str:
        return f"<C type {self.name}>"


bint = CType("bint")
char = CType("char")
uchar = CType("uchar")
short = CType("short")
ushort = CType("ushort")
int = CType("int")
uint = CType("uint")
long = CType("long")
ulong = CType("ulong")
longlong = CType("longlong")
ulonglong = CType("ulonglong")
size_t = CType("size_t")
Py_ssize_t = CType("Py_ssize_t")
double = CType("double")
void = CType("void")
const = CType("const")
p_char = CType("p_char")
p_uchar = CType("p_uchar")
p_const_char = CType("p_const_char")
p_const_uchar = CType("p_const_uchar")
p_int = CType("p_int")
p_uint = CType("p_uint")
p_ulonglong = CType("p_ulonglong")
p_void = CType("p_void")


def pointer(base: object) -> CType:
    return CType(f"pointer({base!r})")


def _plain(function: _Function) -> _Function:
    return function


cfunc = ccall = inline = final = _plain


class _NoGil:
    """`@cython.nogil` and `with cython.nogil:`."""

    def __call__(self, function: _Function) -> _Function:
        return function

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        return None


nogil = _NoGil()


def _directive(*_values: object, **_named: object) -> Callable[[_Function], _Function]:
    return _plain


boundscheck = wraparound = cdivision = initializedcheck = nonecheck = overflowcheck = _directive
infer_types = binding = profile = exceptval = returns = locals = _directive


def declare(_type: object = None, value: Any = None, **_named: object) -> Any:
    """`cython.declare(cython.uint, 0)` is its value."""
    return value


def cast(_type: object, value: _Value, typecheck: bool = False) -> _Value:
    """The value as it is: no conversion, no truncation."""
    return value
