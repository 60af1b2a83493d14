"""Replaces fields of a NamedTuple without a tuple more that CPython keeps.

CPython keeps up to 2,000 freed tuples of each length below 21 for reuse. A tuple of an iterator without a known length,
such as a generator or `map`, is made with ten elements and then resized (`_PyTuple_Resize`; seen in CPython 3.11 to
3.13). So it was not one of those that are kept for its length, and becomes one when it is freed: one more each time,
until there are 2,000, which may take hours, and 100 to 400 kB. A tuple of a list has its length from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

NamedRow = TypeVar("NamedRow", bound=NamedTuple)


def replaceable(kind: type[NamedRow]) -> type[NamedRow]:
    """A decorator of a NamedTuple whose `_replace` is called again and again: else that makes a tuple of `map`."""

    def make(cls: type[NamedRow], values: Iterable[Any]) -> NamedRow:
        return cls(*list(values))

    kind._make = classmethod(make)  # type: ignore[assignment, method-assign, misc]
    return kind
