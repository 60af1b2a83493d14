"""Signals as bytes in a socket: handlers do nothing, the loop reads them."""

from __future__ import annotations

import signal
import socket
from types import FrameType

WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
READ_BYTES = 4_096


def hold_reloads() -> None:
    """Let a HUP wait until there is a SignalQueue. Until then it would end the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Only the wake-up byte matters. No logging, no locks: this runs between any two instructions."""


class SignalQueue:
    """The signals that came since the last `take`, in order; repeats of SIGCHLD are as good as one."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before = {number: signal.signal(number, _nothing) for number in WATCHED}
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[int]:
        try:
            return list(self._reader.recv(READ_BYTES))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Undo everything; also what a forked child calls first."""
        signal.set_wakeup_fd(-1)
        # One that came while its handler goes would be Python's to complain of: it comes to the next handler instead.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._reader.close()
        self._writer.close()
