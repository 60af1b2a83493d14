"""`tailrace udp`, with a broker of a few lines."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tests.client.test_udp import LossyBroker
from tests.client.test_udp import broker as broker

Captured = pytest.CaptureFixture[str]


def test_publishing(broker: LossyBroker, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main.run(["udp", "pub", "a", "text", "--ask", "--server", broker.address]) == OK
    assert capfd.readouterr().out == "7\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"from\nstdin")))
    assert main.run(["udp", "pub", "b", "--ask", "--server", broker.address]) == OK
    assert broker.requests == [b"PUB? a\ntext", b"PUB? b\nfrom\nstdin"]
    assert main.run(["udp", "pub", "c", "x", "--ask", "--json", "--server", broker.address]) == OK
    assert capfd.readouterr().out == '7\n{"topic": "c", "seq": 7}\n'
    assert main.run(["udp", "pub", "c", "x", "--json", "--server", broker.address]) == USAGE
    assert main.run(["udp", "pub", "a b", "text", "--server", broker.address]) == REFUSED
    assert "no white space" in capfd.readouterr().err
    assert main.run(["udp", "pub", "", "text"]) == USAGE


def test_several_servers(broker: LossyBroker, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = f"127.0.0.1:1, {broker.address}"
    assert main.run(["udp", "pub", "a", "text", "--server", servers]) == OK
    assert main.run(["udp", "pub", "a", "text", "--ask", "--server", servers]) == OK
    assert capfd.readouterr().out == "7\n"
    monkeypatch.setenv("TAILRACE_SERVER", servers)
    assert main.run(["udp", "pub", "a", "more", "--ask"]) == OK
    assert [each for each in broker.requests if each.startswith(b"PUB")] == [
        b"PUB a\ntext",
        b"PUB? a\ntext",
        b"PUB? a\nmore",
    ]


def test_subscribing(broker: LossyBroker, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = broker._handle

    def handle_and_publish(verb: object, topic: bytes, body: bytes, peer: tuple[str, int]) -> None:
        handle(verb, topic, body, peer)  # type: ignore[arg-type]
        if topic in broker.subscribers:
            for number in range(2):
                broker.sock.sendto(b"MSG a\n%d" % number, peer)

    monkeypatch.setattr(broker, "_handle", handle_and_publish)
    assert main.run(["udp", "sub", "a", "--count", "2", "--server", broker.address]) == OK
    shown = capfd.readouterr()
    assert shown.out == "a\t0\na\t1\n" and "subscribed to a" in shown.err
    assert main.run(["udp", "sub", "a", "--count", "1", "--json", "--server", broker.address]) == OK
    assert capfd.readouterr().out == '{"topic": "a", "payload": "0"}\n'
    assert main.run(["udp", "sub", "denied", "--server", broker.address]) == REFUSED
    assert "not you" in capfd.readouterr().err
