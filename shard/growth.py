"""Space for a growing file.

The first bytes after opening are plain writes past the end of the file: a stream that gets a message now and then pays
for no reservation, and for none to be given back. Beyond that, space is reserved in doubling steps, which makes large
writes cheaper and a full disk known before a write begins. What is to be mapped (`shard.window`) is always reserved.
"""

from __future__ import annotations

import os
from typing import Final

from tailrace.shard.errors import is_full

UNRESERVED_BYTES: Final = 64 * 1024
STEP_BYTES_MIN: Final = 64 * 1024
STEP_BYTES_MAX: Final = 64 * 1024 * 1024
BLOCK_BYTES: Final = 4_096


class _Limits:
    """Set by `limit_steps`; one for the process."""

    step_bytes_max = STEP_BYTES_MAX


def limit_steps(nbytes: int) -> None:
    """From now on no file of this process reserves more than that ahead, or STEP_BYTES_MIN: space gets short."""
    _Limits.step_bytes_max = max(nbytes, STEP_BYTES_MIN)


class Extent:
    """How far one open file may be written."""

    __slots__ = ("_fd", "_reserved", "_step", "_step_max", "limit")

    def __init__(self, fd: int, end: int) -> None:
        self._fd = fd
        self._reserved = 0
        self._step = STEP_BYTES_MIN
        self._step_max = STEP_BYTES_MAX
        self.limit = end + UNRESERVED_BYTES
        """Writes may go up to here without asking."""

    def reserve(self, used: int, end: int) -> None:
        """Reserves space up to `end`, and a step more if available. `used` bytes of the file are in use.

        Raises OSError; "no space" only if `end` itself does not fit. A failed reservation is given back.
        """
        start = max(self._reserved, used)
        needed = _round_up(end - start)
        wanted = max(needed, min(self._step, _Limits.step_bytes_max))
        while not self._try_reserve(start, wanted, last=wanted == needed):
            wanted = max(needed, wanted // 2)
        self._reserved = self.limit = start + wanted
        self._step = min(2 * self._step, self._step_max)

    def hold(self, used: int, end: int) -> None:
        """Reserve space up to `end`, for a mapping: no more of it while writes need not ask. Raises as `reserve`."""
        start = max(self._reserved, used)
        if end > self.limit:
            self.reserve(used, end)
        elif end > start:
            self._try_reserve(start, end - start, last=True)
            self._reserved = end

    def keep_short(self, given_back: int) -> None:
        """The number of bytes at the file's beginning that were given back at once: a file that is kept short reserves
        at most that in a step. May be called in another thread.
        """
        self._step_max = min(max(_round_up(given_back), STEP_BYTES_MIN), STEP_BYTES_MAX)
        self._step = min(self._step, self._step_max)

    def _try_reserve(self, start: int, size: int, *, last: bool) -> bool:
        """Returns whether there was room. With `last`, missing room is an error."""
        try:
            os.posix_fallocate(self._fd, start, size)
        except OSError as error:
            # Some file systems keep the part that they got; others may need it.
            os.ftruncate(self._fd, start)
            self._step = STEP_BYTES_MIN
            if last or not is_full(error):
                raise
            return False
        return True


def _round_up(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
