"""The leaf of MQTT: the packets it stages, those it stops at, that its two bodies are equal to the byte, and that a
codec which uses it gives the same messages as one without it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.connection.mqtt.publishing import destination_of
from tailrace.broker.topics.rules import TopicRule, TopicRules
from tailrace.protocol.mqtt.codec import AckRun, AnyPacket, MqttCodec, StagedPublishes, StagingLimits
from tailrace.protocol.mqtt.metadata import pack_metadata
from tailrace.protocol.mqtt.packets import AckPacket, PublishPacket
from tailrace.protocol.mqtt.properties import PacketType
from tailrace.protocol.mqtt.reasons import PacketError
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load, load_source
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

LEAF = "tailrace.protocol.mqtt.stage_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
MAX = 2_000
RULES = {
    "no rules": TopicRules(),
    "by level": TopicRules([TopicRule("a/#", "{1}"), TopicRule("#", "s-{hash:3}")]),
}
ODD_TOPICS = ("/", "", "a+", "a/", "a*/b")
TOPICS = ("a", "a/b", "b", "b/c", "a/" + "x" * 40, "a/" + "x" * 300, "reply-to/1", "a b", "é", "a/$dead", *ODD_TOPICS)
Staged = tuple[int, list[tuple[bytes, int, bytearray]], bytes, list[int]]


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stage(leaf: ModuleType, data: bytes, version: int = V4, acked_max: int = 1 << 30, table: bytes = b"") -> Staged:
    found: Staged = leaf.stage(data, 0, len(data), version == V5, 1 << 20, MAX, acked_max, table)
    return found


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run(leaf: ModuleType, version: int) -> None:
    sent = [("a/b", b"1", 0, 0), ("c", b"2", 1, 7), ("a/b", b"3", 1, 0x102), ("a", b"", 1, 9)]
    data = b"".join(wire.publish(version, *each) for each in sent)
    stop, groups, ids, owners = stage(leaf, data, version, table=RULES["by level"].table)
    hashed = RULES["by level"].place(b"c")[0]
    expected = {b"a": b"", hashed: b""}
    for topic, payload, qos, _id in sent:
        stream, kept = RULES["by level"].place(topic.encode())
        expected[stream] += pack_frame(payload, metadata=pack_metadata(kept, qos))
    assert (stop, ids, owners) == (len(data), b"\0\7\1\2\0\x09", [1, 0, 0])
    assert groups == [(name, 3 if name == b"a" else 1, bytearray(frames)) for name, frames in expected.items()]


def test_one_stream_has_no_owners(leaf: ModuleType) -> None:
    data = wire.publish(V4, "s", b"x", 1, 1) + wire.publish(V4, "s", b"y", 1, 2)
    assert stage(leaf, data)[1:] == ([(b"s", 2, bytearray(pack_frame(b"x") + pack_frame(b"y")))], b"\0\1\0\2", [])


NOT_STAGED = {
    "another packet": wire.PINGREQ,
    "QoS 2": wire.publish(V4, "s", b"x", 2),
    "retained": wire.publish(V4, "s", b"x", retain=True),
    "DUP with QoS 0": wire.publish(V4, "s", b"x", dup=True),
    "no identifier": wire.publish(V4, "s", b"x", 1, 0),
    "no topic": wire.publish(V4, "", b"x"),
    "a reserved topic": wire.publish(V4, "$s", b"x"),
    "a topic with a wildcard": wire.publish(V4, "a/#", b"x"),
    "a topic with a blank": wire.publish(V4, "a b", b"x"),
    "a topic that ends in /": wire.publish(V4, "a/", b"x"),
    "a topic with *": wire.publish(V4, "a*b", b"x"),
    "a topic of more levels": wire.publish(V4, "/".join("a" * 129), b"x"),
    "a topic too long for a stream": wire.publish(V4, "s" * 201, b"x"),
    "too large for a message": wire.publish(V4, "s", bytes(MAX - 3)),
    "too large for a packet": wire.publish(V4, "s", bytes(1 << 20)),
    "a length that is too long": b"\x30\x84\0\0\1sx",
    "a length of five bytes": b"\x30\x84\x80\x80\x80\0\0\1sx",
    "a topic beyond the end": b"\x30\4\0\3sx",
    "no room for an identifier": b"\x32\4\0\1s\0",
}


@pytest.mark.parametrize("odd", NOT_STAGED.values(), ids=NOT_STAGED)
def test_what_is_not_staged_ends_the_run(leaf: ModuleType, odd: bytes) -> None:
    before = wire.publish(V4, "s", b"x") + wire.publish(V4, "s", bytes(MAX - 4))
    assert stage(leaf, before + odd + before)[0] == len(before)
    assert stage(leaf, odd + before) == (0, [], b"", [])


def test_properties_are_not_staged(leaf: ModuleType) -> None:
    before = wire.publish(V5, "s", b"x", 1, 1)
    assert stage(leaf, before + wire.publish(V5, "s", b"x", raw=b"\x01\1"), V5)[0] == len(before)
    assert stage(leaf, before + b"\x30\3\0\1s", V5)[0] == len(before), "the length of properties is missing"


def test_an_unfinished_packet_is_not_staged(leaf: ModuleType) -> None:
    odd = wire.publish(V4, "s", bytes(200), 1)
    assert {stage(leaf, odd[:size])[0] for size in range(len(odd))} == {0}
    with pytest.raises(ValueError, match="bytes 2 to 9 of a buffer of 3"):
        leaf.stage(b"abc", 2, 9, False, 100, 100, 100, b"")


def test_the_bound_on_messages_with_qos_1(leaf: ModuleType) -> None:
    packets = [wire.publish(V4, "s", b"x", number % 2, number + 1) for number in range(20)]
    assert stage(leaf, b"".join(packets), acked_max=4)[0] == len(b"".join(packets[:9]))
    assert len(stage(leaf, b"".join(packets), acked_max=4)[2]) == 8


@pytest.mark.parametrize("streams", [1, 2, 9, 33, 500])
def test_many_streams_in_no_order(leaf: ModuleType, streams: int) -> None:
    order = [number % streams for number in range(3 * streams)]
    random.Random(streams).shuffle(order)
    data = b"".join(wire.publish(V4, f"s{key}", b"%d" % n, 1, n + 1) for n, key in enumerate(order))
    stop, groups, ids, owners = stage(leaf, data)
    assert stop == len(data) and ids == b"".join(struct.pack(">H", n + 1) for n in range(len(order)))
    names = [f"s{key}".encode() for key in dict.fromkeys(order)]
    assert [name for name, *_ in groups] == names
    if streams > 1:
        assert owners == [names.index(f"s{key}".encode()) for key in order]
    for key, (_name, count, frames) in zip(dict.fromkeys(order), groups, strict=True):
        own = [pack_frame(b"%d" % n) for n, each in enumerate(order) if each == key]
        assert (count, bytes(frames)) == (len(own), b"".join(own))


def test_a_run_has_a_limit(leaf: ModuleType) -> None:
    one = wire.publish(V4, "s", b"")
    stop, [(_name, count, _frames)], *_ = stage(leaf, one * (leaf.PACKETS_MAX + 2))
    assert (stop, count) == (len(one) * leaf.PACKETS_MAX, leaf.PACKETS_MAX)


PACKETS = st.tuples(
    st.sampled_from(TOPICS),
    st.binary(max_size=300),
    st.sampled_from((0, 0, 1, 1, 2)),
    st.integers(0, 0xFFFF),
)


@given(
    version=st.sampled_from(VERSIONS),
    packets=st.lists(PACKETS, max_size=30),
    edits=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), max_size=4),
    rules=st.sampled_from(sorted(RULES)),
    acked_max=st.sampled_from((0, 3, 1 << 30)),
)
def test_both_bodies_stage_the_same(
    version: int,
    packets: Sequence[tuple[str, bytes, int, int]],
    edits: Sequence[tuple[int, int]],
    rules: str,
    acked_max: int,
) -> None:
    data = bytearray(b"".join(wire.publish(version, *each) for each in packets))
    for at, byte in edits:
        if at < len(data):
            data[at] = byte
    found = [stage(each, bytes(data), version, acked_max, RULES[rules].table) for each in (LOADED, SOURCE)]
    assert found[0] == found[1]


# --- a codec that stages ----------------------------------------------------------------------------------------------


def plain(packets: Sequence[AnyPacket], rules: TopicRules) -> list[object]:
    """What is published, by stream, and all other packets; runs as if their packets had come one by one."""
    found: list[object] = []
    between: dict[bytes, list[object]] = {}
    acks: list[int] = []
    for packet in [*packets, None]:
        if isinstance(packet, StagedPublishes):
            for name, count, frames in packet.groups:
                made = split(frames)
                assert count == len(made)
                between.setdefault(name, []).extend(made)
            acks += struct.unpack(f">{len(packet.ids) // 2}H", packet.ids)
        elif isinstance(packet, PublishPacket) and packet.qos < 2 and not packet.properties:
            destination = destination_of(rules, packet.topic)
            metadata = pack_metadata(destination.placed.topic, packet.qos)
            made = [pack_frame(packet.payload, metadata=metadata)]
            between.setdefault(destination.placed.stream, []).extend(made)
            acks += [packet.packet_id] if packet.qos else []
        else:
            found += [between, acks] if between else []
            between, acks = {}, []
            if isinstance(packet, AckRun):
                ids = [(packet.first_id + number - 1) % 0xFFFF + 1 for number in range(packet.packets)]
                found += [AckPacket(PacketType.PUBACK, each, 0, {}) for each in ids]
            else:
                found.append(str(packet) if isinstance(packet, PacketError) else packet)
    return found


def split(frames: bytes | bytearray) -> list[object]:
    found: list[object] = []
    at = 0
    while at < len(frames):
        (length,) = struct.unpack_from("<I", frames, at)
        found.append(bytes(frames[at : at + length]))
        at += length
    return found


def fed(pieces: Sequence[bytes], version: int, rules: TopicRules, *, staged: bool) -> tuple[list[object], int]:
    codec = MqttCodec(1 << 16)
    codec.version = version
    limits = StagingLimits(MAX, 1 << 30, rules.table) if staged else None
    packets = [packet for piece in pieces for packet in codec.feed(piece, lambda: limits)]
    return plain(packets, rules), sum(isinstance(each, StagedPublishes) for each in packets)


def conversation(version: int, seed: int) -> bytes:
    rng, parts = random.Random(seed), []
    next_ack = 1
    for _ in range(120):
        kind = rng.randrange(12)
        if kind < 8:
            topic = rng.choice(("a", "a/b", "b", "b/c", "b/d"))
            parts.append(wire.publish(version, topic, rng.randbytes(rng.randrange(90)), kind % 2, rng.randint(1, 9)))
        elif kind < 10:
            parts += [wire.ack(wire.PUBACK, next_ack + number) for number in range(4)]
            next_ack += rng.choice((4, 5))
        elif kind == 10:
            parts.append(wire.publish(version, rng.choice(("a", "é", "x y")), b"2", rng.choice((0, 2)), 5, retain=True))
        else:
            parts.append(wire.PINGREQ)
    return b"".join(parts)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_codec_with_runs_gives_the_same_in_any_pieces(version: int, rules: TopicRules) -> None:
    for seed in range(6):
        data = conversation(version, seed)
        expected, none = fed([data], version, rules, staged=False)
        whole, runs = fed([data], version, rules, staged=True)
        assert whole == expected and runs > 5 and none == 0
        rng, at, pieces = random.Random(seed), 0, []
        while at < len(data):
            pieces.append(data[at : at + (1 if not seed else rng.randrange(1, 300))])
            at += len(pieces[-1])
        assert fed(pieces, version, rules, staged=True)[0] == expected


@given(
    version=st.sampled_from(VERSIONS),
    seed=st.integers(0, 5),
    edits=st.lists(st.tuples(st.integers(0, 6_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_codec_with_runs_gives_the_same_for_garbage(
    version: int, seed: int, edits: Sequence[tuple[int, int]]
) -> None:
    data = bytearray(conversation(version, seed))
    for at, byte in edits:
        if at < len(data):
            data[at] = byte
    pieces = [bytes(data)]
    rules = RULES["by level"]
    assert fed(pieces, version, rules, staged=True)[0] == fed(pieces, version, rules, staged=False)[0]


# --- acknowledgements -------------------------------------------------------------------------------------------------


def test_acknowledgements_are_packed(leaf: ModuleType) -> None:
    ids = [1, 0xFFFF, 0x102]
    assert leaf.pack_acks(struct.pack(">3H", *ids)) == b"".join(wire.ack(wire.PUBACK, each) for each in ids)
    assert leaf.pack_acks(b"") == b""


@pytest.mark.parametrize(
    ("ids", "count"), [([5, 6, 7], 3), ([0xFFFF, 1, 2], 3), ([5, 7], 1), ([5, 5], 1), ([0, 1], 0), ([0xFFFF, 0], 1)]
)
def test_acknowledgements_are_counted(leaf: ModuleType, ids: list[int], count: int) -> None:
    data = b"".join(wire.ack(wire.PUBACK, each) for each in ids)
    assert leaf.count_acks(b"!" + data, 1, 1 + len(data)) == count
    assert leaf.count_acks(data, 0, len(data) - 1) == min(count, len(ids) - 1)
    assert leaf.count_acks(data + wire.ack(wire.PUBREC, ids[-1] + 1), 0, len(data) + 4) == count
    assert leaf.count_acks(b"\x40\3\0\1\0", 0, 5) == 0
