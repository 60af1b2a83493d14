"""`tailrace udp`, with a broker of a few lines."""

from __future__ import annotations

import io
import re
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


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("a b", "no white space"),
        ("$x", "begins with \\$, which is reserved"),
        ("reply-to/x", "stream of replies or dead letters"),
        ("a/$dead", "stream of replies or dead letters"),
        ("\udcff", "is UTF-8"),
        ("", "must not be empty"),
    ],
)
def test_a_topic_that_no_datagram_may_have_is_a_wrong_argument(
    topic: str, fault: str, broker: LossyBroker, capfd: Captured
) -> None:
    for command in (["pub", topic, "text"], ["pub", topic, "text", "--ask"], ["sub", topic]):
        assert main.run(["udp", *command, "--server", broker.address]) == USAGE
        assert re.search(fault, " ".join(capfd.readouterr().err.split()))
    assert main.run(["udp", "pub", "a/+", "text"]) == USAGE
    assert not broker.requests


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
