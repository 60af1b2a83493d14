"""The synchronous client against a broker in memory, through real sockets."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import tailrace
from tailrace import Ack, Client, Receipt
from tailrace.core.address_selector import AddressSelector
from tailrace.protocol import messages as m
from tests.client.model import ModelConnection
from tests.client.model_server import ModelServer, running_model

PATIENCE_S = 20.0


def connect(server: ModelServer, **options: object) -> Client:
    return tailrace.connect(server.address, **options)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


# --- connecting -----------------------------------------------------------------------------------------------------


def test_what_is_known_of_the_broker(server: ModelServer) -> None:
    with connect(server) as client:
        assert (client.node, client.worker, client.software) == ("node-of-model", 1, "model/1")
        assert client.limits["max_message_bytes"] == 1 << 20
        assert (client.is_connected, client.connections) == (True, 1)
        assert repr(client) == "<Client node='node-of-model' READY>"
    assert not client.is_connected


def test_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    with pytest.raises(tailrace.ConnectFailed, match="Connection refused; is the broker running there"):
        tailrace.connect(f"127.0.0.1:{port}")
    with pytest.raises(tailrace.ConnectFailed, match=r"cannot find the host 'no\.such\.host\.invalid'"):
        tailrace.connect("no.such.host.invalid")
    with pytest.raises(tailrace.InvalidArgument):
        tailrace.connect("a:b")


def test_a_broker_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(tailrace.ConnectFailed, match=r"no broker has answered within 0\.2 s"):
            tailrace.connect(address, timeout_s=0.2)
        with pytest.raises(tailrace.ConnectFailed, match=r"no greeting within 0\.05 s"):
            tailrace.connect(address, connect_timeout_s=0.05)


def test_a_wrong_token(server: ModelServer) -> None:
    server.model.token = "right"
    with pytest.raises(tailrace.Denied):
        connect(server, token="wrong")
    connect(server, token="right").close()


def test_the_next_address(server: ModelServer) -> None:
    with running_model() as other:
        gone = other.address
    for random_order in (False, True):
        with tailrace.connect([gone, server.address], random_order=random_order) as client:
            assert client.is_connected
    with tailrace.connect(f"localhost:{server.port}") as client:  # ::1 is refused first, if it exists
        assert client.is_connected


# --- publishing -------------------------------------------------------------------------------------------------------


def test_publishing(server: ModelServer) -> None:
    with connect(server) as client:
        assert client.publish("s", b"a") == Receipt("s", 0, 1, 1)
        assert client.publish("s", bytearray(b"b"), ack=Ack.SYNCED) == Receipt("s", 1, 1, 1)
        assert client.publish_many("s", (b"%d" % number for number in range(3))) == Receipt("s", 2, 3, 1)
        assert client.publish_to(["s", "t"], b"x") == [Receipt("s", 5, 1, 1), Receipt("t", 0, 1, 1)]
    assert server.payloads(b"s") == [b"a", b"b", b"0", b"1", b"2", b"x"]


def test_a_time_that_would_never_be_over(server: ModelServer) -> None:
    with connect(server) as client:
        for call in (client.consumers, client.delete_stream, client.streams):
            with pytest.raises(tailrace.InvalidArgument, match="timeout_s is nan"):
                call("s", timeout_s=math.nan)
        with pytest.raises(tailrace.InvalidArgument, match="timeout_s is nan"):
            client.publish("s", b"x", timeout_s=math.nan)
    assert not server.model.said(m.Publish)


def test_how_many_nodes_hold_it(server: ModelServer) -> None:
    with connect(server) as client:
        client.publish("s", b"0", ack=Ack.REPLICATED)
        client.publish_many("s", [b"1"], ack=Ack.REPLICATED, replicas=2, retry=False)
        client.publish_to(["s", "t"], b"2", ack=Ack.REPLICATED, replicas=3)
        with client.batcher("s", ack=Ack.REPLICATED, replicas=4) as batch:
            batch.add(b"3")
        with pytest.raises(tailrace.InvalidArgument, match=r"goes with ack=Ack\.REPLICATED"):
            client.publish("s", b"x", replicas=1)
        with pytest.raises(tailrace.InvalidArgument, match="from 1 to 255"):
            client.batcher("s", ack=Ack.REPLICATED, replicas=256)
    said = [each for each in server.model.received if isinstance(each, m.Publish)]
    assert [(each.ack, each.replicas) for each in said] == [(3, 1), (3, 2), (3, 3), (3, 4)]


def test_headers(server: ModelServer) -> None:
    with connect(server) as client:
        client.publish("s", b"a", headers={"k": "v", "raw": b"\0"})
        client.publish_many("s", [b"b", b"c"], headers={"k": "w"})
        messages = list(client.subscribe("s", end=tailrace.NOW))
    assert [each.headers for each in messages] == [{"k": "v", "raw": b"\0"}, {"k": "w"}, {"k": "w"}]


def test_without_acknowledgement(server: ModelServer) -> None:
    with connect(server) as client:
        for number in range(100):
            assert client.publish("s", b"%d" % number, ack=Ack.NONE) == Receipt("s", -1, 1, 0)
    assert server.payloads(b"s") == [b"%d" % number for number in range(100)]


def test_messages_without_acknowledgement_go_together(server: ModelServer) -> None:
    expected = [b"%d" % number for number in range(2_000)]
    with connect(server) as client:
        for payload in expected:
            client.publish("s", payload, ack=Ack.NONE)
        client.publish("s", b"behind them")
        assert server.payloads(b"s") == [*expected, b"behind them"]
    assert len(server.model.said(m.Publish)) < 500


def test_what_is_held_is_sent_by_itself(server: ModelServer) -> None:
    with connect(server) as client:
        for number in range(3):
            client.publish("s", b"%d" % number, ack=Ack.NONE)
        wait_for(lambda: len(server.payloads(b"s")) == 3)


def test_flushing(server: ModelServer) -> None:
    client = connect(server)
    for number in range(3):
        client.publish("s", b"%d" % number, ack=Ack.NONE)
    client.flush()
    assert client._driver.session.is_flushed
    client.close()
    assert len(server.payloads(b"s")) == 3
    with pytest.raises(tailrace.ClientClosed):
        client.flush()
    with pytest.raises(tailrace.ClientClosed):
        client.publish("s", b"x", ack=Ack.NONE)


def test_a_full_buffer_makes_publishing_wait(server: ModelServer) -> None:
    """The broker reads nothing: the messages held are bounded, and all that were taken arrive when it reads again."""
    taken = 0
    with connect(server, max_in_flight_bytes=1 << 17) as client:
        client.publish("s", bytes(1_000))
        with server.standing_still(), pytest.raises(tailrace.OperationTimeout, match="could not be sent"):
            while True:  # the first time it may be only the other thread, on a busy machine, that sends nothing
                with pytest.raises(tailrace.OperationTimeout, match="not sent"):
                    while taken < 100_000:
                        client.publish("s", bytes(1_000), ack=Ack.NONE, timeout_s=0.05)
                        taken += 1
                client.flush(timeout_s=0.05)
        client.flush()
    assert len(server.payloads(b"s")) == 1 + taken


def test_errors_of_what_nobody_acknowledges(server: ModelServer) -> None:
    server.model.on_message = refuse_publishes("disabled")
    with connect(server) as client:
        client.publish("s", b"a", ack=Ack.NONE)
    assert client.refused == 1
    assert isinstance(client.last_refusal, tailrace.StreamDisabled)


def refuse_publishes(code: str) -> Callable[[ModelConnection, m.AnyMessage], bool]:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            connection.fail(code, op=m.Op.PUBLISH, id=message.request)
        return isinstance(message, m.Publish)

    return on_message


def test_what_goes_wrong_is_raised(server: ModelServer) -> None:
    with connect(server) as client:
        with pytest.raises(tailrace.MessageTooLarge):
            client.publish("s", bytes((1 << 20) + 1))
        with pytest.raises(tailrace.MessageTooLarge, match="in several"):
            client.publish_many("s", [bytes(1 << 20)] * 2)
        with pytest.raises(tailrace.InvalidStreamName):
            client.publish("a b", b"")
        server.model.on_message = refuse_publishes("full")
        with pytest.raises(tailrace.DiskFull):
            client.publish("s", b"a")
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        with pytest.raises(tailrace.OperationTimeout):
            client.publish("s", b"a", timeout_s=0.05)


def test_after_the_end(server: ModelServer) -> None:
    client = connect(server)
    client.close()
    client.close()
    with pytest.raises(tailrace.ClientClosed):
        client.publish("s", b"a")
    with pytest.raises(tailrace.ClientClosed):
        client.subscribe("s")


def test_threads_share_a_client(server: ModelServer) -> None:
    """Each thread's messages stay in their order."""

    def publish(client: Client, name: int) -> None:
        for number in range(50):
            client.publish("s", b"%d %d" % (name, number))

    with connect(server) as client:
        threads = [threading.Thread(target=publish, args=(client, name)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        found = [each.split() for each in server.payloads(b"s")]
    for name in range(8):
        assert [int(number) for who, number in found if int(who) == name] == list(range(50))


def test_a_lost_connection_is_made_again(server: ModelServer) -> None:
    with connect(server) as client:
        for number in range(20):
            if number % 5 == 4:
                server.cut()
            client.publish("s", b"%d" % number)
        assert client.connections > 1
    assert list(dict.fromkeys(server.payloads(b"s"))) == [b"%d" % number for number in range(20)]


def test_the_keeper_makes_it_again_while_nobody_waits(server: ModelServer) -> None:
    with connect(server) as client:
        server.cut()
        wait_for(lambda: client.connections == 2 and client.is_connected)


def test_the_keeper_answers_pings_while_nobody_waits(server: ModelServer) -> None:
    with connect(server):
        server.call(lambda: server.model.connections[0].say(m.Ping()))
        wait_for(lambda: server.model.said(m.Pong))


def test_a_broker_that_is_gone_for_good() -> None:
    with running_model() as server:
        client = connect(server, reconnect_s=0.2)
    with pytest.raises(tailrace.ConnectionLost):
        client.publish("s", b"a")
    with pytest.raises(tailrace.ConnectionLost, match="given up"):
        client.publish("s", b"a")
    client.close()


def test_what_is_published_while_there_is_no_broker_waits_for_one() -> None:
    with running_model() as server:
        client = connect(server)
        port = server.port
    thread = threading.Thread(target=client.publish, args=("s", b"a"))
    thread.start()
    with running_model(port) as server:
        thread.join(PATIENCE_S)
        assert server.payloads(b"s") == [b"a"]
        client.close()


def test_closing_waits_for_answers(server: ModelServer) -> None:
    held: list[tuple[ModelConnection, m.AnyMessage]] = []

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            held.append((connection, message))
        return isinstance(message, m.Publish)

    client = connect(server)
    server.model.on_message = on_message
    thread = threading.Thread(target=client.publish, args=("s", b"a"))
    thread.start()
    wait_for(lambda: held)
    closing = threading.Thread(target=client.close)
    closing.start()
    server.call(lambda: held[0][0].take(held[0][1]))
    for each in (thread, closing):
        each.join(PATIENCE_S)
        assert not each.is_alive()
    assert server.payloads(b"s") == [b"a"]


def test_closing_does_not_wait_for_ever(server: ModelServer) -> None:
    client = connect(server)
    server.model.on_message = lambda _connection, _message: True
    failed: list[BaseException] = []

    def publish() -> None:
        try:
            client.publish("s", b"a")
        except tailrace.ClientClosed as error:
            failed.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(lambda: server.model.said(m.Publish))
    client.close(timeout_s=0.05)
    thread.join(PATIENCE_S)
    assert "may or may not be logged" in str(failed[0])


# --- peers that are not brokers ---------------------------------------------------------------------------------------


@contextmanager
def listening(greeting: bytes | None) -> Iterator[int]:
    """A port that sends these bytes, or nothing, to all who come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return
                if greeting is not None:
                    taken[-1].recv(1)
                    taken[-1].sendall(greeting)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for sock in taken:
                sock.close()


def test_another_protocol_is_told_at_the_first_attempt() -> None:
    with (
        listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        pytest.raises(tailrace.ConnectFailed, match=f"127.0.0.1:{port}: this is not a tailrace broker: it answers in"),
    ):
        tailrace.connect(f"127.0.0.1:{port}", connect_timeout_s=PATIENCE_S)


class WebPage(BaseHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """pytest shows what a test prints."""


def test_a_web_server_that_waits_for_the_end_of_a_line_is_told_at_the_first_attempt() -> None:
    with HTTPServer(("127.0.0.1", 0), WebPage) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        try:
            with pytest.raises(tailrace.ConnectFailed, match="this is not a tailrace broker: it answers in HTTP"):
                tailrace.connect(f"127.0.0.1:{web.server_port}", connect_timeout_s=PATIENCE_S)
        finally:
            web.shutdown()
            thread.join()


def test_a_port_that_says_nothing_costs_one_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[object] = []
    begin = AddressSelector.begin

    def counted(selector: AddressSelector, now_s: float) -> object:
        attempt = begin(selector, now_s)
        attempts.extend([attempt] if attempt else [])
        return attempt

    monkeypatch.setattr(AddressSelector, "begin", counted)
    with listening(None) as port, pytest.raises(tailrace.ConnectFailed, match="no greeting within"):
        tailrace.connect(f"127.0.0.1:{port}", connect_timeout_s=0.2)
    assert len(attempts) == 1, "one attempt has used all the time there is"


def test_values_and_their_keys(server: ModelServer) -> None:
    with connect(server) as client:
        assert client.publish_json("s", {"id": 7}, key="k").seq == 0
        assert client.publish_msgpack("s", [1, None]).seq == 1
        first, second = client.subscribe("s", end=tailrace.NOW)
    assert (first.key, first.json(), first.epoch) == ("k", {"id": 7}, 1)
    assert (second.key, second.msgpack()) == (None, [1, None])


EXITING = """
import sys, tailrace
client = tailrace.connect(sys.argv[1])
for number in range(50):
    client.publish("s", b"%d" % number, ack=tailrace.Ack.NONE)
raise SystemExit(7)
"""


def test_a_process_that_ends_sends_what_it_held(server: ModelServer) -> None:
    ended = subprocess.run([sys.executable, "-c", EXITING, server.address], timeout=60, check=False)
    assert ended.returncode == 7
    assert server.payloads(b"s") == [b"%d" % number for number in range(50)]


def test_a_broker_that_stands_still_does_not_keep_a_process_from_ending(server: ModelServer) -> None:
    client = tailrace.connect(server.address)
    with server.standing_still():
        client.publish("s", b"x", ack=Ack.NONE)
        client._driver.close_at_exit(time.monotonic() + 0.05)
        assert client._driver.session.is_over
    client.close()
