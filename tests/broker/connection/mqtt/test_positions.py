"""Positions of durable sessions in streams that may have other messages than they were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tailrace.broker.connection.mqtt.positions import UNKNOWN_TERM, PositionTerms, end_of, parting_seq
from tailrace.shard.epochs import NEVER_SEQ
from tailrace.shard.errors import StreamMissing

S = b"s"
TERMS = (1, 1, 1, 4, 4, 6)
"""Of the messages 0 to 5."""


class Entry:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class Start:
    def __init__(self, epoch: int, first_seq: int) -> None:
        self.epoch, self.first_seq = epoch, first_seq


class Stream:
    """In the place of a reader."""

    def __init__(self, first_seq: int = 0) -> None:
        self.first = first_seq
        self.looked_up = 0

    def first_seq(self) -> int:
        return self.first

    def next_seq(self) -> int:
        return len(TERMS)

    def entry(self, seq: int) -> Entry:
        self.looked_up += 1
        if not self.first <= seq < len(TERMS):
            raise ValueError("no such message")
        return Entry(TERMS[seq])

    def epochs(self) -> list[Start]:
        return [Start(epoch, TERMS.index(epoch)) for epoch in sorted(set(TERMS))]


class Readers:
    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def get(self, name: bytes) -> Stream:
        if self.stream is None:
            raise StreamMissing(name.decode(), Path())
        return self.stream


def readers(stream: Stream | None) -> Any:
    return cast("Any", Readers(stream))


def test_the_term_before_a_position() -> None:
    stream, terms = Stream(), PositionTerms()
    assert [terms.before(readers(stream), S, seq) for seq in (0, 1, 3, 4, 6)] == [UNKNOWN_TERM, 1, 1, 4, 6]
    looked_up = stream.looked_up
    assert terms.before(readers(stream), S, 6) == 6 and stream.looked_up == looked_up, "it is known"
    assert PositionTerms().before(readers(Stream(4)), S, 4) == UNKNOWN_TERM, "it is trimmed"
    assert PositionTerms().before(readers(None), S, 4) == UNKNOWN_TERM


@pytest.mark.parametrize(
    ("seq", "term", "parting"),
    [
        (3, 1, NEVER_SEQ),  # the same messages
        (6, 6, NEVER_SEQ),
        (5, 1, 3),  # two more were sent in term 1, which this node does not have
        (5, 3, 3),  # as if terms 2 and 3 had been elsewhere
        (6, 4, 5),
        (9, 6, 6),  # more than it has
        (9, 4, 5),
        (2, 4, NEVER_SEQ),  # messages before it were of term 4 there: all that it has since is behind
        (0, 1, NEVER_SEQ),
        (5, UNKNOWN_TERM, NEVER_SEQ),
    ],
)
def test_the_first_message_that_a_session_was_not_sent(seq: int, term: int, parting: int) -> None:
    assert parting_seq(readers(Stream()), S, seq, term) == parting


def test_what_cannot_be_read_parts_nowhere() -> None:
    assert parting_seq(readers(None), S, 5, 1) == NEVER_SEQ
    assert parting_seq(readers(Stream(5)), S, 5, 4) == NEVER_SEQ, "trimmed up to there"


def test_the_end_of_a_stream() -> None:
    assert end_of(readers(Stream()), S) == len(TERMS)
    assert end_of(readers(None), S) == 0, "there is nothing to be sent"
