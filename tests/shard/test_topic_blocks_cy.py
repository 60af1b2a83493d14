"""The leaf of the topic index: a block has the keys of all its topics, and both bodies give the same bytes."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import msgpack
import pytest

from tailrace.shard.frame import FAULT_CRC, FAULT_LENGTH, FAULT_SEQ, HEADER_BYTES, pack_frame
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.leaves import load, load_source
from tests.thorough import examples

LEAF = "tailrace.shard.topic_blocks_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
STAMP = load("tailrace.shard.frame_cy").stamp
BLOCK, RECORD = SOURCE.BLOCK_BYTES, SOURCE.RECORD_BYTES
NO_LIMIT = 1 << 48
RUN = struct.Struct("<QQQQ")


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stamped(topics: list[bytes], sizes: list[int], seq: int = 0) -> bytearray:
    packed = [msgpack.packb({"t": topic.decode()}) if topic else b"" for topic in topics]
    frames = b"".join(pack_frame(bytes(size), metadata=metadata) for size, metadata in zip(sizes, packed, strict=True))
    content = bytearray(frames)
    STAMP(content, seq, 1_000, 1, 0)
    return content


def random_frames(chance: random.Random, count: int, seq: int) -> tuple[bytearray, list[bytes]]:
    names = [b"", b"a", b"a/b", b"a/b/c", b"/x", b"a//b", b"1/2/3/4/5/6", b"1/2/3/4/5", b"$x/y"]
    topics = [chance.choice([*names, b"t/%d" % chance.randrange(50)]) for _ in range(count)]
    sizes = [chance.choice([0, 10, 1_000, 9_000, 3 * BLOCK]) for _ in range(count)]
    return stamped(topics, sizes, seq), topics


@pytest.mark.parametrize("seed", range(examples(5)))
def test_a_block_names_all_topics_of_its_frames_and_the_bodies_agree(seed: int) -> None:
    chance = random.Random(seed)
    print("seed", seed)
    seq, offset = chance.randrange(1_000), HEADER_PAGE_BYTES + chance.randrange(100_000)
    content, topics = random_frames(chance, 60, seq)
    built = [leaf.build(content, len(content), seq, NO_LIMIT, offset, b"s", 77) for leaf in (LOADED, SOURCE)]
    assert built[0] == built[1]
    records, end_seq, used, fault = built[0]
    assert not fault and len(records) // RECORD == (offset + used) // BLOCK - offset // BLOCK
    for topic in sorted({topic or b"s" for topic in topics} | {b"t/none", b"1/2"}):
        keys = LOADED.topic_keys(topic)
        assert keys == SOURCE.topic_keys(topic)
        found = LOADED.find(records, offset // BLOCK, 77, keys)
        assert found == SOURCE.find(records, offset // BLOCK, 77, keys)
        runs, *end = found
        assert end == [end_seq, offset + used, True]
        spans = [range(run[0], run[2]) for run in RUN.iter_unpack(runs)]
        for number, each in enumerate(topics[: end_seq - seq], start=seq):
            if (each or b"s") == topic:
                assert any(number in span for span in spans)


def test_runs_have_the_places_of_their_frames(leaf: ModuleType) -> None:
    content = stamped([b"a/1"] * 200 + [b"b/1"] * 500 + [b"a/1"] * 200, [500] * 900)
    records, end_seq, _, _ = leaf.build(content, len(content), 0, NO_LIMIT, HEADER_PAGE_BYTES, b"s", 0)
    runs, *_ = leaf.find(records, 0, 0, leaf.topic_keys(b"a/1"))
    found = list(RUN.iter_unpack(runs))
    frame = len(content) // 900
    assert len(found) == 2 and found[0][:2] == (0, HEADER_PAGE_BYTES) and found[1][2] == end_seq
    for first_seq, first_offset, last_seq, last_offset in found:
        assert (first_offset, last_offset) == (
            HEADER_PAGE_BYTES + frame * first_seq,
            HEADER_PAGE_BYTES + frame * last_seq,
        )
    assert sum(run[2] - run[0] for run in found) < 460
    assert leaf.find(records, 0, 0, b"")[0] == b""
    assert leaf.find(records, 0, 0, leaf.topic_keys(b"a"))[0] == runs  # a prefix of whole levels


@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, 29, 32, 100, 255])
def test_a_damaged_record_is_seen(leaf: ModuleType, at: int) -> None:
    content = stamped([b"a"] * 200, [500] * 200)
    records = leaf.build(content, len(content), 0, NO_LIMIT, 0, b"s", 5)[0]
    damaged = bytearray(records)
    damaged[RECORD + at] ^= 4
    assert leaf.find(bytes(damaged), 0, 5, b"")[3] is False
    assert leaf.find(records, 1, 5, b"")[3] is False and leaf.find(records, 0, 6, b"")[3] is False
    assert leaf.find(bytes(RECORD), 0, 0, b"")[3] is False  # a hole
    assert leaf.find(records, 0, 5, b"")[3] is True


@pytest.mark.parametrize(
    ("at", "value", "fault"),
    [(0, b"\1\0\0\0", FAULT_LENGTH), (8, b"\xff", FAULT_CRC), (HEADER_BYTES, b"\xff", FAULT_CRC)],
)
def test_no_block_is_made_from_damaged_frames(leaf: ModuleType, at: int, value: bytes, fault: str) -> None:
    content = stamped([b"a"] * 200, [500] * 200)
    frame = len(content) // 200
    content[100 * frame + at : 100 * frame + at + len(value)] = value
    records, end_seq, used, found = leaf.build(content, len(content), 0, NO_LIMIT, 0, b"s", 0)
    assert found == fault and end_seq <= 100 and used == end_seq * frame and len(records) == used // BLOCK * RECORD
    assert leaf.build(content, len(content), 1, NO_LIMIT, 0, b"s", 0) == (b"", 1, 0, FAULT_SEQ)


def test_limits(leaf: ModuleType) -> None:
    content = stamped([b"a"] * 200, [500] * 200)
    whole = leaf.build(content, len(content), 0, NO_LIMIT, 0, b"s", 0)
    assert leaf.build(content, len(content), 0, 0, 0, b"s", 0) == (b"", 0, 0, "")
    assert leaf.build(content, len(content) - 1, 0, NO_LIMIT, 0, b"s", 0)[0] == whole[0]
    with pytest.raises(ValueError):
        leaf.build(content, len(content) + 1, 0, NO_LIMIT, 0, b"s", 0)
    assert len(leaf.topic_keys(b"1/2/3/4/5/6/7")) == 8 * leaf.KEYS_MAX
