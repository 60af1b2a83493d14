"""Running a measurement in a process of its own, which is ended when it takes too long."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

from bench.load.limits import LoadError, LoadTimeout

P = ParamSpec("P")
R = TypeVar("R")

OPEN_FILES = 32_768  # the largest crowd, with room to spare
_END_S = 5.0


def apart(timeout_s: float, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `function` returns, or the LoadError it raises, from a forked process. LoadTimeout after `timeout_s`.

    Another exception in there is a fault of the harness: its traceback goes to standard error, and LoadError is raised.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def body() -> None:
        _run(theirs, function, *args, **kwargs)

    process = context.Process(target=body, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout_s):
            process.kill()
            raise LoadTimeout(f"the generator did not finish within {timeout_s:g} s and was ended")
        result = ours.recv()
    except EOFError as error:
        raise LoadError("the generator ended without a result; its traceback is above") from error
    finally:
        _end(process)
        ours.close()
    if isinstance(result, LoadError):
        raise result
    return result  # type: ignore[no-any-return]


def _run(pipe: Connection, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
    raise_open_files()
    try:
        pipe.send(function(*args, **kwargs))
    except LoadError as error:
        pipe.send(error)


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.join(_END_S)
    if process.is_alive():
        process.kill()
        process.join(_END_S)


def raise_open_files() -> None:
    """OPEN_FILES descriptors, or as many as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = max(hard, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
