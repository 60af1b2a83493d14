"""The state as records."""

from __future__ import annotations

import pytest

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.checkpoint import PART_REST_BYTES
from tailrace.broker.consumers.state.records import (
    BadRecord,
    CheckpointBegun,
    CheckpointEnded,
    ConsumerCreated,
    ConsumerRows,
    LetterPublished,
    Record,
    UnfinishedRows,
    pack,
    unpack,
)
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tests.broker.consumers.stream import Stream, asking


def worn(consumers_count: int = 3) -> ConsumerTable:
    """Consumers with something of everything."""
    stream, consumers = Stream(200), ConsumerTable()
    for number in range(consumers_count):
        name = f"c{number}".encode()
        decide.create(consumers, name, number, stream, 5, deliveries_max=2, retry_us=0)
        decide.get(consumers, asking(name, b"m", max_messages=90), stream, 6)
        decide.get(consumers, asking(name, b"n", max_messages=30), stream, 7)
        failed = [(seq, 1, f"no {seq}") for seq in range(10, 60, 3)]
        for _ in range(2):
            decide.get(consumers, asking(name, b"m", [(5, 6, 1)], failed, 10, fresh=True), stream, 8)
    return consumers


@pytest.mark.parametrize("part_max_bytes", [1, PART_REST_BYTES + 20, 300, 1 << 20])
def test_a_checkpoint_gives_the_state(part_max_bytes: int) -> None:
    consumers = worn()
    assert consumers.unburied()
    again = ConsumerTable()
    parts = consumers.checkpoint(part_max_bytes)
    for part in parts:
        again.apply(unpack(pack(part)))
    assert again.checkpoint(1 << 20) == consumers.checkpoint(1 << 20)
    assert again.unburied() == consumers.unburied()
    assert decide.next_deadline_us(again) == decide.next_deadline_us(consumers)
    if part_max_bytes >= 300:
        assert max(len(pack(part)) for part in parts) <= part_max_bytes


def test_many_consumers_are_few_parts() -> None:
    consumers, stream = ConsumerTable(), Stream(1)
    for number in range(1_000):
        decide.create(consumers, f"c{number}".encode(), 0, stream, 5)
    parts = consumers.checkpoint(1 << 16)
    assert sum(isinstance(part, ConsumerRows) for part in parts) == len(parts) - 2 == 1


def test_one_that_was_cut_short_does_nothing() -> None:
    consumers = worn()
    before, parts = consumers.checkpoint(1 << 20), worn(1).checkpoint(300)
    for part in parts[:-1]:
        consumers.apply(part)
    assert consumers.checkpoint(1 << 20) == before
    consumers.apply(ConsumerCreated(b"new", 9, 0, 10, 0))
    with pytest.raises(BadRecord, match="of which others were there"):
        consumers.apply(parts[-1])


def test_parts_that_do_not_fit_are_said() -> None:
    begun, kept = CheckpointBegun(()), ConsumerRows(())
    each: list[list[Record]] = [
        [kept],
        [CheckpointEnded(0)],
        [begun, UnfinishedRows(b"x")],
        [begun, kept, CheckpointEnded(2)],
        [LetterPublished(b"x", 0)],
    ]
    for wrong in each:
        consumers = ConsumerTable()
        with pytest.raises(BadRecord):
            for part in wrong:
                consumers.apply(part)
