"""The real telnet, on a terminal that a test types into."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.system.node import PATIENCE_S, Node


class Telnet:
    """The real program on a terminal of its own."""

    def __init__(self, node: Node) -> None:
        self._fd, terminal = pty.openpty()
        self._process = subprocess.Popen(
            ["telnet", "127.0.0.1", str(node.port)], stdin=terminal, stdout=terminal, stderr=terminal
        )
        os.close(terminal)
        self.shown = b""
        self.wait_for(b"Escape character is '^]'.")

    def type(self, text: bytes) -> None:
        os.write(self._fd, text)

    def enter(self, line: bytes) -> None:
        self.type(line + b"\r")

    def wait_for(self, text: bytes) -> None:
        """Until `text` is on the screen, after the text waited for before. The user's input is on it too."""
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                raise AssertionError(f"{text!r} did not come; on the screen: {self.shown!r}")
            self._read()
        self.shown = self.shown.partition(text)[2]

    def _read(self) -> None:
        try:
            received = os.read(self._fd, 65_536)
        except OSError:  # a terminal reports in this way that the other side is closed
            received = b""
        if not received:
            raise AssertionError(f"telnet has ended; on the screen: {self.shown!r}")
        self.shown += received

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


@contextlib.contextmanager
def open_telnet(node: Node) -> Iterator[Telnet]:
    if shutil.which("telnet") is None:
        pytest.skip("needs telnet (Debian's telnet)")
    telnet = Telnet(node)
    try:
        yield telnet
    finally:
        telnet.close()
