"""`tailrace tail`, as a shell runs it."""

from __future__ import annotations

import json
import os
import signal

import pytest

import tailrace as library
from tailrace.cli import main
from tailrace.cli.ending import INTERRUPTED, NO_CONNECTION, OK, REFUSED, USAGE
from tailrace.protocol import messages as m
from tests.cli.process import DEADLINE_S, start, tailrace
from tests.client.model import ModelConnection, hang_up
from tests.client.model_server import ModelServer

PAYLOADS = [b"one", b"", b"cr\r", b"\xff\x00", b"two\nlines", b"msg s 0 0 1 |x"]


@pytest.fixture(autouse=True)
def stream(server: ModelServer) -> None:
    server.publish(b"s", *PAYLOADS)


def test_everything_there_is(server: ModelServer) -> None:
    done = tailrace("tail", "s", "--from", "0", "--no-follow", "--server", server.address)
    assert (done.returncode, done.stderr) == (OK, b"")
    assert done.stdout == b"".join(payload + b"\n" for payload in PAYLOADS)


def test_from_a_seq_for_a_count(server: ModelServer) -> None:
    done = tailrace("tail", "s", "--from", "#1", "--count", "2", "--port", str(server.port))
    assert (done.returncode, done.stdout) == (OK, b"\ncr\r\n")


def test_times_are_translated(server: ModelServer) -> None:
    done = tailrace("tail", "s", "--from", "1970-01-01T00:00:01.000004Z", "--no-follow", "--port", str(server.port))
    assert (done.returncode, done.stdout) == (OK, b"two\nlines\nmsg s 0 0 1 |x\n")


def test_json(server: ModelServer) -> None:
    done = tailrace("tail", "s", "--from", "0", "--json", "--no-follow", "--port", str(server.port))
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert shown[0] == {
        "stream": "s",
        "seq": 0,
        "timestamp_us": 1_000_000,
        "time": "1970-01-01T00:00:01.000000Z",
        "payload": "one",
    }
    assert shown[3]["payload_base64"] == "/wA="
    assert [each["seq"] for each in shown] == list(range(len(PAYLOADS)))


def test_headers(server: ModelServer) -> None:
    with library.connect(server.address) as client:
        client.publish("h", b"payload", headers={"k": "\u00e9", "raw": b"\xff"})
    words = ("tail", "h", "--headers", "--no-follow", "--port", str(server.port))
    assert tailrace(*words).stdout.decode() == '{"k": "\u00e9", "raw": "/w=="}\tpayload\n'
    shown = json.loads(tailrace(*words, "--json").stdout)
    assert shown["headers"] == {"k": "\u00e9", "raw": "/w=="}


def test_a_lost_connection(server: ModelServer) -> None:
    process = start("tail", "s", "--from", "#4", "--reconnect", "0", "--port", str(server.port))
    assert process.stdout is not None
    assert process.stdout.readline() == b"two\n"
    server.model.on_message = hang_up
    server.cut()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == NO_CONNECTION
    assert err.startswith(b"tailrace: connection to 127.0.0.1:")
    assert err.endswith(b" after seq 5; continue with --from '#6'\n")


def test_a_connection_that_comes_back(server: ModelServer) -> None:
    process = start("tail", "s", "--count", "7", "--port", str(server.port))
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    server.cut()
    server.publish(b"s", b"new")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (OK, b"")
    assert out.endswith(b"new\n")


def test_a_refusal(server: ModelServer) -> None:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Subscribe):
            connection.fail("unknown", "no such stream", op=m.Op.SUBSCRIBE, id=message.id)
        return isinstance(message, m.Subscribe)

    server.model.on_message = on_message
    done = tailrace("tail", "s", "--port", str(server.port))
    assert (done.returncode, done.stdout) == (REFUSED, b"")
    assert done.stderr == f"tailrace: {server.address}: unknown: s: no such stream\n".encode()


def test_a_hole_is_told_beside(server: ModelServer) -> None:
    server.call(lambda: server.model.trim(b"s", 4))
    done = tailrace("tail", "s", "--from", "#2", "--count", "2", "--port", str(server.port))
    assert done.stdout == b"two\nlines\nmsg s 0 0 1 |x\n"
    assert done.stderr == b"tailrace: seqs 2 to 3 are missing: they were trimmed\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("messages", [3, 100_000])
def test_a_reader_that_has_enough_ends_it_quietly(server: ModelServer, messages: int) -> None:
    """As `| head` does: with much left to write, and with nothing."""
    server.publish(b"many", *[b"line"] * messages)
    server.model.chunk_messages = 1_000
    read_fd, write_fd = os.pipe()
    process = start("tail", "many", "--from", "0", "--port", str(server.port), stdout=write_fd)
    os.close(write_fd)
    assert os.read(read_fd, 5) == b"line\n"
    os.close(read_fd)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (OK, b"")


def test_interrupted_quietly(server: ModelServer) -> None:
    process = start("tail", "s", "--port", str(server.port))
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"  # it is in its loop now
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (INTERRUPTED, b"")


def test_the_last_ones(server: ModelServer, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ["tail", "s", "--no-follow", "--server", server.address]
    assert main.run([*words, "-n", "2"]) == OK
    assert capfdbinary.readouterr().out == b"two\nlines\nmsg s 0 0 1 |x\n"
    server.publish(b"s", *[b"%d" % number for number in range(20)])
    assert main.run(words) == OK
    assert capfdbinary.readouterr().out == b"".join(b"%d\n" % number for number in range(10, 20))
    assert main.run([*words, "-n", "0"]) == OK
    assert capfdbinary.readouterr().out == b""
    assert main.run([*words, "-n", "1", "--from", "0"]) == USAGE


def test_several_streams_have_their_names_before_each_line(
    server: ModelServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.publish(b"orders.eu", b"1", b"2")
    server.publish(b"orders.us", b"3")
    assert main.run(["tail", "orders.*", "--no-follow", "--server", server.address]) == OK
    shown = capfdbinary.readouterr().out.splitlines()
    assert sorted(shown) == [b"orders.eu\t1", b"orders.eu\t2", b"orders.us\t3"]
    assert main.run(["tail", "orders.us", "orders.eu", "-n", "1", "--no-follow", "--server", server.address]) == OK
    assert sorted(capfdbinary.readouterr().out.splitlines()) == [b"orders.eu\t2", b"orders.us\t3"]


@pytest.mark.parametrize("streams", [["orders.*"], ["orders.eu", "orders.us"]])
def test_it_goes_on_when_one_of_several_streams_is_deleted(server: ModelServer, streams: list[str]) -> None:
    server.publish(b"orders.eu", b"1")
    server.publish(b"orders.us", b"2")
    process = start("tail", *streams, "--from", "0", "--count", "3", "--server", server.address)
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(2)) == [b"orders.eu\t1\n", b"orders.us\t2\n"]
    server.call(lambda: server.model.delete(b"orders.eu"))
    assert process.stderr is not None
    assert process.stderr.readline() == b"tailrace: orders.eu was deleted; the other streams are read on\n"
    server.publish(b"orders.us", b"3")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (OK, b"orders.us\t3\n", b"")


def test_one_stream_that_is_deleted_ends_it(server: ModelServer) -> None:
    process = start("tail", "s", "--from", "0", "--count", "9", "--server", server.address)
    assert process.stdout is not None and process.stdout.readline() == b"one\n"
    server.call(lambda: server.model.delete(b"s"))
    _out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == REFUSED and b"deleted" in err
