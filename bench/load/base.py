"""What every load generator is given (`Load`), and how a measurement runs in a process of its own (`apart`)."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import socket
from typing import ParamSpec, TypeVar

from bench.load.limits import Deadline, LoadError, LoadTimeout
from bench.load.meter import Meter
from bench.load.sockets import dialled
from bench.peers.base import Contestant, RequestStep

P = ParamSpec("P")
R = TypeVar("R")

OPEN_FILES = 32_768  # the largest crowd, with room to spare
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server: its port, and the process whose tree is metered."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Publish whole feeds until `seconds` have passed and `messages` are sent, whichever is later."""

    seconds: float = 0.0
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A peer, its running server, the payload of every message, and the time by which all must be over."""

    peer: Contestant
    target: ServerProcess
    payload: bytes
    deadline: Deadline

    def connected(self, *scripts: Sequence[RequestStep]) -> AbstractContextManager[list[socket]]:
        """One connection to the server per script, as `dialled` makes them."""
        return dialled(self.target.port, scripts, self.deadline, self.peer.tls)

    def meter(self) -> Meter:
        return Meter(self.target.pid)

    def delivered_bytes(self, name: str, messages: int) -> int:
        """What one subscriber receives for the first `messages` of a new stream."""
        return self.peer.delivered_bytes(name, messages, len(self.payload))


def apart(timeout_s: float, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in a forked process and return its result, or raise its LoadError. LoadTimeout after `timeout_s`.

    Any other exception is a fault of the harness: the traceback goes to standard error, and LoadError is raised.
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
    """Allow this process OPEN_FILES descriptors, or as many as its user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = max(hard, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
