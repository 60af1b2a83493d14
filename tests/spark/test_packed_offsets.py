from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.names import NAME_BYTES_MAX
from tailrace.spark import offsets, packed_offsets
from tailrace.spark.name_files import FOLDER, MissingNames, NameFiles
from tailrace.spark.offsets import Mark, Offset, OffsetPacker, pack_offset, parse_offset
from tailrace.spark.packed_offsets import GONE, NAME_FILE, NAMES, PACKED, is_same_stream, is_short
from tailrace.spark.slices import NO_IDENTITY, Identity

NUMBERS = st.integers(0, 2**48 - 1)
MAYBE = st.none() | NUMBERS
IDENTITIES = st.just(NO_IDENTITY) | st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 2**32))
MARKS = st.builds(Mark, NUMBERS, IDENTITIES, MAYBE, MAYBE, MAYBE, st.booleans())
OFFSETS = st.dictionaries(st.text("ab/ü😀", min_size=1, max_size=6), MARKS, min_size=1, max_size=6)


def parsed(packed: dict[str, Any]) -> Offset:
    return OffsetPacker().parse(json.loads(json.dumps(packed)))


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
    assert parse_offset(json.loads(json.dumps(packed)), OffsetPacker()) == offset
    assert set(pack_offset({"a": offset["a"]}, OffsetPacker())) == {"a"}


@pytest.mark.parametrize("wrong", [{PACKED: ""}, {PACKED: "x"}, {NAMES: "\\"}, {NAMES: 5}, {PACKED: None}])
def test_what_is_not_such_an_offset_is_refused(wrong: dict[str, Any]) -> None:
    packed = OffsetPacker().pack({f"s{number}": Mark(number, (number + 1, 0), 10**15) for number in range(99)})
    assert len(parse_offset(packed, OffsetPacker())) == 99
    for change in (wrong, {name: str(packed[name])[:-8] for name in wrong}):
        with pytest.raises(ValueError, match="no offset of this source"):
            parse_offset(packed | change, OffsetPacker())


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


def test_names_are_in_a_file_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_offsets, "NEW_NAMES_MAX", 2)

    def restarted() -> OffsetPacker:
        return OffsetPacker(NameFiles(f"file://{tmp_path}", "source"))

    def files() -> list[str]:
        return sorted(os.listdir(tmp_path / FOLDER))

    offset = {f"device.{number}": Mark(number, (number + 1, 0), 10**15 + number) for number in range(50)}
    packer = restarted()
    first = json.dumps(packer.pack(offset))
    assert "device" not in first and len(files()) == 1
    for name in ("aa", "zz"):
        offset = {**offset, name: Mark(7, (7, 0), 10**15)}
        said = json.dumps(packer.pack(offset))
        for each in (packer, restarted()):
            assert as_kept(each.parse(json.loads(said)), offset) == offset
    assert len(files()) == 1
    packer = restarted()
    assert as_kept(packer.parse(json.loads(said)), offset) == offset
    offset["aa"] = offset["aa"]._replace(seq=8)
    said = json.dumps(packer.pack(offset))
    assert len(files()) == 1, "the next offsets refer to the file of those before"
    offset = {**offset, "mm": Mark(9, (7, 0), 10**15)}
    said = json.dumps(packer.pack(offset))
    assert len(files()) == 2
    assert as_kept(restarted().parse(json.loads(said)), offset) == offset
    assert len(restarted().parse(json.loads(first))) == 50, "the offset before is readable, too"
    without = {name: mark for name, mark in offset.items() if name != "aa"}
    assert as_kept(restarted().parse(packer.pack(without)), without) == without
    with pytest.raises(MissingNames, match="checkpointLocation"):
        parse_offset(json.loads(said), OffsetPacker())
    (tmp_path / FOLDER / files()[1]).write_bytes(b"")
    with pytest.raises(MissingNames, match="other content"):
        parse_offset(json.loads(said), restarted())
    (tmp_path / FOLDER / files()[1]).unlink()
    with pytest.raises(MissingNames, match="No such file"):
        parse_offset(json.loads(said), restarted())
    with pytest.raises(MissingNames, match="not the name"):
        parse_offset({**json.loads(said), NAME_FILE: "../../etc/passwd"}, restarted())


def test_random_names_take_no_place_in_an_offset(tmp_path: Path) -> None:
    choice = random.Random(5)
    offset = {
        f"{choice.getrandbits(128):032x}": Mark(
            int(choice.lognormvariate(7, 1.5)),
            (choice.getrandbits(64), 0),
            10**15 + choice.randrange(86_400_000_000),
            None,
            1,
        )
        for _ in range(5_000)
    }
    assert len(json.dumps(OffsetPacker(NameFiles(str(tmp_path), "")).pack(offset))) <= 10 * len(offset)
