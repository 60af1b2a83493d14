"""The UDP clients, with a broker of a few lines that loses each first datagram of a kind."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tailrace.errors import ClientClosed, Denied, OperationTimeout
from tailrace.protocol import datagrams
from tailrace.protocol.datagrams import DatagramVerb, parse_request
from tailrace.protocol.errors import Code
from tailrace.udp import AsyncUdpClient, UdpClient

PATIENCE_S = 60.0


class LossyBroker:
    """Passes each publish to all who subscribed to that topic. `requests`: those that came."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"
        self.subscribers: dict[bytes, set[tuple[str, int]]] = {}
        self.requests: list[bytes] = []
        self._lost: set[bytes] = set()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self.sock.sendto(b"end", self.sock.getsockname())
        self._thread.join(PATIENCE_S)
        self.sock.close()

    def _serve(self) -> None:
        while (found := self.sock.recvfrom(70_000))[0] != b"end":
            data, peer = found
            self.requests.append(data)
            request = parse_request(data)
            assert request is not None
            if request.verb is DatagramVerb.SUB and request.topic not in self._lost:
                self._lost.add(request.topic)
            else:
                self._handle(request.verb, request.topic, request.body, peer)

    def _handle(self, verb: DatagramVerb, topic: bytes, body: bytes, peer: tuple[str, int]) -> None:
        if verb is DatagramVerb.SUB and body.strip() != b"c00c1e":
            self.sock.sendto(datagrams.cookie("c00c1e"), peer)
        elif verb is DatagramVerb.SUB and topic == b"denied":
            self.sock.sendto(datagrams.refused(Code.DENIED, "not you"), peer)
        elif verb is DatagramVerb.SUB:
            self.subscribers.setdefault(topic, set()).add(peer)
            self.sock.sendto(datagrams.subscribed(topic, 120), peer)
        elif verb is DatagramVerb.UNSUB:
            self.sock.sendto(datagrams.unsubscribed(topic), peer)
        elif verb is DatagramVerb.PUB_ASKED and topic != b"silent":
            self.sock.sendto(datagrams.published(topic, 7), peer)
        for each in self.subscribers.get(topic, ()) if verb is DatagramVerb.PUB else ():
            self.sock.sendto(datagrams.message(topic, body), each)


@pytest.fixture
def broker() -> Iterator[LossyBroker]:
    broker = LossyBroker()
    yield broker
    broker.close()


def test_blocking_calls(broker: LossyBroker) -> None:
    with UdpClient(broker.address, timeout_s=PATIENCE_S) as client:
        client.subscribe("a/b")
        client.publish("a/b", b"one\n")
        client.publish("a/b", "two")
        assert [(each.topic, each.body) for each in (client.receive(), client.receive()) if each is not None] == [
            (b"a/b", b"one\n"),
            (b"a/b", b"two"),
        ]
        assert client.publish_asked("a", b"") == 7
        assert client.receive(0.01) is None
        client.unsubscribe("a/b")
        with pytest.raises(Denied, match="not you"):
            client.subscribe("denied")
    with pytest.raises(ClientClosed):
        client.publish("a", b"")


def test_a_publish_is_sent_once_and_may_have_no_answer(broker: LossyBroker) -> None:
    with UdpClient(broker.address, timeout_s=0.1) as client, pytest.raises(OperationTimeout, match="may be lost"):
        client.publish_asked("silent", b"x")
    assert broker.requests == [b"PUB? silent\nx"]


def test_subscriptions_are_renewed_while_messages_are_waited_for(broker: LossyBroker) -> None:
    with UdpClient(broker.address, timeout_s=PATIENCE_S) as client:
        client.subscribe("a")
        client._renew_at_s = 0.0
        end_s = time.monotonic() + PATIENCE_S
        while broker.requests.count(b"SUB a\nc00c1e\n") < 2 and time.monotonic() < end_s:
            assert client.receive(0.05) is None
        assert client._renew_at_s > time.monotonic() and broker.requests.count(b"SUB a\nc00c1e\n") >= 2


def test_calls_of_asyncio(broker: LossyBroker) -> None:
    async def run() -> list[bytes]:
        async with AsyncUdpClient(broker.address, timeout_s=PATIENCE_S) as client:
            await client.subscribe("a/b")
            for number in range(3):
                client.publish("a/b", str(number))
            found = []
            async for message in client:
                found.append(message.body)
                if len(found) == 3:
                    break
            assert await client.publish_asked("a", b"") == 7
            assert await client.receive(0.01) is None
            client._renew()
            await client.unsubscribe("a/b")
            with pytest.raises(Denied, match="not you"):
                await client.subscribe("denied")
        with pytest.raises(ClientClosed):
            client.publish("a", b"")
        return found

    assert asyncio.run(run()) == [b"0", b"1", b"2"]
