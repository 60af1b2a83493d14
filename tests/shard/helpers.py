"""Words that the storage tests share: batches, logs in a directory, and what a reader sees."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tailrace.shard.diverged import DivergedTail, read_tails
from tailrace.shard.frame import HEADER_BYTES, pack_frame, unpack_header
from tailrace.shard.log import StreamLog
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.shard.walk import check

BOOT = "a boot of the machine"
LATER_BOOT = "the next boot of the machine"
NAME = "stream"


class Message(NamedTuple):
    seq: int
    timestamp_us: int
    epoch: int
    payload: bytes


def list_tails(path: Path, name: str) -> list[DivergedTail]:
    """The tails in this file, none without a file."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        return list(read_tails(file.fileno(), path, name))


def batch(payloads: Iterable[bytes]) -> bytearray:
    """Unstamped frames."""
    return bytearray(b"".join(pack_frame(payload) for payload in payloads))


def open_log(
    directory: Path, name: str = NAME, *, create: bool = True, boot: str = BOOT, check_bytes: int = 64 * 1024
) -> StreamLog:
    return StreamLog.open(directory, name, create=create, boot_id=boot, check_bytes=check_bytes)


def append(log: StreamLog, *payloads: bytes, at: int = 1_000, epoch: int = 1) -> int:
    return log.append(batch(payloads), len(payloads), at, epoch)


def filled(
    directory: Path, count: int = 10, *, name: str = NAME, boot: str = BOOT, synced: bool = False
) -> StreamPaths:
    """A closed stream of `count` messages b"message 0", b"message 1", … at 1000, 1010, … µs; gives its paths."""
    log = open_log(directory, name, boot=boot)
    for i in range(count):
        append(log, b"message %d" % i, at=1_000 + 10 * i)
    if synced:
        log.sync()
    log.close()
    return stream_paths(directory, name)


def read_messages(directory: Path, name: str = NAME, *, boot: str = BOOT) -> list[Message]:
    """All messages as a reader sees them, each verified."""
    reader = StreamReader.open(directory, name, boot_id=boot)
    try:
        return messages_of(reader)
    finally:
        reader.close()


def messages_of(reader: StreamReader) -> list[Message]:
    first_seq, next_seq = reader.first_seq(), reader.next_seq()
    start, end = reader.offset_of(first_seq), reader.offset_of(next_seq)
    content = bytearray(end - start)
    assert reader.read_into(memoryview(content), start) == end - start
    assert check(content, 0, len(content), first_seq) == (next_seq - first_seq, len(content), "")
    messages = []
    position = 0
    for seq in range(first_seq, next_seq):
        header = unpack_header(content, position)
        entry = reader.entry(seq)
        assert entry == (header.timestamp_us, start + position, header.length, header.epoch)
        payload = bytes(content[position + HEADER_BYTES + header.metadata_bytes : position + header.length])
        messages.append(Message(header.seq, header.timestamp_us, header.epoch, payload))
        position += header.length
    return messages


def payloads(directory: Path, name: str = NAME, *, boot: str = BOOT) -> list[bytes]:
    return [message.payload for message in read_messages(directory, name, boot=boot)]


def flip(file: str | Path, offset: int, mask: int = 0xFF) -> None:
    """Change one byte of a file."""
    with open(file, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ mask]))


def overwrite(file: str | Path, offset: int, data: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def cut(file: str | Path, size: int) -> None:
    with open(file, "r+b") as opened:
        opened.truncate(size)
