"""The leaf of last values, and that its two bodies do the same."""

from __future__ import annotations

import random
from struct import pack
from types import ModuleType

import msgpack
import pytest

from tailrace.shard.frame import FLAG_PRODUCER, pack_frame
from tailrace.shard.leaves import load, load_source
from tailrace.shard.numbering import write_numbering

LEAF = "tailrace.broker.last.last_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
STAMP = load("tailrace.shard.frame_cy").stamp


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stamped(*messages: tuple[dict[str, object] | bytes, bytes], seq: int = 0) -> bytearray:
    """Metadata and payload of each."""
    packed = [(each if isinstance(each, bytes) else msgpack.packb(each), payload) for each, payload in messages]
    frames = bytearray(b"".join(pack_frame(payload, metadata=metadata) for metadata, payload in packed))
    STAMP(frames, seq, 1_000, 7, 0)
    return frames


def records(*payloads: tuple[bytes, bytes]) -> bytearray:
    """Metadata and payload of each."""
    frames = bytearray(b"".join(pack_frame(payload, metadata=metadata) for metadata, payload in payloads))
    STAMP(frames, 0, 1_000, 1, 0)
    return frames


def test_the_newest_of_each_topic(leaf: ModuleType) -> None:
    frames = stamped(({"t": "a"}, b"1"), (b"", b"2"), ({"t": "a"}, b""), ({"t": "b"}, b"3"))
    size = len(frames)
    found, end, messages = leaf.newest(frames, 0, b"s", False, 10)
    assert (end, messages) == (size, 4)
    assert {topic: (length, is_empty) for topic, (_at, length, is_empty) in found.items()} == {
        b"a": (37, True),
        b"s": (33, False),
        b"b": (38, False),
    }
    assert bytes(frames[found[b"b"][0] :])[-1:] == b"3"


def test_it_ends_before_the_topic_that_is_one_too_many(leaf: ModuleType) -> None:
    frames = stamped(({"t": "a"}, b"1"), ({"t": "b"}, b"2"), ({"t": "a"}, b"3"), ({"t": "c"}, b"4"))
    found, end, messages = leaf.newest(frames, 0, b"s", False, 2)
    assert (set(found), messages) == ({b"a", b"b"}, 3)
    found, end, messages = leaf.newest(frames, end, b"s", False, 2)
    assert (set(found), end, messages) == ({b"c"}, len(frames), 1)


@pytest.mark.parametrize(
    ("metadata", "retained"),
    [
        (b"", False),
        ({"t": "a"}, False),
        ({"t": "a", "k": 1}, True),
        ({"t": "a", "k": 1, "q": 0}, True),
        ({"k": 1}, True),
        ({"k": 1, "q": 2}, True),
        ({"t": "a", "k": 2}, False),
        ({"t": "a", "k": True}, False),
        ({"t": "a", "q": 0, "k": 1}, False),
        ({"q": 0, "k": 1}, False),
        (b"\xa1k\x01", False),
        (b"\x81\xa1k", False),
    ],
)
def test_which_are_to_be_retained(leaf: ModuleType, metadata: dict[str, object] | bytes, retained: bool) -> None:
    frames = stamped((metadata, b"x"))
    assert bool(leaf.newest(frames, 0, b"s", True, 10)[0]) is retained
    (row,), _end = leaf.records(records((b"", bytes(frames))), 0, b"s", 10)
    assert row[3] is retained


def test_a_numbered_message_may_be_retained(leaf: ModuleType) -> None:
    metadata = write_numbering(msgpack.packb({"t": "a", "k": 1}), b"p" * 8, 300)
    frame = pack_frame(b"x", flags=FLAG_PRODUCER, metadata=metadata)
    assert set(leaf.newest(frame, 0, b"s", True, 10)[0]) == {b"a"}


def test_records_and_marks(leaf: ModuleType) -> None:
    value = bytes(stamped(({"t": "a", "k": 1}, b""), seq=5))
    log = records((b"", value), (b"", pack("<QII", 9, 3, 1)), (msgpack.packb({"o": 1}), value))
    found, end = leaf.records(log, 0, b"s", 10)
    assert end == len(log)
    assert found == [
        (b"a", 5, 7, True, True, False),
        (b"", 9, 3, True, False, False),
        (b"a", 5, 7, True, True, True),
    ]
    assert leaf.records(log, 0, b"s", 1)[0] == found[:1]


@pytest.mark.parametrize("payload", [b"", b"x" * 15, b"x" * 31, b"x" * 64])
def test_what_is_no_record(leaf: ModuleType, payload: bytes) -> None:
    with pytest.raises(ValueError, match="no record"):
        leaf.records(records((b"", payload)), 0, b"s", 10)


def test_a_start_outside_of_the_buffer(leaf: ModuleType) -> None:
    for at in (-1, 1):
        with pytest.raises(ValueError, match="of a buffer"):
            leaf.newest(b"", at, b"s", False, 1)
        with pytest.raises(ValueError, match="of a buffer"):
            leaf.records(b"", at, b"s", 1)


@pytest.mark.parametrize("seed", range(30))
def test_both_bodies_do_the_same(seed: int) -> None:
    chance = random.Random(seed)
    messages: list[tuple[dict[str, object] | bytes, bytes]] = []
    for _ in range(100):
        keys: dict[str, object] = {"t": f"t{chance.randrange(20)}"} if chance.random() < 0.8 else {}
        keys |= {"k": 1} if chance.random() < 0.5 else {}
        metadata = msgpack.packb(keys) if keys and chance.random() < 0.9 else chance.randbytes(chance.randrange(9))
        messages.append((metadata, chance.randbytes(chance.randrange(5))))
    frames = stamped(*messages)
    for retained in (False, True):
        for most in (1, 3, 50):
            assert LOADED.newest(frames, 0, b"s", retained, most) == SOURCE.newest(frames, 0, b"s", retained, most)
    log = records(*((b"", bytes(stamped(each))) for each in messages))
    assert LOADED.records(log, 0, b"s", 1_000) == SOURCE.records(log, 0, b"s", 1_000)
    cut = chance.randrange(len(frames))
    assert LOADED.newest(frames[:cut], 0, b"s", False, 99) == SOURCE.newest(frames[:cut], 0, b"s", False, 99)
