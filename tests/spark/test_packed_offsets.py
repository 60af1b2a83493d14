from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.names import NAME_BYTES_MAX
from tailrace.spark import offsets
from tailrace.spark.offsets import Mark, Offset, OffsetPacker, pack_offset, parse_offset
from tailrace.spark.packed_offsets import GONE, NAMES, PACKED, is_same_stream, is_short, parse_packed
from tailrace.spark.slices import NO_IDENTITY, Identity

NUMBERS = st.integers(0, 2**48 - 1)
MAYBE = st.none() | NUMBERS
IDENTITIES = st.just(NO_IDENTITY) | st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**32))
MARKS = st.builds(Mark, NUMBERS, IDENTITIES, MAYBE, MAYBE, MAYBE, st.booleans())
OFFSETS = st.dictionaries(st.text("ab/ü😀", min_size=1, max_size=6), MARKS, min_size=1, max_size=6)


def parsed(packed: dict[str, Any]) -> Offset:
    return parse_packed(json.loads(json.dumps(packed)))


def as_kept(offset: Offset, wanted: Offset) -> Offset:
    """With the identities of the other one, if they agree."""
    assert all(is_same_stream(mark.identity, wanted[name].identity) for name, mark in offset.items())
    return {name: mark._replace(identity=wanted[name].identity) for name, mark in offset.items()}


@given(OFFSETS, OFFSETS)
def test_one_after_the_other_they_are_what_they_were(first: Offset, second: Offset) -> None:
    packer = OffsetPacker()
    for offset in (first, {**first, **second}, {**first, **second}, second):
        packed = packer.pack(offset)
        assert as_kept(parsed(packed), offset) == offset
        assert packed[GONE] == [name for name, mark in offset.items() if mark.is_gone]
        again = OffsetPacker().pack(parsed(packed))
        assert parsed(again) == parsed(packed)


def test_names_that_have_much_in_common() -> None:
    names = ["x" * NAME_BYTES_MAX, "x" * (NAME_BYTES_MAX - 1) + "y", "x", "xy", "ü", "üb"]
    offset = {name: Mark(place, NO_IDENTITY) for place, name in enumerate(names)}
    assert parsed(OffsetPacker().pack(offset)) == offset


def test_few_streams_can_be_read_and_many_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "PACKED_FROM", 2)
    offset = {"a": Mark(1, NO_IDENTITY), "b": Mark(2, NO_IDENTITY, 5)}
    packed = pack_offset(offset, OffsetPacker())
    assert set(packed) == {PACKED, NAMES, GONE}
    assert parse_offset(json.loads(json.dumps(packed))) == offset
    assert set(pack_offset({"a": offset["a"]}, OffsetPacker())) == {"a"}


@pytest.mark.parametrize("wrong", [{PACKED: ""}, {PACKED: "x"}, {NAMES: "\\"}, {NAMES: 5}, {PACKED: None}])
def test_what_is_not_such_an_offset_is_refused(wrong: dict[str, Any]) -> None:
    packed = OffsetPacker().pack({f"s{number}": Mark(number, (number + 1, 0), 10**15) for number in range(99)})
    assert len(parse_offset(packed)) == 99
    for change in (wrong, {name: str(packed[name])[:-8] for name in wrong}):
        with pytest.raises(ValueError, match="no offset of this source"):
            parse_offset(packed | change)


@pytest.mark.parametrize("time_us", [None, 10**15])
@given(st.integers(1, 2**64 - 1))
def test_some_bits_of_an_id_are_kept(time_us: int | None, stream_id: int) -> None:
    def kept(identity: Identity) -> Identity:
        return parsed(OffsetPacker().pack({"s": Mark(5, identity, time_us)}))["s"].identity

    identity = kept((stream_id, 3))
    assert is_short(identity)
    assert is_same_stream(identity, (stream_id, 3))
    assert is_same_stream((stream_id, 3), identity)
    assert not is_same_stream(identity, (stream_id, 4))
    assert not is_same_stream(identity, (stream_id ^ 2, 3))
    assert is_same_stream(identity, NO_IDENTITY)
    assert kept(identity) == identity
    assert kept(NO_IDENTITY) == NO_IDENTITY
    assert not is_short(NO_IDENTITY)


def test_an_offset_of_a_fleet_has_ten_bytes_for_a_stream() -> None:
    """Ids that are random, messages of the last day, and a few hundred or thousand of them in a stream."""
    choice = random.Random(5)
    streams = 5_000
    offset = {
        f"device.{number:06}": Mark(
            int(choice.lognormvariate(7, 1.5)),
            (choice.getrandbits(64), 0),
            10**15 + choice.randrange(86_400_000_000),
            None,
            1,
        )
        for number in range(streams)
    }
    assert len(json.dumps(OffsetPacker().pack(offset))) <= 10 * streams
