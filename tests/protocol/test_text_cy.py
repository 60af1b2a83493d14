"""The rendering leaf: what text peers are sent, and that its two bodies give the same to the byte."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.topics import escaped, unescaped
from tailrace.shard.frame import FAULT_CRC, FAULT_LENGTH, FAULT_SEQ, HEADER, HEADER_BYTES, MAX_FRAME_BYTES, pack_frame
from tailrace.shard.leaves import load, load_source

LEAF = "tailrace.protocol.text_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
FRAME = load("tailrace.shard.frame_cy")
NO_LIMIT = 1 << 62


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stamped(*payloads: bytes, seq: int = 0, timestamp_us: int = 1_000, metadata: bytes = b"") -> bytearray:
    frames = bytearray(b"".join(pack_frame(payload, metadata=metadata) for payload in payloads))
    FRAME.stamp(frames, seq, timestamp_us, 1, 0)
    return frames


def render(leaf: ModuleType, content: bytes | bytearray, seq: int = 0, **named: Any) -> tuple[bytes, int, int, str]:
    options = {"start": 0, "end": len(content), "limit_seq": NO_LIMIT, "limit_bytes": NO_LIMIT, "check_crc": True}
    options["gaps"] = False
    options |= named
    result: tuple[bytes, int, int, str] = leaf.render(
        content,
        options["start"],
        options["end"],
        seq,
        options["limit_seq"],
        b"msg s ",
        options["check_crc"],
        options["limit_bytes"],
        options["gaps"],
    )
    return result


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


def test_three_frames(leaf: ModuleType) -> None:
    content = stamped(b"one", b"", b"three\r", seq=9, timestamp_us=1_234_567)
    text = b"msg s 9 1234567 3 |one\r\nmsg s 10 1234567 0 |\r\nmsg s 11 1234567 6 |three\r\r\n"
    assert render(leaf, content, 9) == (text, 3, len(content), "")


def test_nothing(leaf: ModuleType) -> None:
    assert render(leaf, b"") == (b"", 0, 0, "")


def test_metadata_is_passed_over(leaf: ModuleType) -> None:
    content = stamped(b"payload", metadata=b"\x81\xa1k\xa1v")
    assert render(leaf, content)[0] == b"msg s 0 1000 7 |payload\r\n"


@pytest.mark.parametrize(
    ("topic", "word"),
    [("a/b", b"a/b"), ("é", "é".encode()), (" %|\t\n\x7f", b"%20%25%7C%09%0A%7F"), ("x" * 1_024, b"x" * 1_024)],
)
def test_a_topic_is_a_word_behind_the_length(leaf: ModuleType, topic: str, word: bytes) -> None:
    content = stamped(b"one", b"", metadata=msgpack.packb({"t": topic, "h": {}}))
    text = b"msg s 0 1000 3 " + word + b" |one\r\nmsg s 1 1000 0 " + word + b" |\r\n"
    assert render(leaf, content) == (text, 2, len(content), "")
    assert unescaped(word) == topic.encode() and escaped(topic.encode()) == word


def test_seqs_may_have_gaps(leaf: ModuleType) -> None:
    content = stamped(b"a", seq=5) + stamped(b"b", seq=9) + stamped(b"c", seq=10) + stamped(b"d", seq=1_000)
    text, frames, used, fault = render(leaf, content, 3, gaps=True)
    assert [int(line.split()[2]) for line in text.splitlines()] == [5, 9, 10, 1_000]
    assert (frames, used, fault) == (4, len(content), "")
    assert render(leaf, stamped(b"a", seq=5) + stamped(b"b", seq=5), 5, gaps=True)[1:] == (1, 33, FAULT_SEQ)


def test_it_ends_before_the_limit_of_seqs(leaf: ModuleType) -> None:
    content = stamped(b"a", b"b", b"c", seq=5)
    assert render(leaf, content, 5, limit_seq=7)[1:] == (2, 66, "")
    assert render(leaf, content, 5, limit_seq=5) == (b"", 0, 0, "")


@pytest.mark.parametrize("cut", [1, 32, 33])
def test_it_ends_at_a_frame_that_is_not_whole(leaf: ModuleType, cut: int) -> None:
    content = stamped(b"a", b"b")
    assert render(leaf, content[: len(content) - cut])[1:] == (1, 33, "")


@pytest.mark.parametrize(("limit_bytes", "frames"), [(0, 1), (1, 1), (65, 1), (66, 2), (98, 2), (99, 3)])
def test_it_ends_at_the_limit_of_bytes_after_the_first(leaf: ModuleType, limit_bytes: int, frames: int) -> None:
    assert render(leaf, stamped(b"a", b"b", b"c"), limit_bytes=limit_bytes)[1:] == (frames, 33 * frames, "")


def test_a_flipped_byte_is_a_fault(leaf: ModuleType) -> None:
    content = stamped(b"a", b"b", b"c")
    content[33 + 32] ^= 1
    assert render(leaf, content)[1:] == (1, 33, FAULT_CRC)
    assert render(leaf, content, check_crc=False)[1:] == (3, 99, "")


def test_a_wrong_seq_is_a_fault(leaf: ModuleType) -> None:
    assert render(leaf, stamped(b"a", seq=3), 4) == (b"", 0, 0, FAULT_SEQ)
    assert render(leaf, stamped(b"a") + stamped(b"b", seq=2))[1:] == (1, 33, FAULT_SEQ)


@pytest.mark.parametrize(
    ("length", "metadata_bytes"), [(0, 0), (31, 0), (MAX_FRAME_BYTES + 1, 0), (2**32 - 1, 0), (33, 2), (40, 65_535)]
)
def test_an_impossible_length_is_a_fault(leaf: ModuleType, length: int, metadata_bytes: int) -> None:
    content = stamped(b"a") + HEADER.pack(length, 0, 1, 0, 0, 0, metadata_bytes) + bytes(100)
    assert render(leaf, content, check_crc=False)[1:] == (1, 33, FAULT_LENGTH)


@pytest.mark.parametrize("seq", [0, 8, 9, 98, 99, 999, 9_998, 10**15 - 2, 2**48 - 4])
def test_seqs_are_counted_up(leaf: ModuleType, seq: int) -> None:
    text = render(leaf, stamped(*[b""] * 4, seq=seq), seq)[0]
    assert [int(line.split()[2]) for line in text.splitlines()] == [seq, seq + 1, seq + 2, seq + 3]


def test_times_and_lengths_that_change(leaf: ModuleType) -> None:
    content = bytearray()
    rows = [(0, 0), (1_784_000_000_000_000, 5), (1_784_000_000_000_000, 12), (2**63, 5), (2**63, 1_000)]
    for seq, (timestamp_us, size) in enumerate(rows):
        content += stamped(b"x" * size, seq=seq, timestamp_us=timestamp_us)
    lines = render(leaf, content)[0].splitlines()
    assert [tuple(map(int, line.split()[3:5])) for line in lines] == rows


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (2, 1), (0, 34), (34, 34)])
def test_places_outside_the_content_are_refused(leaf: ModuleType, start: int, end: int) -> None:
    with pytest.raises(ValueError, match="of a buffer of 33"):
        render(leaf, stamped(b"a"), start=start, end=end)


def test_the_buffer_is_let_go(leaf: ModuleType) -> None:
    content = stamped(b"a")
    render(leaf, content)
    content.clear()


def test_acknowledge(leaf: ModuleType) -> None:
    assert leaf.acknowledge([b"s"], [0, 0], [9]) == b"ok pub s 9\r\nok pub s 10\r\n"
    assert leaf.acknowledge([b"s", b"t"], [1, 0, 1], [5, 99]) == b"ok pub t 99\r\nok pub s 5\r\nok pub t 100\r\n"
    assert leaf.acknowledge([], [], []) == b""


def test_acknowledge_refuses_a_stream_that_is_not_there(leaf: ModuleType) -> None:
    with pytest.raises(IndexError):
        leaf.acknowledge([b"s", b"t"], [0, 2], [1, 2])


def test_acknowledge_leaves_its_arguments_alone(leaf: ModuleType) -> None:
    first_seqs = [5, 99]
    leaf.acknowledge([b"s", b"t"], [1, 0, 1], first_seqs)
    assert first_seqs == [5, 99]


@given(
    st.lists(st.tuples(st.binary(max_size=50), st.sampled_from([b"", b"mm", b"\x81\xa1t\xa3a b"])), max_size=12),
    st.integers(0, 2**48),
    st.lists(st.integers(0, 2**63), min_size=1, max_size=3),
    st.integers(0, 700),
    st.integers(0, 14),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 7)), max_size=1),
)
def test_both_bodies_render_the_same(
    rows: list[tuple[bytes, bytes]],
    seq: int,
    times: list[int],
    limit_bytes: int,
    limit_frames: int,
    check_crc: bool,
    gaps: bool,
    flips: list[tuple[int, int]],
) -> None:
    content = bytearray()
    for index, (payload, metadata) in enumerate(rows):
        content += stamped(
            payload, seq=seq + index * (1 + gaps), timestamp_us=times[index % len(times)], metadata=metadata
        )
    for place, bit in flips:
        if content:
            content[place % len(content)] ^= 1 << bit
    options = {"limit_seq": seq + limit_frames, "limit_bytes": limit_bytes, "check_crc": check_crc, "gaps": gaps}
    assert render(LOADED, content, seq, **options) == render(SOURCE, content, seq, **options)


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 2**48), min_size=4, max_size=4))
def test_both_bodies_acknowledge_the_same(order: list[int], first_seqs: list[int]) -> None:
    names = [b"s", b"", b"t" * 200, "é".encode()]
    assert LOADED.acknowledge(names, order, first_seqs) == SOURCE.acknowledge(names, order, first_seqs)


def test_headers_are_as_long_as_the_bodies_take_them() -> None:
    assert HEADER_BYTES == 32
