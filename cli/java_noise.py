"""Keeps what Java and its Python workers write to standard error off a terminal; it matters only when Java fails."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TAIL_BYTES = 4_096


def start_quietly(start: Callable[[], T]) -> T:
    """Returns `start()`. Processes that it starts have an unnamed file as their standard error from then on.

    If it fails, the end of that file is written to standard error first. Raises what `start` raises.
    """
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            return start()
        except BaseException:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            os.write(ours, file.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(ours, 2)
            os.close(ours)
