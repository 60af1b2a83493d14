"""What may be taken behind a log: piece after piece, up to the first that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.shard.admission import LogEnd, admit_pieces
from tailrace.shard.errors import FramesRefused
from tailrace.shard.header import VALUE_MAX
from tailrace.shard.leaves import load
from tests.shard.helpers import batch
from tests.thorough import examples

leaf = load("tailrace.shard.frame_cy")
BEGIN = LogEnd(0, 4_096, 0, 0)


def stamped(count: int, seq: int = 0, *, at: int = 1_000, epoch: int = 1, nbytes: int = 10) -> bytearray:
    frames = batch([b"x" * (nbytes + number % 3) for number in range(count)])
    leaf.stamp(frames, seq, at, epoch, 0)
    return frames


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 7), max_size=6), st.data())
def test_pieces_give_what_they_give_together(counts: list[int], data: st.DataObject) -> None:
    pieces, seq = list[bytearray](), 0
    for number, count in enumerate(counts):
        pieces.append(
            stamped(count, seq, at=1_000 * number, epoch=1 + number // 2, nbytes=data.draw(st.integers(0, 60)))
        )
        seq += count
    joined = bytearray().join(pieces)
    row, end, flags, refused = admit_pieces("s", pieces, BEGIN)
    assert refused is None and flags == 0
    assert b"".join(row) == leaf.index_entries(joined, 0, len(joined), 4_096)
    assert end[:2] == (seq, 4_096 + len(joined))
    for frames in pieces[-1:]:
        assert admit_pieces("s", [frames], BEGIN._replace(next_seq=seq - counts[-1])).end[2:] == end[2:]


@pytest.mark.parametrize("wrong", range(3))
def test_what_is_before_the_wrong_piece_may_be_taken(wrong: int) -> None:
    pieces = [stamped(4, 0), stamped(5, 4, epoch=3), stamped(6, 9, epoch=3)]
    whole = [bytes(piece) for piece in pieces]
    pieces[wrong][-1] ^= 1
    row, end, _, refused = admit_pieces("s", pieces, BEGIN)
    good = b"".join(whole[:wrong])
    assert b"".join(row) == leaf.index_entries(good, 0, len(good), 4_096)
    assert end == LogEnd((0, 4, 9)[wrong], 4_096 + len(good), 1_000 if wrong else 0, (0, 1, 3)[wrong])
    assert isinstance(refused, FramesRefused)
    assert (refused.name, refused.seq, refused.fault) == ("s", (3, 8, 14)[wrong], "crc")


def test_a_piece_that_does_not_follow_the_one_before_it() -> None:
    for piece, fault in (
        (stamped(1, 5), "seq"),
        (stamped(1, 4, at=999, epoch=2), "time"),
        (stamped(1, 4, epoch=1), "epoch"),
        (bytearray(), "short"),
    ):
        row, end, _, refused = admit_pieces("s", [stamped(4, epoch=2), piece], BEGIN)
        assert len(row) == 1 and end.next_seq == 4
        assert refused is not None and (refused.seq, refused.fault) == (4, fault)


def test_nothing_beyond_the_greatest_seq_and_offset() -> None:
    at = LogEnd(VALUE_MAX - 1, 4_096, 0, 0)
    row, end, _, refused = admit_pieces("s", [stamped(1, VALUE_MAX - 1), stamped(1, VALUE_MAX)], at)
    assert len(row) == 1 and end.next_seq == VALUE_MAX
    assert refused is not None and refused.fault == "seq"
    row, _, _, refused = admit_pieces("s", [stamped(1)], LogEnd(0, VALUE_MAX - 10, 0, 0))
    assert row == [] and refused is not None and "end at" in str(refused)


def test_flags_are_those_of_what_may_be_taken() -> None:
    pieces = [stamped(1, 0), stamped(2, 1), stamped(1, 3)]
    for number, flags in ((1, 2), (2, 4)):
        pieces[number][28] |= flags
        leaf.stamp(pieces[number], (0, 1, 3)[number], 1_000, 1, 0)
    assert admit_pieces("s", pieces, BEGIN).flags == 6
    assert admit_pieces("s", pieces[:2], BEGIN).flags == 2
    pieces[2][-1] ^= 1
    assert admit_pieces("s", pieces, BEGIN).flags == 2
