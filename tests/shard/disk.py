"""A process that dies before any step of its work, and a machine that goes down there.

A step is a system call that changes something, or the store of a word into a mapped header page. All steps of the
process stay when only the process dies. When the machine goes down, each file has its last synced bytes, or its last
written bytes, or the header page of one and the rest of the other, or zeros in place of the last written bytes; and
each name in the folder stands for the file that it stood for when names were synced last, or for that of now.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tailrace.shard.diverged import TITLE_BYTES
from tailrace.shard.files import NEW_SUFFIX
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.log import StreamLog

CALLS = ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink")


class Killed(BaseException):
    """The process is no more: nothing of it catches this."""


class Words:
    """Stands in for a mapped header page, so that stores are steps."""

    def __init__(self, words: memoryview, step: Callable[[str], None], name: str) -> None:
        self._words, self._step, self._name = words, step, name

    def __setitem__(self, place: int, word: int) -> None:
        self._step(f"{self._name} word {place}")
        self._words[place] = word

    def __getitem__(self, place: int) -> int:
        return self._words[place]

    def release(self) -> None:
        self._words.release()


class Disk:
    """Watches one folder. `die_before`: the step that is not done, counted from 0; `finished` is for its user."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.steps: list[str] = []
        self.die_before = -1
        self._names: dict[str, int] = {}
        self._synced: dict[int, bytes] = {}
        self._replaced: dict[int, bytes] = {}
        self.finished = False
        for name in CALLS:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def sync_all(self) -> None:
        """The least that a crash leaves of the present state."""
        self._names = self._names_now()
        self._synced = {inode: (self.directory / name).read_bytes() for name, inode in self._names.items()}

    def watch(self, log: StreamLog) -> None:
        """Count the stores into the header pages of this log as steps."""
        for page in ("content", "index"):
            words = getattr(log, f"_{page}_words")
            setattr(log, f"_{page}_words", Words(words, self.step, page))

    def step(self, what: str) -> None:
        if len(self.steps) == self.die_before:
            raise Killed(what)
        self.steps.append(what)

    def _names_now(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self.directory.iterdir()}

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            self.step(f"{name} {self._about(args[0])}")
            if name == "rename" and os.path.exists(args[1]):
                self._replaced[os.stat(args[1]).st_ino] = Path(args[1]).read_bytes()
            result = call(*args)
            if name in ("fsync", "fdatasync"):
                self._note_synced(args[0])
            return result

        return watched

    def _about(self, what: int | str) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what)

    def _note_synced(self, fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            self._names = self._names_now()
        else:
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                self._synced[found.st_ino] = file.read()

    def left_by_the_machine(self) -> Iterator[dict[str, bytes]]:
        """Every folder that a crash of the machine may leave at this moment: names and bytes."""
        now = self._names_now()
        written = self._replaced | {inode: (self.directory / name).read_bytes() for name, inode in now.items()}
        every = sorted(name for name in {*now, *self._names} if not name.endswith(NEW_SUFFIX))
        for inodes in product(*({self._names.get(name), now.get(name)} for name in every)):
            names = {name: inode for name, inode in zip(every, inodes, strict=True) if inode is not None}
            versions = [self._versions(name, inode, written) for name, inode in names.items()]
            for chosen in product(*versions):
                yield dict(zip(names, chosen, strict=True))

    def _versions(self, name: str, inode: int, written: dict[int, bytes]) -> list[bytes]:
        old, new = self._synced.get(inode, b""), written[inode]
        found = [old, new]
        if name.endswith((".content", ".indx")):
            page = HEADER_PAGE_BYTES
            found += [old[:page] + new[page:], new[:page] + old[page:]]
        elif len(new) > len(old):
            title = new[len(old) : len(old) + TITLE_BYTES]
            zeros = bytes(len(new) - len(old) - len(title))
            found += [old + title + zeros, old + bytes(len(title)) + zeros]
        return list(dict.fromkeys(found))
