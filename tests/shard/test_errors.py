from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tailrace.shard.errors import (
    DirectoryError,
    FramesRefused,
    MessageMissing,
    MetaDamaged,
    ShardLocked,
    StorageError,
    StorageFull,
    StreamCut,
    StreamDamaged,
    StreamMissing,
    TailsDamaged,
    Trimmed,
    is_full,
    peer_text,
)

FILE = Path("/data/shard-00/x.content")


TEXTS: list[tuple[StorageError, str]] = [
    (StreamMissing("x", FILE.parent), "no stream 'x' in /data/shard-00"),
    (StreamDamaged("x", FILE, 7, "cut"), "stream 'x' is damaged: /data/shard-00/x.content at byte 7: cut"),
    (MetaDamaged("x", FILE, 0, "cut"), "stream 'x' is damaged: /data/shard-00/x.content at byte 0: cut"),
    (TailsDamaged("x", FILE, 0, "cut"), "stream 'x' is damaged: /data/shard-00/x.content at byte 0: cut"),
    (StorageFull("x", FILE, 9), "no space for 9 more bytes of stream 'x' in /data/shard-00/x.content"),
    (FramesRefused("x", 3, "crc", "bent"), "stream 'x' refuses these frames: message 3: bent"),
    (MessageMissing("x", 7, 2, 5), "stream 'x' has messages 2 to 4, not 7"),
    (StreamCut("x", 3), "stream 'x' changed from message 3 on: its end was set aside"),
    (Trimmed("x", 3, 5), "message 3 of stream 'x' was trimmed; the first one kept is 5"),
    (ShardLocked(FILE, 12), "/data/shard-00/x.content is locked by process 12"),
    (ShardLocked(FILE, 0), "/data/shard-00/x.content is locked by another process"),
    (DirectoryError(FILE, "cannot be read"), "/data/shard-00/x.content: cannot be read"),
]


@pytest.mark.parametrize(("error", "text"), TEXTS)
def test_errors_say_what_and_where(error: StorageError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", [each for each, _text in TEXTS], ids=repr)
def test_peers_are_told_no_path(error: StorageError) -> None:
    assert "/" not in peer_text(error) and peer_text(error)


def test_what_peers_are_told() -> None:
    assert peer_text(StorageFull("x", FILE, 9)) == "no space for 9 more bytes of stream 'x'"
    assert peer_text(StreamDamaged("x", FILE, 7, "cut")) == "stream 'x' is damaged: x.content at byte 7: cut"
    assert peer_text(OSError(errno.EIO, "Input/output error", "/data/x")) == "Input/output error"
    assert peer_text(OSError()) == "OSError" and peer_text(ValueError("odd")) == "odd"


def test_full_is_no_space_or_no_quota() -> None:
    assert is_full(OSError(errno.ENOSPC, "")) and is_full(OSError(errno.EDQUOT, ""))
    assert not is_full(OSError(errno.EIO, ""))
