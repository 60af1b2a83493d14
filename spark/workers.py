"""One-time setup in each of the Python processes that Spark keeps for further tasks."""

from __future__ import annotations

import gc
import os
from typing import Final

KEPT: Final = "SPARK_REUSE_WORKER"
"""In the environment of these processes."""


def settle() -> None:
    """Exempts all modules imported so far from garbage collection; in such a process only.

    Spark has its garbage collected after each task. To go through all that was imported takes 20 to 30 ms of a
    processor each time, in each of the four processes that a query has.
    """
    if KEPT in os.environ:
        gc.freeze()
