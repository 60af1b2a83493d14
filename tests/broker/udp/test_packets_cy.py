"""Datagrams through real sockets, and frames made of them, compiled and interpreted."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.broker.udp.addresses import pack_name
from tailrace.protocol.topic_table import pack_table
from tailrace.shard.frame import HEADER
from tailrace.shard.leaves import load, load_source
from tailrace.shard.topics import topic_in

MODULE = "tailrace.broker.udp.packets_cy"
SLOT, JOINED, UDP_SEGMENT = 2_000, 128, 103
TABLE = pack_table([(b"alone", [b"alone"]), (b"sensors/#", [b"sensors"]), (b"+/level", 1)])


@pytest.fixture(params=["loaded", "interpreted"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    return load(MODULE) if request.param == "loaded" else load_source(MODULE)


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one, socket.socket(family, socket.SOCK_DGRAM) as other:
        for each in (one, other):
            each.bind((request.param, 0))
            each.settimeout(30)
        yield one, other


def buffers(count: int) -> tuple[bytearray, bytearray, bytearray, bytearray]:
    most = count * JOINED
    return bytearray(count * SLOT), bytearray(most * 4), bytearray(most * 28), bytearray(most * 4)


def test_datagrams_come_with_their_addresses(leaf: ModuleType, pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    slots, _starts, names, lengths = datagrams = buffers(4)
    assert leaf.receive(one.fileno(), datagrams, SLOT, 4) == (0, 0, 0)
    for text in (b"first", b"", b"third"):
        other.sendto(text, one.getsockname())
    assert leaf.receive(one.fileno(), datagrams, SLOT, 2) == (2, 2, 5)
    assert struct.unpack("<2I", lengths[:8]) == (5, 0)
    assert slots[:5] == b"first" and names[:28] == pack_name(other.getsockname()) == names[28:56]
    assert leaf.receive(one.fileno(), datagrams, SLOT, 4) == (1, 1, 5)
    assert slots[:5] == b"third"


def test_datagrams_that_the_kernel_has_joined_are_taken_apart(
    leaf: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    one, other = pair
    joins = leaf.join(one.fileno())
    other.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 3)
    other.sendto(b"aaabbbcccd", one.getsockname())
    other.sendto(b"e", one.getsockname())
    datagrams, found, calls = buffers(2), list[bytes](), 0
    while len(found) < 5:
        messages, count, _nbytes = leaf.receive(one.fileno(), datagrams, SLOT, 2)
        calls += messages
        found += [taken(datagrams, number) for number in range(count)]
        assert bytes(datagrams[2][: 28 * count]) == pack_name(other.getsockname()) * count
    assert found == [b"aaa", b"bbb", b"ccc", b"d", b"e"] and calls == (2 if joins else 5)
    assert joins or not leaf.is_compiled()


def taken(datagrams: tuple[bytearray, ...], number: int) -> bytes:
    slots, starts, _names, lengths = datagrams
    (start,), (length,) = struct.unpack_from("<I", starts, 4 * number), struct.unpack_from("<I", lengths, 4 * number)
    return bytes(slots[start : start + length])


@pytest.mark.parametrize("segments", [True, False])
def test_datagrams_go_where_they_ought_to(
    leaf: ModuleType, pair: tuple[socket.socket, socket.socket], segments: bool
) -> None:
    one, other = pair
    to = [pack_name(other.getsockname())] * 5 + [pack_name(one.getsockname())]
    texts = [b"aaaa", b"bbbb", b"cccc", b"", b"longer", b"mine"]
    entries, places = bytearray(), b"".join(texts)
    at = 0
    for name, text in zip(to, texts, strict=True):
        entries += name + bytes(4) + struct.pack("<II", at, len(text))
        at += len(text)
    done = leaf.send(one.fileno(), entries, 0, 6, places, 4, segments)
    assert done[:5] == (4, 4, 12, 0, False)
    assert leaf.send(one.fileno(), entries, 4, 6, places, 100, segments)[:5] == (6, 2, 10, 0, False)
    assert [other.recv(100) for _ in range(5)] == texts[:5]
    assert one.recv(100) == b"mine"


def test_what_the_system_refuses_is_counted(leaf: ModuleType, pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    name = pack_name(other.getsockname())
    texts = bytes(70_000)
    entries = name + bytes(4) + struct.pack("<II", 0, 70_000) + name + bytes(4) + struct.pack("<II", 0, 3)
    assert leaf.send(one.fileno(), entries, 0, 2, texts, 10, True)[:5] == (2, 1, 3, 1, False)
    assert other.recv(100) == bytes(3)


def staged(leaf: ModuleType, data: list[bytes], table: bytes = b"", most: int = 500) -> tuple[Any, Any]:
    slots, starts, _names, lengths = datagrams = buffers(max(len(data), 1))
    for at, each in enumerate(data):
        slots[at * SLOT : at * SLOT + len(each)] = each
        struct.pack_into("<I", starts, 4 * at, at * SLOT)
        struct.pack_into("<I", lengths, 4 * at, len(each))
    groups: dict[bytes, list[Any]] = {}
    done = leaf.stage(datagrams, 0, len(data), table, b"udp", most, groups)
    return done, {stream: (bytes(frames), count) for stream, (frames, count) in groups.items()}


def messages(frames: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 0
    while at < len(frames):
        header = HEADER.unpack_from(frames, at)
        body = at + 32 + header[6]
        found.append((topic_in(frames[at + 32 : body]), frames[body : at + header[0]]))
        at += header[0]
    return found


def test_publishes_become_frames_of_their_streams(leaf: ModuleType) -> None:
    data = [
        b"PUB a\n1",
        b"PUB sensors/7 2",
        b"PUB \t b\r\n3\n",
        b"PUB alone\n4",
        b"PUB x/level\n5",
        b"PUB " + b"l" * 300,
    ]
    (left, junk), groups = staged(leaf, data, TABLE)
    assert (left, junk) == (6, 0)
    assert {stream: messages(frames) for stream, (frames, _count) in groups.items()} == {
        b"udp": [(b"a", b"1"), (b"b", b"3\n"), (b"l" * 300, b"")],
        b"sensors": [(b"sensors/7", b"2")],
        b"alone": [(b"", b"4")],
        b"x": [(b"x/level", b"5")],
    }


@pytest.mark.parametrize(
    "other",
    [
        b"SUB a\n",
        b"UNSUB a\n",
        b"PING\n",
        b"PUB? a\nb",
        b"PUB",
        b"PUB a+\n",
        b"PUB a#",
        b"PUB $a\n",
        "PUB ü\n".encode(),
        b"PUB a\0b\n",
        b"PUB " + b"x" * 1_025,
        b"PUB " + b"/" * 128,
        b"PUB a\n" + bytes(501),
    ],
)
def test_what_is_no_plain_publish_is_left(leaf: ModuleType, other: bytes) -> None:
    (left, junk), groups = staged(leaf, [b"PUB a\n1", b"junk", other, b"PUB a\n2"])
    assert (left, junk) == (2, 1)
    assert groups[b"udp"][1] == 1


DATA = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda verb, gap, topic, end, body: verb + gap + topic + end + body,
        st.sampled_from((b"PUB", b"PUB?", b"SUB", b"PING", b"PUBX", b"PU")),
        st.sampled_from((b" ", b"", b"\t\n", b"\r\n")),
        st.sampled_from(
            (b"a", b"sensors/1", b"x/level", b"alone", b"reply-to/x", b"bad|/level", b"a+", b"\xc3\xbc", b"")
        ),
        st.sampled_from((b" ", b"", b"\r\n", b"\r", b"\n")),
        st.binary(max_size=20),
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(DATA, max_size=6), st.booleans())
def test_both_builds_stage_the_same(data: list[bytes], has_table: bool) -> None:
    table = TABLE if has_table else b""
    assert staged(load(MODULE), data, table, 15) == staged(load_source(MODULE), data, table, 15)
