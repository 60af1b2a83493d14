"""The engine of the synchronous shell: who moves the bytes, and when. More of it is in test_client.py."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tailrace.address import Address
from tailrace.connector import Phase
from tailrace.options import Options
from tailrace.pump import Pump
from tailrace.session import Session
from tests.client.model_server import ModelServer

PATIENCE_S = 20.0


@pytest.fixture
def pump(server: ModelServer) -> Pump:
    session = Session([Address("127.0.0.1", server.port)], Options(), random.random, time.monotonic())
    return Pump(session)


def connect(pump: Pump) -> None:
    with pump.lock:
        assert pump.wait_until(lambda: pump.session.phase is Phase.READY, time.monotonic() + PATIENCE_S)


def test_who_waits_moves_the_bytes(pump: Pump) -> None:
    connect(pump)
    with pump.lock:
        pump.abort()
    assert pump.session.is_over


def test_waiting_has_an_end(pump: Pump) -> None:
    with pump.lock:
        before_s = time.monotonic()
        assert not pump.wait_until(lambda: False, before_s + 0.02)
        assert time.monotonic() >= before_s + 0.02
        pump.abort()


def test_many_wait_and_one_moves(pump: Pump) -> None:
    """Each thread sees its own condition come true, with any thread moving the bytes."""
    connect(pump)
    counted = [0]
    seen: list[int] = []

    def wait(number: int) -> None:
        with pump.lock:
            pump.wait_until(lambda: counted[0] >= number)
            seen.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in (3, 1, 2)]
    for thread in threads:
        thread.start()
    for number in (1, 2, 3):
        with pump.lock:
            counted[0] = number
            pump._alarm.send(b"!")  # as `push` does after a change
        while len(seen) < number:
            time.sleep(0.001)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == [1, 2, 3]
    with pump.lock:
        pump.abort()


def test_ending_it_frees_who_waits(pump: Pump) -> None:
    connect(pump)

    def wait() -> None:
        with pump.lock:
            pump.wait_until(lambda: pump.session.is_over)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pump.lock:
        pump.close(1.0)
        pump.close(1.0)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_ending_it_before_it_is_connected(pump: Pump) -> None:
    with pump.lock:
        pump.close(1.0)
        assert pump.session.phase is Phase.CLOSED


class Chore:
    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.done_s: list[float] = []

    def send_due(self, now_s: float) -> None:
        self.done_s.append(now_s)
        self.due_s = float("inf")


def test_the_keeper_does_chores_when_they_are_due(pump: Pump) -> None:
    connect(pump)
    pump.start()
    chores = [Chore(time.monotonic() + seconds) for seconds in (0.03, 0.01)]
    with pump.lock:
        for chore in chores:
            pump.linger(chore)
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(chore.done_s for chore in chores):
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    assert all(len(chore.done_s) == 1 for chore in chores)
    with pump.lock:
        pump.abort()
    pump.join()
