"""The programs that members of consumers run: each in a process of its own, until it is stopped."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection

import tailrace
from tailrace.core.consumed_message import ConsumedMessage
from tests.system.consumer_ledger import effect_of, open_books, write
from tests.system.consumer_members import ENDED, READY
from tests.system.consumer_party import Spec, connect

LOOK_S = 0.1  # how long a member waits for messages before it looks whether it is to end
BAD, DEADLY = "bad", "deadly"
"""What a message's name begins with that cannot be done, and one that kills who tries."""

Handle = Callable[[ConsumedMessage], None]
Make = Callable[[sqlite3.Connection, Spec], Handle]


def keep_books(pipe: Connection, spec: Spec) -> None:
    """The only member of its consumer: every message once, in the transaction of its effect."""
    _told(pipe, spec, _once)


def work(pipe: Connection, spec: Spec) -> None:
    """One member of several: a message that comes again is done again."""
    _told(pipe, spec, _work)


def _told(pipe: Connection, spec: Spec, make: Make) -> None:
    """Reports how it ended."""
    try:
        _run(pipe, spec, make)
    except (tailrace.TailraceError, sqlite3.Error) as error:
        pipe.send(f"{spec.member}: {error!r}")
    else:
        pipe.send(ENDED)


def _run(pipe: Connection, spec: Spec, make: Make) -> None:
    with (
        closing(open_books(spec.books)) as books,
        connect(spec) as client,
        client.consumer(spec.stream, spec.name, member=spec.member, **spec.consumer) as consumer,
    ):
        handle = make(books, spec)
        pipe.send(READY)
        while not pipe.poll():
            try:
                message = consumer.receive(LOOK_S)
                if message is not None:
                    handle(message)
            except tailrace.OperationTimeout:
                continue  # there is nothing to do
            except tailrace.StaleAck as late:
                print(f"{spec.member}: {late}")  # it was paused for too long


def _once(books: sqlite3.Connection, spec: Spec) -> Handle:
    once = tailrace.Once(books)

    def handle(message: ConsumedMessage) -> None:
        with once(message) as is_new:
            if is_new:
                _note(message, books, spec)

    return handle


def _work(books: sqlite3.Connection, spec: Spec) -> Handle:
    def handle(message: ConsumedMessage) -> None:
        if message.payload.startswith(DEADLY.encode()):
            os.kill(os.getpid(), signal.SIGKILL)
        if message.payload.startswith(BAD.encode()):
            message.nack(f"{spec.member} cannot do it")
            return
        time.sleep(spec.work_s)
        with message, books:
            _note(message, books, spec)

    return handle


def _note(message: ConsumedMessage, books: sqlite3.Connection, spec: Spec) -> None:
    write(books, spec.stream, spec.name, effect_of(message.seq, message.payload, spec.member, message.deliveries))
