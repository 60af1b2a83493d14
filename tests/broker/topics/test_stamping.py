"""The topic in frames that were published to its name, and the order of frames of several topics."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.topics import stamping
from tailrace.broker.topics.stamping import KEYS_MAX, UnstampableFrame, in_order, with_topic
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import FLAG_PRODUCER, HEADER_BYTES, MAX_METADATA_BYTES, pack_frame, unpack_header
from tailrace.shard.topics import topic_in

TOPIC = b"sensors/7/temp"
VALUES = st.one_of(st.binary(max_size=3), st.integers(0, 2**63 - 1), st.just({"a": "b"}))
MESSAGES = st.lists(st.tuples(st.binary(max_size=9), st.dictionaries(st.sampled_from("hkpnx"), VALUES)), max_size=6)


def pieces(frames: bytes | bytearray) -> list[tuple[int, bytes, bytes]]:
    """Flags, metadata and payload of each frame."""
    found, at = [], 0
    while at < len(frames):
        header = unpack_header(frames, at)
        middle, end = at + HEADER_BYTES + header.metadata_bytes, at + header.length
        found.append((header.flags, bytes(frames[at + HEADER_BYTES : middle]), bytes(frames[middle:end])))
        at = end
    return found


def packed(fields: dict[str, Any]) -> bytes:
    """A producer's numbers come first."""
    first = {key: fields[key] for key in "pn" if key in fields}
    data: bytes = msgpack.packb({**first, **fields}) if fields else b""
    return data


@given(MESSAGES)
def test_each_frame_gets_the_topic_and_keeps_all_else(messages: list[tuple[bytes, dict[str, Any]]]) -> None:
    frames = b"".join(pack_frame(each, flags=FLAG_PRODUCER, metadata=packed(fields)) for each, fields in messages)
    for (flags, metadata, payload), (sent, fields) in zip(pieces(with_topic(frames, TOPIC)), messages, strict=True):
        assert (flags, payload) == (FLAG_PRODUCER, sent)
        assert msgpack.unpackb(metadata) == {**fields, "t": TOPIC.decode()}
        if isinstance(fields.get("p", b""), bytes) and isinstance(fields.get("n", 0), int):
            assert topic_in(metadata) == TOPIC


def test_a_frame_with_the_same_topic_stays() -> None:
    frames = pack_frame(b"x", metadata=topic_metadata(TOPIC))
    assert with_topic(frames, TOPIC) == frames


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (topic_metadata(b"sensors/8"), "another topic"),
        (msgpack.packb({"h": 1, "t": "sensors/8"}), "another topic"),  # hidden behind another key
        (b"\x82" + topic_metadata(TOPIC)[1:] + topic_metadata(b"sensors/8")[1:], "another topic"),  # twice
        (msgpack.packb([1]), "not a map"),
        (b"\xc1", "not a map"),
        (b"\x81", "not a map"),
        (msgpack.packb({str(n): n for n in range(KEYS_MAX)}), "fewer than 15 keys"),
        (msgpack.packb({"h": b"x" * (MAX_METADATA_BYTES - 10)}), "bytes with the topic"),
    ],
)
def test_metadata_that_cannot_have_the_topic(metadata: bytes, reason: str) -> None:
    with pytest.raises(UnstampableFrame, match=reason):
        with_topic(pack_frame(b"y") + pack_frame(b"x", metadata=metadata), TOPIC)


def test_a_frame_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamping, "MAX_FRAME_BYTES", 100)
    with pytest.raises(UnstampableFrame, match="too large for its topic: at most 100 bytes"):
        with_topic(pack_frame(b"x" * 60), TOPIC)


@given(st.lists(st.integers(0, 3), max_size=30))
def test_frames_of_several_groups_in_the_order_of_their_messages(order: list[int]) -> None:
    sent = [(index, b"%d" % place) for place, index in enumerate(order)]
    groups = [bytearray(b"".join(pack_frame(data) for at, data in sent if at == index)) for index in range(4)]
    assert [payload for _flags, _metadata, payload in pieces(in_order(groups, order))] == [data for _at, data in sent]
