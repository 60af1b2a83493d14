"""One child process: its pid, its control channel, its end."""

from __future__ import annotations

import enum
import logging
import os
import signal
import time
from collections.abc import Callable

from tailrace.broker.process.control import ControlChannel, ControlClosed

log = logging.getLogger(__name__)

EXIT_CRASH = 70  # EX_SOFTWARE: an exception that nobody caught


class Stage(enum.Enum):
    """The state of a worker, as the supervisor knows it."""

    BOOTING = "booting"
    STANDBY = "standby"  # booted, waiting for the command to own
    OWNING = "owning"
    RETIRING = "retiring"
    GONE = "gone"


class Child:
    """A forked process. `role` is its name in the log."""

    __slots__ = ("aborted_s", "control", "generation", "pid", "role", "slot", "stage", "started_s")

    def __init__(self, role: str, slot: int, generation: int, pid: int, control: ControlChannel) -> None:
        self.role = role
        self.slot = slot
        self.generation = generation
        self.pid = pid
        self.control = control
        self.stage = Stage.BOOTING
        self.started_s = time.monotonic()
        self.aborted_s = 0.0  # when it was killed, if it was

    def send(self, kind: str, fds: tuple[int, ...] = (), **fields: int | str | bytes) -> None:
        """Sends a control message; a child that is gone will be reaped, so that is not an error here."""
        try:
            self.control.send(kind, fds, **fields)
        except ControlClosed:
            log.debug("%s (pid %d) is gone and cannot be told %s", self.role, self.pid, kind)

    def kill(self, number: signal.Signals) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            log.debug("%s (pid %d) is gone already", self.role, self.pid)

    def lived_s(self) -> float:
        return time.monotonic() - self.started_s


def fork_child(
    role: str, slot: int, generation: int, in_child: Callable[[], None], body: Callable[[ControlChannel], int]
) -> Child:
    """Forks. The child runs `in_child` (to close the supervisor's descriptors), then `body`, and never returns."""
    ours, theirs = ControlChannel.pair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(role, slot, generation, pid, ours)
    status = EXIT_CRASH
    try:
        ours.close()
        in_child()
        status = body(theirs)
    except BaseException:  # any exception is logged here and ends this process
        log.critical("%s died of an exception", role, exc_info=True)
    finally:
        logging.shutdown()
        os._exit(status)
