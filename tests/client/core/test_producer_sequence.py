"""The numbers of a client's publishes. How they fare over connections is in test_session.py."""

from __future__ import annotations

from itertools import count

import pytest

from tailrace.core import producer_sequence
from tailrace.core.producer_sequence import ProducerSequences
from tailrace.core.publications import PendingPublication
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering

mark_run = load("tailrace.shard.run_cy").mark_run


class Numbers(ProducerSequences):
    """With readable ids, and publications that are numbered as by a client."""

    def __init__(self) -> None:
        ids = count()
        super().__init__(lambda: b"id %d" % next(ids))
        self._count = 0

    def new(self, *streams: str, messages: int = 1) -> PendingPublication:
        publication = PendingPublication(streams or ("s",), pack_frame(b"x") * messages, messages, Ack.APPENDED, 1.0)
        self._count += 1
        publication.number = self._count
        return publication

    def joined(self, *streams: str, messages: int = 1) -> PendingPublication:
        publication = self.new(*streams, messages=messages)
        self.join(publication)
        self.mark(publication)
        return publication


def position(publication: PendingPublication) -> tuple[bytes, int]:
    assert publication.position is not None
    return publication.position.sequence.id, publication.position.number


def test_messages_are_counted_for_each_set_of_streams() -> None:
    numbers = Numbers()
    found = [numbers.joined(messages=3), numbers.joined(), numbers.joined("s", "t"), numbers.joined("s")]
    assert [position(each) for each in found] == [(b"id 0", 0), (b"id 0", 3), (b"id 1", 0), (b"id 0", 4)]
    assert found[1].frames == mark_run(pack_frame(b"x"), write_numbering(b"", b"id 0", 3))


def test_new_ids_begin_as_the_broker_says() -> None:
    numbers = Numbers()
    first = numbers.joined()
    numbers.prefix = b"ann "
    assert position(numbers.joined())[0] == b"id 0", "one that has begun goes on"
    numbers.leave(first)
    assert position(numbers.joined("t")) == (b"ann id 1", 0)


def test_frames_are_marked_once_for_each_place() -> None:
    numbers = Numbers()
    found = numbers.joined(messages=2)
    frames = found.frames
    numbers.mark(found)
    assert found.frames is frames
    numbers.leave(found)
    numbers.join(found)
    numbers.mark(found)
    assert found.frames == mark_run(pack_frame(b"x") * 2, write_numbering(b"", b"id 1", 0))


def test_after_a_failure_a_new_line_waits_for_those_of_the_old_one() -> None:
    numbers = Numbers()
    first, second = numbers.joined(), numbers.joined()
    assert first.position is not None
    assert first.position.sequence.is_first(first)
    assert not first.position.sequence.is_first(second)
    numbers.done(first, failed=True)
    assert first.position.sequence.is_first(second)
    assert not numbers.join(numbers.new()), "it must wait"
    assert numbers.join(numbers.new("t"))
    numbers.leave(second)
    assert numbers.join(second)
    assert position(second) == (b"id 2", 0)


def test_a_line_goes_on_while_all_goes_well() -> None:
    numbers = Numbers()
    numbers.done(numbers.joined(), failed=False)
    assert position(numbers.joined()) == (b"id 0", 1)


def test_no_number_is_given_twice_after_an_interrupt() -> None:
    numbers = Numbers()
    found = numbers.joined(messages=2)
    assert found.position is not None
    sequence = found.position.sequence
    sequence.next, sequence.undone = 0, {}  # it came right after the place was given
    numbers.recover([found, numbers.new()])
    assert (sequence.next, list(sequence.undone)) == (2, [1])


def test_idle_sequences_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_sequence, "SEQUENCES_MAX", 2)
    numbers = Numbers()
    busy, idle = numbers.joined("a"), numbers.joined("b")
    numbers.done(idle, failed=False)
    numbers.joined("c")
    assert position(numbers.joined("b")) == (b"id 3", 0)
    assert position(numbers.joined("a")) == (b"id 0", 1)
    assert position(busy) == (b"id 0", 0)
