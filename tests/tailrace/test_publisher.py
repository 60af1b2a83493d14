"""Publishing: every line arrives, every answer is counted, every end is told."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tailrace import publisher
from tailrace.command.ending import NO_CONNECTION, CommandError
from tailrace.connection import Server
from tailrace.line_client import Refusal
from tailrace.publisher import Outcome, Publisher
from tests.tailrace.line_server import LineServer, running_server

DEADLINE_S = 20.0


@pytest.fixture
def server() -> Iterator[LineServer]:
    with running_server() as server:
        yield server


class Input:
    """A pipe that another thread fills, then closes."""

    def __init__(self, *blocks: bytes) -> None:
        self.fd, self._write_fd = os.pipe()
        self._thread = threading.Thread(target=self._fill, args=(blocks,))
        self._thread.start()

    def _fill(self, blocks: tuple[bytes, ...]) -> None:
        with open(self._write_fd, "wb", buffering=0) as out:
            for block in blocks:
                rest = memoryview(block)
                while rest:
                    try:
                        rest = rest[out.write(rest) :]
                    except BrokenPipeError:
                        return

    def close(self) -> None:
        os.close(self.fd)
        self._thread.join(DEADLINE_S)


def publish(port: int, *blocks: bytes, ack: bool = True, **options: object) -> Outcome:
    source = Input(*blocks)
    try:
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
            return Publisher(sock, Server(port=port), source.fd, "s", ack=ack, **options).run()  # type: ignore[arg-type]
    finally:
        source.close()


@pytest.mark.parametrize("ack", [True, False])
def test_every_line_arrives_byte_for_byte(server: LineServer, ack: bool) -> None:
    payloads = [b"", b"plain", b"\r", b"cr\r", b"\xff\x00|x", b"last without a line feed"]
    outcome = publish(server.port, b"\npla", b"in\n\r\ncr\r\n", b"\xff\x00|x\nlast without a line feed", ack=ack)
    assert server.streams[b"s"] == payloads
    assert (outcome.lines, outcome.input_bytes, outcome.refused) == (6, 42, 0)
    assert (outcome.acknowledged, outcome.first_seq, outcome.last_seq) == ((6, 0, 5) if ack else (0, -1, -1))


@pytest.mark.parametrize("ack", [True, False])
def test_nothing_to_publish(server: LineServer, ack: bool) -> None:
    outcome = publish(server.port, ack=ack)
    assert (outcome.lines, outcome.acknowledged) == (0, 0)
    assert not server.streams


def test_many_lines_through_a_small_window(server: LineServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "WINDOW_LINES", 10)
    monkeypatch.setattr(publisher, "BLOCK_BYTES", 100)
    lines = [b"line %d" % number for number in range(3_000)]
    outcome = publish(server.port, b"\n".join(lines))
    assert server.streams[b"s"] == lines
    assert outcome.acknowledged == 3_000


def test_no_more_is_read_while_answers_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is what bounds the answers a slow broker owes."""
    monkeypatch.setattr(publisher, "WINDOW_LINES", 10)
    monkeypatch.setattr(publisher, "BLOCK_BYTES", 8)
    monkeypatch.setattr(publisher, "TICK_S", 0.005)
    ours, theirs = socket.socketpair()
    source = Input(b"line\n" * 1_000)
    run = Publisher(ours, Server(), source.fd, "s", ack=True)
    for _ in range(50):
        run._turn()
    assert run.outcome.lines <= 10 + 2  # the window, and what one block overshoots it by
    ours.close()
    theirs.close()
    source.close()


def test_refusals_have_the_number_of_their_line(server: LineServer) -> None:
    def refuse(_name: bytes, payload: bytes, _seq: int) -> bytes | None:
        return b"err size s: too large\r\n" if payload.startswith(b"big") else None

    server.publish_answer = refuse
    outcome = publish(server.port, b"a\nbig\nb\nbigger\nc\n")
    assert outcome.refusals == [Refusal("size", "s: too large", 2), Refusal("size", "s: too large", 4)]
    assert (outcome.acknowledged, outcome.refused) == (3, 2)
    assert server.streams[b"s"] == [b"a", b"b", b"c"]


