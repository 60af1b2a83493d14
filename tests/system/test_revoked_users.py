"""A user is removed, or loses a right, and the node is reloaded: what becomes of its connections, on every door."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

import tailrace
from tailrace.protocol import messages as m
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5
from tests.system.binary_peer import BinaryPeer
from tests.system.mqtt_fuzz import UPGRADE, websocket_frame
from tests.system.mqtt_socket import DISCONNECT, MqttSocket
from tests.system.node import PATIENCE_S, LineClient, Node, rows, running, wait_for
from tests.system.users import EVERYTHING, logged_in, reload, remove_user, token_of, with_users

pytestmark = pytest.mark.system

CLOSED_S = 5.0
"""From a reload until the connections of a removed user are closed, as docs/security.md promises."""
NO_READING = '[[rule]]\ndeny = "bob"\nrights = ["subscribe"]\n'
NO_PUBLISHING = '[[rule]]\ndeny = "bob"\nrights = ["publish"]\n'


def binary_of(node: Node, name: str) -> BinaryPeer:
    return BinaryPeer(
        node.port, hello=m.Hello(1, (), "test", mechanism=m.BEARER, user=name, login=token_of(name).encode())
    )


def mqtt_of(node: Node, name: str) -> MqttSocket:
    return MqttSocket(node.port, V5, name, user=name, password=token_of(name).encode())


def websocket_of(node: Node, name: str) -> socket.socket:
    """A client of MQTT over WebSocket, once it has its CONNACK."""
    sock = socket.create_connection(("127.0.0.1", node.port), PATIENCE_S)
    login = wire.connect(V5, f"{name}-in-a-page", user=name, password=token_of(name).encode())
    sock.sendall(UPGRADE + websocket_frame(login))
    received = b""
    while b"\r\n\r\n\x82" not in received:
        data = sock.recv(4_096)
        assert data, received
        received += data
    return sock


def consume_until_it_fails(node: Node, name: str, outcome: list[str]) -> None:
    address = f"127.0.0.1:{node.port}"
    try:
        with tailrace.connect(address, user=name, token=token_of(name), reconnect_s=1_000.0) as client:
            client.wait_for_stream("s")  # whose first message another connection has just sent
            with client.consumer("s", "c") as messages:
                for message in messages:
                    outcome.append(message.payload.decode())
                    message.ack()
    except tailrace.TailraceError as error:
        outcome.append(f"failed: {error}")


def test_a_user_that_is_removed_is_disconnected_on_every_door(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    with running(tmp_path / "data", config=with_users(folder, "ann", "bob")) as node, logged_in(node, "bob") as bob:
        bob.send("pub s |one")
        outcome: list[str] = []
        consumer = threading.Thread(target=consume_until_it_fails, args=(node, "ann", outcome))
        consumer.start()
        wait_for(lambda: outcome == ["one"], "the consumer is at work, and waits for more")
        with (
            logged_in(node, "ann") as line,
            logged_in(node, "ann") as idle,
            binary_of(node, "ann") as binary,
            mqtt_of(node, "ann") as mqtt,
            websocket_of(node, "ann") as websocket,
        ):
            assert line.ask("sub s 0").startswith("ok sub")
            binary.publish("s", [b"two"])
            remove_user(folder, "ann")
            reload(node)
            for client in (line, idle):
                client.read_to_end()
                assert client.answers[-1].startswith("err denied this user may not log in any more")
            binary.read_to_end()
            assert binary.errors()[-1].code == "denied"
            farewell = mqtt.answer()
            assert farewell is not None and (farewell.kind, farewell.body[0]) == (DISCONNECT, 0x87)
            assert mqtt.answer() is None
            while websocket.recv(4_096):
                continue
        consumer.join(60)
        assert not consumer.is_alive(), "the client does not go on asking for long"
        assert "denied" in outcome[-1], outcome
        assert bob.ask("ping") == "ok pong", "others notice nothing"


def test_a_removed_user_cannot_stay_by_not_reading_or_by_never_pausing(tmp_path: Path) -> None:
    """Its connections cannot be handed over, or take no answer: the deadlines of others do not count for them."""
    folder = tmp_path / "users"
    config = with_users(folder, "ann", "bob") + '[timing]\ndrain_timeout_s = "10 min"\nstall_timeout_s = "10 min"\n'
    with running(tmp_path / "data", workers=1, config=config) as node, logged_in(node, "bob") as bob:
        bob.send(*["pub s |" + "x" * 60_000] * 100)
        assert bob.ask("ack on") == "ok ack on"
        with socket.socket() as silent, logged_in(node, "ann") as busy:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            silent.connect(("127.0.0.1", node.port))
            silent.sendall(f"auth ann {token_of('ann')}\r\nsub s 0\r\n".encode())
            flood = threading.Thread(target=publish_until_it_fails, args=(busy,))
            flood.start()
            wait_for(lambda: "1" in [row["subscriptions"] for row in rows(bob.ask_table("conns"))], "it subscribes")
            remove_user(folder, "ann")
            node.signal(signal.SIGHUP)
            began_s = time.monotonic()
            flood.join(60)
            assert not flood.is_alive()
            wait_for(
                lambda: not is_held(node, silent.getsockname()[1]), "no worker has the connection, nor one that leaves"
            )
            assert len(rows(bob.ask_table("conns"))) == 1
            assert time.monotonic() - began_s < CLOSED_S


def is_held(node: Node, peer_port: int) -> bool:
    """Whether a process has the connection that comes from this port."""
    ends = [(each.pid, each.laddr, each.raddr) for each in psutil.net_connections("tcp4")]
    return any(pid and here and there and (here[1], there[1]) == (node.port, peer_port) for pid, here, there in ends)


def publish_until_it_fails(client: LineClient) -> None:
    with contextlib.suppress(OSError):
        while True:
            client.sock.sendall(b"pub t |x\r\n" * 1_000)


def test_what_a_user_may_not_do_any_more_is_denied(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    with (
        running(tmp_path / "data", config=with_users(folder, "ann", "bob")) as node,
        logged_in(node, "bob") as line,
        binary_of(node, "bob") as binary,
    ):
        binary.publish("s", [b"one"])
        assert line.ask("ack on") == "ok ack on"
        config = node.data.parent / "data.toml"
        config.write_text(config.read_text().replace(EVERYTHING, NO_PUBLISHING + EVERYTHING))
        reload(node)
        denied = "s: the user bob does not have the right publish to this stream"
        assert line.ask("pub s |two") == f"err denied {denied}"
        refused = binary.answer_to(binary.send_publish("s", [b"two"]))
        assert isinstance(refused, m.Failed) and (refused.code, refused.text) == ("denied", denied)
        assert line.ask("ping") == "ok pong"


@pytest.mark.thorough  # on a machine with much else to do the successor may be ready before it is suspended
def test_rights_are_gone_although_the_worker_is_not_replaced_yet(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    with (
        running(tmp_path / "data", workers=1, config=with_users(folder, "ann", "bob")) as node,
        logged_in(node, "ann") as ann,
        logged_in(node, "bob") as bob,
    ):
        bob.send("pub s |one")
        assert bob.ask("sub s 1").startswith("ok sub")
        config_file = node.data.parent / "data.toml"
        config_file.write_text(config_file.read_text().replace(EVERYTHING, NO_READING + EVERYTHING))
        assert node.process is not None
        supervisor = psutil.Process(node.process.pid)
        before = set(supervisor.children())
        node.signal(signal.SIGHUP)
        began_s = time.monotonic()
        wait_for(lambda: set(supervisor.children()) - before, "the successor of the worker is there")
        (successor,) = set(supervisor.children()) - before
        successor.suspend()
        try:
            *_, ended = bob.read_answers(3)
            assert ended.startswith("err denied s: the user bob")
            assert time.monotonic() - began_s < CLOSED_S
            ann.send("pub s |two")
            assert bob.ask("ping") == "ok pong", "and no message"
        finally:
            successor.resume()
