"""Byte counts that everything else rests on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers import make_peers
from bench.peers.base import PAYLOAD_MARK, digits_total, make_feed, make_payload, shares, stream_names
from bench.peers.tailrace import Tailrace


@given(st.integers(0, 20_000), st.integers(0, 3_000))
def test_digits_total_is_the_length_of_the_numbers_written_out(start: int, count: int) -> None:
    assert digits_total(start, count) == len("".join(map(str, range(start, start + count))))


def test_digits_total_of_very_many_numbers() -> None:
    assert digits_total(0, 10_000_000) == 10 + sum(width * 9 * 10 ** (width - 1) for width in range(2, 8))


def test_digits_total_refuses_negative_numbers() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        digits_total(-1, 5)


@given(st.integers(1, 50), st.integers(0, 500))
def test_shares_are_a_round_robin(streams: int, messages: int) -> None:
    counted = [0] * streams
    for number in range(messages):
        counted[number % streams] += 1
    shared = [0] * streams
    for part, count in shares(streams, messages):
        shared[part] = [count] * len(shared[part])
    assert shared == counted


def test_a_feed_is_whole_rounds_of_at_least_the_bytes_and_messages_asked_for() -> None:
    names, payload = stream_names(7), make_payload(100)
    feed = make_feed(Tailrace(), names, payload, 10_000, 30)
    lines = feed.data.splitlines()
    assert len(lines) == feed.messages
    assert feed.messages % 7 == 0
    assert len(feed.data) >= 10_000
    assert make_feed(Tailrace(), names, payload, 0, 30).messages == 35
    assert make_feed(Tailrace(), names, payload, 0).messages == 7
    assert [line.split()[1].decode() for line in lines[:7]] == names


class _Batching(Tailrace):
    """Lines as batches."""

    batch_max = 10

    def publish_many(self, name: str, payload: bytes, count: int, serial: int = 0) -> bytes:
        return b"%d:%s" % (serial, self.publish(name, payload) * count)


def test_a_feed_goes_in_batches_as_large_as_it_has_messages_of_one_stream() -> None:
    names, payload = stream_names(3), make_payload(100)
    feed = make_feed(_Batching(), names, payload, 0, 36)
    assert (feed.messages, feed.requests) == (36, 6)
    assert [line.split(b":")[0] for line in feed.data.splitlines() if b":" in line] == [b"%d" % i for i in range(6)]
    assert feed.data.count(names[1].encode()) == 12
    one = make_feed(_Batching(), names[:1], payload, 36 * len(_Batching().publish(names[0], payload)))
    assert (one.messages, one.requests) == (36, 4)
    assert (make_feed(_Batching(), names, payload, 0).requests) == 3
    alone = make_feed(Tailrace(), names, payload, 0, 36)
    assert alone.messages == alone.requests == 36


def test_most_peers_take_one_message_at_a_time() -> None:
    with pytest.raises(NotImplementedError, match="one message at a time"):
        Tailrace().publish_many("b.000000", b"@", 2)


@pytest.mark.parametrize("size", [1, 20, 100, 4096])
def test_a_payload_has_its_size_and_one_mark(size: int) -> None:
    payload = make_payload(size)
    assert len(payload) == size
    assert payload.count(PAYLOAD_MARK) == 1
    assert b"$" not in payload


def test_stream_names_are_of_one_length_and_hold_no_mark() -> None:
    names = stream_names(1_000)
    assert len(set(names)) == 1_000
    assert {len(name) for name in names} == {8}
    assert not any(PAYLOAD_MARK.decode() in name or "$" in name for name in names)


def test_every_peer_has_a_name_of_its_own_and_takes_part_in_something() -> None:
    peers = make_peers(interpreted=False, workers=2, payload_bytes=100, replay_messages=10, spark_messages=10)
    assert len({peer.name for peer in peers}) == len(peers)
    assert all(peer.kinds and peer.title for peer in peers)
