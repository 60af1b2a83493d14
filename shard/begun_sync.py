"""A sync of one stream that is under way."""

from __future__ import annotations

import os
from typing import NamedTuple


class BegunSync(NamedTuple):
    """A sync of the messages before `seq`, which end at `end_offset`. The descriptors are the sync's own, or -1.

    failed: an earlier sync has failed, and its bytes must be written again.
    """

    seq: int
    end_offset: int
    generation: int
    content_fd: int
    index_fd: int
    failed: bool

    def put(self) -> None:
        """fdatasync of the content, then of the index. Raises OSError."""
        os.fdatasync(self.content_fd)
        os.fdatasync(self.index_fd)

    def close(self) -> None:
        for fd in (self.content_fd, self.index_fd):
            if fd >= 0:
                os.close(fd)
