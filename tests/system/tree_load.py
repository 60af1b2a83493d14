"""Publishers in processes of their own, entering at every node of a tree, that write down the answers they got.

A publisher sends each message once. A message that was not acknowledged is not sent again: it goes on with new numbers,
on another connection if need be. See tree_ledger for the conclusions on the log that this allows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import tailrace
from tailrace.protocol.messages import Ack
from tests.system.node import LineClient, wait_for
from tests.system.nursery import PUBLISHER, Forked, nursery
from tests.system.tree_ledger import MARK, Fate, Sent, read_sent

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("lines", "binary")  # in turn, unless a test chooses others of PUBLISHERS
ACKNOWLEDGED = f" {Fate.ACKNOWLEDGED.value} ".encode()
NOTHING_LOGGED = "nothing of"
MAY_BE_LOGGED = "may or may not be logged"
BURST_MOST = 12
PADDING_MOST_BYTES = 300
PAUSE_S = 0.02
RETRY_S = 0.1
ANSWER_S = 10.0  # a publisher gives up a connection that answers nothing for this time
REPEAT_S = 10.0
END_S = 60.0


class Publisher:
    """Publishes bursts to one stream after the other until its end is requested. `connect` uses one connection."""

    def __init__(self, spec: Mapping[str, Any], record: TextIO) -> None:
        """`spec`: name, addresses, streams, pause_s, options, answer_s."""
        self.name: str = spec["name"]
        self.addresses: list[str] = spec["addresses"]
        self.streams: list[str] = spec["streams"]
        self.options: dict[str, Any] = spec["options"]
        self.ending = threading.Event()
        self._record = record
        self.answer_s: float = spec.get("answer_s", ANSWER_S)
        self._pause_s: float = spec["pause_s"]
        self._dice = random.Random(self.name)
        self._connection = 0
        self._count = 0

    def run(self) -> None:
        while not self.ending.is_set():
            self._connection += 1
            try:
                self.connect()
            except (OSError, tailrace.TailraceError) as error:
                self._note(error)
                self.ending.wait(RETRY_S)
        self._record.close()

    def connect(self) -> None:
        """Until its end is requested. Raises OSError, TailraceError when the connection should be given up."""
        raise NotImplementedError

    def burst(self) -> list[Sent]:
        """The next messages, all to one stream; nobody knows yet what becomes of them."""
        stream = self._dice.choice(self.streams)
        numbers = range(self._count, self._count + self._dice.randint(1, BURST_MOST))
        self._count = numbers.stop
        return [Sent(self.name, self._connection, number, stream, Fate.UNKNOWN) for number in numbers]

    def payload(self, message: Sent) -> bytes:
        return message.name.encode() + MARK + b"x" * self._dice.randrange(PADDING_MOST_BYTES)

    def settle(self, messages: Sequence[Sent]) -> None:
        """Write down the fates of these messages."""
        self._record.write("".join(message.line() for message in messages))
        self._record.flush()

    def pause(self) -> None:
        self.ending.wait(self._pause_s)

    def _note(self, error: Exception) -> None:
        print(f"{time.time():.3f} {self.name} connection {self._connection}: {error!r}", file=sys.stderr, flush=True)


class LinePublisher(Publisher):
    """By the line protocol, each message acknowledged by itself."""

    def connect(self) -> None:
        host, _colon, port = self._dice.choice(self.addresses).rpartition(":")
        with LineClient(int(port), host) as client:
            self._answers(client, ["ack on"])
            while not self.ending.is_set():
                self._publish(client, self.burst())
                self.pause()

    def _publish(self, client: LineClient, messages: list[Sent]) -> None:
        lines = [f"pub {message.stream} ".encode() + MARK + self.payload(message) for message in messages]
        try:
            self._answers(client, lines)
        finally:
            self.settle(list(self._fates(messages, client.answers)))

    def _answers(self, client: LineClient, lines: Sequence[str | bytes]) -> None:
        """Send these and wait for as many answers. Raises OSError, TimeoutError among them."""
        client.answers.clear()
        client.send(*lines)
        try:
            client.read_until(lambda: len(client.answers) >= len(lines), self.answer_s)
        except AssertionError as late:
            raise TimeoutError(str(late)) from None

    def _fates(self, messages: list[Sent], answers: list[str]) -> Iterator[Sent]:
        """The fates by these answers, in their order; messages without an answer stay as they are."""
        told = iter([answer for answer in answers if not answer.startswith("err closing")])  # of the connection
        for message in messages:
            answer = next(told, "")
            if answer.startswith("ok pub "):
                _ok, _pub, stream, seq = answer.split()
                assert stream == message.stream, f"{answer!r} for {message}"
                yield message._replace(fate=Fate.ACKNOWLEDGED, seq=int(seq))
            else:
                if answer:
                    print(f"{time.time():.3f} {message.name}: {answer}", file=sys.stderr, flush=True)
                yield message._replace(fate=Fate.REFUSED) if NOTHING_LOGGED in answer else message


class BinaryPublisher(Publisher):
    """By the client library, each burst in one request, with the options of `publish_many` that it was given."""

    def connect(self) -> None:
        addresses = self._dice.sample(self.addresses, len(self.addresses))
        with tailrace.connect(addresses, timeout_s=self.answer_s, connect_timeout_s=self.answer_s) as client:
            while not self.ending.is_set():
                self._publish(client, self.burst())
                self.pause()

    def _publish(self, client: tailrace.Client, messages: list[Sent]) -> None:
        payloads = [self.payload(message) for message in messages]
        fates = messages
        try:
            receipt = client.publish_many(messages[0].stream, payloads, **{"retry": False, **self.options})
            seqs = range(receipt.seq, receipt.seq + len(messages))
            fates = [
                message._replace(fate=Fate.ACKNOWLEDGED, seq=seq) for message, seq in zip(messages, seqs, strict=True)
            ]
        except tailrace.BrokerError as error:
            if NOTHING_LOGGED in error.text and MAY_BE_LOGGED not in error.text:
                fates = [message._replace(fate=Fate.REFUSED) for message in messages]
            raise
        finally:
            self.settle(fates)


class RepeatingPublisher(BinaryPublisher):
    """One message in each request, which the client sends again, with its number, until it is acknowledged."""

    def burst(self) -> list[Sent]:
        return super().burst()[:1]

    def _publish(self, client: tailrace.Client, messages: list[Sent]) -> None:
        self.options = {"timeout_s": REPEAT_S, **self.options, "retry": True}
        super()._publish(client, messages)


PUBLISHERS: dict[str, type[Publisher]] = {
    "lines": LinePublisher,
    "binary": BinaryPublisher,
    "repeats": RepeatingPublisher,
}


class Load:
    """For the length of a block there is a publisher for each of these names, kinds in turn; `finish` ends them all.

    Each name has the addresses that its publisher knows. `folder`, which is made, keeps their records, and their output
    on errors.
    """

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        streams: Sequence[str],
        folder: Path,
        *,
        pause_s: float = PAUSE_S,
        kinds: Sequence[str] = KINDS,
        options: Mapping[str, object] | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self._specs: dict[str, dict[str, object]] = {}
        shared = {"streams": list(streams), "pause_s": pause_s, "options": dict(options or {}), "answer_s": answer_s}
        for number, (name, known) in enumerate(addresses.items()):
            kind = kinds[number % len(kinds)]
            self._specs[f"{name}-{kind}"] = {"addresses": list(known), "kind": kind, **shared}
        self._processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self._inputs: dict[str, BinaryIO] = {}
        self._counted = dict.fromkeys(self._specs, 0)  # acknowledgements in the part of each record that was read
        self._read_bytes = dict.fromkeys(self._specs, 0)

    def __enter__(self) -> Load:
        try:
            for name, spec in self._specs.items():
                self._start(name, {"name": name, "record": str(self.record_of(name)), **spec})
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._kill()

    def record_of(self, name: str) -> Path:
        return self.folder / f"{name}.sent"

    def sent(self) -> list[Sent]:
        """All that is written down so far, publisher by publisher."""
        return read_sent(path for path in map(self.record_of, self._specs) if path.exists())

    def acknowledged(self) -> dict[str, int]:
        """How many messages of each publisher are acknowledged so far."""
        for name in self._specs:
            if self.record_of(name).exists():
                with self.record_of(name).open("rb") as record:
                    record.seek(self._read_bytes[name])
                    lines = record.read().rpartition(b"\n")[0]
                self._read_bytes[name] += len(lines)
                self._counted[name] += lines.count(ACKNOWLEDGED)
        return dict(self._counted)

    def wait_for_progress(self, messages: int = 20, patience_s: float = END_S) -> None:
        """Until `messages` more messages of each publisher are acknowledged."""
        before = self.acknowledged()

        def progressed() -> bool:
            self._check()
            now = self.acknowledged()
            return all(now[name] >= before[name] + messages for name in before)

        wait_for(progressed, f"each of {list(before)} has {messages} more acknowledged", patience_s, step_s=0.1)

    def finish(self) -> list[Sent]:
        """End the publishers when they have their answers; returns the fates of all their messages."""
        for given in self._inputs.values():
            given.close()
        for name, process in self._processes.items():
            assert process.wait(END_S) == 0, f"{name} has failed:\n{self.errors(name)}"
        return self.sent()

    def errors(self, name: str) -> str:
        return (self.folder / f"{name}.errors").read_text()

    def _start(self, name: str, spec: Mapping[str, object]) -> None:
        source, given = os.pipe()
        self._inputs[name] = os.fdopen(given, "wb")
        with (self.folder / f"{name}.errors").open("wb") as errors, os.fdopen(source, "rb"):
            self._processes[name] = begin([json.dumps(spec)], errors.fileno(), source)

    def _check(self) -> None:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} has ended:\n{self.errors(name)}"

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        for given in self._inputs.values():
            given.close()


def begin(arguments: list[str], output: int, source: int) -> subprocess.Popen[bytes] | Forked:
    """A publisher in a process of its own."""
    found = nursery(os.environ)
    if found is not None:
        return found.start(arguments, output, os.environ, folder=ROOT, program=PUBLISHER, source=source)
    command = [sys.executable, "-m", PUBLISHER, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=source, stdout=output, stderr=output)


def wait_for_end_of_input(publisher: Publisher) -> None:
    os.read(0, 1)
    publisher.ending.set()


def main() -> None:
    """One publisher, configured by the JSON object in the argument, until standard input ends."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("spec", type=json.loads)
    spec = parser.parse_args().spec
    made = PUBLISHERS[spec["kind"]]
    if "ack" in spec["options"]:
        spec["options"]["ack"] = Ack(spec["options"]["ack"])
    with open(spec["record"], "w") as record:
        publisher = made(spec, record)
        threading.Thread(target=wait_for_end_of_input, args=[publisher], daemon=True).start()
        publisher.run()


if __name__ == "__main__":
    main()
