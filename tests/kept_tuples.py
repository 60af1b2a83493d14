"""Counts the freed tuples that CPython keeps for reuse: see `shard.replacing`."""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable

import pytest

ROUNDS = 200
KEPT = re.compile(rb"(\d+) free (\d+)-sized PyTupleObjects")


def kept_tuples() -> dict[int, int]:
    """How many of each length; {} where the interpreter does not say."""
    show = getattr(sys, "_debugmallocstats", None)
    if show is None:
        return {}
    with tempfile.TemporaryFile() as file:
        error_fd = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            show()
        finally:
            os.dup2(error_fd, 2)
            os.close(error_fd)
        file.seek(0)
        return {int(length): int(count) for count, length in KEPT.findall(file.read())}


def added_tuples(work: Callable[[], object]) -> dict[int, int]:
    """How many more of each length are kept after ROUNDS of some work, where that is one for each fourth round, or
    more. A first round is not counted.
    """
    work()
    gc.collect()  # drops all that are kept: there may have been as many as can be
    before = kept_tuples()
    if not before:
        pytest.skip("this interpreter does not say what it keeps")
    for _ in range(ROUNDS):
        work()
    return {length: more for length, count in kept_tuples().items() if (more := count - before[length]) > ROUNDS // 4}
