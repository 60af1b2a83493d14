"""Reports of checking and mending. Frozen values; the command prints them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.shard.diverged import DivergedTail


@dataclass(frozen=True, slots=True)
class FileFault:
    """A range of `file`, from byte `offset` on, differs from the written bytes."""

    file: Path
    offset: int
    cause: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.cause}"


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The state of one stream as `check` found it.

    `messages` and `message_bytes` were verified frame by frame, with their index entries. `unsynced_messages` of them
    lie past the synced seq of a stream that has not been opened since the machine was down, and `torn_bytes` follow
    them: opening will take up the former and cut the latter, so neither is a fault. `diverged` are the tails in
    `diverged_file`, verified as well; neither they nor `notes` are faults.
    """

    shard: int
    name: str
    messages: int = 0
    message_bytes: int = 0
    first_seq: int = 0
    next_seq: int = 0
    synced_seq: int = 0
    unsynced_messages: int = 0
    torn_bytes: int = 0
    faults: tuple[FileFault, ...] = ()
    notes: tuple[str, ...] = ()
    diverged: tuple[DivergedTail, ...] = ()
    diverged_file: Path | None = None

    @property
    def ok(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class MendReport:
    """The result of mending one damaged stream; `error` gives the reason of a failure, "" on success.

    `messages` are there now. `cut_bytes` were cut off into `kept_in` (None without any). `disabled`: the stream's role
    could not be read, so that it takes no messages until a command sets one.
    """

    shard: int
    name: str
    before: StreamReport
    messages: int = 0
    next_seq: int = 0
    cut_bytes: int = 0
    kept_in: Path | None = None
    disabled: bool = False
    error: str = ""
