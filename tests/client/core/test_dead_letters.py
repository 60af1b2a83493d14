"""Calls about dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.core.dead_letters import LetterIndex, checked_letter_stream, purge_letters, redrive_letters
from tailrace.errors import InvalidArgument, InvalidStreamName
from tailrace.protocol.consuming import Consumed
from tailrace.protocol.messages import Ack

LEVEL = (Ack.APPENDED, 0)


def run(calls: Any, answers: list[Consumed]) -> tuple[list[tuple[Any, ...]], int]:
    """The requests made, and the result."""
    asked = []
    call = next(calls)
    while True:
        request = call.make(1)
        asked.append((request.do, request.first_seq, request.last_seq))
        call.answer, call.done = answers[len(asked) - 1], True
        try:
            call = calls.send(call)
        except StopIteration as end:
            return asked, end.value


def test_which_there_are() -> None:
    index = LetterIndex(10, ((0, 1), (4, 5)))
    assert [seq for seq in range(-1, 12) if index.has(seq)] == [2, 3, 6, 7, 8, 9]
    assert (index.left(0, 99), index.left(1, 4), index.left(4, 5), index.left(7, 3)) == (6, 2, 0, 0)


def test_a_redrive_goes_on_until_the_end_that_it_saw() -> None:
    answers = [
        Consumed(1, 10, removed=((0, 1),)),
        Consumed(1, 6, count=4),
        Consumed(1, 12, count=4),
        Consumed(1, 12, removed=((0, 9),)),
    ]
    asked, count = run(redrive_letters("s", None, LEVEL, 1.0), answers)
    assert asked == [("letters", 0, 0), ("redrive", 0, 9), ("redrive", 6, 9), ("letters", 0, 0)] and count == 8


@pytest.mark.parametrize(("seqs", "expected"), [(3, (3, 3)), (range(2, 5), (2, 4)), (range(8, 99), (8, 9))])
def test_some_of_them(seqs: Any, expected: tuple[int, int]) -> None:
    answers = [Consumed(1, 10, removed=()), Consumed(1, 10, count=1), Consumed(1, 10, removed=(expected,))]
    asked, count = run(purge_letters("s", seqs, LEVEL, 1.0), answers)
    assert asked[1] == ("purge", *expected) and count == expected[1] - expected[0] + 1


def test_without_any_nothing_is_asked() -> None:
    assert run(purge_letters("s", 3, LEVEL, 1.0), [Consumed(1, 3, removed=())] * 2) == ([("letters", 0, 0)] * 2, 0)


@pytest.mark.parametrize("seqs", [-1, True, "3", range(5, 0, -1), range(-1, 2)])
def test_what_are_no_letters(seqs: Any) -> None:
    with pytest.raises(InvalidArgument):
        run(redrive_letters("s", seqs, LEVEL, 1.0), [])
    with pytest.raises(InvalidArgument):
        run(redrive_letters("s", None, (Ack.NONE, 0), 1.0), [])


def test_a_name_that_is_too_long() -> None:
    assert checked_letter_stream("s") == ("s", "s/$dead")
    with pytest.raises(InvalidStreamName):
        checked_letter_stream("s" * 195)
