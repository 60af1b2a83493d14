"""Replacing fields of a NamedTuple again and again leaves the interpreter nothing more to keep."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tailrace.shard.replacing import replaceable
from tests.kept_tuples import added_tuples


@replaceable
class Place(NamedTuple):
    stream: str
    seq: int = 0
    epoch: int = 0


def test_fields_are_replaced_as_ever() -> None:
    assert Place("s", 1)._replace(seq=2, epoch=3) == Place("s", 2, 3)
    assert type(Place("s")._replace(seq=2)) is Place
    assert Place._make(["s", 1, 2]) == Place("s", 1, 2)


def test_what_is_no_field_or_one_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match="other"):
        Place("s")._replace(other=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Place._make(["s", 1, 2, 3])


def test_no_tuple_more_is_kept_each_time() -> None:
    place = Place("s")
    assert not added_tuples(lambda: place._replace(seq=1))
