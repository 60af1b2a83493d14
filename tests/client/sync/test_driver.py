"""The engine of the synchronous shell: who moves the bytes, and when. More of it is in test_client.py."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tailrace.core.address import Address
from tailrace.core.connector import ConnectionPhase
from tailrace.core.options import ClientOptions
from tailrace.core.session import Session
from tailrace.sync.driver import Driver
from tests.client.model_server import ModelServer

PATIENCE_S = 20.0


@pytest.fixture
def driver(server: ModelServer) -> Driver:
    session = Session([Address("127.0.0.1", server.port)], ClientOptions(), random.random, time.monotonic())
    return Driver(session)


def connect(driver: Driver) -> None:
    with driver.lock:
        assert driver.wait_until(lambda: driver.session.phase is ConnectionPhase.READY, time.monotonic() + PATIENCE_S)


def test_who_waits_moves_the_bytes(driver: Driver) -> None:
    connect(driver)
    with driver.lock:
        driver.abort()
    assert driver.session.is_over


def test_waiting_has_an_end(driver: Driver) -> None:
    with driver.lock:
        before_s = time.monotonic()
        assert not driver.wait_until(lambda: False, before_s + 0.02)
        assert time.monotonic() >= before_s + 0.02
        driver.abort()


def test_many_wait_and_one_moves(driver: Driver) -> None:
    """Each thread sees its own condition come true, with any thread moving the bytes."""
    connect(driver)
    counted = [0]
    seen: list[int] = []

    def wait(number: int) -> None:
        with driver.lock:
            driver.wait_until(lambda: counted[0] >= number)
            seen.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in (3, 1, 2)]
    for thread in threads:
        thread.start()
    for number in (1, 2, 3):
        with driver.lock:
            counted[0] = number
            driver._alarm.send(b"!")  # as `push` does after a change
        while len(seen) < number:
            time.sleep(0.001)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == [1, 2, 3]
    with driver.lock:
        driver.abort()


def test_ending_it_frees_who_waits(driver: Driver) -> None:
    connect(driver)

    def wait() -> None:
        with driver.lock:
            driver.wait_until(lambda: driver.session.is_over)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with driver.lock:
        driver.close(1.0)
        driver.close(1.0)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_ending_it_before_it_is_connected(driver: Driver) -> None:
    with driver.lock:
        driver.close(1.0)
        assert driver.session.phase is ConnectionPhase.CLOSED


class Chore:
    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.done_s: list[float] = []

    def send_due(self, now_s: float) -> None:
        self.done_s.append(now_s)
        self.due_s = float("inf")


def test_the_keeper_does_chores_when_they_are_due(driver: Driver) -> None:
    connect(driver)
    driver.start()
    chores = [Chore(time.monotonic() + seconds) for seconds in (0.03, 0.01)]
    with driver.lock:
        for chore in chores:
            driver.linger(chore)
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(chore.done_s for chore in chores):
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    assert all(len(chore.done_s) == 1 for chore in chores)
    with driver.lock:
        driver.abort()
    driver.join()


def test_waking_who_does_not_get_to_run_blocks_nobody(driver: Driver) -> None:
    """The thread that waits for the socket is woken, and then waits for the lock: thousands of calls later, too."""
    connect(driver)
    waits = threading.Thread(target=lambda: _wait_until_over(driver))
    waits.start()

    def wake_often() -> None:
        with driver.lock:
            driver.wait_until(lambda: driver._turning, time.monotonic() + PATIENCE_S)
            for _ in range(5_000):
                driver.wake()

    wakes = threading.Thread(target=wake_often, daemon=True)
    wakes.start()
    wakes.join(PATIENCE_S)
    assert not wakes.is_alive()
    with driver.lock:
        driver.abort()
    waits.join(PATIENCE_S)
    assert not waits.is_alive()


def _wait_until_over(driver: Driver) -> None:
    with driver.lock:
        driver.wait_until(lambda: driver.session.is_over)
