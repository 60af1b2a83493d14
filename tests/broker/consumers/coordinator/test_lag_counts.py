"""The lag of consumers with filters is counted in slices, once it is asked for, and only as far as it was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.consumers.coordinator import lag_counts
from tailrace.broker.routing.batch import StreamBatch
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.frame import pack_frame
from tests.broker.consumers.desks import C, Office, S
from tests.broker.owning import Sink

SLICES = 12
PAYLOAD = bytes(1 << 16)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """With a stream of several slices, in which each other message has the topic a."""
    office = Office(tmp_path / "data")
    publish(office, SLICES * 4)
    office.create(topics=b"a")
    return office


def publish(office: Office, messages: int) -> None:
    batch, frames = StreamBatch(S, 0), bytearray()
    for number in range(messages):
        frames += pack_frame(PAYLOAD, metadata=msgpack.packb({"t": "ab"[number % 2]}))
    batch.add(Sink(), 0, messages, frames)
    office.owner.append(batch, office.clock.now_s)


def lag(office: Office) -> tuple[int, bool]:
    row: dict[str, Any] = office.rows()[C]
    return row["lag_messages"], row.get("lag_at_most", False)


def test_each_turn_counts_a_slice(office: Office) -> None:
    messages = SLICES * 4
    assert lag(office) == (messages, True)
    found = []
    while office.desk.pending:
        office.desk.work()
        found.append(lag(office)[0])
    assert len(found) >= SLICES and sorted(found, reverse=True) == found and len(set(found)) > SLICES // 2
    assert lag(office) == (messages // 2, False)


def test_only_new_messages_are_read_again(office: Office) -> None:
    assert lag(office)[1]
    office.turn()
    publish(office, 2)
    assert lag(office) == (SLICES * 2 + 2, True)
    turns = 0
    while office.desk.pending:
        office.desk.work()
        turns += 1
    assert turns <= 3 and lag(office) == (SLICES * 2 + 1, False)


def test_a_stream_that_grows_all_the_time_is_counted_to_where_it_was(office: Office) -> None:
    assert lag(office)[1]
    turns = 0
    while office.desk.lags.wanted:
        publish(office, 8)
        office.desk.work()
        turns += 1
        assert turns < 4 * SLICES
    found, at_most = lag(office)
    assert at_most and SLICES * 2 < found < SLICES * 4 + turns * 8, "of what was there each other message counts"


def test_the_metrics_have_it_counted_too(office: Office) -> None:
    assert office.patrol.consumer_lag(S) == (1, SLICES * 4)
    office.turn()
    assert office.patrol.consumer_lag(S) == (1, SLICES * 2)


def test_the_age_is_that_of_a_message_that_matches_or_none(office: Office) -> None:
    office.consume("delete")
    office.turn()
    office.create(topics=b"none")
    assert "lag_us" in office.rows()[C]
    office.turn()
    assert lag(office) == (0, False) and "lag_us" not in office.rows()[C]


def test_no_more_consumers_are_counted_than_fit(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_counts, "COUNTED_AT_ONCE_MAX", 1)
    office.desk.lags.count(S, [C, b"other"], 4)
    assert len(office.desk.lags.wanted) == 1


def test_a_stream_that_cannot_be_read_is_not_counted_on(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    def matching(*_args: Any) -> None:
        raise StreamDamaged("s", Path("content"), 0, "damaged")

    monkeypatch.setattr(type(office.desk.book(S).log_view), "matching", matching)
    assert lag(office)[1]
    office.turn()
    assert not office.desk.pending and lag(office)[1]


def test_consumers_that_are_gone_are_left_out(office: Office) -> None:
    assert lag(office)[1]
    office.consume("delete")
    office.turn()
    assert not office.desk.lags.wanted
