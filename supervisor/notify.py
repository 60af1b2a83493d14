"""Notifies systemd of the service's state: sd_notify(3), the part of it that a `Type=notify` unit uses.

Protocol: newline-separated VARIABLE=VALUE in one datagram to the unix socket named by NOTIFY_SOCKET (a leading @ stands
for the abstract namespace).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Does nothing if the service manager does not listen."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / 1e6

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self, status: str) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={status}")

    @property
    def watchdog_interval_s(self) -> float:
        """The interval of watchdog notifications: a quarter of the service manager's timeout. sd_watchdog_enabled(3)
        recommends half of it at most.
        """
        return self.watchdog_s / 4 if self.watchdog_s else float("inf")

    def watchdog(self) -> None:
        if self.watchdog_s:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            try:
                sock.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
            except OSError as error:  # a service manager that is gone, or does not read, must not hold the node up
                log.warning("cannot tell the service manager %s: %s", lines[0], error.strerror)
