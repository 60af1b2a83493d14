"""Data directories made for the tests of spark/, through the broker's own storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tailrace.shard.directory import DataDirectory, make_data_dir, open_data_dir
from tailrace.shard.frame import HEADER_BYTES, pack_frame, unpack_header
from tailrace.shard.header import HEADER_PAGE_BYTES, parse_content, read_boot_id
from tailrace.shard.log import StreamLog
from tailrace.shard.stream_files import stream_paths

SHARDS = 4
DAY_US = 86_400_000_000
START_US = 1_784_000_000_000_000


class Sent(NamedTuple):
    """A message as it is published."""

    timestamp_us: int
    payload: bytes
    metadata: bytes = b""
    epoch: int = 1


def open_log(data: DataDirectory, name: str, boot_id: str | None = None) -> StreamLog:
    boot = read_boot_id() if boot_id is None else boot_id
    return StreamLog.open(data.stream_directory(name), name, create=True, boot_id=boot)


def append(log: StreamLog, messages: Iterable[Sent]) -> None:
    for message in messages:
        frame = pack_frame(message.payload, metadata=message.metadata)
        log.append(bytearray(frame), 1, message.timestamp_us, message.epoch)


def make_directory(path: Path, streams: Mapping[str, Iterable[Sent]], shards: int = SHARDS) -> DataDirectory:
    """A data directory with these streams, closed as a broker that has ended leaves them."""
    data = make_data_dir(path, shards)
    for name, messages in streams.items():
        add_stream(data, name, messages)
    return data


def add_stream(data: DataDirectory, name: str, messages: Iterable[Sent]) -> None:
    log = open_log(data, name)
    append(log, messages)
    log.close()


def trim(path: Path, name: str, seq: int, *, punch: bool = True) -> None:
    """Drop the messages before `seq`, and give their space back."""
    log = open_log(open_data_dir(path), name)
    log.trim(seq)
    if punch:
        log.punch(seq)
    log.close()


def plain(count: int, start_us: int = START_US, step_us: int = 1_000, text: str = "message") -> list[Sent]:
    return [Sent(start_us + i * step_us, f"{text} {i}".encode()) for i in range(count)]


class Row(NamedTuple):
    """A message as an independent, plain look at the frames finds it."""

    stream: str
    seq: int
    timestamp_us: int
    epoch: int
    size: int
    payload: bytes


def rows_of(data: DataDirectory, name: str) -> list[Row]:
    """The rows kept of a stream: its content file read frame by frame, without the index."""
    content = Path(stream_paths(data.stream_directory(name), name).content_file).read_bytes()
    words = parse_content(content[:HEADER_PAGE_BYTES])[1]
    offset, found = words.first_offset, []
    while offset < words.end_offset:
        header = unpack_header(content, offset)
        start, end = offset + HEADER_BYTES + header.metadata_bytes, offset + header.length
        size = header.length - HEADER_BYTES
        found.append(Row(name, header.seq, header.timestamp_us, header.epoch, size, content[start:end]))
        offset = end
    return [row for row in found if row.seq >= words.first_seq]