def test_refusals_are_bounded(server: LineServer) -> None:
    server.publish_answer = lambda _name, _payload, _seq: b"err full s: no space\r\n"
    outcome = publish(server.port, b"x\n" * 1_000)
    assert outcome.refused == 1_000
    assert len(outcome.refusals) == publisher.REFUSALS_MAX


def test_without_acknowledgements_errors_are_heard_to_the_last(server: LineServer) -> None:
    server.publish_answer = lambda _name, payload, _seq: b"err full s: no space\r\n" if payload == b"last" else None
    outcome = publish(server.port, b"x\nlast\n", ack=False)
    assert outcome.refusals == [Refusal("full", "s: no space", 0)]
    assert server.lines == [b"ping"]


def test_progress_is_told(server: LineServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "TICK_S", 0.0)
    monkeypatch.setattr(publisher, "BLOCK_BYTES", 100)
    seen: list[int] = []
    publish(server.port, b"x\n" * 1_000, tick=lambda outcome: seen.append(outcome.input_bytes))
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    assert seen[-1] == 2_000


def test_a_broker_that_goes_away_in_mid_stream(server: LineServer) -> None:
    server.close_after_publishes = 3
    with pytest.raises(CommandError) as caught:
        publish(server.port, b"x\n" * 100_000)
    told = caught.value.text
    assert caught.value.exit_code == NO_CONNECTION
    assert f"connection to 127.0.0.1:{server.port} lost (" in told
    assert "; acknowledged were 3 of " in told
    assert told.endswith("; line 4 and what follows may be missing")


def test_the_brokers_last_words_are_the_reason(server: LineServer) -> None:
    closing = b"err closing the broker stops; connect again\r\n"
    server.publish_answer = lambda _name, _payload, seq: closing if seq == 2 else None
    server.close_after_publishes = 3
    with pytest.raises(
        CommandError, match=r"lost \(closing: the broker stops; connect again\); acknowledged were 2 of"
    ):
        publish(server.port, b"x\n" * 10)


def test_last_words_are_heard_though_sending_fails_first() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"ok pub s 0\r\nerr closing the broker stops\r\n")
    theirs.close()
    run = Publisher(ours, Server(), 0, "s", ack=True)
    with pytest.raises(CommandError, match="closing: the broker stops"):
        run._send()
    assert run.outcome.acknowledged == 1
    ours.close()


def test_without_acknowledgements_nobody_can_say(server: LineServer) -> None:
    server.close_after_publishes = 1
    with pytest.raises(CommandError, match="of 2 lines read, nobody can say how many arrived"):
        publish(server.port, b"x\ny\n", ack=False)


def test_answers_that_are_none(server: LineServer) -> None:
    server.publish_answer = lambda _name, _payload, _seq: b"220 smtp.example ESMTP\r\n"
    with pytest.raises(CommandError, match=r"unexpected answer b'220 smtp.*is this a tailrace broker"):
        publish(server.port, b"x\n")


def test_a_broker_that_is_silent() -> None:
    told = pytest.raises(CommandError, match=r"no sign of life for 0 s.*line 1 and what follows may be missing")
    with socket.create_server(("127.0.0.1", 0)) as deaf, told:
        publish(deaf.getsockname()[1], b"x\n", stall_timeout_s=0.2)


def test_an_idle_input_is_no_silence(server: LineServer) -> None:
    """Nothing is due while no line waits for its answer, however long that takes."""
    read_fd, write_fd = os.pipe()
    ticks: list[float] = []

    def tick(outcome: Outcome) -> None:
        ticks.append(outcome.seconds)
        if len(ticks) == 4:
            os.close(write_fd)

    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as sock:
        run = Publisher(sock, Server(), read_fd, "s", ack=True, tick=tick, stall_timeout_s=0.15)
        assert run.run().lines == 0
    os.close(read_fd)
    assert ticks[3] > 0.3
