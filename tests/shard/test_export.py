from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard import walk
from tailrace.shard.diverged import TITLE_BYTES
from tailrace.shard.errors import StreamCut, TailsDamaged, Trimmed
from tailrace.shard.export import (
    END,
    Bad,
    Bounds,
    Section,
    clip,
    diverged_sections,
    read_section,
    stream_section,
    torn_sections,
)
from tailrace.shard.leaves import load
from tailrace.shard.mend import repair
from tailrace.shard.reader import StreamReader
from tailrace.shard.walk import FrameRun
from tests.shard.helpers import BOOT, NAME, append, batch, filled, flip, open_log, overwrite

leaf = load("tailrace.shard.frame_cy")
ALL = [b"message %d" % i for i in range(10)]  # 41 bytes each, at 1000, 1010, ... µs
FRAME = 41


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StreamReader]:
    filled(tmp_path, 10)
    with StreamReader.open(tmp_path, NAME, boot_id=BOOT) as opened:
        yield opened


def payloads_of(runs: list[FrameRun | Bad]) -> list[bytes]:
    found = [run for run in runs if isinstance(run, FrameRun)]
    rows = [row for run in found for row in leaf.parse(run.frames, 0, len(run.frames), True)]
    assert [row[0] for row in rows] == [run.seq + i for run in found for i in range(run.messages)]
    return [row[5] for row in rows]


def bad_of(runs: list[FrameRun | Bad]) -> list[Bad]:
    return [run for run in runs if isinstance(run, Bad)]


def read(section: Section, bounds: Bounds = Bounds()) -> list[FrameRun | Bad]:  # noqa: B008 (immutable)
    return [
        run._replace(frames=memoryview(bytes(run.frames))) if isinstance(run, FrameRun) else run
        for run in read_section(section, bounds)
    ]


@pytest.mark.parametrize("pieces", [50, 1 << 20])
@pytest.mark.parametrize(
    ("bounds", "first", "end"),
    [
        (Bounds(), 0, 10),
        (Bounds(first_seq=3, end_seq=7), 3, 7),
        (Bounds(first_us=1_025, end_us=1_050), 3, 5),
        (Bounds(first_us=1_020, end_seq=4), 2, 4),
        (Bounds(first_seq=4, first_us=1_000, end_us=1_041), 4, 5),
        (Bounds(first_seq=8, end_seq=20), 8, 10),
        (Bounds(first_seq=10), 10, 10),
        (Bounds(first_seq=99, end_seq=200), 10, 10),
        (Bounds(first_seq=6, end_seq=3), 6, 6),
        (Bounds(end_us=1), 0, 0),
        (Bounds(first_us=1 << 62), 10, 10),
    ],
)
def test_the_part_of_a_stream(
    tmp_path: Path,
    reader: StreamReader,
    monkeypatch: pytest.MonkeyPatch,
    bounds: Bounds,
    first: int,
    end: int,
    pieces: int,
) -> None:
    monkeypatch.setattr(walk, "WALK_BYTES", pieces)
    section = stream_section(reader, tmp_path / "stream.content", bounds)
    assert payloads_of(read(section, bounds)) == ALL[first:end]
    assert section.end_offset - section.offset == FRAME * (end - first), "no more is read than is wanted"


def test_a_stream_is_found_behind_damage(tmp_path: Path, reader: StreamReader) -> None:
    file = tmp_path / "stream.content"
    flip(file, 4_096 + 2 * FRAME + 36)
    overwrite(file, 4_096 + 5 * FRAME, bytes(2 * FRAME))
    runs = read(stream_section(reader, file, Bounds()))
    assert payloads_of(runs) == ALL[:2] + ALL[3:5] + ALL[7:]
    told = [str(bad) for bad in bad_of(runs)]
    assert told[0] == f"message 2: the frame's checksum does not fit ({file} at byte {4_096 + 2 * FRAME}, 41 bytes)"
    assert [bad.seq for bad in bad_of(runs)] == [2, 5, 6]
    flip(file, 4_096 + 9 * FRAME + 36)
    assert payloads_of(read(stream_section(reader, file, Bounds()))) == ALL[:2] + ALL[3:5] + ALL[7:9]


def test_a_stream_that_changes_meanwhile(tmp_path: Path, reader: StreamReader) -> None:
    section = stream_section(reader, tmp_path / "stream.content", Bounds())
    log = open_log(tmp_path)
    log.trim(4)
    overwrite(tmp_path / "stream.content", 4_096, bytes(FRAME))  # as a hole would read
    with pytest.raises(Trimmed):
        read(section)
    log.set_aside(6)
    with pytest.raises(StreamCut):
        read(section)
    log.close()


