"""Clients of a cluster whose nodes fail: a publisher at REPLICATED, a reader and a durable consumer and their books."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import tailrace
from tailrace import Ack

PAUSE_S = 0.01
END_S = 60.0
CONSUMER = "billing"


class ClusterPublisher:
    """Publishes numbers to a stream, one after another. One that ended without an acknowledgement is not repeated.

    acknowledged: payloads in the order of their acknowledgements; unknown: those that ended otherwise.
    """

    def __init__(self, addresses: list[str], stream: str) -> None:
        self.stream = stream
        self.acknowledged: list[bytes] = []
        self.times_s: list[float] = []
        self.unknown: dict[bytes, str] = {}
        self._addresses = addresses
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with tailrace.connect(self._addresses) as client:
            while not self._ended.is_set():
                payload = b"%d" % number
                number += 1
                try:
                    client.publish(self.stream, payload, ack=Ack.REPLICATED, timeout_s=END_S)
                except tailrace.TailraceError as error:
                    self.unknown[payload] = f"{type(error).__name__}: {error}"
                else:
                    self.times_s.append(time.monotonic())
                    self.acknowledged.append(payload)
                time.sleep(PAUSE_S)

    def gaps_s(self, since_s: float) -> float:
        """The longest time without an acknowledgement from that moment on."""
        times_s = [since_s, *(each for each in self.times_s[-20_000:] if each > since_s), time.monotonic()]
        return max(after - before for before, after in pairwise(times_s))

    def finish(self) -> None:
        self._ended.set()
        self._thread.join(END_S + 10)
        assert not self._thread.is_alive(), "a publish does not end"


class ClusterReader:
    """Reads a stream from its beginning; begins again if the broker reports that messages it had sent are lost."""

    def __init__(self, addresses: list[str], stream: str) -> None:
        self.payloads: list[bytes] = []
        self.faults: list[str] = []
        self.told: list[str] = []
        self._addresses, self._stream = addresses, stream
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with tailrace.connect(self._addresses) as client:
                    self._read(client)
            except tailrace.TailraceError as error:
                self.told.append(f"{type(error).__name__}: {error}")
                time.sleep(PAUSE_S)

    def _read(self, client: tailrace.Client) -> None:
        self.payloads, seq = [], 0
        for message in client.subscribe(self._stream, start=0, wait=True):
            if message.seq != seq:
                self.faults.append(f"seq {message.seq} after {seq - 1}")
            seq = message.seq + 1
            self.payloads.append(message.payload)
            if self._ended.is_set():
                return

    def wait_for(self, payload: bytes, limit_s: float = END_S) -> bool:
        """Whether it has read as far as this message."""
        end_s = time.monotonic() + limit_s
        while payload not in self.payloads[-1000:]:
            if time.monotonic() > end_s:
                return False
            time.sleep(0.05)
        return True

    def finish(self) -> None:
        self._ended.set()


class ClusterConsumer:
    """A durable consumer of a stream, which acknowledges each message. `times`: how often each came."""

    def __init__(self, addresses: list[str], stream: str) -> None:
        self.times: dict[bytes, int] = {}
        self.told: list[str] = []
        self._addresses, self._stream = addresses, stream
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with (
                    tailrace.connect(self._addresses) as client,
                    client.consumer(self._stream, CONSUMER, ack=Ack.REPLICATED) as consumer,
                ):
                    self._consume(consumer)
            except tailrace.TailraceError as error:
                self.told.append(f"{type(error).__name__}: {error}")
                time.sleep(PAUSE_S)

    def _consume(self, consumer: tailrace.Consumer) -> None:
        while not self._ended.is_set():
            message = consumer.receive(1.0)
            if message is not None:
                self.times[message.payload] = self.times.get(message.payload, 0) + 1
                message.ack()

    def wait_all(self, payloads: set[bytes], limit_s: float = END_S) -> set[bytes]:
        """The messages that have not come."""
        end_s = time.monotonic() + limit_s
        while (missing := payloads - self.times.keys()) and time.monotonic() < end_s:
            time.sleep(0.1)
        return missing

    def finish(self) -> None:
        self._ended.set()
        self._thread.join(END_S)
