from __future__ import annotations

import os
import time

import pytest

from bench.load.apart import apart
from bench.load.limits import LoadError, LoadTimeout


def _fail() -> None:
    raise LoadError("it went wrong")


def test_results_and_errors_come_back() -> None:
    assert apart(10, divmod, 17, 5) == (3, 2)
    with pytest.raises(LoadError, match="went wrong"):
        apart(10, _fail)


def test_what_takes_too_long_is_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(LoadTimeout):
        apart(0.2, time.sleep, 60)
    assert time.monotonic() - begin < 30


def test_a_process_that_died_is_told() -> None:
    with pytest.raises(LoadError, match="without a result"):
        apart(10, os._exit, 3)
