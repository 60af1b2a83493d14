from __future__ import annotations

import os
import select
import signal

from supervisor.signals import SignalQueue


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
