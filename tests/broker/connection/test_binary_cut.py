"""A binary subscriber whose stream loses its end while it is sent: nothing old and new is ever mixed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.connection.binary import BinaryClient
from tailrace.protocol import messages as m
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tests.broker.binary import BinaryPeer
from tests.broker.world import World, world


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[World]:
    """One worker, which is the owner too."""
    with world(tmp_path) as node:
        yield node


def half_out(node: World, messages: int = 600) -> tuple[BinaryPeer, BinaryClient]:
    """A subscriber in the middle of a chunk of `messages` messages, of which it has got a part."""
    node.fill("a", [b"x" * 1_000] * messages)
    peer = BinaryPeer(node, small=True)
    peer.peer.deaf = True
    peer.subscribe(1, "a")
    client = node.binary_client_of(peer.peer)
    assert client.current is not None and client.current.skip
    return peer, client


def cut(node: World, seq: int, *others: bytes) -> None:
    """By the owner, without a word; and other messages come in their stead."""
    log = node.workers[0].owner.stream(b"a").log
    log.set_aside(seq)
    frames = bytearray(b"".join(map(pack_frame, others)))
    if others:
        log.append(frames, len(others), 1 << 60, 2)


def got(peer: BinaryPeer) -> set[bytes]:
    """The payloads that came whole; the check of every CRC would fail for a message put together from two."""
    peer.take()
    return {payload for _seq, payload in peer.got.get(1, [])}


@pytest.mark.parametrize("told", [False, True])
def test_no_byte_of_another_message_follows_what_is_half_out(
    alone: World, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    peer, _client = half_out(alone)
    cut(alone, 1, *[b"y" * 1_000] * 600)
    if told:
        alone.workers[0].owner.events.on_cut(b"a", 1)
    sent: list[int] = []
    monkeypatch.setattr(os, "sendfile", lambda *_args: sent.append(1))
    peer.peer.deaf = False
    alone.settle()
    assert peer.peer.ended and not sent and got(peer) <= {b"x" * 1_000}


def test_a_chunk_that_is_cut_while_it_is_sent_is_the_last(alone: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the reader and the end of `sendfile`: nobody knows what went out."""
    peer, client = half_out(alone, 120)
    assert isinstance(client.sock, socket.socket)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    sendfile, sent = os.sendfile, []

    def cut_first(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        cut(alone, 1, *[b"y" * 1_000] * 120)
        sent.append((sendfile(out_fd, in_fd, offset, count), count))
        return sent[-1][0]

    monkeypatch.setattr(os, "sendfile", cut_first)
    peer.peer.deaf = False
    alone.settle()
    ((took, count),) = sent
    assert took == count and peer.peer.ended


def test_a_chunk_that_has_stayed_whole_is_finished(alone: World) -> None:
    peer, client = half_out(alone)
    assert client.current is not None and client.current.cut is not None
    end_seq = client.current.cut[0]
    cut(alone, end_seq, *[b"y" * 1_000] * 5)
    alone.workers[0].owner.events.on_cut(b"a", end_seq)
    peer.peer.deaf = False
    alone.settle()
    assert not peer.peer.ended and got(peer) == {b"x" * 1_000, b"y" * 1_000}
    assert [seq for seq, _payload in peer.got[1]] == list(range(end_seq + 5))


def test_who_has_got_some_of_what_was_set_aside_is_told_where_to_go_on(alone: World) -> None:
    alone.fill("a", [b"x"] * 5)
    peer = BinaryPeer(alone)
    peer.subscribe(1, "a")
    cut(alone, 3, b"y")
    alone.workers[0].owner.events.on_cut(b"a", 3)
    alone.settle()
    (ended,) = peer.take()
    assert isinstance(ended, m.Ended) and (ended.id, ended.next_seq, ended.code) == (1, 3, "diverged")
    assert not alone.binary_client_of(peer.peer).cursors
    peer.subscribe(1, "a", From("seq", 3))
    assert peer.got[1][-1] == (3, b"y")
