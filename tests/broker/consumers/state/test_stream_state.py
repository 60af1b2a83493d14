"""All consumers of a stream: records that do not fit, alarms, messages spared from trimming."""

from __future__ import annotations

import pytest

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.records import (
    BadRecord,
    ConsumerCreated,
    ConsumerDeleted,
    ConsumerReset,
    FlightReturned,
    HistoryChanged,
    LetterPublished,
    Progress,
    Record,
)
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.shard.epochs import EpochStart
from tests.broker.consumers.stream import Stream, asking

MADE = ConsumerCreated(b"billing", 1, 0, 100, 0)


@pytest.mark.parametrize(
    "record",
    [
        MADE,
        ConsumerReset(b"audit", 1, 0),
        ConsumerDeleted(b"audit"),
        LetterPublished(b"audit", 0),
        Progress(b"audit", b"m", 1),
        FlightReturned(b"audit", b"m", "late", ()),
    ],
)
def test_records_that_contradict_the_state_are_said(record: Record) -> None:
    consumers = ConsumerTable()
    consumers.apply(MADE)
    with pytest.raises(BadRecord, match="consumer"):
        consumers.apply(record)


def test_the_first_line_moves_nobody_back_but_to_the_end() -> None:
    consumers = ConsumerTable()
    consumers.apply(MADE._replace(seq=9))
    consumers.apply(HistoryChanged((EpochStart(3, 5, "a"),), 7))
    assert consumers.by_name[b"billing"].next_seq == 7
    assert not consumers.by_name[b"billing"].unsure_seq


def test_a_new_term_moves_back_to_where_it_parts() -> None:
    consumers = ConsumerTable()
    consumers.apply(HistoryChanged((EpochStart(1, 0, "a"),), 0))
    consumers.apply(MADE)
    consumers.apply(Progress(b"billing", b"m", 5, given=(0, 20)))
    consumers.apply(HistoryChanged((EpochStart(1, 0, "a"), EpochStart(2, 12, "b")), 40))
    billing = consumers.by_name[b"billing"]
    assert (billing.next_seq, billing.flight.count, billing.unsure_seq) == (12, 12, 0)
    consumers.apply(HistoryChanged((EpochStart(1, 0, "a"), EpochStart(2, 12, "b"), EpochStart(3, 30, "a")), 40))
    assert (billing.next_seq, billing.unsure_seq) == (12, 30)


def test_an_alarm_is_set_once_a_wait_and_never_late() -> None:
    stream, consumers = Stream(100), ConsumerTable()
    decide.create(consumers, b"billing", 0, stream, 1, ack_wait_us=1_000)
    for now_us in range(10, 20):
        decide.get(consumers, asking(b"billing", b"m", max_messages=1, fresh=True), stream, now_us)
    assert len(consumers._alarms) == 1
    assert consumers.next_alarm_us() == 1_010
    assert consumers.take_alarm(1_009) is None
    assert consumers.take_alarm(1_010) is consumers.by_name[b"billing"]
    assert consumers.next_alarm_us() is None


def test_alarms_of_consumers_that_are_gone_are_dropped() -> None:
    stream, consumers = Stream(100), ConsumerTable()
    decide.create(consumers, b"billing", 0, stream, 1)
    decide.get(consumers, asking(b"billing", b"m", max_messages=1), stream, 1)
    decide.delete(consumers, b"billing")
    assert consumers.next_alarm_us() is None and not consumers._alarms


def test_what_is_spared() -> None:
    stream, consumers = Stream(100), ConsumerTable()
    assert consumers.spare_seq(0) is None
    decide.create(consumers, b"billing", 20, stream, 5)
    decide.create(consumers, b"audit", 10, stream, 3)
    assert [consumers.spare_seq(idle_us) for idle_us in (0, 3, 4, 5, 6)] == [10, 10, 20, 20, None]
