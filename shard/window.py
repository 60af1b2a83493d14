"""The ends of a stream's two files, mapped, for small batches: two system calls would take longer than all else.

A mapping has three disadvantages:

- A full disk or a failing device is a signal at a store. So space is reserved before it is mapped, a leaf makes the
  stores and turns the signal into a result (`shard.window_cy`), and the batch is then written by `pwrite`, which
  returns an error. The interpreted build maps nothing. Nor is anything mapped on file systems that write a changed page
  to another place.
- The kernel sets a file's times at the first store into a page only. So the first append FRESH_S after the last one by
  `pwrite` is by `pwrite` too, and a sync sets the times (`show_appends`), unless the kernel has. A file's time is at
  most FRESH_S older than its last message.
- It takes disk and address space. So a stream gets a window after SMALL_APPENDS_MIN small batches in close succession,
  a small one at first, and at most WINDOWS_MAX streams of a process have one.

A window is closed before its files are cut.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from typing import Final

from tailrace.shard.growth import Extent
from tailrace.shard.header import CONTENT_END_OFFSET, INDEX_NEXT_SEQ
from tailrace.shard.leaves import load
from tailrace.shard.mapping import PAGE_BYTES, Mapping
from tailrace.shard.stream_files import FilePair

_leaf = load("tailrace.shard.window_cy")
WINDOW_BATCH_BYTES_MAX: Final[int] = _leaf.STAMPED_BYTES_MAX
"""Batches of more are written by `pwrite`, which takes little longer for them, or less."""
SMALL_APPENDS_MIN: Final = 8
"""Written by `pwrite` before a window is opened, with less than FRESH_S in between: opening one costs as much."""
RETRY_APPENDS: Final = 1_024
"""Before the next attempt to open a window, after one that failed for lack of space or of mappings."""
CONTENT_WINDOW_BYTES_MIN: Final = 16 * 1024
CONTENT_WINDOW_BYTES_MAX: Final = 128 * 1024
"""The size doubles in between, whenever a window is full."""
INDEX_WINDOW_BYTES_MIN: Final = 4 * 1024
INDEX_WINDOW_BYTES_MAX: Final = 32 * 1024
WINDOWS_MAX: Final = 4_096
"""Streams of a process with a window, each of two mappings; a process may have 65,530 (vm.max_map_count)."""
MAPPED_BYTES_MAX: Final = WINDOWS_MAX * (CONTENT_WINDOW_BYTES_MAX + INDEX_WINDOW_BYTES_MAX)
"""Of address space, in all windows of a process."""
FRESH_S: Final = 1.0
"""The greatest age of a file's time at an append."""

_TMPFS: Final = 0x01021994
_RESERVING: Final = frozenset((0xEF53, 0x58465342, _TMPFS))  # ext4, XFS, tmpfs: reserved space needs no more later
_STATFS_BYTES: Final = 256  # more than the kernel writes

append_mapped, append_unstamped = _leaf.append, _leaf.append_unstamped
DONE: Final[int] = _leaf.DONE
PAST: Final[int] = _leaf.PAST
FAULT: Final[int] = _leaf.FAULT
MAPS: Final[bool] = _leaf.is_compiled()
"""Whether this build maps anything."""
_STORED: Final = 8 * _leaf.STORED_WORD
_store_three = struct.Struct("<3Q").pack_into
_store_two = struct.Struct("<2Q").pack_into
_store_one = struct.Struct("<Q").pack_into
_word_at = struct.Struct("<Q").unpack_from
_CONTENT, _INDEX, _HEADERS, _FRESH = 0, 24, 48, 8 * _leaf.FRESH_FROM_WORD
_FRESH_NS: Final = int(FRESH_S * 1e9)
_fstatfs = ctypes.CDLL(None, use_errno=True).fstatfs
_fstatfs.argtypes = (ctypes.c_int, ctypes.c_char_p)
_mapped: set[int] = set()
"""The windows of this process that have something mapped, by id."""


