"""One publisher and very many subscribers of a topic each: every message is for one of them, and the next one waits.

With one message under way at a time, the processor time of a message shows what all the others cost it.
"""

from __future__ import annotations

import select
import time
from socket import socket

from bench.load.base import Load, Stop
from bench.load.fanout import FannedOut
from bench.load.limits import LoadError, PeerClosed
from bench.load.sockets import send_some

STEP = 7_919
"""From one subscriber to the next one: a prime, so that neighbours do not follow each other."""
_WAIT_S = 0.1
_SILENCE_S = 0.3
_RECEIVE_BYTES = 1 << 16


def one_of_many(load: Load, subscribers: int, stop: Stop, stream: str) -> FannedOut:
    """Publish to each topic of a new stream in turn, one message after the other. LoadError if one goes to another
    subscriber.
    """
    names = [f"{stream}/{number}" for number in range(subscribers)]
    scripts = [load.peer.topic_subscriber(name, client) for client, name in enumerate(names)]
    with load.connected(*scripts, load.peer.publisher(subscribers, names[:1])) as (*readers, publisher):
        requests = [load.peer.publish(name, load.payload) for name in names]
        meter, end = load.meter(), time.perf_counter() + stop.seconds
        messages = 0
        while messages < stop.messages or time.perf_counter() < end:
            place = messages * STEP % subscribers
            _send(load, publisher, requests[place])
            _receive(load, readers[place], names[place])
            messages += 1
        spent = meter.stop()
        _check_silent(readers)
        return FannedOut(messages, messages, spent)


def _send(load: Load, publisher: socket, request: bytes) -> None:
    pending = memoryview(request)
    while pending := pending[send_some(publisher, pending) :]:
        load.deadline.check("a publish is sent")


def _receive(load: Load, reader: socket, name: str) -> None:
    """Until the payload is here, which the protocol puts between bytes of its own."""
    poller, data = select.poll(), b""
    poller.register(reader, select.POLLIN)
    while load.payload not in data:
        load.deadline.check(f"the message of {name} is delivered")
        if poller.poll(1_000 * load.deadline.left_s(_WAIT_S)):
            piece = reader.recv(_RECEIVE_BYTES)
            if not piece:
                raise PeerClosed(f"the connection of the subscriber of {name} was closed")
            data += piece


def _check_silent(readers: list[socket]) -> None:
    """LoadError for bytes that follow the last message; those for other subscribers may take a moment."""
    poller, by_fd = select.poll(), {reader.fileno(): reader for reader in readers}
    for reader in readers:
        poller.register(reader, select.POLLIN)
    end_s = time.perf_counter() + _SILENCE_S
    while (left_s := end_s - time.perf_counter()) > 0:
        for fd, _events in poller.poll(1_000 * left_s):
            rest = by_fd[fd].recv(_RECEIVE_BYTES)
            if len(rest) > len(b"\r\n"):  # the end of a line may come by itself
                raise LoadError(f"a subscriber got {len(rest)} bytes that are of no message for it")
            poller.unregister(fd)
