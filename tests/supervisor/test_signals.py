from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from tailrace.supervisor.signals import SignalQueue, hold_reloads


def wait(queue: SignalQueue) -> list[int]:
    assert select.select([queue], [], [], 5.0)[0]
    return queue.take()


def test_signals_are_read_in_order_and_handlers_come_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    queue = SignalQueue()
    try:
        assert queue.take() == []
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert sorted(wait(queue)) == [signal.SIGHUP, signal.SIGTERM]
        assert queue.take() == []
    finally:
        queue.close()
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_flood_is_no_fault() -> None:
    queue = SignalQueue()
    try:
        for _ in range(20_000):
            signal.raise_signal(signal.SIGHUP)
        taken = 0
        while got := queue.take():
            taken += len(got)
        assert taken > 0
        signal.raise_signal(signal.SIGHUP)
        assert wait(queue) == [signal.SIGHUP], "and the next one is heard"
    finally:
        queue.close()


def test_a_reload_that_was_asked_for_before_is_heard() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    hold_reloads()
    signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
    queue = SignalQueue()
    try:
        assert wait(queue) == [signal.SIGHUP]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    finally:
        queue.close()


SENDER = """
import os, signal, sys
for _ in range(2_000_000):
    os.kill(int(sys.argv[1]), signal.SIGCHLD)
"""
CLOSER = """
import os, select, subprocess, sys
from tailrace.supervisor.signals import SignalQueue
first = SignalQueue()
sender = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
select.select([first], [], [])
first.close()
for _ in range(500):
    SignalQueue().close()
sender.kill()
sender.wait()
"""


@pytest.mark.thorough
def test_a_signal_that_comes_while_it_closes_is_no_error() -> None:
    """As that of the last child to end does. Python reports a signal whose handler has just gone as ignored.

    In a process of its own, since a thread that blocks no signal may take it for the one that does.
    """
    command = [sys.executable, "-c", CLOSER, SENDER]
    closer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not closer.stderr
