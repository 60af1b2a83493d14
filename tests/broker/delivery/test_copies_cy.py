"""The leaf that sends a chunk to many sockets: identifiers, sockets that take nothing, and that its two bodies do the
same.
"""

from __future__ import annotations

import random
import socket
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, closing
from select import select
from types import ModuleType

import pytest

from tailrace.shard.leaves import load, load_source

LEAF = "tailrace.broker.delivery.copies_cy"
Pairs = list[tuple[socket.socket, socket.socket]]


@pytest.fixture(params=[load(LEAF), load_source(LEAF)], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    """The peers' ends and the broker's."""
    with ExitStack() as stack:
        yield [_pair(stack) for _ in range(6)]


def _pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    peer, ours = (stack.enter_context(closing(each)) for each in socket.socketpair())
    ours.setblocking(False)
    return peer, ours


def test_each_has_its_own_identifiers(leaf: ModuleType, pairs: Pairs) -> None:
    fds = [ours.fileno() for _peer, ours in pairs[:3]]
    data = b"a..b..c..d"
    assert leaf.send_copies(fds, data, array("Q", [1, 4, 7]), 2, 6, [1, 0x1234, 0xFFFF]) == [6, 6, 6]
    got = [peer.recv(100) for peer, _ours in pairs[:3]]
    assert got == [b"a\0\1b\0\2", b"a\x12\x34b\x12\x35", b"a\xff\xffb\0\1"]
    assert data == b"a..b..c..d"


def test_a_chunk_without_identifiers(leaf: ModuleType, pairs: Pairs) -> None:
    fds = [ours.fileno() for _peer, ours in pairs]
    assert leaf.send_copies(fds, b"abc", array("Q"), 0, 3, [1] * 6) == [3] * 6
    assert {peer.recv(100) for peer, _ours in pairs} == {b"abc"}


def test_sockets_that_take_nothing(leaf: ModuleType, pairs: Pairs) -> None:
    full, broken = pairs[0][1], pairs[1][1]
    pairs[1][0].close()
    with pytest.raises(BlockingIOError):
        while True:
            full.send(bytes(1 << 16))
    fds = [full.fileno(), broken.fileno(), pairs[2][1].fileno()]
    assert leaf.send_copies(fds, b"abc", array("Q", [1]), 1, 3, [7, 8, 9]) == [leaf.NOTHING, leaf.FAILED, 3]
    assert pairs[2][0].recv(9) == b"a\0\x09"


@pytest.mark.parametrize("place", [2, 3, 2**63, 2**64 - 2, 2**64 - 1])
def test_an_identifier_outside_of_what_is_sent(leaf: ModuleType, pairs: Pairs, place: int) -> None:
    with pytest.raises(ValueError, match=rf"^an identifier at {place} of 3 bytes$"):
        leaf.send_copies([pairs[0][1].fileno()], b"abcdef", array("Q", [0, place]), 2, 3, [7])
    with pytest.raises(ValueError, match=rf"^an identifier at {place} of 1 bytes$"):
        leaf.send_copies([pairs[0][1].fileno()], b"abcdef", array("Q", [place]), 1, 1, [7])
    assert not select([pairs[0][0]], [], [], 0)[0]


@pytest.mark.parametrize(("end", "first_ids"), [(-1, [7]), (7, [7]), (3, []), (3, [7, 8])])
def test_an_end_or_identifiers_that_do_not_fit(leaf: ModuleType, pairs: Pairs, end: int, first_ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"^{len(first_ids)} identifiers for 1 sockets, {end} bytes of 6$"):
        leaf.send_copies([pairs[0][1].fileno()], b"abcdef", array("Q", [1]), 1, end, first_ids)
    assert not select([pairs[0][0]], [], [], 0)[0]


def test_both_bodies_send_the_same(pairs: Pairs) -> None:
    chance = random.Random(1)
    leaves = load(LEAF), load_source(LEAF)
    for _ in range(50):
        data = chance.randbytes(chance.randrange(1, 300))
        places = array("Q", sorted(chance.sample(range(0, len(data), 2), chance.randrange(len(data) // 2 + 1))))
        count = chance.randrange(len(places) + 1)
        end = min(places[count - 1] + 2, len(data)) if count else chance.randrange(1, len(data) + 1)
        count -= bool(count) and places[count - 1] + 2 > end
        first_ids = [chance.choice([1, 0xFFFF, chance.randrange(1, 1 << 16)]) for _ in pairs]
        fds = [ours.fileno() for _peer, ours in pairs]
        found = []
        for each in leaves:
            sent = each.send_copies(fds, data, places, count, end, first_ids)
            found.append((sent, [peer.recv(1 << 10) for peer, _ours in pairs]))
        assert found[0] == found[1]