class AppendWindow:
    """One per open log. `words`: the argument of `append_mapped`, which stores nothing while they are zeros.

    The words change, and the leaf uses them, with the interpreter's lock held. So a thread may close the window while
    another one appends.
    """

    __slots__ = (
        "_content",
        "_content_bytes",
        "_fresh_until_ns",
        "_index",
        "_index_bytes",
        "_is_clean",
        "_is_noticed",
        "_pair",
        "_small",
        "words",
    )

    def __init__(self, pair: FilePair) -> None:
        self.words = bytearray(8 * _leaf.WORDS)
        self._pair = pair
        self._content: Mapping | None = None
        self._index: Mapping | None = None
        self._content_bytes = CONTENT_WINDOW_BYTES_MIN
        self._index_bytes = INDEX_WINDOW_BYTES_MIN
        self._small = 0
        self._is_clean = False  # no page was stored into since the last sync
        self._is_noticed = False  # by the kernel: the first store into a page after a sync, which sets the file's times
        self._fresh_until_ns = 0

    def wrote_large(self) -> None:
        """A large batch was appended: small ones have to be several again before the window follows the end."""
        self._small = 0

    def wrote_small(self, content: Extent, end: int, index: Extent, index_end: int) -> bool:
        """A small batch was appended by `pwrite`, up to these ends: let the window follow, if it pays.

        Returns whether space behind the ends may be reserved for it.
        """
        now_ns: int = _leaf.file_clock_ns()
        if now_ns >= self._fresh_until_ns:  # a stream that gets one now and then needs no window
            self._small = min(self._small, 0)
        self._fresh_until_ns = now_ns + _FRESH_NS
        _store_two(self.words, _FRESH, now_ns, self._fresh_until_ns)
        self._small += 1
        if self._small >= SMALL_APPENDS_MIN:
            try:
                self._follow(content, end, index, index_end)
            except OSError:  # no space, or no more mappings: the appends go on as they are
                self.close()
                self._small = -RETRY_APPENDS
                return True
        return self._content is not None

    def fault(self) -> None:
        """The kernel refused a store. There is no window any more until the stream is opened again."""
        self.close()
        self._small = -sys.maxsize

    def close(self) -> None:
        """Unmap. The messages and the reserved space stay in the files. A second call does nothing."""
        _store_three(self.words, _CONTENT, 0, 0, 0)
        _store_three(self.words, _INDEX, 0, 0, 0)
        for mapping in (self._content, self._index):
            if mapping is not None:
                mapping.close()
        self._content = self._index = None
        _mapped.discard(id(self))

    def show_appends(self) -> None:
        """A sync begins: set the times of the files, if something was appended through the window since the last one.

        A single append to clean pages has set them.
        """
        stored = self._stored()
        is_shown = stored == 1 and self._is_clean and self._is_noticed
        self._is_clean = False
        if stored:
            _store_one(self.words, _STORED, 0)
            if not is_shown:
                with suppress(OSError):
                    os.utime(self._pair.index_fd)
                    os.utime(self._pair.content_fd)

    def synced(self) -> None:
        """The sync has succeeded: all pages are clean, unless something was appended meanwhile."""
        self._is_clean = not self._stored()

    def _stored(self) -> int:
        """Returns how many appends went through the window since the last sync began."""
        return int(_word_at(self.words, _STORED)[0])

    def __del__(self) -> None:
        self.close()

    def _follow(self, content: Extent, end: int, index: Extent, index_end: int) -> None:
        """Map the space behind each end that has left its window. Raises OSError."""
        if self._content is None and not self._may_open():
            self._small = -RETRY_APPENDS
            return
        words = memoryview(self.words).cast("Q")
        try:
            content_end, index_window_end = words[2], words[5]
        finally:
            words.release()
        if end >= content_end:
            self._content, self._content_bytes = self._map(
                _CONTENT, self._content, self._pair.content_fd, content, end, self._content_bytes
            )
            self._content_bytes = min(self._content_bytes, CONTENT_WINDOW_BYTES_MAX)
        if index_end >= index_window_end:
            self._index, self._index_bytes = self._map(
                _INDEX, self._index, self._pair.index_fd, index, index_end, self._index_bytes
            )
            self._index_bytes = min(self._index_bytes, INDEX_WINDOW_BYTES_MAX)

    def _may_open(self) -> bool:
        kind = _file_system(self._pair.content_fd)
        if len(_mapped) >= WINDOWS_MAX or not MAPS or kind not in _RESERVING:
            return False
        self._is_noticed = kind != _TMPFS
        _leaf.install_guard()
        _mapped.add(id(self))
        pair = self._pair
        _store_two(
            self.words,
            _HEADERS,
            pair.content_map.address + 8 * CONTENT_END_OFFSET,
            pair.index_map.address + 8 * INDEX_NEXT_SEQ,
        )
        return True

    def _map(
        self, place: int, former: Mapping | None, fd: int, extent: Extent, end: int, size: int
    ) -> tuple[Mapping, int]:
        """Map `size` bytes from the page of `end` on. Returns the mapping, and the size of the next one."""
        _store_three(self.words, place, 0, 0, 0)
        if former is not None:
            former.close()
        start = end // PAGE_BYTES * PAGE_BYTES
        size = max(size, PAGE_BYTES)
        extent.hold(end, start + size)
        mapping = Mapping(fd, start, size, writable=True)
        _store_three(self.words, place, mapping.address, start, start + size)
        return mapping, 2 * size


def _file_system(fd: int) -> int:
    """Returns the kind of a file's file system, as a number of the kernel; 0 if it cannot be asked."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    return int.from_bytes(found.raw[:8], sys.byteorder) if _fstatfs(fd, found) == 0 else 0
