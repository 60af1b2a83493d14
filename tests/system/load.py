"""Publishers and subscribers that outlive the workers they talk to, and the conditions on their results.

A publisher sends each message once and never again, with acknowledgements on. So each message it sent is in the end
exactly one of: acknowledged (it must be in the log, at that seq), refused with the promise that nothing of it was
logged (it must not be), or open, because its connection or its owner was gone (either will do, but not twice).
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.system.node import LineClient, Node, wait_for

NOTHING_LOGGED = "nothing of"
BURST_MOST = 24
PAUSE_S = 0.002
RETRY_S = 0.02
JOIN_S = 30.0
SILENCE_S = 60.0  # without a message; the publishers never pause that long


@dataclass
class Fates:
    """The result of each message a publisher sent; `sent` is in the order of sending, by connection."""

    acknowledged: dict[tuple[str, int], str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    connections: int = 0


class Peer(threading.Thread):
    """A thread with one connection at a time, and another when that is lost, until stopped."""

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.node = node
        self.ending = threading.Event()

    def end(self) -> None:
        self.ending.set()

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.connect()
        except BaseException as failure:
            self.failure = failure
            raise

    def connect(self) -> None:
        """Use one connection for as long as it lasts. An OSError must not get out."""
        raise NotImplementedError


class Publisher(Peer):
    """Publishes to several streams in turn."""

    def __init__(self, node: Node, name: str, streams: list[str], *, pause_s: float = PAUSE_S) -> None:
        super().__init__(node, f"publisher {name}")
        self.fates = Fates()
        self._name = name
        self._streams = streams
        self._pause_s = pause_s
        self._random = random.Random(name)
        self._count = 0

    def connect(self) -> None:
        open_messages: list[tuple[str, str]] = []
        try:
            with self.node.client() as client:
                self.fates.connections += 1
                client.ask("ack on")
                while not self.ending.is_set():
                    self._burst(client, open_messages)
                    time.sleep(self._pause_s)
        except OSError:
            self.fates.unknown += [text for _stream, text in open_messages]
            time.sleep(RETRY_S)

    def _burst(self, client: LineClient, open_messages: list[tuple[str, str]]) -> None:
        for _ in range(self._random.randint(1, BURST_MOST)):
            stream = self._streams[self._count % len(self._streams)]
            open_messages.append((stream, f"{self._name}/{self.fates.connections}/{self._count}"))
            self._count += 1
        client.answers.clear()
        client.send(*(f"pub {stream} |{text}" for stream, text in open_messages))
        try:
            client.read_until(lambda: len(client.answers) >= len(open_messages))
        finally:
            for answer in client.answers:
                self._settle(answer, open_messages)

    def _settle(self, answer: str, open_messages: list[tuple[str, str]]) -> None:
        if answer.startswith("err closing"):
            return  # of the connection, not of a message
        stream, text = open_messages.pop(0)
        if answer.startswith("ok pub "):
            _ok, _pub, told_stream, seq = answer.split()
            assert told_stream == stream, f"{answer!r} for {stream}"
            self.fates.acknowledged[stream, int(seq)] = text
            return
        self.fates.errors.append(answer)
        (self.fates.refused if NOTHING_LOGGED in answer else self.fates.unknown).append(text)


class Subscriber(Peer):
    """Follows one stream from its first message on, and comes back at the seq after the last one it got."""

    def __init__(self, node: Node, stream: str) -> None:
        super().__init__(node, f"subscriber of {stream}")
        self.stream = stream
        self.payloads: list[str] = []
        self.subscriptions = 0
        self._client: LineClient | None = None

    def end(self) -> None:
        super().end()
        client = self._client
        if client is not None:
            with contextlib.suppress(OSError):
                client.sock.shutdown(socket.SHUT_RDWR)  # it may wait for bytes that nobody sends any more

    def connect(self) -> None:
        try:
            self._follow()
        except OSError:
            time.sleep(RETRY_S)

    def _follow(self) -> None:
        with self.node.client() as client:
            self.subscriptions += 1
            self._client = client
            client.send(f"sub {self.stream} #{len(self.payloads)} wait")
            while not self.ending.is_set():
                client.read_until(lambda: bool(client.messages or client.answers), SILENCE_S)

                if any(answer.startswith("err ") for answer in client.answers):
                    assert not any("damaged" in answer for answer in client.answers), client.answers
                    time.sleep(RETRY_S)
                    return
                client.answers.clear()
                for message in client.messages:
                    assert message.seq == len(self.payloads), f"{self.stream}: {message}, not {len(self.payloads)}"
                    self.payloads.append(message.payload.decode())
                client.messages.clear()


class Load:
    """Publishers on several connections to the same streams, a subscriber for each stream."""

    def __init__(self, node: Node, streams: list[str], publishers: int = 3, *, pause_s: float = PAUSE_S) -> None:
        self.node = node
        self.streams = streams
        self.publishers = [Publisher(node, f"p{i}", streams, pause_s=pause_s) for i in range(publishers)]
        self.subscribers = [Subscriber(node, stream) for stream in streams]

    def __enter__(self) -> Load:
        for thread in (*self.publishers, *self.subscribers):
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for thread in (*self.publishers, *self.subscribers):
            thread.end()
        for thread in (*self.publishers, *self.subscribers):
            thread.join(JOIN_S)

    def acknowledged(self) -> int:
        return sum(len(publisher.fates.acknowledged) for publisher in self.publishers)

    def wait_for_progress(self, messages: int = 200, patience_s: float = 20.0) -> None:
        """Until that many more messages are acknowledged."""
        before = self.acknowledged()
        wait_for(lambda: self.acknowledged() >= before + messages, "publishes are acknowledged", patience_s)

    def finish(self) -> None:
        """End the publishers, let each subscriber see the last message, then hold all of it against the promises."""
        for publisher in self.publishers:
            publisher.end()
        for publisher in self.publishers:
            publisher.join(JOIN_S)
            assert not publisher.is_alive(), f"{publisher.name} hangs"
        with self.node.client() as client:
            client.ask("ack on")
            ends = {stream: int(client.ask(f"pub {stream} |last").split()[3]) for stream in self.streams}

        def all_seen() -> bool:
            return all(each.failure or len(each.payloads) > ends[each.stream] for each in self.subscribers)

        wait_for(all_seen, f"the subscribers see the last messages, {ends}")
        self.check()

    def check(self) -> None:
        for thread in (*self.publishers, *self.subscribers):
            assert thread.failure is None, f"{thread.name}: {thread.failure!r}"
        fates = [publisher.fates for publisher in self.publishers]
        logs = {subscriber.stream: subscriber.payloads for subscriber in self.subscribers}
        for each in fates:
            for (stream, seq), text in each.acknowledged.items():
                assert logs[stream][seq] == text, f"acknowledged and lost: {text} at {stream} {seq}"
        texts = [text for log in logs.values() for text in log if text != "last"]
        assert len(texts) == len(set(texts)), "a message is in the log twice"
        refused = {text for each in fates for text in each.refused}
        assert not refused & set(texts), "a message is in the log although its publisher was told that it is not"
        known = {text for each in fates for text in (*each.acknowledged.values(), *each.unknown)}
        assert set(texts) <= known, "a message is in the log that nobody sent"
        for log in logs.values():
            check_order(log)


def check_order(log: Iterable[str]) -> None:
    """What one connection sent to one stream is there in the order of sending."""
    latest: dict[str, int] = {}
    for text in log:
        if text == "last":
            continue
        connection, _slash, number = text.rpartition("/")
        assert latest.get(connection, -1) < int(number), f"{text} comes after {latest[connection]}"
        latest[connection] = int(number)
