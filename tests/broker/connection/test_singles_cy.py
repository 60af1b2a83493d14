"""The leaf that reads single publishes from many sockets and answers them: the input it takes, the input it stops at,
and that its two bodies do the same.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tailrace.protocol.messages import Ack, Ping, pack
from tailrace.protocol.topic_table import pack_table
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import FLAG_PRODUCER, pack_frame
from tailrace.shard.leaves import load, load_source
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5
from tests.protocol.wires import publish

LEAF = "tailrace.broker.connection.singles_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
MAX = 2_000
BUFFER_BYTES = 4_096
ONE = pack_frame(b"hello")
HANDLES = {7: b"seven", 8: b"eight"}
SINGLE = pack(publish(9, (7,), ONE))
Pairs = list[tuple[socket.socket, socket.socket]]


def clients_of(pairs: Pairs, **parts: Any) -> list[Any]:
    """A client for each of these sockets, with the parts that the leaf reads."""
    return [
        SimpleNamespace(place=place, fd=ours.fileno(), last_publish=None, **{"read_bytes": BUFFER_BYTES, **parts})
        for place, (_peer, ours) in enumerate(pairs)
    ]


def placed_groups(groups: tuple[dict[bytes, Any], dict[bytes, Any]]) -> list[dict[bytes, Any]]:
    """The groups with the places of their clients instead of these."""
    return [
        {name: (frames, requests, [each.place for each in clients]) for name, (frames, requests, clients) in of.items()}
        for of in groups
    ]


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    """The peers' ends and the broker's."""
    with ExitStack() as stack:
        yield [_pair(stack) for _ in range(40)]


def _pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    peer, ours = (stack.enter_context(closing(each)) for each in socket.socketpair())
    ours.setblocking(False)
    return peer, ours


def receive(
    leaf: ModuleType,
    pairs: Pairs,
    sent: list[bytes],
    limit: int = BUFFER_BYTES,
    numbered: list[Any] | None = None,
    placed: dict[int, Any] | None = None,
) -> tuple[Any, list[Any], bytes]:
    """What the leaf returns, the groups, and the buffer after it."""
    for (peer, _ours), data in zip(pairs, sent, strict=False):
        peer.send(data)
    groups: tuple[dict[bytes, Any], dict[bytes, Any]] = ({}, {})
    buffer = bytearray(BUFFER_BYTES)
    clients = clients_of(pairs[: len(sent)], read_bytes=limit, handles=HANDLES, placed=placed)
    returned = leaf.receive(clients, memoryview(buffer), MAX, groups, numbered, placed is not None)
    for at, (name, frame, request, client, ack) in enumerate(numbered or []):
        numbered[at] = name, frame, request, client.place, ack  # type: ignore[index]
    return returned, placed_groups(groups), bytes(buffer)


def test_single_publishes_are_grouped_by_their_streams(leaf: ModuleType, pairs: Pairs) -> None:
    sent = [pack(publish(number, (7 + number % 2,), pack_frame(b"%d" % number))) for number in range(5)]
    returned, (silent, awaited), _buffer = receive(leaf, pairs, sent)
    assert returned == (5, 0, sum(map(len, sent))) and not silent
    assert list(awaited) == [b"seven", b"eight"]
    frames, requests, places = awaited[b"seven"]
    assert frames == b"".join(pack_frame(b"%d" % number) for number in (0, 2, 4))
    assert requests == struct.pack("<6I", 0, 1, 2, 1, 4, 1) and places == [0, 2, 4]


def test_numbered_ones_are_apart(leaf: ModuleType, pairs: Pairs) -> None:
    frame = ONE[:28] + struct.pack("<HH", FLAG_PRODUCER, 3) + b"\x81\xa1p" + ONE[32:]
    frame = struct.pack("<I", len(frame)) + frame[4:]
    sent = [SINGLE, pack(publish(3, (8,), frame)), pack(publish(4, (7,), frame, ack=Ack.NONE)), SINGLE]
    found: list[Any] = []
    returned, (silent, awaited), _buffer = receive(leaf, pairs, sent, numbered=found)
    assert returned == (4, 0, sum(map(len, sent))) and not silent and awaited[b"seven"][2] == [0, 3]
    requests = [struct.pack("<II", number, 1) for number in (3, 4)]
    assert found == [(b"eight", frame, requests[0], 1, 1), (b"seven", frame, requests[1], 2, 0)]
    for wrong in (struct.pack("<H", 2), struct.pack("<H", FLAG_PRODUCER | 2)):
        other = pack(publish(9, (7,), frame[:28] + wrong + frame[30:]))
        assert receive(leaf, pairs[4:], [other], numbered=[])[0] == (0, len(other), 0)
        pairs = pairs[1:]
    bare = pack(publish(9, (7,), ONE[:28] + struct.pack("<H", FLAG_PRODUCER) + ONE[30:]))
    assert receive(leaf, pairs[4:], [bare], numbered=[])[0] == (0, len(bare), 0), "it has no number"


def test_messages_to_topics_get_them(leaf: ModuleType, pairs: Pairs) -> None:
    metadata = topic_metadata(b"a/1")
    topics = {1: (b"seven", b"a/1", metadata)}
    with_metadata = pack(publish(3, (1,), pack_frame(b"x", metadata=b"\x80")))
    sent = [SINGLE, pack(publish(8, (1,), ONE)), with_metadata]
    returned, (_silent, awaited), _buffer = receive(leaf, pairs, sent, placed=topics)
    assert returned == (2, len(with_metadata), len(SINGLE) * 2)
    stamped = struct.pack("<I", len(ONE) + len(metadata)) + ONE[4:30] + struct.pack("<H", len(metadata)) + metadata
    assert awaited[b"seven"] == (ONE + stamped + ONE[32:], struct.pack("<4I", 9, 1, 8, 1), [0, 1])
    assert receive(leaf, pairs[3:], [sent[1]], placed={})[0] == (0, len(SINGLE), 0)
    assert receive(leaf, pairs[4:], [sent[1]])[0] == (0, len(SINGLE), 0)


def test_names_of_lines_are_placed_by_the_table(leaf: ModuleType, pairs: Pairs) -> None:
    table = pack_table([(b"a/#", [b"s"])])
    lines = [b"pub a/%d |x\r\n" % number for number in range(3)] + [b"pub a/1 topic t |x\r\n"]
    returned, (_silent, awaited), _buffer = receive_lines(leaf, pairs, lines, table=table)
    assert returned == (3, len(lines[3]), 3 * len(lines[0])) and list(awaited) == [b"s"]
    assert awaited[b"s"][0].count(b"\xa1t\xa3a/") == 3


def test_silent_ones_have_groups_of_their_own(leaf: ModuleType, pairs: Pairs) -> None:
    sent = [SINGLE, pack(publish(9, (7,), ONE, ack=Ack.NONE))]
    _returned, (silent, awaited), _buffer = receive(leaf, pairs, sent)
    assert (silent[b"seven"][2], awaited[b"seven"][2]) == ([1], [0])


def test_sockets_without_input_are_passed_over(leaf: ModuleType, pairs: Pairs) -> None:
    returned, (_silent, awaited), _buffer = receive(leaf, pairs, [b"", SINGLE, b"", SINGLE])
    assert returned[0] == 4 and awaited[b"seven"][2] == [1, 3]


@pytest.mark.parametrize(
    "other",
    [
        pack(Ping()),
        SINGLE[:-1],
        SINGLE + SINGLE,
        SINGLE + b"\0",
        pack(publish(9, (7,), ONE + ONE)),
        pack(publish(9, (7, 8), ONE)),
        pack(publish(9, (6,), ONE)),
        pack(publish(9, (7,), ONE, ack=Ack.SYNCED)),
        pack(publish(9, (7,), pack_frame(bytes(MAX + 1)))),
        pack(publish(9, (7,), ONE[:28] + struct.pack("<H", FLAG_PRODUCER) + ONE[30:])),
        pack(publish(9, (7,), ONE[:30] + struct.pack("<H", 6) + ONE[32:])),
        pack(publish(9, (7,), ONE[:30] + struct.pack("<H", 5) + ONE[32:])),
        pack(publish(9, (7,), struct.pack("<I", len(ONE) + 1) + ONE[4:])),
        SINGLE[:10] + b"\1" + SINGLE[11:],
        b"x",
        bytes(range(200)),
    ],
)
def test_at_anything_else_it_stops(leaf: ModuleType, pairs: Pairs, other: bytes) -> None:
    returned, (_silent, awaited), buffer = receive(leaf, pairs, [SINGLE, other, SINGLE])
    assert returned == (1, len(other), len(SINGLE)) and buffer[: len(other)] == other
    assert awaited[b"seven"][2] == [0]
    assert pairs[2][1].recv(100) == SINGLE, "what comes behind it is not read yet"


def test_the_end_and_an_error_stop_it(leaf: ModuleType, pairs: Pairs) -> None:
    pairs[0][0].close()
    assert receive(leaf, pairs, [])[0] == (0, 0, 0)
    rest: Any = memoryview(bytearray(100)), MAX, ({}, {})
    assert leaf.receive(clients_of(pairs[:1], handles=HANDLES), *rest) == (0, 0, 0)
    with closing(socket.socket()) as unconnected:
        unconnected.setblocking(False)
        returned = leaf.receive(clients_of([(unconnected, unconnected)], handles=HANDLES), *rest)
    assert returned == (0, leaf.FAILED, 0)


def test_no_socket_gives_more_than_its_limit_or_the_buffer(leaf: ModuleType, pairs: Pairs) -> None:
    returned, _groups, _buffer = receive(leaf, pairs, [SINGLE], len(SINGLE) - 1)
    assert returned == (0, len(SINGLE) - 1, 0)
    returned, _groups, _buffer = receive(leaf, pairs[1:], [bytes(3 * BUFFER_BYTES)], 1 << 20)
    assert returned == (0, BUFFER_BYTES, 0)


def test_both_bodies_do_the_same(pairs: Pairs) -> None:
    """For any input, also with single bits wrong."""
    chance = random.Random(15)
    for _ in range(60):
        sent = [_anything(chance) for _ in range(20)]
        lists: list[list[Any] | None] = [[], []] if chance.random() < 0.5 else [None, None]
        found = [
            receive(each, pairs[20 * place :], sent, numbered=lists[place])
            for place, each in enumerate((LOADED, SOURCE))
        ]
        (stop, count, _nbytes), _groups, buffer = found[0]
        assert found[0][:2] == found[1][:2] and lists[0] == lists[1]
        assert stop == 20 or buffer[:count] == found[1][2][:count]
        for _peer, ours in pairs:
            try:
                while ours.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass


def _anything(chance: random.Random) -> bytes:
    ack = chance.choice([Ack.NONE, Ack.APPENDED])
    metadata = b"\x81\xa1k" + bytes([chance.randrange(128)]) if chance.random() < 0.3 else b""
    frame = pack_frame(b"x" * chance.randrange(200), metadata=metadata)
    if chance.random() < 0.2:
        frame = frame[:28] + struct.pack("<H", FLAG_PRODUCER) + frame[30:]
    data = bytearray(pack(publish(chance.randrange(1 << 32), (chance.choice([7, 8]),), frame, ack=ack)))
    if chance.random() < 0.05:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def receive_lines(
    leaf: ModuleType, pairs: Pairs, sent: list[bytes], acks: list[bool] | None = None, table: bytes = b""
) -> tuple[Any, list[Any], bytes]:
    """As `receive`."""
    for (peer, _ours), data in zip(pairs, sent, strict=False):
        peer.send(data)
    groups: tuple[dict[bytes, Any], dict[bytes, Any]] = ({}, {})
    buffer = bytearray(BUFFER_BYTES)
    clients = clients_of(pairs[: len(sent)])
    for client, ack in zip(clients, acks or [True] * len(sent), strict=True):
        client.codec = SimpleNamespace(ack=ack)
    returned = leaf.receive_lines(clients, memoryview(buffer), MAX, groups, table)
    return returned, placed_groups(groups), bytes(buffer)


def test_single_lines_are_grouped_by_their_streams(leaf: ModuleType, pairs: Pairs) -> None:
    sent = [b"pub s%d |%d\r\n" % (number % 2, number) for number in range(4)] + [b"", b"PUB s0  |a|b\n"]
    returned, (silent, awaited), _buffer = receive_lines(leaf, pairs, sent, [True, True, True, False, True, True])
    assert returned == (6, 0, sum(map(len, sent)))
    assert list(awaited) == [b"s0", b"s1"] and list(silent) == [b"s1"]
    assert awaited[b"s0"] == (b"".join(pack_frame(each) for each in (b"0", b"2", b"a|b")), b"", [0, 2, 5])
    assert silent[b"s1"] == (pack_frame(b"3"), b"", [3])


@pytest.mark.parametrize(
    "other",
    [
        b"ping\r\n",
        b"pub s |x",
        b"pub s |x\r\npub s |y\r\n",
        b"pub s |x\r\n\r\n",
        b"pub s |x\r\np",
        b"pub s/$dead |x\r\n",
        b"pub s |" + bytes(MAX + 1) + b"\r\n",
        b"pub s\r\n",
        b"\xff",
        SINGLE,
    ],
)
def test_at_any_other_line_it_stops(leaf: ModuleType, pairs: Pairs, other: bytes) -> None:
    line = b"pub s |x\r\n"
    returned, (_silent, awaited), buffer = receive_lines(leaf, pairs, [line, other, line])
    assert returned == (1, len(other), len(line)) and buffer[: len(other)] == other
    assert awaited[b"s"] == (pack_frame(b"x"), b"", [0])
    assert pairs[2][1].recv(100) == line, "what comes behind it is not read yet"


def test_the_end_and_an_error_stop_the_lines(leaf: ModuleType, pairs: Pairs) -> None:
    pairs[0][0].close()
    rest: Any = memoryview(bytearray(100)), MAX, ({}, {})
    assert leaf.receive_lines(clients_of(pairs[:1]), *rest) == (0, 0, 0)
    with closing(socket.socket()) as unconnected:
        unconnected.setblocking(False)
        returned = leaf.receive_lines(clients_of([(unconnected, unconnected)]), *rest)
    assert returned == (0, leaf.FAILED, 0)


def test_both_bodies_take_the_same_lines(pairs: Pairs) -> None:
    chance = random.Random(16)
    for _ in range(60):
        sent = [_any_line(chance) for _ in range(20)]
        acks = [chance.random() < 0.5 for _ in sent]
        found = [receive_lines(each, pairs[20 * place :], sent, acks) for place, each in enumerate((LOADED, SOURCE))]
        (stop, count, _nbytes), _groups, buffer = found[0]
        assert found[0][:2] == found[1][:2] and (stop == 20 or buffer[:count] == found[1][2][:count])
        for _peer, ours in pairs:
            try:
                while ours.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass


def _any_line(chance: random.Random) -> bytes:
    end = chance.choice([b"\n", b"\r\n"])
    data = bytearray(b"pub %s |%s" % (chance.choice([b"a", b"b", b"\xc3\xa4"]), b"x" * chance.randrange(200)) + end)
    if chance.random() < 0.1:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def test_answers(leaf: ModuleType, pairs: Pairs) -> None:
    fds = [ours.fileno() for _peer, ours in pairs[:3]]
    fds[1] = -1
    assert leaf.send_each(fds, [b"aaa", b"bbb", b"ccc"]) == (6, [(1, leaf.NOTHING)])
    assert (pairs[0][0].recv(9), pairs[2][0].recv(9)) == (b"aaa", b"ccc")


def test_an_answer_that_cannot_be_sent(leaf: ModuleType, pairs: Pairs) -> None:
    full, broken = pairs[0][1], pairs[1][1]
    pairs[1][0].close()
    full_bytes = 0
    try:
        while True:
            full_bytes += full.send(bytes(1 << 16))
    except BlockingIOError:
        assert full_bytes
    fds = [full.fileno(), broken.fileno(), pairs[2][1].fileno()]
    assert leaf.send_each(fds, [b"aaa", b"bbb", b"ccc"]) == (3, [(0, leaf.NOTHING), (1, leaf.FAILED)])
    assert pairs[2][0].recv(9) == b"ccc"


def receive_packets(leaf: ModuleType, pairs: Pairs, sent: list[bytes], table: bytes = b"") -> tuple[Any, ...]:
    """As `receive`, for MQTT 3.1.1: what the leaf returns, its groups and acknowledgements, and the buffer."""
    for (peer, _ours), data in zip(pairs, sent, strict=False):
        peer.send(data)
    groups: tuple[dict[bytes, Any], dict[bytes, Any]] = ({}, {})
    acks: list[Any] = []
    buffer = bytearray(BUFFER_BYTES)
    clients = clients_of(pairs[: len(sent)], codec=SimpleNamespace(version=V4))
    returned = leaf.receive_packets(clients, memoryview(buffer), 1 << 20, MAX, groups, acks, table)
    return returned, placed_groups(groups), [(client.place, *run) for client, *run in acks], bytes(buffer)


def test_single_packets_are_grouped_by_qos_and_stream(leaf: ModuleType, pairs: Pairs) -> None:
    sent = [wire.publish(4, f"s{n % 2}", b"%d" % n, 1, 1 + n) for n in range(3)]
    sent += [wire.publish(4, "s1", b"3"), b"", wire.ack(wire.PUBACK, 65535) + wire.ack(wire.PUBACK, 1)]
    returned, (silent, awaited), acks, _buffer = receive_packets(leaf, pairs, sent)
    assert returned == (6, 0, sum(map(len, sent))) and acks == [(5, 65535, 2)]
    assert awaited[b"s0"] == (pack_frame(b"0") + pack_frame(b"2"), b"\0\1\0\3", [0, 2])
    assert awaited[b"s1"] == (pack_frame(b"1"), b"\0\2", [1])
    assert silent == {b"s1": (pack_frame(b"3", metadata=b"\x81\xa1q\0"), b"", [3])}


@pytest.mark.parametrize(
    "other",
    [
        wire.PINGREQ,
        wire.publish(4, "s", b"x")[:-1],
        wire.publish(4, "s", b"x") * 17,
        wire.publish(4, "s", b"x") + wire.publish(4, "t", b"x"),
        wire.publish(4, "s", b"x", 1, 1) + wire.publish(4, "s", b"x", 1, 2),
        wire.publish(4, "s", b"x", 2, 1),
        wire.publish(4, "s", b"x", retain=True),
        wire.publish(4, "$s", b"x"),
        wire.publish(4, "s", bytes(MAX + 1)),
        wire.ack(wire.PUBACK, 1) + wire.ack(wire.PUBACK, 3),
        wire.ack(wire.PUBACK, 1) + b"\x40",
        wire.ack(wire.PUBACK, 0),
        b"\xff",
    ],
)
def test_at_any_other_packet_it_stops(leaf: ModuleType, pairs: Pairs, other: bytes) -> None:
    packet = wire.publish(4, "s", b"x", 1, 1)
    returned, (_silent, awaited), acks, buffer = receive_packets(leaf, pairs, [packet, other, packet])
    assert returned == (1, len(other), len(packet)) and buffer[: len(other)] == other and not acks
    assert awaited == {b"s": (pack_frame(b"x"), b"\0\1", [0])}
    assert pairs[2][1].recv(100) == packet, "what comes behind it is not read yet"


def test_messages_with_qos_0_are_taken_together(leaf: ModuleType, pairs: Pairs) -> None:
    sent = [wire.publish(4, "s", b"0"), b"".join(wire.publish(4, "s", b"%d" % n) for n in range(1, 17))]
    returned, (silent, _awaited), _acks, _buffer = receive_packets(leaf, pairs, sent)
    assert returned == (2, 0, sum(map(len, sent)))
    frames = b"".join(pack_frame(b"%d" % n, metadata=b"\x81\xa1q\0") for n in range(17))
    assert silent == {b"s": (frames, b"", [0] + [1] * 16)}


@pytest.mark.parametrize("version", [V4, V5])
def test_messages_like_the_last_one(pairs: Pairs, version: int) -> None:
    """Both bodies take the same ones, whether a topic is that of the message before or not, and stop at the same."""
    chance = random.Random(version)
    tables, ids = (b"", pack_table([(b"a/#", [b"s"])])), (0, 1, 256, 299)
    lives = [clients_of(pairs[20 * n : 20 * n + 4], codec=SimpleNamespace(version=version)) for n in range(2)]
    for _ in range(400):
        place = chance.randrange(4)
        topic, payload = chance.choice(["a", "a", "a", "a/b", "ab"]), bytes(chance.choice([0, 1, 100, MAX - 4, MAX]))
        data = wire.publish(version, topic, payload, chance.choice([0, 1, 1, 1, 2]), chance.choice(ids))
        if chance.random() < 0.2:
            at = chance.randrange(min(len(data), 12))
            data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        found, table = [], chance.choice(tables)
        for n, (leaf, clients) in enumerate(zip((LOADED, SOURCE), lives, strict=True)):
            pairs[20 * n + place][0].send(data)
            groups: Any = ({}, {})
            returned = leaf.receive_packets(clients, bytearray(BUFFER_BYTES), 4 * MAX, MAX, groups, [], table)
            found.append((returned, placed_groups(groups)))
        assert found[0] == found[1]


def test_the_end_and_an_error_stop_the_packets(leaf: ModuleType, pairs: Pairs) -> None:
    pairs[0][0].close()
    rest: Any = memoryview(bytearray(100)), 100, MAX, ({}, {}), []
    codec = SimpleNamespace(version=V4)
    assert leaf.receive_packets(clients_of(pairs[:1], codec=codec), *rest) == (0, 0, 0)
    with closing(socket.socket()) as unconnected:
        unconnected.setblocking(False)
        assert leaf.receive_packets(clients_of([(unconnected, unconnected)], codec=codec), *rest) == (0, leaf.FAILED, 0)


def test_both_bodies_take_the_same_packets(pairs: Pairs) -> None:
    chance = random.Random(19)
    for _ in range(60):
        sent = [_any_packet(chance) for _ in range(20)]
        found = [receive_packets(each, pairs[20 * place :], sent) for place, each in enumerate((LOADED, SOURCE))]
        (stop, count, _nbytes), _groups, _acks, buffer = found[0]
        assert found[0][:3] == found[1][:3] and (stop == 20 or buffer[:count] == found[1][3][:count])
        for _peer, ours in pairs:
            try:
                while ours.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass


def _any_packet(chance: random.Random) -> bytes:
    payload, packet_id = b"x" * chance.randrange(200), chance.randrange(1, 1 << 16)
    data = bytearray(wire.publish(4, chance.choice(["a", "b/c"]), payload, chance.randrange(2), packet_id))
    if chance.random() < 0.3:
        data = bytearray(wire.ack(wire.PUBACK, packet_id) * chance.choice([1, 1, 2]))
    if chance.random() < 0.1:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)
