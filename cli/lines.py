"""Blocks of input into lines, however they are cut."""

from __future__ import annotations


class LineSplitter:
    """Only the LF of a line goes: a CR before it is part of it. `ended`: lines that were given out so far.

    Of a line that is longer than `max_bytes` and comes in several blocks, no more is held than shows that it is.
    """

    def __init__(self, max_bytes: int) -> None:
        self.ended = 0
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._room = max_bytes + 1

    @property
    def begun(self) -> int:
        """Lines so far, the last one perhaps in part."""
        return self.ended + bool(self._parts)

    def split(self, block: bytes) -> list[bytes]:
        """The lines that end in this block."""
        head, *rest = block.split(b"\n")
        self._hold(head)
        if not rest:
            return []
        lines = [self._take(), *rest[:-1]]
        self._hold(rest[-1])
        self.ended += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """A last line that had no LF; it is a line like any other."""
        lines = [self._take()] if self._parts else []
        self.ended += len(lines)
        return lines

    def _hold(self, part: bytes) -> None:
        if part and self._room > 0:
            self._parts.append(part[: self._room])
            self._room -= len(part)

    def _take(self) -> bytes:
        line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._room = self._max_bytes + 1
        return line
