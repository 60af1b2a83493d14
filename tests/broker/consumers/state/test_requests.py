"""Valid requests, and requests that are refused before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.requests import ACK_WAIT_MAX_US, failed_of, finished_of
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import DELIVERIES_MAX
from tailrace.protocol.errors import Code
from tests.broker.consumers.stream import Stream, asking


@pytest.fixture
def consumers() -> ConsumerTable:
    consumers, stream = ConsumerTable(), Stream(20)
    decide.create(consumers, b"billing", 0, stream, 1)
    decide.get(consumers, asking(b"billing", b"m", max_messages=10), stream, 2)
    return consumers


def test_a_get_of_no_consumer_is_refused_and_changes_nothing(consumers: ConsumerTable) -> None:
    before = consumers.checkpoint(1_000)
    with pytest.raises(Refused) as refused:
        decide.get(consumers, asking(b"audit", b"m", [(0, 3, 1)], [(5, 1, "no")], 10), Stream(20), 3)
    assert refused.value.code == Code.CONSUMER
    assert "no consumer 'audit' of" in refused.value.text
    assert len(refused.value.text) < 300
    assert consumers.checkpoint(1_000) == before


@pytest.mark.parametrize(
    "asked",
    [
        (b"", 0),
        (b"x" * 101, 0),
        (b"a|b", 0),
        (b"x", -1),
        (b"x", 2**63),
        (b"x", 0, 0),
        (b"x", 0, ACK_WAIT_MAX_US + 1),
        (b"x", 0, None, -1),
        (b"x", 0, None, DELIVERIES_MAX + 1),
    ],
    ids=str,
)
def test_a_consumer_that_cannot_be_is_refused(consumers: ConsumerTable, asked: tuple[Any, ...]) -> None:
    name, seq, *settings = asked
    with pytest.raises(Refused) as refused:
        decide.create(consumers, name, seq, Stream(20), 3, *settings)
    assert refused.value.code == Code.USAGE and list(consumers.by_name) == [b"billing"]


def test_ranges_are_in_order_and_apart() -> None:
    finished = [(7, 8, 1), (0, 3, 1), (8, 9, 2), (2, 4, 1), (5, 5, 1), (0, 1, 2)]
    failed = [(9, 1, "late"), (1, 1, "no"), (9, 1, "no"), (9, 2, "new")]
    assert finished_of(finished) == [(0, 5, 1), (7, 8, 1), (0, 1, 2), (8, 9, 2)]
    assert failed_of(failed) == [(1, 1, "no"), (9, 1, "no"), (9, 2, "new")]
