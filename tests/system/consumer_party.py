"""Programs of a test in processes of their own, that use the client library and may be killed at any moment.

They are forked from one process that has imported everything already: hundreds of them start in the time of a few.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import tailrace
from tailrace.core.consumed_message import ConsumedMessage
from tailrace.protocol.messages import Ack
from tailrace.sync.consumer import Consumer
from tests.system.consumer_ledger import effect_of, open_books, write
from tests.system.node import PATIENCE_S

END_S = 30.0
RETRY_S = 0.05
LINGER_S = 600.0  # a party sends nothing by itself
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["__main__", __name__, "tailrace.sync.client", "tailrace.sync.consumer", "tailrace.transactional"]
)


class Died(Exception):
    """The program was killed before it reported the end of its call."""


class Told(NamedTuple):
    """How a call ended. `error`: the text of the exception, "" without one."""

    call: str
    seconds: float
    value: Any
    error: str


@dataclass(frozen=True)
class Spec:
    """The parameters of a program. `consumer`: the settings of its consumer, `work_s`: how long a message takes."""

    addresses: tuple[str, ...]
    stream: str
    books: Path
    member: str
    timeout_s: float
    heartbeat_s: float = 30.0
    ack: Ack = Ack.APPENDED
    replicas: int = 0
    name: str = ""
    consumer: Mapping[str, Any] = field(default_factory=dict)
    work_s: float = 0.0


class Process:
    """A program that runs `function(pipe, spec)`, and the other end of its pipe."""

    def __init__(self, function: Callable[[Connection, Spec], None], spec: Spec) -> None:
        self.pipe, theirs = _forks.Pipe()
        self._process = _forks.Process(target=function, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, and until it is gone. Its earlier output can still be read."""
        self.resume()
        self._process.kill()
        self._process.join(END_S)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it is ending
                os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self.pipe.close()
        self._process.close()


# --- a program that executes commands, one call at a time -------------------------------------------------------------


class Party(Process):
    """Makes the calls it is asked for. One at a time."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(serve, spec)
        self.hear()

    def ask(self, call: str, *words: object) -> None:
        self.pipe.send((call, words))

    def hear(self, patience_s: float = PATIENCE_S) -> Told:
        """How the call that was asked for has ended. Raises Died when the program had before."""
        assert self.pipe.poll(patience_s), f"a call has not ended after {patience_s} s"
        try:
            told: Told = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise Died from None
        return told

    def do(self, call: str, *words: object, patience_s: float = PATIENCE_S) -> Any:
        """What the call gives. It must end well."""
        self.ask(call, *words)
        told = self.hear(patience_s)
        assert not told.error, f"{call} {words}: {told.error}"
        return told.value


def serve(pipe: Connection, spec: Spec) -> None:
    """In the process: connect, then call by call, until nobody asks any more."""
    with contextlib.closing(open_books(spec.books)) as books:
        program = Program(spec, books)
        pipe.send(Told("connect", 0.0, None, ""))
        while True:
            try:
                call, words = pipe.recv()
            except EOFError:
                return
            began_s, value, error = time.monotonic(), None, ""
            try:
                value = getattr(program, call)(*words)
            except (tailrace.TailraceError, sqlite3.Error) as failure:
                error = repr(failure)
            pipe.send(Told(call, time.monotonic() - began_s, value, error))


def connect(spec: Spec) -> tailrace.Client:
    """As soon as the broker is there."""
    deadline_s = time.monotonic() + spec.timeout_s
    while True:
        try:
            return tailrace.connect(spec.addresses, timeout_s=spec.timeout_s, heartbeat_s=spec.heartbeat_s)
        except tailrace.ConnectFailed:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_S)


class Program:
    """The calls there are."""

    def __init__(self, spec: Spec, books: sqlite3.Connection) -> None:
        self._spec = spec
        self._books = books
        self._client = connect(spec)
        self._level: dict[str, Any] = {"ack": spec.ack, "replicas": spec.replicas}
        self._once = tailrace.Once(books)
        self._consumers: dict[str, Consumer] = {}
        self._held: dict[str, ConsumedMessage] = {}

    def put(self, payload: bytes) -> int:
        """The seq it got."""
        return self._client.publish(self._spec.stream, payload, **self._level).seq

    def create(self, consumer: str) -> int:
        """The seq of its first message."""
        return self._client.create_consumer(self._spec.stream, consumer, deliveries_max=0, **self._level)

    def delete(self, consumer: str) -> bool:
        """Whether there was one."""
        return self._client.delete_consumer(self._spec.stream, consumer, **self._level)

    def get(self, consumer: str) -> int:
        """The seq of the next message, which is kept until `effect` or `drain`."""
        message = self._held[consumer] = self._next(consumer)
        return message.seq

    def effect(self, consumer: str) -> None:
        """Do the work for the message that is held. The next `ack`, `get` or `drain` reports it to the broker."""
        self._do(self._held.pop(consumer))

    def ack(self, consumer: str) -> None:
        """Sends the acknowledgements to the broker."""
        self._consumers[consumer].flush()

    def drain(self, consumer: str, last_seq: int) -> None:
        """Do and finish every message up to this one."""
        seq = -1
        while seq < last_seq:
            message = self._held.pop(consumer, None) or self._next(consumer)
            self._do(message)
            seq = message.seq
        self._consumers[consumer].flush()

    def _next(self, consumer: str) -> ConsumedMessage:
        if consumer not in self._consumers:
            self._consumers[consumer] = self._client.consumer(
                self._spec.stream, consumer, member=self._spec.member, create=False, linger_s=LINGER_S, **self._level
            )
        message = self._consumers[consumer].receive(self._spec.timeout_s)
        assert message is not None
        return message

    def _do(self, message: ConsumedMessage) -> None:
        with self._once(message) as is_new:
            if is_new:
                effect = effect_of(message.seq, message.payload, self._spec.member, message.deliveries)
                write(self._books, message.stream, message.consumer, effect)