def test_tails_are_read_one_by_one(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    log.set_aside(7)
    log.set_aside(2)
    log.close()
    path = tmp_path / "stream.diverged"
    second = TITLE_BYTES + 3 * FRAME + 1 + TITLE_BYTES
    flip(path, second + FRAME + 36)
    with open(path, "rb") as file:
        sections = list(diverged_sections(file.fileno(), path, NAME))
        assert [(section.number, section.title) for section in sections] == [
            (1, "tail 1 of 'stream'"),
            (2, "tail 2 of 'stream'"),
        ]
        assert payloads_of(read(sections[0])) == ALL[7:]
        runs = read(sections[1])
        assert payloads_of(runs) == [ALL[2], *ALL[4:7]]
        assert bad_of(runs) == [Bad(path, second + FRAME, second + 2 * FRAME, 3, "the frame's checksum does not fit")]
        assert payloads_of(read(sections[1], Bounds(first_seq=5, end_us=1_060))) == [ALL[5]]


@pytest.mark.parametrize("damage", ["length", "last"])
def test_where_no_length_helps_the_rest_is_told(tmp_path: Path, damage: str) -> None:
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    kept = log.set_aside(2)
    log.close()
    assert kept is not None
    path = tmp_path / "stream.diverged"
    frame = kept.offset + FRAME * (7 if damage == "last" else 3)
    overwrite(path, frame, b"\xff\xff" if damage == "length" else b"\x29\0\0\0\0")
    with open(path, "rb") as file:
        (section,) = diverged_sections(file.fileno(), path, NAME)
        runs = read(section)
    assert payloads_of(runs) == ALL[2 : 9 if damage == "last" else 5]
    assert [(bad.offset, bad.end_offset) for bad in bad_of(runs)] == [(frame, section.end_offset)]


def test_what_repair_cut_off_is_read(tmp_path: Path) -> None:
    """The damaged frame begins it; the header page beside is not a message."""
    paths = filled(tmp_path, 10)
    flip(paths.content_file, 4_096 + 3 * FRAME + 36)
    flip(paths.content_file, 5)
    repair(tmp_path, NAME, boot_id=BOOT)
    path = tmp_path / "stream.torn"
    with open(path, "rb") as file:
        (section,) = torn_sections(file.fileno(), path, NAME)
        runs = read(section)
        assert (section.number, section.title) == (2, "cut 2 of 'stream'")
    assert payloads_of(runs) == ALL[4:]
    assert [bad.seq for bad in bad_of(runs)] == [3]


def test_a_torn_file_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    path = tmp_path / "stream.torn"
    for data, cause in (
        (b"not torn", "at byte 0: the title of a cut is missing"),
        (b"torn content offset=4096 bytes=9 at=1\nfour", "at byte 42: the file ends within a cut, before 47"),
        (b"torn meta offset=0 bytes=4 at=1\nfour\ntorn", "at byte 37: the title of a cut is missing"),
    ):
        path.write_bytes(data)
        with open(path, "rb") as file, pytest.raises(TailsDamaged, match=cause):
            list(torn_sections(file.fileno(), path, NAME))


@given(
    st.lists(st.tuples(st.binary(max_size=5), st.integers(0, 3)), min_size=1, max_size=9),
    st.integers(0, 12),
    st.integers(0, 12) | st.just(END),
    st.integers(0, 30),
    st.integers(0, 30) | st.just(END),
)
def test_clipping(messages: list[tuple[bytes, int]], first: int, end: int, first_us: int, end_us: int) -> None:
    frames, at, times = bytearray(), 0, []
    for seq, (payload, step) in enumerate(messages, 3):
        frame = batch([payload])
        at += step
        times.append(at)
        leaf.stamp(frame, seq, at, 1, 0)
        frames += frame
    bounds = Bounds(first, end, first_us, end_us)
    clipped = clip(FrameRun(3, len(messages), 100, memoryview(frames)), bounds)
    wanted = [seq for seq, us in enumerate(times, 3) if first <= seq < end and first_us <= us < end_us]
    if clipped is None:
        assert wanted == []
        return
    rows = leaf.parse(clipped.frames, 0, len(clipped.frames), True)
    assert [row[0] for row in rows] == wanted == list(range(clipped.seq, clipped.seq + clipped.messages))
    before = sum(32 + len(payload) for payload, _ in messages[: clipped.seq - 3])
    assert clipped.offset == 100 + before


def test_an_append_later_is_no_part_of_it(tmp_path: Path, reader: StreamReader) -> None:
    section = stream_section(reader, tmp_path / "stream.content", Bounds())
    log = open_log(tmp_path)
    append(log, b"later")
    log.close()
    assert payloads_of(read(section)) == ALL
    assert os.path.getsize(tmp_path / "stream.content") > section.end_offset
