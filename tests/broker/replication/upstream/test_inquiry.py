"""One node asks another how replication stands."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.settings import Settings
from tailrace.broker.replication.upstream.inquiry import Inquiry, InquiryServices
from tailrace.broker.replication.upstream.login import NodeLogins
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.messages import pack
from tests.broker.world import World, world

WELCOME = m.Welcome(m.VERSION, (r.FEATURE,), "t", "other", 0, {})
TOLD = r.Told(1, "other", "", (), 0, 0, 0)


class Asked:
    """An inquiry at a socket of the test."""

    def __init__(self, node: World, listener: socket.socket, user: str = "") -> None:
        self.node = node
        self.heard: list[r.Told | str] = []
        port: int = listener.getsockname()[1]
        worker = node.workers[0]
        logins = NodeLogins(Settings(replication_user=user, replication_password="pw"), worker.syncer.request)
        outside = InquiryServices(worker.poller, worker.uplinks.resolve, None, None, logins)
        self.inquiry = Inquiry(outside, "127.0.0.1", port, lambda _inquiry, told: self.heard.append(told))
        self.inquiry.ask(r.Ask(1))
        self.sock = listener.accept()[0]
        self.node.settle()

    def says(self, *answers: m.AnyMessage | bytes) -> list[r.Told | str]:
        for answer in answers:
            self.sock.sendall(answer if isinstance(answer, bytes) else pack(answer))
        self.until(lambda: bool(self.heard))
        heard, self.heard = self.heard, []
        return heard

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if condition():
                return
            self.node.settle()
        raise AssertionError("nothing was heard")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    with world(tmp_path) as node, socket.create_server(("127.0.0.1", 0)) as listener:
        made = Asked(node, listener)
        with contextlib.closing(made.sock):
            yield made


def test_questions_are_answered_one_after_the_other(asked: Asked) -> None:
    assert asked.says(WELCOME, m.Ping(), TOLD) == [TOLD]
    asked.inquiry.ask(r.Ask(2, None, (b"s",)))
    later = r.Told(2, "other", "", (), 0, 0, 0, (r.CopyEnd("s", "slave", 1, 1, 1),))
    assert asked.says(TOLD, later) == [later]
    assert asked.inquiry.node == "other"
    asked.inquiry.close()
    asked.inquiry.fail("closed already")
    assert asked.heard == [] and not asked.node.workers[0].scouts


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([WELCOME, m.Failed("denied", "no")], "denied: no"),
        ([m.Welcome(m.VERSION, (), "t", "other", 0, {})], "it does not replicate"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "this is not a tailrace broker: it answers in HTTP"),
    ],
)
def test_an_answer_that_is_none_ends_it(asked: Asked, answers: list[m.AnyMessage | bytes], why: str) -> None:
    (told,) = asked.says(*answers)
    assert isinstance(told, str) and why in told
    assert asked.inquiry.closed


def test_a_node_that_goes_away_is_heard_of(asked: Asked) -> None:
    asked.sock.shutdown(socket.SHUT_RDWR)
    asked.until(lambda: bool(asked.heard))
    assert asked.heard == ["the other node has closed the connection"] and asked.inquiry.closed
