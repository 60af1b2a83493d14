"""Errors of the storage.

    StorageError
    ├── StreamMissing      no such stream here
    ├── StreamDamaged      a file of the stream differs from the written bytes; that stream alone refuses
    │   ├── MetaDamaged    only its .meta file
    │   └── TailsDamaged   only its .diverged or .torn file
    ├── StorageFull        no space, or no quota; nothing was committed, try again when there is space
    ├── FramesRefused      frames of another log do not follow the messages of this one; nothing was written
    ├── Trimmed            the message was there once and has been trimmed
    ├── MessageMissing     the stream does not have this message; a ValueError too
    ├── StreamCut          the end of the stream was set aside under an open reader: open it anew
    ├── MessagesLost       a failed sync has left messages unreadable: opening the stream anew cuts them off
    ├── ShardLocked        another process owns the shard, or the data directory
    └── DirectoryError     the data directory cannot be used as it is

InvalidName is a ValueError: it is about what somebody asked for, not about storage. An error of the disk itself is
the OSError that the system gave, except for "no space" (`is_full`).
"""

from __future__ import annotations

import errno
from pathlib import Path

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


class StorageError(Exception):
    """The root of this tree. `for_peers`: the text without the paths of this machine, which are for its log."""

    @property
    def for_peers(self) -> str:
        return str(self)


class StreamMissing(StorageError):
    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(f"no stream {name!r} in {directory}")
        self.name = name
        self.directory = directory

    @property
    def for_peers(self) -> str:
        return f"no stream {self.name!r}"


class StreamDamaged(StorageError):
    """`file` differs from the written bytes, from byte `offset` on; `cause` describes how."""

    def __init__(self, name: str, file: Path, offset: int, cause: str) -> None:
        super().__init__(f"stream {name!r} is damaged: {file} at byte {offset}: {cause}")
        self.name = name
        self.file = file
        self.offset = offset
        self.cause = cause

    @property
    def for_peers(self) -> str:
        return f"stream {self.name!r} is damaged: {self.file.name} at byte {self.offset}: {self.cause}"


class MetaDamaged(StreamDamaged):
    """The .meta file cannot be read; content and index are not concerned."""


class TailsDamaged(StreamDamaged):
    """The .diverged file, or .torn, cannot be read; content and index are not concerned. While a .diverged file is so,
    no further tail can be set aside."""


class StorageFull(StorageError):
    def __init__(self, name: str, file: Path, wanted_bytes: int) -> None:
        super().__init__(f"no space for {wanted_bytes} more bytes of stream {name!r} in {file}")
        self.name = name
        self.file = file
        self.wanted_bytes = wanted_bytes

    @property
    def for_peers(self) -> str:
        return f"no space for {self.wanted_bytes} more bytes of stream {self.name!r}"


class FramesRefused(StorageError):
    """The frame of message `seq` is wrong: `fault` is a FAULT_ constant of `shard.frame`, `cause` a text."""

    def __init__(self, name: str, seq: int, fault: str, cause: str) -> None:
        super().__init__(f"stream {name!r} refuses these frames: message {seq}: {cause}")
        self.name = name
        self.seq = seq
        self.fault = fault
        self.cause = cause


class FramesTooNew(FramesRefused):
    """A whole frame has a timestamp or an epoch so far ahead that its stamp was made up."""


class Trimmed(StorageError):
    def __init__(self, name: str, seq: int, first_seq: int) -> None:
        super().__init__(f"message {seq} of stream {name!r} was trimmed; the first one kept is {first_seq}")
        self.name = name
        self.seq = seq
        self.first_seq = first_seq


class MessageMissing(StorageError, ValueError):
    """The stream has other messages; those asked for may have been set aside by another thread a moment before."""

    def __init__(self, name: str, seq: int, first_seq: int, next_seq: int) -> None:
        super().__init__(f"stream {name!r} has messages {first_seq} to {next_seq - 1}, not {seq}")
        self.name = name
        self.seq = seq


class StreamCut(StorageError):
    """Messages from `seq` on were set aside, and others may have their seqs now; those before are as they were.

    0 if it is unknown which are, or none.
    """

    def __init__(self, name: str, seq: int) -> None:
        super().__init__(f"stream {name!r} changed from message {seq} on: its end was set aside")
        self.name = name
        self.seq = seq


class MessagesLost(StorageError):
    """A failed sync has left messages from `seq` on that cannot be read any more. Opening the stream anew cuts them."""

    def __init__(self, name: str, seq: int, cause: str) -> None:
        super().__init__(f"stream {name!r} lost messages from {seq} on, after a sync that failed: {cause}")
        self.name = name
        self.seq = seq


class ShardLocked(StorageError):
    """`holder_pid` is 0 if unknown."""

    def __init__(self, path: Path, holder_pid: int) -> None:
        holder = f"process {holder_pid}" if holder_pid else "another process"
        super().__init__(f"{path} is locked by {holder}")
        self.path = path
        self.holder_pid = holder_pid

    @property
    def for_peers(self) -> str:
        return str(self).replace(str(self.path), "a shard")


class DirectoryError(StorageError):
    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = path
        self.cause = cause

    @property
    def for_peers(self) -> str:
        return self.cause


def peer_text(error: Exception) -> str:
    """What an answer may say of an error: nothing of where the data directory is."""
    if isinstance(error, StorageError):
        return error.for_peers
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


def is_full(error: OSError) -> bool:
    """Whether the error is "no space left" or "over quota"."""
    return error.errno in _FULL
