"""The engine of `tailrace pub`. How it looks from a shell is in test_pub.py."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tailrace
from tailrace import Ack, BatchResult
from tailrace.cli.ending import NO_CONNECTION, CommandError
from tailrace.cli.publishing import REFUSALS_MAX, Lane, Publisher, PublishOutcome, Refusal
from tailrace.cli.template import parse_template
from tailrace.core.address import Address
from tailrace.errors import broker_error
from tailrace.protocol import messages as m
from tests.client.model import MAX_MESSAGE_BYTES, ModelConnection, hang_up
from tests.client.model_server import ModelServer


@contextmanager
def input_of(text: bytes) -> Iterator[int]:
    """A pipe that is fed as fast as it is read."""
    read_fd, write_fd = os.pipe()

    def feed() -> None:
        with open(write_fd, "wb") as pipe:
            pipe.write(text)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield read_fd
    finally:
        os.close(read_fd)
        thread.join()


def publish(
    server: ModelServer,
    text: bytes,
    stream: str | Callable[[bytes], str] = "s",
    ack: Ack = Ack.APPENDED,
    headers: dict[str, str | bytes] | None = None,
    reconnect_s: float = 10.0,
) -> PublishOutcome:
    with input_of(text) as fd, tailrace.connect(server.address, reconnect_s=reconnect_s) as client:
        address = Address("127.0.0.1", server.port)
        return Publisher(client, address, fd, stream, ack=ack, headers=headers).run()


def lines(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(count))


def test_every_line_in_order(server: ModelServer) -> None:
    outcome = publish(server, lines(50_000) + b"last without end")
    assert server.payloads(b"s") == [*lines(50_000).split(b"\n")[:-1], b"last without end"]
    assert (outcome.lines, outcome.acknowledged, outcome.refused) == (50_001, 50_001, 0)
    assert (outcome.first_seq, outcome.last_seq) == (0, 50_000)
    assert outcome.input_bytes == len(lines(50_000)) + 16


def test_nothing(server: ModelServer) -> None:
    outcome = publish(server, b"")
    assert (outcome.lines, outcome.acknowledged, outcome.first_seq) == (0, 0, -1)


def test_any_bytes_and_headers(server: ModelServer) -> None:
    publish(server, b"cr\r\n\n\x00\xff|\n", headers={"k": "v"})
    with tailrace.connect(server.address) as client:
        found = list(client.subscribe("s", end=tailrace.NOW))
    assert [each.payload for each in found] == [b"cr\r", b"", b"\x00\xff|"]
    assert {str(each.headers) for each in found} == {"{'k': 'v'}"}


def test_streams_of_a_template(server: ModelServer) -> None:
    text = b"a 1\nb 2\na 3\n\nc|d 4\na 5\n"
    outcome = publish(server, text, parse_template("t.{1}"))
    assert server.payloads(b"t.a") == [b"a 1", b"a 3", b"a 5"]
    assert server.payloads(b"t.b") == [b"b 2"]
    assert (outcome.acknowledged, outcome.refused) == (4, 2)
    assert [(each.line, each.code) for each in outcome.refusals] == [(4, "name"), (5, "name")]


def test_more_streams_than_have_a_batch_of_their_own(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.cli.publishing.BATCHERS_MAX", 3)
    outcome = publish(server, b"".join(b"%d\n" % (number % 10) for number in range(100)), parse_template("{1}"))
    assert outcome.acknowledged == 100
    assert all(server.payloads(b"%d" % name) == [b"%d" % name] * 10 for name in range(10))


def test_lines_that_are_too_large(server: ModelServer) -> None:
    large = bytes(MAX_MESSAGE_BYTES + 1)
    outcome = publish(server, b"a\n" + large + b"\nb\n" + large)
    assert server.payloads(b"s") == [b"a", b"b"]
    assert [(each.line, each.code) for each in outcome.refusals] == [(2, "size"), (4, "size")]
    assert (outcome.lines, outcome.acknowledged, outcome.refused) == (4, 2, 2)


def refuse_stream(server: ModelServer, code: str, name: bytes) -> None:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish) and connection.handles[message.handles[0]] == name:
            connection.fail(code, op=m.Op.PUBLISH, id=message.request)
            return True
        return False

    server.model.on_message = on_message


def test_refused_lines_have_their_numbers(server: ModelServer) -> None:
    refuse_stream(server, "disabled", b"b")
    outcome = publish(server, b"a\nb\n" * 100, parse_template("{1}"))
    assert (outcome.acknowledged, outcome.refused) == (100, 100)
    assert [each.line for each in outcome.refusals] == list(range(2, 2 * REFUSALS_MAX + 1, 2))
    assert outcome.refusals[0] == Refusal(2, "disabled", "because of the test")


def test_without_acknowledgements_errors_are_heard(server: ModelServer) -> None:
    refuse_stream(server, "disabled", b"s")
    outcome = publish(server, b"a\n", ack=Ack.NONE)
    assert (outcome.acknowledged, outcome.refused) == (0, 1)
    assert outcome.refusals == [Refusal(0, "disabled", "because of the test")]


def test_a_connection_that_comes_back(server: ModelServer) -> None:
    left = [3]

    def on_message(_connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish) and left[0]:
            left[0] -= 1
            _connection.closed = True
            return True
        return False

    server.model.on_message = on_message
    outcome = publish(server, lines(1_000))
    assert outcome.acknowledged == 1_000
    assert server.payloads(b"s") == lines(1_000).split(b"\n")[:-1]


def test_a_connection_that_is_gone_for_good(server: ModelServer) -> None:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish) or len(server.model.said(m.Publish)):
            connection.closed = True
            return True
        return False

    server.model.on_message = on_message
    with pytest.raises(CommandError, match="0 of 2 lines read were acknowledged; line 1 and later lines") as caught:
        publish(server, b"a\nb\n", reconnect_s=0.1)
    assert caught.value.exit_code == NO_CONNECTION


def test_gone_for_good_while_the_input_is_silent(server: ModelServer) -> None:
    read_fd, write_fd = os.pipe()
    with tailrace.connect(server.address, reconnect_s=0.1) as client:
        server.model.on_message = hang_up
        server.cut()
        address = Address("127.0.0.1", server.port)
        with pytest.raises(CommandError, match="0 of 0 lines read were acknowledged"):
            Publisher(client, address, read_fd, "s").run()
        with pytest.raises(CommandError, match="how many arrived is unknown"):
            Publisher(client, address, read_fd, "s", ack=Ack.NONE).run()
    os.close(read_fd)
    os.close(write_fd)


def test_a_full_disk_ends_it(server: ModelServer) -> None:
    seen: list[int] = []

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            seen.append(message.request)
            if len(seen) > 3:
                connection.fail("full", op=m.Op.PUBLISH, id=message.request)
                return True
        return False

    server.model.on_message = on_message
    read_fd, write_fd = os.pipe()

    def feed() -> None:  # for ever: only the full disk ends it
        with contextlib.suppress(BrokenPipeError), open(write_fd, "wb") as pipe:
            while True:
                pipe.write(lines(10_000))

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        with tailrace.connect(server.address) as client:
            outcome = Publisher(client, Address("127.0.0.1", server.port), read_fd, "s").run()
    finally:
        os.close(read_fd)
        thread.join()
    assert [each.code for each in outcome.refusals] == ["full"]
    assert outcome.full_at == outcome.refusals[0].line == outcome.acknowledged + 1
    assert outcome.lines - 1 <= outcome.acknowledged + outcome.refused <= outcome.lines, "the last one came in part"


def test_what_follows_a_refused_message_is_counted_and_not_shown(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client:
        publisher = Publisher(client, Address("127.0.0.1", server.port), 0, "s")
        lane, other = Lane(publisher, "s"), Lane(publisher, "other")
        for code, numbers, where in (
            ("producer", [1], other),
            ("full", [2, 3], lane),
            ("producer", [4, 5, 6], lane),
            ("gap", [7], lane),
            ("denied", [8], lane),
        ):
            publisher.hear(BatchResult(0, len(numbers), None, broker_error(code, "why", "s")), numbers, where)
    outcome = publisher.outcome
    assert [(each.line, each.code) for each in outcome.refusals] == [(1, "producer"), (2, "full"), (8, "denied")]
    assert (outcome.refused, outcome.full_at) == (8, 2)
