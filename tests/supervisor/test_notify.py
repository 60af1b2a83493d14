from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tailrace.supervisor.notify import Notifier


def test_systemd_hears_each_state(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        notifier = Notifier({"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "2500000"})
        notifier.ready("serving")
        assert listener.recv(4096).startswith(b"READY=1\nSTATUS=serving\nMAINPID=")
        notifier.reloading("replacing")
        assert listener.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        notifier.watchdog()
        assert listener.recv(4096) == b"WATCHDOG=1"
        notifier.stopping("bye")
        assert listener.recv(4096) == b"STOPPING=1\nSTATUS=bye"
        assert (notifier.watchdog_s, notifier.watchdog_interval_s) == (2.5, 0.625)


def test_the_abstract_namespace() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0tailrace-test-notify")
        Notifier({"NOTIFY_SOCKET": "@tailrace-test-notify"}).status("hello")
        assert listener.recv(4096) == b"STATUS=hello"


def test_a_manager_without_a_watchdog_is_sent_none(caplog: pytest.LogCaptureFixture) -> None:
    Notifier({"NOTIFY_SOCKET": "@nobody"}).watchdog()
    assert not caplog.records


def test_nobody_listens() -> None:
    notifier = Notifier({})
    notifier.ready("whatever")
    assert notifier.watchdog_interval_s == float("inf")
