"""Subscribing: in order, each once, to the count or the end that was asked for; holes and ends are told."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tailrace import subscriber
from tailrace.command.ending import NO_CONNECTION, REFUSED, CommandError
from tailrace.connection import Server
from tailrace.line_client import Message
from tailrace.subscriber import Subscriber
from tests.tailrace.line_server import LineServer, running_server

DEADLINE_S = 20.0


@pytest.fixture
def server() -> Iterator[LineServer]:
    with running_server() as server:
        server.streams[b"s"] = [b"m%d" % seq for seq in range(10)]
        yield server


class Reading:
    """One subscriber, what it delivered and what it warned of."""

    def __init__(self, port: int, watch_fd: int = -1) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.sock.settimeout(None)
        self.warnings: list[str] = []
        self.messages: list[Message] = []
        self.subscriber = Subscriber(self.sock, Server(port=port), "s", warn=self.warnings.append, watch_fd=watch_fd)

    def read(self, start: str = "0", count: int | None = None, end_seq: int | None = None) -> list[int]:
        self.subscriber.begin(start)
        self.subscriber.follow(self.messages.extend, count=count, end_seq=end_seq)
        return [message.seq for message in self.messages]


@contextmanager
def reading(port: int, watch_fd: int = -1) -> Iterator[Reading]:
    reader = Reading(port, watch_fd)
    try:
        yield reader
    finally:
        reader.sock.close()


def test_from_a_place_for_a_count(server: LineServer) -> None:
    with reading(server.port) as reader:
        assert reader.read("#3", count=4) == [3, 4, 5, 6]
    assert reader.messages[0] == Message(3, 1_000_003, b"m3")
    assert reader.subscriber.next_seq == 10  # what came in the same batch is passed over
    assert reader.warnings == []


def test_to_the_end_that_stood_when_it_began(server: LineServer) -> None:
    with reading(server.port) as reader:
        end_seq = reader.subscriber.find_end()
        assert end_seq == 10
        server.streams[b"s"] += [b"later"] * 5
        assert reader.read(end_seq=end_seq) == list(range(10))
        assert server.lines == [b"sub s new", b"unsub s", b"sub s 0"]


def test_a_stream_that_is_empty_or_a_place_past_the_end(server: LineServer) -> None:
    with reading(server.port) as reader:
        assert reader.read("#10", end_seq=10) == []
    server.streams[b"s"] = []
    with reading(server.port) as reader:
        assert reader.read("0", end_seq=reader.subscriber.find_end()) == []


def test_messages_that_come_between_finding_the_end_and_beginning_are_passed_over(server: LineServer) -> None:
    server.answers[b"sub s new"] = b"ok sub s 8\r\nmsg s 8 1 2 |m8\r\n"
    server.answers[b"unsub s"] = b"msg s 9 1 2 |m9\r\nok unsub s\r\n"
    with reading(server.port) as reader:
        assert reader.read(end_seq=reader.subscriber.find_end()) == list(range(8))


def test_refused(server: LineServer) -> None:
    server.answers[b"sub s 0"] = b"err unknown there is no such stream\r\n"
    with (
        reading(server.port) as reader,
        pytest.raises(CommandError, match="unknown: there is no such stream") as caught,
    ):
        reader.read()
    assert caught.value.exit_code == REFUSED


def test_trimmed_while_reading_comes_after_the_messages_before_it(server: LineServer) -> None:
    server.after_history = b"err trimmed s: the messages from seq 10 on are no longer kept\r\n"
    with reading(server.port) as reader, pytest.raises(CommandError, match=r"trimmed: s: the .* kept after seq 9$"):
        reader.read()
    assert len(reader.messages) == 10


def test_the_broker_closes(server: LineServer) -> None:
    server.close_after_history = True
    with reading(server.port) as reader, pytest.raises(CommandError) as caught:
        reader.read()
    assert caught.value.exit_code == NO_CONNECTION
    assert caught.value.text.endswith("lost (the broker closed it) after seq 9; go on with --from '#10'")
    assert len(reader.messages) == 10


def test_the_broker_closes_and_says_why(server: LineServer) -> None:
    server.after_history = b"err slow read faster\r\n"
    with reading(server.port) as reader, pytest.raises(CommandError, match="slow: read faster after seq 9") as caught:
        reader.read()
    assert caught.value.exit_code == NO_CONNECTION


def test_a_hole_is_told_and_reading_goes_on(server: LineServer) -> None:
    server.after_history = b"msg s 15 1 1 |x\r\nmsg s 16 1 1 |x\r\n"
    with reading(server.port) as reader:
        assert reader.read("#8", count=4) == [8, 9, 15, 16]
    assert reader.warnings == ["seqs 10 to 14 are missing; they may have been trimmed"]


@pytest.mark.parametrize("again", [b"msg s 9 1 1 |x\r\n", b"msg s 10 1 1 |x\r\nmsg s 10 1 1 |x\r\n"])
def test_a_seq_that_comes_twice_ends_the_run(server: LineServer, again: bytes) -> None:
    server.after_history = again
    with reading(server.port) as reader, pytest.raises(CommandError, match=r"seq \d+ came after seq \d+"):
        reader.read()


def test_seqs_out_of_order_within_right_ends(server: LineServer) -> None:
    server.streams[b"s"] = []
    server.after_history = b"".join(b"msg s %d 1 1 |x\r\n" % seq for seq in (0, 2, 1, 3))
    with reading(server.port) as reader, pytest.raises(CommandError, match="seq 1 came after seq 2"):
        reader.read()


@pytest.mark.parametrize("line", [b"ok something else\r\n", b"msg s zero 1 1 |x\r\n"])
def test_what_no_broker_says(server: LineServer, line: bytes) -> None:
    server.after_history = line
    with reading(server.port) as reader, pytest.raises(CommandError, match=r"unexpected line|not the head"):
        reader.read()


def test_no_answer(server: LineServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "ANSWER_TIMEOUT_S", 0.05)
    server.answers[b"sub s 0"] = b""
    with reading(server.port) as reader, pytest.raises(CommandError, match="no answer for 0 s"):
        reader.read()


def test_a_reader_of_the_output_that_has_gone_ends_the_run_though_no_message_comes(server: LineServer) -> None:
    read_fd, write_fd = os.pipe()
    closing = threading.Timer(0.05, os.close, (read_fd,))
    closing.start()
    with reading(server.port, watch_fd=write_fd) as reader, pytest.raises(BrokenPipeError):
        reader.read("#10")
    closing.join(DEADLINE_S)
    os.close(write_fd)
