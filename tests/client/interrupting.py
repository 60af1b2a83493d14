"""Control-C at one chosen line of one function."""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any


def interrupted(function: Callable[..., Any], line_count: int, work: Callable[[], object]) -> bool:
    """Whether `work` ended with a KeyboardInterrupt, which comes before the line of `function` that is run as this
    one, counted from 1; False if it runs fewer. Lines of `with` are not counted: between the end of its body and the
    call that releases a lock Python raises none, but a trace would.
    """
    lines = itertools.count(1)

    def trace(frame: types.FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if frame.f_code is not function.__code__:
            return None
        if event == "line" and not _is_with(frame) and next(lines) == line_count:
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


def _is_with(frame: types.FrameType) -> bool:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
