from __future__ import annotations

import os
import resource
import time

import pytest

from bench.load.base import OPEN_FILES, apart, raise_open_files
from bench.load.limits import LoadError, LoadTimeout


def _fail() -> None:
    raise LoadError("it went wrong")


def test_results_and_errors_come_back() -> None:
    assert apart(10, divmod, 17, 5) == (3, 2)
    with pytest.raises(LoadError, match="went wrong"):
        apart(10, _fail)


def _limits() -> tuple[int, int]:
    raise_open_files()
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_open_files_are_as_many_as_are_allowed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, new_hard = apart(10, _limits)
    assert soft == new_hard
    assert new_hard in (hard, max(hard, OPEN_FILES))


def test_what_takes_too_long_is_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(LoadTimeout):
        apart(0.2, time.sleep, 60)
    assert time.monotonic() - begin < 30


def test_a_process_that_died_is_told() -> None:
    with pytest.raises(LoadError, match="without a result"):
        apart(10, os._exit, 3)
