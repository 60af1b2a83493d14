"""One question to one node, and every way in which it fails."""

from __future__ import annotations

import socket
import threading

import pytest

from tailrace.cli.asking import ASK_ID, AskFailed, ask_node
from tailrace.core.address import Address, parse_address
from tailrace.core.options import ClientOptions
from tailrace.protocol import messages as m
from tailrace.protocol.replication import FEATURE, Ask, NodeLink, Told
from tests.cli.asked_node import asked_node

TOLD = Told(ASK_ID, "N", ":5050", (NodeLink("up", "T", "10.0.0.1:5050", "up", 3, 1, 2, 3),), 0, 3, 0)


def test_what_the_node_tells() -> None:
    with asked_node(TOLD) as node:
        assert ask_node(parse_address(node.address), None, ClientOptions()) == TOLD
        assert ask_node(parse_address(node.address), "é", ClientOptions(token="secret")) == TOLD
    assert node.asked == [Ask(ASK_ID), Ask(ASK_ID, "é".encode())]
    assert [(hello.features, hello.token, hello.node) for hello in node.hellos] == [
        ((FEATURE,), None, None),
        ((FEATURE,), "secret", None),
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (m.Failed("denied", "show the token", fatal=True), "denied: show the token"),
        (b"err protocol no\r\n", "this is not a tailrace broker: it answers in lines of text"),
        (b"HTTP/1.1 400 Bad Request\r\n", "this is not a tailrace broker: it answers in HTTP: .*"),
        (b"\xff" * 100, "this is not a tailrace broker: its first bytes are .*"),
        (None, "no answer within 0 s"),
    ],
    ids=["refused", "lines", "http", "garbage", "silence"],
)
def test_no_answer_but_a_reason(answer: m.Response | bytes | None, reason: str) -> None:
    with asked_node(answer) as node, pytest.raises(AskFailed, match=f"^{reason}$"):
        ask_node(parse_address(node.address), None, ClientOptions(), timeout_s=0.1 if answer is None else 10.0)


def test_a_broker_that_does_not_replicate() -> None:
    with asked_node(TOLD, features=()) as node, pytest.raises(AskFailed, match=r"^tailrace/9 does not replicate$"):
        ask_node(parse_address(node.address), None, ClientOptions())
    assert not node.asked


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(AskFailed, match=r"^Connection refused$"):
            ask_node(Address(*bound.getsockname()), None, ClientOptions())


@pytest.mark.parametrize("host", ["no such host", "a" * 300, ".."])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(AskFailed, match=r"^[ -~]+$"):
        ask_node(Address(host, 5_050), None, ClientOptions())


def test_one_that_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(AskFailed, match=r"^(the node closed the connection|Connection reset by peer|Broken pipe)$"):
            ask_node(Address(*listener.getsockname()), None, ClientOptions())
        thread.join(60)
