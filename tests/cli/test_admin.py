"""`tailrace admin`: one line there, the answer back."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tailrace.cli import admin, main
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, USAGE
from tests.cli.process import tailrace

DEADLINE_S = 20.0
PING = b"ping\r\n\r\n"


class OneAnswer:
    """Accepts one connection, greets like a broker or with `greeting`, reads to its end, sends `answer`, closes."""

    def __init__(
        self, answer: bytes, *, reset: bool = False, silent: bool = False, greeting: bytes = b"ok pong\r\n"
    ) -> None:
        self.heard = b""
        self._greeting = greeting
        self._answer = answer
        self._reset = reset
        self._silent = silent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._listener.getsockname()[1])
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            assert sock.recv(len(PING), socket.MSG_WAITALL) == PING
            sock.sendall(self._greeting)
            while piece := sock.recv(1 << 16):
                self.heard += piece
            if self._silent:
                self._done.wait(DEADLINE_S)
            sock.sendall(self._answer)
            if self._reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def close(self) -> None:
        self._done.set()
        self._thread.join(DEADLINE_S)
        self._listener.close()


@contextmanager
def answering(
    answer: bytes, *, reset: bool = False, silent: bool = False, greeting: bytes = b"ok pong\r\n"
) -> Iterator[OneAnswer]:
    server = OneAnswer(answer, reset=reset, silent=silent, greeting=greeting)
    try:
        yield server
    finally:
        server.close()


def test_an_answer_of_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"ok trim s 1000\r\n") as server:
        assert main.run(["admin", "--port", server.port, "trim", "s", "#1000"]) == OK
    assert server.heard == b"trim s #1000\r\n"
    assert capfd.readouterr() == ("ok trim s 1000\n", "")


def test_an_answer_of_several_lines_without_its_last(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"ok stream role\r\na master\r\nb master\r\n.\r\n") as server:
        assert main.run(["admin", "-p", server.port, "streams"]) == OK
    assert capfd.readouterr().out == "ok stream role\na master\nb master\n"


def test_an_answer_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"ok worker pid state\r\n0 7640 ready\r\n1 7641 standby\r\n.\r\n") as server:
        assert main.run(["admin", "-p", server.port, "--json", "workers"]) == OK
    assert server.heard == b"workers\r\n"
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert shown == [{"worker": 0, "pid": 7640, "state": "ready"}, {"worker": 1, "pid": 7641, "state": "standby"}]
    with answering(b"err denied only from here\r\n") as server:
        assert main.run(["admin", "-p", server.port, "--json", "workers"]) == REFUSED
    assert capfd.readouterr() == ("", "tailrace: denied: only from here\n")


def test_messages_are_for_other_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["admin", "--json", "SUB", "s", "0"]) == USAGE
    assert "sub is answered with messages; `tailrace tail STREAM --json` prints them" in capfd.readouterr().err


def test_the_text_of_another_broker_is_no_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["admin", "--json", "pull"]) == USAGE
    assert "pull is answered with text" in capfd.readouterr().err


def test_options_of_the_command_are_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"ok streams\r\n") as server:
        assert main.run(["admin", "-p", server.port, "streams", "--help"]) == OK
    assert server.heard == b"streams --help\r\n"


def test_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"err denied only from here\r\n") as server:
        assert main.run(["admin", "-p", server.port, "shutdown"]) == REFUSED
    assert capfd.readouterr() == ("", "tailrace: denied: only from here\n")


def test_nothing_to_say(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"") as server:
        assert main.run(["admin", "-p", server.port, "pub", "s", "|x"]) == OK
    assert server.heard == b"pub s |x\r\n"


def test_bytes_that_are_no_text_arrive_as_they_are() -> None:
    with answering(b"ok\r\n") as server:
        done = tailrace("admin", "-p", server.port, "stat", "\udcff\udcfe")
    assert (done.returncode, done.stdout) == (OK, b"ok\n")
    assert server.heard == b"stat \xff\xfe\r\n"


@pytest.mark.parametrize(("answer", "reset"), [(b"ok str", False), (b"", True), (b"", False)])
def test_lost_within_the_answer(answer: bytes, reset: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with answering(answer, reset=reset) as server:
        assert main.run(["admin", "-p", server.port, "streams"]) == NO_CONNECTION
    assert "lost (" in capfd.readouterr().err


def test_no_answer(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "ANSWER_TIMEOUT_S", 0.05)
    with answering(b"", silent=True) as server:
        assert main.run(["admin", "-p", server.port, "streams"]) == NO_CONNECTION
    assert "did not answer within 0 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\nok no\r\n", b"220 mail.example.com\r\n", b"+PONG\r\n"]
)
def test_a_peer_that_is_no_broker_gets_no_command(greeting: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"", greeting=greeting) as server:
        assert main.run(["admin", "--port", server.port, "shutdown", "n"]) == NO_CONNECTION
    out, err = capfd.readouterr()
    assert (out, server.heard) == ("", b"")
    assert err.startswith(f"tailrace: cannot connect to 127.0.0.1:{server.port}: this is not a tailrace broker: ")


def test_a_server_of_http_answers_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Such as that of the metrics: it waits for the empty line that ends a request."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        assert main.run(["admin", "-p", str(server.server_address[1]), "streams"]) == NO_CONNECTION
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
    assert "this is not a tailrace broker" in capfd.readouterr().err


def test_a_peer_that_closes_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = threading.Thread(target=lambda: listener.accept()[0].close())
        closing.start()
        assert main.run(["admin", "-p", str(listener.getsockname()[1]), "streams"]) == NO_CONNECTION
        closing.join()
    assert "tailrace: c" in capfd.readouterr().err  # its end may come as a reset


@pytest.mark.parametrize("words", [("admin", "-p", "{}", "streams"), ("sessions", "ls", "-p", "{}")])
def test_a_peer_that_is_silent_is_given_up_soon(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert main.run([word.format(port) for word in words]) == NO_CONNECTION
    assert capfd.readouterr().err == f"tailrace: cannot connect to 127.0.0.1:{port}: no greeting within 0.05 s\n"


def test_a_broker_that_refuses_the_connection(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"", greeting=b"err connections this node has as many as it may\r\n") as server:
        assert main.run(["admin", "-p", server.port, "streams"]) == REFUSED
    assert capfd.readouterr().err == "tailrace: connections: this node has as many as it may\n"


def test_options_behind_the_command_are_pointed_out(capfd: pytest.CaptureFixture[str]) -> None:
    with answering(b"err usage write: workers\r\n") as server:
        assert main.run(["admin", "-p", server.port, "workers", "-p", "5060"]) == REFUSED
    assert "options stand before COMMAND" in capfd.readouterr().err
