"""The ends of a stream's two files: space that is reserved in steps once they have grown, and the window through which
the log appends small batches (`shard.window`)."""

from __future__ import annotations

import os

from tailrace.shard.growth import Extent
from tailrace.shard.stream_files import FilePair
from tailrace.shard.window import WINDOW_BATCH_BYTES_MAX, AppendWindow


class FileEnds:
    """One per open log.

    content, index: the space of each file. words: the window's. surplus: a file may be longer than its messages.
    """

    __slots__ = ("_content_fd", "_index_fd", "content", "index", "surplus", "window", "words")

    def __init__(self, pair: FilePair, end: int, index_end: int) -> None:
        """The files are as long as their messages, which end here."""
        self._content_fd, self._index_fd = pair.content_fd, pair.index_fd
        self.content = Extent(pair.content_fd, end)
        self.index = Extent(pair.index_fd, index_end)
        self.window = AppendWindow(pair)
        self.words = self.window.words
        self.surplus = False

    def reserve(self, used: int, end: int, index_used: int, index_end: int) -> None:
        """Reserve space up to these ends, if it is not yet. Raises OSError."""
        self.surplus = True
        if end > self.content.limit:
            self.content.reserve(used, end)
        if index_end > self.index.limit:
            self.index.reserve(index_used, index_end)

    def wrote(self, size: int, end: int, index_end: int) -> None:
        """A batch of `size` bytes, up to these ends, was written and committed. Prepare the next append."""
        if size > WINDOW_BATCH_BYTES_MAX:
            self.window.wrote_large()
        elif self.window.wrote_small(self.content, end, self.index, index_end):
            self.surplus = True

    def cut(self, end: int, index_end: int) -> None:
        """Close the window, and give back the space behind the messages, which end here. Raises OSError."""
        self.window.close()
        if self.surplus:
            os.ftruncate(self._content_fd, end)
            os.ftruncate(self._index_fd, index_end)
