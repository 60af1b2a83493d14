"""Which dead letters are removed."""

from __future__ import annotations

import pytest

from tailrace.broker.consumers.state import letters
from tailrace.broker.consumers.state.records import LettersCut, LettersRemoved
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import REMOVED_MAX
from tailrace.protocol.errors import Code


def again(consumers: ConsumerTable) -> ConsumerTable:
    """As its checkpoint has it, in small parts."""
    other = ConsumerTable()
    for record in consumers.checkpoint(160):
        other.apply(record)
    return other


def test_what_is_left() -> None:
    removed = [(0, 2), (5, 5), (8, 9)]
    assert letters.left(removed, 0, 10) == [(3, 4), (6, 7), (10, 10)]
    assert letters.left(removed, 4, 6) == [(4, 4), (6, 6)]
    assert letters.left(removed, 5, 5) == letters.left(removed, 9, 3) == []
    assert letters.left([], 0, 1) == [(0, 1)]
    assert (letters.first_left(removed), letters.first_left([(1, 3)]), letters.first_left([])) == (3, 0, 0)


def test_they_are_written_down_once() -> None:
    consumers = ConsumerTable()
    assert letters.remove(consumers, [(4, 5), (2, 2)], 0).records == (LettersRemoved((2, 1, 4, 2)),)
    assert letters.remove(consumers, [(4, 4)], 0).records == ()
    assert letters.remove(consumers, [(3, 3)], 1).records == (LettersRemoved((0, 1, 3, 1)),)
    assert consumers.removed == again(consumers).removed == [(0, 0), (2, 5)]


def test_a_stream_that_has_lost_its_end_has_other_letters_there() -> None:
    consumers = ConsumerTable()
    letters.remove(consumers, [(0, 1), (4, 9), (12, 13)], 0)
    assert letters.cut(consumers, 14).records == ()
    assert letters.cut(consumers, 7).records == (LettersCut(7),)
    assert consumers.removed == [(0, 1), (4, 6)]
    assert letters.cut(consumers, 0).records == (LettersCut(0),) and consumers.removed == []


def test_the_places_are_bounded() -> None:
    consumers = ConsumerTable()
    letters.remove(consumers, [(2 * place, 2 * place) for place in range(REMOVED_MAX)], 0)
    with pytest.raises(Refused) as caught:
        letters.remove(consumers, [(2 * REMOVED_MAX, 2 * REMOVED_MAX)], 0)
    assert caught.value.code is Code.OVERLOADED and len(consumers.removed) == REMOVED_MAX
    assert again(consumers).removed == consumers.removed
    letters.remove(consumers, [(0, 100)], 0)
    assert len(consumers.removed) < REMOVED_MAX
