"""The leaf: its functions, and that its two bodies are equal to the byte."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY, MAX_FRAME_BYTES, pack_frame, unpack_header
from tailrace.shard.leaves import load, load_source
from tests.thorough import examples

LEAF = "tailrace.shard.frame_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)

u32 = st.integers(0, 2**32 - 1)
u48 = st.integers(0, 2**48 - 1)
frames_of = st.lists(
    st.builds(
        lambda payload, metadata, flags: pack_frame(payload, flags=flags, metadata=metadata),
        st.binary(max_size=300),
        st.binary(max_size=20),
        st.integers(0, 2**16 - 1),
    ),
    max_size=20,
)
# Frames of which most may be taken; `measure` looks at no more than the first byte of metadata.
sendable = st.lists(
    st.builds(
        lambda payload, metadata, flags: pack_frame(payload, flags=flags, metadata=metadata),
        st.binary(max_size=300),
        st.sampled_from([b"", b"\x80", b"\x8f" + bytes(9), b"\xde", b"\xdf\0", b"\x7f", b"\x90"]),
        st.sampled_from([0, 0, 0, 1, 2]),
    ),
    max_size=20,
)


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stamped(leaf: ModuleType, count: int = 3, seq: int = 7) -> bytearray:
    frames = bytearray(b"".join(pack_frame(b"payload %d" % i) for i in range(count)))
    leaf.stamp(frames, seq, 1_000, 2, 4_096)
    return frames


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()
    assert SOURCE.crc_instruction() == "google-crc32c"


def test_crc32c_of_the_standard_check_value(leaf: ModuleType) -> None:
    assert leaf.crc32c(b"123456789") == 0xE3069283
    assert leaf.crc32c(b"") == 0
    assert leaf.crc32c_tables(b"123456789") == 0xE3069283


@given(st.binary(max_size=300))
def test_crc32c_is_the_same_everywhere(data: bytes) -> None:
    assert LOADED.crc32c(data) == SOURCE.crc32c(data) == LOADED.crc32c_tables(data)
    assert LOADED.crc32c(memoryview(data)) == LOADED.crc32c(bytearray(data)) == LOADED.crc32c(data)


def test_stamp_writes_the_header_and_gives_entries(leaf: ModuleType) -> None:
    frames = bytearray(pack_frame(b"one") + pack_frame(b"three", metadata=b"mm"))
    entries = leaf.stamp(frames, 41, 1_234, 5, 8_192)
    assert list(INDEX_ENTRY.iter_unpack(entries)) == [(1_234, 8_192, 35, 5), (1_234, 8_227, 39, 5)]
    first, second = unpack_header(frames, 0), unpack_header(frames, 35)
    assert first == (35, leaf.crc32c(frames[8:35]), 41, 1_234, 5, 0, 0)
    assert second == (39, leaf.crc32c(frames[43:74]), 42, 1_234, 5, 0, 2)


def test_stamp_in_a_memoryview(leaf: ModuleType) -> None:
    body = bytearray(b"head" + pack_frame(b"one") + b"tail")
    entries = leaf.stamp(memoryview(body)[4:-4], 1, 2, 3, 4_096)
    assert len(entries) == 24
    assert leaf.check(body, 4, len(body) - 4, 1) == (1, 35, "")
    assert body.startswith(b"head")
    assert body.endswith(b"tail")


@pytest.mark.parametrize("length", [0, 1, 31, 37, 100, 2**31, 2**32 - 1])
def test_stamp_refuses_lengths_that_do_not_add_up(leaf: ModuleType, length: int) -> None:
    frames = bytearray(pack_frame(b"good") + pack_frame(b"wrong")[:36])
    struct.pack_into("<I", frames, 36, length)
    with pytest.raises(ValueError, match="the frame at byte 36 of 72"):
        leaf.stamp(frames, 0, 0, 0, 0)


def test_stamp_refuses_a_rest_and_metadata_beyond_the_frame(leaf: ModuleType) -> None:
    with pytest.raises(ValueError, match="at byte 36 of 40"):
        leaf.stamp(bytearray(pack_frame(b"good") + b"rest"), 0, 0, 0, 0)
    frames = bytearray(pack_frame(b"good"))
    struct.pack_into("<H", frames, 30, 5)
    with pytest.raises(ValueError, match="at byte 0"):
        leaf.stamp(frames, 0, 0, 0, 0)


def test_check_passes_what_stamp_made(leaf: ModuleType) -> None:
    frames = stamped(leaf)
    assert leaf.check(frames, 0, len(frames), 7) == (3, len(frames), "")
    assert leaf.check(bytes(frames), 41, len(frames), 8) == (2, len(frames) - 41, "")
    assert leaf.check(b"", 0, 0, 7) == (0, 0, "")


def test_check_names_what_stops_it(leaf: ModuleType) -> None:
    frames = stamped(leaf)
    assert leaf.check(frames, 0, len(frames), 8) == (0, 0, "seq")
    assert leaf.check(frames, 0, len(frames) - 1, 7) == (2, 82, "short")
    assert leaf.check(frames, 0, 83, 7) == (2, 82, "short")
    assert leaf.check(bytes(frames) + bytes(32), 0, len(frames) + 32, 7) == (3, len(frames), "length")
    huge = bytearray(frames)
    struct.pack_into("<I", huge, 41, MAX_FRAME_BYTES + 1)
    assert leaf.check(huge, 0, len(huge), 7) == (1, 41, "length")
    with pytest.raises(ValueError, match="bytes 1 to 200 of a buffer of 123"):
        leaf.check(frames, 1, 200, 7)


def test_check_finds_every_flipped_byte(leaf: ModuleType) -> None:
    frames = stamped(leaf)
    for position in range(len(frames)):
        damaged = bytearray(frames)
        damaged[position] ^= 0x10
        count, size, fault = leaf.check(damaged, 0, len(damaged), 7)
        assert (count, size) == (position // 41, position // 41 * 41)
        assert fault in ("crc", "length", "short")


def test_index_entries_of_stamped_frames(leaf: ModuleType) -> None:
    frames = bytearray(pack_frame(b"one") + pack_frame(b"") + pack_frame(b"three"))
    entries = leaf.stamp(frames, 4, 1_000, 3, 5_000)
    assert leaf.index_entries(frames, 0, len(frames), 5_000) == entries
    assert leaf.index_entries(frames, 35, len(frames), 5_035) == entries[24:]
    with pytest.raises(ValueError, match="the frame at byte 67"):
        leaf.index_entries(frames, 0, len(frames) - 1, 5_000)


@settings(max_examples=examples(200))
@given(frames_of, u48, u48, u32, u48)
def test_both_bodies_stamp_the_same(frames: list[bytes], seq: int, timestamp_us: int, epoch: int, offset: int) -> None:
    one, other = bytearray(b"".join(frames)), bytearray(b"".join(frames))
    assert LOADED.stamp(one, seq, timestamp_us, epoch, offset) == SOURCE.stamp(other, seq, timestamp_us, epoch, offset)
    assert one == other
    assert LOADED.check(one, 0, len(one), seq) == SOURCE.check(one, 0, len(one), seq) == (len(frames), len(one), "")
    entries = LOADED.index_entries(one, 0, len(one), offset)
    assert entries == SOURCE.index_entries(one, 0, len(one), offset)


@settings(max_examples=examples(300))
@given(frames_of, st.data())
def test_both_bodies_judge_damage_the_same(frames: list[bytes], data: st.DataObject) -> None:
    joined = bytearray(b"".join(frames))
    LOADED.stamp(joined, 5, 6, 7, 4_096)
    if joined:
        joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
    start = data.draw(st.integers(0, len(joined)))
    end = data.draw(st.integers(start, len(joined)))
    assert LOADED.check(joined, start, end, 5) == SOURCE.check(joined, start, end, 5)
    for call in ("stamp", "index_entries"):
        outcomes = [_outcome(leaf, call, joined[start:end]) for leaf in (LOADED, SOURCE)]
        assert outcomes[0] == outcomes[1]


def test_admit_gives_the_entries_that_stamp_gave(leaf: ModuleType) -> None:
    frames = bytearray(pack_frame(b"one") + pack_frame(b"") + pack_frame(b"three", metadata=b"mm", flags=7))
    entries = leaf.stamp(frames, 41, 1_234, 5, 8_192)
    before = bytes(frames)
    for taken in (frames, bytes(frames), memoryview(bytes(frames))):
        assert leaf.admit(taken, 41, 1_234, 5, 8_192) == (entries, len(frames), "", 7)
        assert leaf.admit(taken, 41, 0, 0, 8_192) == (entries, len(frames), "", 7)
    assert frames == before
    assert leaf.admit(b"", 41, 0, 0, 0) == (b"", 0, "", 0)


def test_admit_names_what_stops_it(leaf: ModuleType) -> None:
    frames = stamped(leaf)  # seq 7, 8, 9 at 1,000 µs in epoch 2, 41 bytes each
    entries = leaf.index_entries(frames, 0, len(frames), 0)
    assert leaf.admit(frames, 8, 0, 0, 0) == (b"", 0, "seq", 0)
    assert leaf.admit(frames, 7, 1_001, 0, 0) == (b"", 0, "time", 0)
    assert leaf.admit(frames, 7, 0, 3, 0) == (b"", 0, "epoch", 0)
    assert leaf.admit(frames[:-1], 7, 0, 0, 0) == (entries[:48], 82, "short", 0)
    assert leaf.admit(frames[:83], 7, 0, 0, 0) == (entries[:48], 82, "short", 0)
    assert leaf.admit(frames + bytes(40), 7, 0, 0, 0) == (entries, 123, "length", 0)
    assert leaf.admit(frames[:41] + frames[82:], 7, 0, 0, 0) == (entries[:24], 41, "seq", 0)
    assert leaf.admit(frames[:41] + frames[:41], 7, 0, 0, 0) == (entries[:24], 41, "seq", 0)
    damaged = bytearray(frames)
    damaged[-1] ^= 1
    assert leaf.admit(damaged, 7, 0, 0, 0) == (entries[:48], 82, "crc", 0)


@pytest.mark.parametrize(("at_us", "epoch", "fault"), [(999, 2, "time"), (1_000, 1, "epoch"), (999, 1, "time")])
def test_admit_sees_what_goes_back_within_a_batch(leaf: ModuleType, at_us: int, epoch: int, fault: str) -> None:
    later = bytearray(pack_frame(b"back"))
    leaf.stamp(later, 10, at_us, epoch, 0)
    assert leaf.admit(stamped(leaf) + later, 7, 0, 0, 0)[1:3] == (123, fault)


def test_admit_takes_no_epoch_zero(leaf: ModuleType) -> None:
    frames = bytearray(pack_frame(b"one"))
    leaf.stamp(frames, 0, 1, 0, 0)
    assert leaf.admit(frames, 0, 0, 0, 0) == (b"", 0, "epoch", 0)


def test_measure_counts_frames_that_may_be_taken(leaf: ModuleType) -> None:
    frames = pack_frame(b"one") + pack_frame(b"") + pack_frame(b"12345678", metadata=b"\x80\xc0")
    assert leaf.measure(frames, 0, len(frames), 10) == (3, "")
    assert leaf.measure(bytearray(b"head" + frames + b"tail"), 4, 4 + len(frames), 10) == (3, "")
    assert leaf.measure(memoryview(frames)[35:], 0, len(frames) - 35, 10) == (2, "")
    assert leaf.measure(b"", 0, 0, 10) == leaf.measure(frames, 35, 35, 10) == (0, "")
    assert leaf.measure(bytes(stamped(leaf)), 0, 123, 100) == (3, "")  # what the owner writes may be anything


def test_measure_names_what_stops_it(leaf: ModuleType) -> None:
    good = pack_frame(b"good")
    for bad, fault in (
        (pack_frame(b"x" * 9), "size"),
        (pack_frame(b"x" * 5, metadata=b"\x80" * 4), "size"),
        (pack_frame(b"", flags=2), "flags"),
        (pack_frame(b"", flags=3), "flags"),
        (pack_frame(b"", flags=0x8000), "flags"),
        (pack_frame(b"", metadata=b"\x7f"), "metadata"),
        (pack_frame(b"", metadata=b"\x90"), "metadata"),
        (pack_frame(b"", metadata=b"\xdd"), "metadata"),
        (pack_frame(b"bad")[:-1], "short"),
        (pack_frame(b"bad")[:31], "short"),
        (b"x", "short"),
        (bytes(32), "length"),
        ((31).to_bytes(4, "little") + bytes(28), "length"),
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "little") + bytes(28), "length"),
        ((33).to_bytes(4, "little") + bytes(26) + b"\x02\0\0", "length"),
    ):
        assert leaf.measure(good + bad, 0, len(good + bad), 8) == (1, fault), bad
        assert leaf.measure(good + bad + good, len(good), len(good + bad), 8) == (0, fault), bad
    for first in (0x80, 0x8F, 0xDE, 0xDF):
        assert leaf.measure(pack_frame(b"", metadata=bytes([first])), 0, 33, 8) == (1, "")
    with pytest.raises(ValueError, match="bytes 1 to 37 of a buffer of 36"):
        leaf.measure(good, 1, 37, 8)


def test_parse_takes_stamped_frames_apart(leaf: ModuleType) -> None:
    frames = bytearray(pack_frame(b"one") + pack_frame(b"", metadata=b"mm", flags=5) + pack_frame(b"three"))
    leaf.stamp(frames, 2**63, 1_234, 5, 0)
    whole = [
        (2**63, 1_234, 5, 0, b"", b"one"),
        (2**63 + 1, 1_234, 5, 5, b"mm", b""),
        (2**63 + 2, 1_234, 5, 0, b"", b"three"),
    ]
    assert leaf.parse(frames, 0, len(frames), True) == whole
    assert leaf.parse(memoryview(bytes(b"head" + frames)), 4, 4 + len(frames), True) == whole
    assert leaf.parse(frames, 35, len(frames), True) == whole[1:]
    assert leaf.parse(b"", 0, 0, True) == []


def test_parse_refuses_what_is_wrong(leaf: ModuleType) -> None:
    frames = stamped(leaf)
    with pytest.raises(ValueError, match="the frame at byte 82 of 122 is wrong: short"):
        leaf.parse(frames, 0, 122, True)
    with pytest.raises(ValueError, match="the frame at byte 123 of 124 is wrong: short"):
        leaf.parse(frames + b"x", 0, 124, True)
    with pytest.raises(ValueError, match="the frame at byte 0 of 32 is wrong: length"):
        leaf.parse(bytes(32), 0, 32, True)
    with pytest.raises(ValueError, match="the frame at byte 41 of 82 is wrong: seq"):
        leaf.parse(frames[:41] + frames[82:], 0, 82, True)
    with pytest.raises(ValueError, match="bytes 1 to 200 of a buffer of 123"):
        leaf.parse(frames, 1, 200, True)
    frames[-1] ^= 1
    with pytest.raises(ValueError, match="the frame at byte 82 of 123 is wrong: crc"):
        leaf.parse(frames, 0, len(frames), True)
    assert [row[5] for row in leaf.parse(frames, 0, len(frames), False)] == [b"payload 0", b"payload 1", b"payload 3"]


def test_parse_after_the_last_seq_there_can_be(leaf: ModuleType) -> None:
    frames = stamped(leaf, 1, 2**64 - 1) + stamped(leaf, 1, 0)
    assert [row[0] for row in leaf.parse(frames, 0, len(frames), True)] == [2**64 - 1, 0]


def test_measure_takes_a_run_that_is_flagged_as_one(leaf: ModuleType) -> None:
    first, more = pack_frame(b"12345678", metadata=b"\x81" * 64, flags=1), pack_frame(b"12345678", flags=2)
    plain = pack_frame(b"12345678")
    assert leaf.measure(first + more + more, 0, len(first + more + more), 8) == (3, "")
    for frames, found in (
        (first + plain, (1, "flags")),
        (first + pack_frame(b"", metadata=b"\x81", flags=1), (1, "flags")),
        (plain + pack_frame(b"", metadata=b"\x81", flags=1), (1, "flags")),
        (plain + more, (1, "flags")),
        (more, (0, "flags")),
        (pack_frame(b"", flags=1), (0, "metadata")),
        (pack_frame(b"9" * 9, metadata=b"\x81" * 64, flags=1), (0, "size")),
        (first + pack_frame(b"12345678", metadata=b"\x81", flags=2), (1, "size")),
    ):
        assert leaf.measure(frames, 0, len(frames), 8) == found


@settings(max_examples=examples(200))
@given(sendable, st.integers(200, 320), st.data())
def test_both_bodies_measure_the_same(frames: list[bytes], max_message_bytes: int, data: st.DataObject) -> None:
    joined = bytearray(b"".join(frames))
    if joined and data.draw(st.booleans()):
        joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
    start = data.draw(st.integers(0, len(joined)))
    end = data.draw(st.integers(start, len(joined)))
    found = LOADED.measure(joined, start, end, max_message_bytes)
    assert found == SOURCE.measure(joined, start, end, max_message_bytes)
    if not found[1]:
        assert len(LOADED.stamp(joined[start:end], 1, 2, 3, 4)) == 24 * found[0]


@given(frames_of, u48, st.booleans(), st.data())
def test_both_bodies_parse_the_same(frames: list[bytes], seq: int, check_crc: bool, data: st.DataObject) -> None:
    joined = bytearray(b"".join(frames))
    LOADED.stamp(joined, seq, 6, 7, 8)
    if joined and data.draw(st.booleans()):
        joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
    ends = [0, len(joined), data.draw(st.integers(0, len(joined)))]
    start, end = sorted(data.draw(st.permutations(ends))[:2])
    outcomes = [_parsed(leaf, joined, start, end, check_crc) for leaf in (LOADED, SOURCE)]
    assert outcomes[0] == outcomes[1]


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(frames_of, u48, u32), max_size=4), u48, u48, u32, st.data())
def test_both_bodies_admit_the_same(
    batches: list[tuple[list[bytes], int, int]], seq: int, timestamp_us: int, epoch: int, data: st.DataObject
) -> None:
    joined, next_seq = bytearray(), seq
    for frames, at_us, its_epoch in sorted(batches, key=lambda each: each[1]):
        part = bytearray(b"".join(frames))
        LOADED.stamp(part, next_seq, at_us, its_epoch, 0)
        next_seq += len(frames)
        joined += part
    if joined and data.draw(st.booleans()):
        joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
    taken = joined[: data.draw(st.sampled_from([len(joined), data.draw(st.integers(0, len(joined)))]))]
    for least_us, least in ((0, 0), (timestamp_us, epoch)):
        found = LOADED.admit(taken, seq, least_us, least, 4_096)
        assert found == SOURCE.admit(taken, seq, least_us, least, 4_096)
        entries, size, _, _ = found
        assert entries == LOADED.index_entries(taken, 0, size, 4_096)
        assert LOADED.check(taken, 0, size, seq) == (len(entries) // 24, size, "")


@given(st.binary(max_size=200))
def test_both_bodies_judge_garbage_the_same(garbage: bytes) -> None:
    assert LOADED.admit(garbage, 0, 0, 0, 0) == SOURCE.admit(garbage, 0, 0, 0, 0)
    assert LOADED.check(garbage, 0, len(garbage), 0) == SOURCE.check(garbage, 0, len(garbage), 0)
    assert LOADED.measure(garbage, 0, len(garbage), 9) == SOURCE.measure(garbage, 0, len(garbage), 9)
    assert _parsed(LOADED, garbage, 0, len(garbage), False) == _parsed(SOURCE, garbage, 0, len(garbage), False)


def _parsed(leaf: ModuleType, frames: bytes | bytearray, start: int, end: int, check_crc: bool) -> object:
    try:
        return leaf.parse(frames, start, end, check_crc)
    except ValueError as error:
        return str(error)


def _outcome(leaf: ModuleType, call: str, frames: bytearray) -> object:
    copy = bytearray(frames)
    try:
        if call == "stamp":
            return leaf.stamp(copy, 1, 2, 3, 4), bytes(copy)
        return leaf.index_entries(copy, 0, len(copy), 4)
    except ValueError as error:
        return str(error)


def test_a_header_is_as_long_as_it_says() -> None:
    assert len(pack_frame(b"")) == HEADER_BYTES


def test_pack_frames_makes_what_pack_frame_makes(leaf: ModuleType) -> None:
    payloads = [b"", b"a", bytes(range(256))]
    for metadata in (b"", b"\x80"):
        made = b"".join(pack_frame(each, metadata=metadata) for each in payloads)
        assert leaf.pack_frames(payloads, metadata) == made
    assert leaf.pack_frames([], b"\x80") == b""


def test_pack_frames_refuses_what_is_no_frame(leaf: ModuleType) -> None:
    for wrong in (None, "text", bytearray(b"a"), 7):
        with pytest.raises(TypeError):
            leaf.pack_frames([b"a", wrong], b"")
    with pytest.raises(ValueError, match=f"a frame of {MAX_FRAME_BYTES + 1} bytes"):
        leaf.pack_frames([bytes(MAX_FRAME_BYTES - HEADER_BYTES)], b"\x80")
    with pytest.raises(ValueError, match="metadata of 65536 bytes"):
        leaf.pack_frames([], bytes(65_536))
