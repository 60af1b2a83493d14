"""A night that is hard to count, made by the broker's own storage, for tests that recompute every cell."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tailrace.shard.directory import DataDirectory
from tailrace.shard.frame import MAX_FRAME_BYTES, pack_frame
from tailrace.shard.stream_files import stream_paths
from tests.shard.helpers import flip
from tests.spark.data import DAY_US, Sent, add_stream, append, make_directory, open_log, plain, trim
from tests.spark.rollup.directories import DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.test_bad_streams import damage_entry, damage_frame
from tests.spark.rollup.test_frame_view import set_time

MANY = int(os.environ.get("TAILRACE_NIGHT_STREAMS", "150"))
LONG = int(os.environ.get("TAILRACE_NIGHT_MESSAGES", "4000"))
"""Small streams, and the messages of each of two large ones (docs/spark.md)."""
NAMES = ("a/b", "..", "ключ", "%41", "=x", "é" * 100, "*?[x]", "day=1", "25", "$own", "$cursor/25", "25/$dead")
EDGES_US = [at + off for at in range(0, DAY_US + 1, HOUR_US) for off in (-MINUTE_US, -1, 0, 0, 1, MINUTE_US - 1)]
"""Around each hour of the day, and its two midnights."""
UNREADABLE = {"header"}
CONTRADICTORY = UNREADABLE | {"entry", "time"}
DAMAGED = UNREADABLE | {"frame", "frame.last"}
"""The streams that a run reports: always, by the index, and by the frames."""
NOON_US = DAY_START_US + 12 * HOUR_US


def spread(count: int, first_us: int = DAY_START_US, step_us: int = 7 * MINUTE_US // 3) -> list[Sent]:
    """Sizes and gaps that differ, with a new epoch now and then."""
    return [Sent(first_us + i * step_us + i * i % 977, bytes(i * 37 % 1_009), epoch=1 + i // 50) for i in range(count)]


def make_hard_night(folder: Path, many: int = MANY, longest_bytes: int = MAX_FRAME_BYTES) -> DataDirectory:
    """Midnights, trims, epochs, the longest frames, many streams, torn ends, ends that were set aside, streams that
    begin late, contradictory indexes, remains of streams that do not exist, odd names."""
    streams: dict[str, Iterable[Sent]] = {
        name: spread(40, DAY_START_US - HOUR_US + i * HOUR_US) for i, name in enumerate(NAMES)
    }
    streams["edges"] = [Sent(DAY_START_US + each, bytes(i % 7)) for i, each in enumerate(EDGES_US)]
    streams["around"] = spread(700, DAY_START_US - 2 * HOUR_US, 139_000_001)
    streams |= {"none": [], "one": spread(1), "before": spread(9, DAY_START_US - HOUR_US)}
    # Minutes with as many messages: the ranks of the percentiles are at their edges.
    streams["ranks"] = [
        Sent(DAY_START_US + i * MINUTE_US + j * j, bytes(j * 37 % 1_009))
        for i, count in enumerate((1, 2, 3, 49, 50, 51, *range(97, 103), 199, 201))
        for j in range(count)
    ]
    streams["same"] = [Sent(NOON_US, bytes(i)) for i in range(50)]
    for name, step_us in (("burst", 7), ("long", 1_501)):
        streams[name] = (Sent(NOON_US + i * step_us + i % 5, bytes(i * i % 307)) for i in range(LONG))
    streams |= {f"s{i}": spread(3, DAY_START_US + i * MINUTE_US, 40_000_000) for i in range(many)}
    data = make_directory(folder, streams)
    make_trimmed(data)
    make_torn(data)
    make_contradictory(data)
    make_large(data, longest_bytes)
    return data


def make_trimmed(data: DataDirectory) -> None:
    """In a minute, up to midnight, up to the last message, and all."""
    midnight = plain(120, DAY_START_US - MINUTE_US, 1_000_000)
    trims = {"trimmed": 75, "trimmed.midnight": 60, "trimmed.but.one": 119, "trimmed.all": 120}
    for name, seq in trims.items():
        add_stream(data, name, midnight)
        trim(data.path, name, seq)
    log = open_log(data, "begins.late")
    log.begin_at(1 << 40)
    append(log, spread(30))
    log.close()


def make_torn(data: DataDirectory) -> None:
    """A process that died while it appended, a machine that went down, and an end that gave way to another master."""
    for name, boot_id in (("torn", None), ("lost", "another boot of the machine")):
        log = open_log(data, name, boot_id)
        append(log, spread(30))
        log.sync()
        append(log, spread(5, DAY_START_US + 20 * HOUR_US))
        log.abandon()
        frame = pack_frame(b"never committed")
        for path in stream_paths(data.stream_directory(name), name)[3:]:
            with open(path, "ab") as file:
                file.write(frame[:40])
    log = open_log(data, "aside")
    append(log, spread(60, step_us=MINUTE_US))
    log.set_aside(41)
    append(log, [each._replace(epoch=9) for each in spread(20, DAY_START_US + 3 * HOUR_US)])
    log.close()


def make_contradictory(data: DataDirectory) -> None:
    """Indexes that are wrong, a frame that is, and remains of streams that never were."""
    for name, does in (("entry", damage_entry), ("frame", damage_frame), ("frame.midnight", damage_frame)):
        # Message 70 is the damaged one: in the day, or the last one before it.
        first_us = DAY_START_US - 71_000_000 * (name == "frame.midnight")
        add_stream(data, name, plain(180, first_us, 1_000_000))
        does(data, stream_paths(data.stream_directory(name), name))
    add_stream(data, "frame.last", plain(180, DAY_START_US, 1_000_000))
    content = stream_paths(data.stream_directory("frame.last"), "frame.last").content_file
    flip(content, Path(content).stat().st_size - 1)
    add_stream(data, "time", [*spread(50, DAY_START_US - DAY_US, MINUTE_US), *spread(50, step_us=MINUTE_US)])
    set_time(data, "time", 50, DAY_START_US - 1)
    add_stream(data, "header", spread(5))
    flip(stream_paths(data.stream_directory("header"), "header").index_file, 8)
    add_stream(data, "unborn", [])
    Path(stream_paths(data.stream_directory("unborn"), "unborn").index_file).unlink()
    for name in ("x.content.new", "x.indx.new", "one.torn", "one.diverged"):
        (data.stream_directory("one") / name).write_bytes(b"worth nothing")


def make_large(data: DataDirectory, frame_bytes: int) -> None:
    """Two long frames, the second with metadata, between short ones."""
    log = open_log(data, "large")
    append(log, spread(2))
    for payload_bytes, metadata in ((frame_bytes - 32, b""), (frame_bytes - 33, b"\x80")):
        frame = bytearray(pack_frame(bytes(payload_bytes), metadata=metadata))
        assert len(frame) == frame_bytes
        log.append(frame, 1, NOON_US, 1)
    append(log, spread(2, NOON_US + HOUR_US))
    log.close()


def copy_stream(source: DataDirectory, target: DataDirectory, name: str) -> None:
    """As a slave takes it from its master: the very frames."""
    content = stream_paths(source.stream_directory(name), name).content_file
    log = open_log(target, name)
    log.take(Path(content).read_bytes()[4096:])
    log.close()
