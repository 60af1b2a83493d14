"""Control-C at one chosen line of one function."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from typing import Any


def interrupted(function: Callable[..., Any], line_count: int, work: Callable[[], object]) -> bool:
    """Whether `work` ended with a KeyboardInterrupt, which comes before the line of `function` that is run as this
    one, counted from 1; False if it runs fewer.
    """
    lines = itertools.count(1)

    def trace(frame: types.FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if frame.f_code is not function.__code__:
            return None
        if event == "line" and next(lines) == line_count:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
