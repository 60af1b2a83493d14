"""The bytes of messages about durable consumers, and the limits of one envelope."""

from __future__ import annotations

import dataclasses
from typing import get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import UsageError
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX
from tailrace.protocol.names import CONSUMER_BYTES_MAX
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.names import NAME_BYTES_MAX
from tests.protocol.wires import STANDING, client, feed_client, feed_server, server, stamped

LONG = b"n" * CONSUMER_BYTES_MAX
NOTHING = memoryview(b"")


def control(message: m.AnyMessage) -> object:
    """What msgpack makes of a body."""
    return msgpack.unpackb(m.pack(message)[HEAD_BYTES:])


def body(message: m.AnyMessage) -> bytes:
    return m.pack(message)[HEAD_BYTES:]


def test_every_message_has_its_packer() -> None:
    assert set(c.PACKERS) == {*get_args(c.ConsumerRequest), *get_args(c.ConsumerResponse)}
    assert {kind.__name__.upper() for kind in c.PACKERS} == {op.name for op in m.Op if m.Op.CONSUME <= op <= m.Op.GOT}


def test_the_acknowledgements_are_those_of_a_publish() -> None:
    assert (c.ACK_APPENDED, c.ACK_SYNCED, c.ACK_REPLICATED) == (m.Ack.APPENDED, m.Ack.SYNCED, m.Ack.REPLICATED)


def test_requests_are_maps_without_what_is_not_said() -> None:
    assert control(c.Consume(1, "list", b"s")) == {"id": 1, "do": "list", "stream": "s"}
    create = {"id": 1, "do": "create", "stream": "é", "name": "n"}
    assert control(c.Consume(1, "create", "é".encode(), b"n", FROM_NEW)) == create | {"from": ["new", 0]}
    more = {"from": ["seq", 2], "ack_wait_s": 0.5, "deliveries_max": 3, "ack": 3, "replicas": 2}
    assert control(c.Consume(1, "create", "é".encode(), b"n", From("seq", 2), 0.5, 3, 3, 2)) == create | more
    filtered = c.Consume(1, "create", "é".encode(), b"n", FROM_NEW, topics="é/#".encode())
    assert control(filtered) == create | {"from": ["new", 0], "topics": "é/#"}
    leave = {"id": 1, "do": "leave", "stream": "s", "name": "n", "member": "m"}
    assert control(c.Consume(1, "leave", b"s", b"n", member=b"m")) == leave
    get = {"id": 1, "stream": "s", "name": "n", "member": "m", "max_messages": 0}
    assert control(c.Get(1, b"s", b"n", b"m")) == get
    more = {
        "finished": [[1, 2, 7]], "failed": [[3, 8, "x"]], "max_messages": 4, "max_bytes": 5, "wait_ms": 6,
        "fresh": True, "ack": 2, "session": 9,
    }  # fmt: skip
    assert control(c.Get(1, b"s", b"n", b"m", ((1, 2, 7),), ((3, 8, "x"),), 4, 5, 6, True, 2, 0, 9)) == get | more


def test_responses() -> None:
    assert control(c.Consumed(1, 7, False)) == {"id": 1, "next_seq": 7, "created": False}
    assert control(c.Consumed(1, existed=False)) == {"id": 1, "existed": False}
    row = dataclasses.asdict(STANDING) | {"name": "billing"}
    row |= {"topics": None, "lag_at_most": None}
    filtered = dataclasses.replace(STANDING, topics=b"a/+", lag_at_most=True)
    more = {"topics": "a/+", "lag_at_most": True}
    assert control(c.Consumed(1, consumers=(filtered,))) == {"id": 1, "consumers": [row | more]}
    assert control(c.Consumed(1, consumers=(STANDING,))) == {"id": 1, "consumers": [row]}
    assert body(c.Got(1, (), (), 0, NOTHING)) == bytes([1]) + bytes(15)
    frames = stamped()
    packed = body(c.Got(1, ((4, 3, 2, 9),), ((5, 6),), 7, frames))
    words = (4).to_bytes(8, "little") + (3).to_bytes(4, "little") + (2).to_bytes(4, "little")
    words += (9).to_bytes(4, "little")
    stale = (5).to_bytes(8, "little") + (6).to_bytes(8, "little")
    head = b"\x01\0\0\0" + b"\x01\0" + b"\x01\0" + (7).to_bytes(8, "little")
    assert packed == head + words + stale + frames


def test_what_no_message_holds_is_our_own_mistake() -> None:
    for message in (
        c.Get(2**64, b"s", b"n", b"m"),
        c.Got(2**32, (), (), 0, NOTHING),
        c.Got(1, ((0, -1, 0, 1),), (), 0, NOTHING),
    ):
        with pytest.raises(UsageError, match="cannot be packed"):
            m.pack(message)


# --- as much as there is ----------------------------------------------------------------------------------------------


@given(st.integers(0, c.FINISHED_MAX), st.integers(0, c.FAILED_MAX))
def test_the_longest_get_is_taken(finished: int, failed: int) -> None:
    get = c.Get(
        U32_MAX, b"s" * NAME_BYTES_MAX, LONG, LONG, ((NUMBER_MAX, NUMBER_MAX, U32_MAX),) * finished,
        ((NUMBER_MAX, U32_MAX, "é" * (c.REASON_BYTES_MAX // 2)),) * failed, c.MESSAGES_MAX, c.GET_BYTES_MAX - 1,
        c.WAIT_MAX_MS, True, 3, 255, NUMBER_MAX,
    )  # fmt: skip
    packed = m.pack(get)
    assert len(packed) <= HEAD_BYTES + m.CONTROL_BODY_MAX_BYTES
    assert feed_server(server(), [packed]) == [get]


def test_the_longest_list_is_taken() -> None:
    row = dataclasses.replace(STANDING, name=LONG, lag_us=NUMBER_MAX)
    consumed = c.Consumed(1, consumers=(row,) * c.CONSUMERS_MAX)
    assert feed_client(client(), [m.pack(consumed)]) == [consumed]


def test_the_longest_answer_is_less_than_four_mebibytes() -> None:
    runs = tuple((2 * each, 1, 0, 1) for each in range(c.MESSAGES_MAX))
    head = c.pack_got(1, runs, [(1, 2)] * (2 * c.STALE_MAX), 0, c.GET_BYTES_MAX)
    assert len(head) + c.GET_BYTES_MAX < 4 << 20


@pytest.mark.parametrize("more", [-1, 0, 1, 9])
def test_of_stale_ranges_beyond_the_bound_the_last_one_reaches_to_their_end(more: int) -> None:
    ranges = [(2 * each, 2 * each) for each in range(c.STALE_MAX + more)]
    (got,) = feed_client(client(), [c.pack_got(1, (), ranges, 0, 0)])
    assert isinstance(got, c.Got) and len(got.stale) == min(len(ranges), c.STALE_MAX)
    assert got.stale[:-1] == tuple(ranges[: len(got.stale) - 1])
    assert got.stale[-1] == (ranges[len(got.stale) - 1][0], ranges[-1][1]), "nothing of them is left out"
