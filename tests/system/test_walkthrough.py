"""The first use anybody makes of the broker: two telnets on one server, as the oldest description of it has it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.system.node import Node, rows, running, wait_for
from tests.system.streams import lives
from tests.system.telnet import Telnet, open_telnet

pytestmark = pytest.mark.system

CONTROL_C = b"\x03"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("walkthrough")
    with contextlib.ExitStack() as closing:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Node, "by_exec", True)
            node = closing.enter_context(running(folder / "data", workers=2))
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def telnet(node: Node) -> Iterator[Telnet]:
    with open_telnet(node) as telnet:
        yield telnet


def test_two_telnets_on_one_server(node: Node, telnet: Telnet) -> None:
    with open_telnet(node) as other:
        telnet.enter(b"master 0")
        telnet.wait_for(b"ok master 0 1")
        telnet.enter(b"sub 0 0 wait")
        telnet.wait_for(b"ok sub 0 0")
        other.enter(b"pub 0 |Hello world")
        telnet.wait_for(b"|Hello world\r\n")
        telnet.enter(b"Pub 0 |Bye world")
        telnet.wait_for(b" 9 |Bye world\r\n")
        other.enter(b"SUB 0 0")
        other.wait_for(b"ok sub 0 0")
        other.wait_for(b"|Hello world\r\n")
        other.wait_for(b"|Bye world\r\n")
        for each in (telnet, other):
            each.enter(b"Close")
            each.wait_for(b"ok close")
            each.wait_for(b"Connection closed by foreign host.")
            wait_for(each.ended, "telnet has ended")


def test_what_a_user_mistypes_is_told(telnet: Telnet) -> None:
    for typed, answer in (
        (b"ping", b"ok pong"),
        (b"hello", b"err command no command 'hello'"),
        (b"pub 0 no bar", b"err usage write: pub STREAM [topic TOPIC] |payload"),
        (b"sub 0 yesterday wait", b"err from 'yesterday' is not a position in a stream"),
        ("pub café |ça marche".encode(), b"\n"),
        ("sub café 0 wait".encode(), " |ça marche\r\n".encode()),
        (b"help", b"ok command meaning"),
    ):
        telnet.enter(typed)
        telnet.wait_for(answer)


def test_control_c_does_no_harm(node: Node, telnet: Telnet) -> None:
    """telnet sends option bytes (IAC IP, IAC DO TIMING-MARK) and shows nothing more until they are answered."""
    telnet.enter(b"sub ctrl 0 wait")
    telnet.wait_for(b"ok sub ctrl 0")
    for number in range(3):
        telnet.type(CONTROL_C)
        telnet.enter(b"ping")
        telnet.wait_for(b"ok pong")
        with node.client() as publisher:
            publisher.send(f"pub ctrl |still here {number}")
        telnet.wait_for(b"|still here %d\r\n" % number)
    telnet.type(b"half a comm" + CONTROL_C)
    telnet.enter(b"")
    telnet.enter(b"ping")
    telnet.wait_for(b"ok pong")
    telnet.type(b"\xff")  # one byte 0xFF of data: telnet doubles it
    telnet.enter(b"")
    telnet.wait_for(b"err command no command")


def test_leaving_by_the_escape_character(node: Node) -> None:
    before = peers(node)
    with open_telnet(node) as telnet:
        telnet.enter(b"ping")
        telnet.wait_for(b"ok pong")
        assert len(peers(node) - before) == 1
        telnet.type(b"\x1d")
        telnet.wait_for(b"telnet> ")
        telnet.enter(b"quit")
        wait_for(telnet.ended, "telnet has ended")
        wait_for(lambda: not peers(node) - before, "the broker has noticed")


def peers(node: Node) -> set[str]:
    """The addresses of the connections there are, but for the one that asks."""
    with node.client() as client:
        me = "{}:{}".format(*client.sock.getsockname())
        return {row["peer"] for row in rows(client.ask_table("conns"))} - {me}


def test_telnet_in_a_pipe(node: Node) -> None:
    """As in a script. telnet leaves at once when its input ends, so that stays open until the broker has closed."""
    if shutil.which("telnet") is None:
        pytest.skip("needs telnet (Debian's telnet)")
    command = ["telnet", "127.0.0.1", str(node.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as telnet:
        assert telnet.stdin is not None and telnet.stdout is not None
        telnet.stdin.write(b"ack on\npub piped |through telnet\nclose\n")
        telnet.stdin.flush()
        shown = telnet.stdout.read()  # telnet ends when the broker closes
        telnet.stdin.close()
    assert shown.endswith(b"ok ack on\nok pub piped 0\nok close\n")
