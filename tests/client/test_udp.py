"""The UDP clients, with a broker of a few lines that loses each first datagram of a kind."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.errors import ClientClosed, ConnectFailed, Denied, InvalidArgument, OperationTimeout
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
        self.is_silent = False
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
            if self.is_silent:
                continue
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
        elif verb is DatagramVerb.PING:
            self.sock.sendto(datagrams.PONG, peer)
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


@pytest.mark.parametrize("make", [UdpClient, AsyncUdpClient])
@pytest.mark.parametrize("name", ["timeout_s", "ping_s"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "1", None])
def test_times_are_numbers_more_than_0(make: Callable[..., object], name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is {value!r}; it is a number more than 0"):
        make("127.0.0.1:5050", **{name: value})


def test_a_publish_is_sent_once_and_may_have_no_answer(broker: LossyBroker) -> None:
    with UdpClient(broker.address, timeout_s=0.1) as client, pytest.raises(OperationTimeout, match="may be lost"):
        client.publish_asked("silent", b"x")
    assert broker.requests == [b"PUB? silent\nx"]


class LateBroker:
    """A broker whose answers a test sends."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.address = f"127.0.0.1:{sock.getsockname()[1]}"

    def publisher(self) -> tuple[str, int]:
        """The address that has published."""
        return self.sender(b"PUB?")

    def sender(self, verb: bytes) -> tuple[str, int]:
        """The address of the next datagram with this verb."""
        data, peer = b"", ("", 0)
        while not data.startswith(verb):
            data, peer = self.sock.recvfrom(70_000)
        return peer

    def accept(self) -> None:
        """Answers the next `SUB`, of topic a."""
        self.sock.sendto(datagrams.subscribed(b"a", 120), self.sender(b"SUB"))

    def refuse(self, peer: tuple[str, int]) -> None:
        self.sock.sendto(datagrams.refused(Code.SUBSCRIPTIONS, "too many"), peer)

    def answer(self, peer: tuple[str, int], *seqs: int) -> None:
        for seq in seqs:
            self.sock.sendto(datagrams.published(b"q", seq), peer)


@pytest.fixture
def late() -> Iterator[LateBroker]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.bind(("127.0.0.1", 0))
        yield LateBroker(sock)


def test_a_late_or_second_answer_is_not_that_of_the_next_publish(late: LateBroker) -> None:
    with ThreadPoolExecutor(1) as pool, UdpClient(late.address, timeout_s=0.1) as client:
        with pytest.raises(OperationTimeout):
            client.publish_asked("q", b"0")
        client.timeout_s = PATIENCE_S
        second = pool.submit(client.publish_asked, "q", b"1")
        late.answer(late.publisher(), 0)
        late.answer(peer := late.publisher(), 1, 1)
        assert second.result() == 1
        third = pool.submit(client.publish_asked, "q", b"2")
        late.answer(late.publisher(), 2)
        assert third.result() == 2
        late.sock.sendto(datagrams.refused(Code.TOPIC, "somebody asked in its name"), peer)
        fourth = pool.submit(client.publish_asked, "q", b"3")
        late.answer(late.publisher(), 3)
        assert fourth.result() == 3


def test_a_refused_renewal_does_not_refuse_the_next_publish(late: LateBroker) -> None:
    with ThreadPoolExecutor(1) as pool, UdpClient(late.address, timeout_s=PATIENCE_S) as client:
        asked = pool.submit(client.subscribe, "a")
        late.accept()
        asked.result()
        client._renew_at_s = 0.0
        assert client.receive(0.01) is None
        peer = late.sender(b"SUB")
        publish = pool.submit(client.publish_asked, "q", b"1")
        late.publisher()
        late.refuse(peer)
        late.answer(peer, 1)
        assert publish.result() == 1


def test_a_refused_renewal_does_not_refuse_a_publish_that_waits(late: LateBroker) -> None:
    async def run() -> None:
        async with AsyncUdpClient(late.address, timeout_s=PATIENCE_S) as client:
            asked = asyncio.create_task(client.subscribe("a"))
            await asyncio.to_thread(late.accept)
            await asked
            publish = asyncio.create_task(client.publish_asked("q", b"1"))
            await asyncio.to_thread(late.publisher)
            client._renew_at_s = 0.0
            client._changed.set()
            peer = await asyncio.to_thread(late.sender, b"SUB")
            late.refuse(peer)
            late.answer(peer, 1)
            assert await publish == 1

    asyncio.run(run())


def test_a_node_that_refuses_a_ping_has_answered(late: LateBroker) -> None:
    async def run() -> None:
        async with AsyncUdpClient(late.address, timeout_s=PATIENCE_S) as client:
            reached = asyncio.create_task(client.reach())
            late.refuse(await asyncio.to_thread(late.sender, b"PING"))
            await reached

    asyncio.run(run())


def test_a_late_answer_with_asyncio(late: LateBroker) -> None:
    async def run() -> None:
        async with AsyncUdpClient(late.address, timeout_s=0.1) as client:
            with pytest.raises(OperationTimeout):
                await client.publish_asked("q", b"0")
            client.timeout_s = PATIENCE_S
            second = asyncio.create_task(client.publish_asked("q", b"1"))
            late.answer(await asyncio.to_thread(late.publisher), 0)
            late.answer(await asyncio.to_thread(late.publisher), 1)
            assert await second == 1

    asyncio.run(run())


def test_requests_of_asyncio_wait_for_each_other(broker: LossyBroker) -> None:
    async def run() -> None:
        async with AsyncUdpClient(broker.address, timeout_s=PATIENCE_S) as client:
            asked = [asyncio.create_task(client.publish_asked(topic, b"")) for topic in ("a", "b")]
            subscribed = asyncio.create_task(client.subscribe("c"))
            await asyncio.sleep(0)
            client.publish("d", b"")
            assert await asyncio.gather(*asked, subscribed) == [7, 7, None]

    asyncio.run(run())
    assert b"PUB d\n" in broker.requests


def test_the_answer_to_a_cancelled_request_is_not_that_of_the_next(late: LateBroker) -> None:
    async def run() -> None:
        async with AsyncUdpClient(late.address, timeout_s=PATIENCE_S) as client:
            first = asyncio.create_task(client.publish_asked("q", b"0"))
            peer = await asyncio.to_thread(late.publisher)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            second = asyncio.create_task(client.publish_asked("q", b"1"))
            other = await asyncio.to_thread(late.publisher)
            late.answer(peer, 0)
            late.answer(other, 1)
            assert await second == 1

    asyncio.run(run())


def test_the_answer_to_a_request_that_a_signal_ended_is_not_that_of_the_next(late: LateBroker) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    def serve() -> None:
        peer = late.publisher()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # type: ignore[arg-type]
        other = late.publisher()
        late.answer(peer, 0)
        late.answer(other, 1)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(1) as pool, UdpClient(late.address, timeout_s=PATIENCE_S) as client:
            served = pool.submit(serve)
            with pytest.raises(Interrupted):
                client.publish_asked("q", b"0")
            assert client.publish_asked("q", b"1") == 1
            served.result()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_subscription_that_was_refused_is_not_asked_for_again(broker: LossyBroker) -> None:
    async def run() -> None:
        async with AsyncUdpClient(broker.address, timeout_s=PATIENCE_S) as client:
            with pytest.raises(Denied):
                await client.subscribe("denied")
            assert not client._state.topics

    asyncio.run(run())
    with UdpClient(broker.address, timeout_s=PATIENCE_S) as client:
        with pytest.raises(Denied):
            client.subscribe("denied")
        assert not client._state.topics


def test_whoever_waits_for_a_message_is_notified_of_the_end(broker: LossyBroker) -> None:
    async def messages(client: AsyncUdpClient) -> list[bytes]:
        return [message.body async for message in client]

    async def run() -> None:
        async with AsyncUdpClient(broker.address) as client:
            waiting = [asyncio.create_task(messages(client)), asyncio.create_task(client.receive())]
            await asyncio.sleep(0)
        for each in waiting:
            with pytest.raises(ClientClosed):
                await asyncio.wait_for(each, PATIENCE_S)
        with pytest.raises(ClientClosed):
            await client.receive(PATIENCE_S)

    asyncio.run(run())


def test_a_client_that_the_handler_of_a_signal_closes(broker: LossyBroker) -> None:
    client = UdpClient(broker.address)
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: client.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ClientClosed):
            client.receive(PATIENCE_S)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_subscriptions_are_renewed_while_messages_are_waited_for(broker: LossyBroker) -> None:
    with UdpClient(broker.address, timeout_s=PATIENCE_S) as client:
        client.subscribe("a")
        client._renew_at_s = 0.0
        end_s = time.monotonic() + PATIENCE_S
        while broker.requests.count(b"SUB a\nc00c1e\n") < 2 and time.monotonic() < end_s:
            assert client.receive(0.05) is None
        assert client._renew_at_s > time.monotonic() and broker.requests.count(b"SUB a\nc00c1e\n") >= 2


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a node that does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def absent() -> str:
    """An address at which nobody listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_a_subscription_goes_to_the_first_node_that_answers(broker: LossyBroker, silent: str, absent: str) -> None:
    for first, ping_s in ((silent, 0.05), (absent, 60.0), ("no.such.host.invalid", 60.0)):
        with UdpClient(first, broker.address, timeout_s=PATIENCE_S, ping_s=ping_s) as client:
            client.subscribe("a")
            assert client.address == broker.address
            client.publish("a", first)
            message = client.receive(PATIENCE_S)
            assert message is not None and message.body == first.encode()


def test_a_publisher_goes_to_the_next_node(broker: LossyBroker, silent: str, absent: str) -> None:
    for first in (silent, absent):
        with UdpClient([first, broker.address], ping_s=0.05) as client:
            end_s = time.monotonic() + PATIENCE_S
            while b"PUB a\n" + first.encode() not in broker.requests:
                assert time.monotonic() < end_s
                client.publish("a", first)
                time.sleep(0.01)
        with UdpClient([first, broker.address], timeout_s=PATIENCE_S, ping_s=0.05) as client:
            client.reach()
            assert client.publish_asked("a", "asked") == 7


def test_nodes_that_are_all_absent(absent: str) -> None:
    with UdpClient(absent, "127.0.0.1:1", timeout_s=0.05, ping_s=0.01) as client:
        with pytest.raises(OperationTimeout, match="a ping has no answer"):
            client.reach()
        with pytest.raises(OperationTimeout):
            client.subscribe("a")
        client.publish("a", b"")
        assert client.receive(0.01) is None
    with pytest.raises(ConnectFailed, match=r"no.such.host.invalid.*; .*nor.this.invalid"):
        UdpClient("no.such.host.invalid", "nor.this.invalid")


def test_asyncio_goes_to_the_next_node(broker: LossyBroker, silent: str, absent: str) -> None:
    async def run(first: str, ping_s: float) -> None:
        async with AsyncUdpClient(first, broker.address, timeout_s=PATIENCE_S, ping_s=ping_s) as client:
            await client.subscribe("a")
            assert client.address == broker.address
            await client.reach()
            client.publish("a", first)
            message = await client.receive(PATIENCE_S)
            assert message is not None and message.body == first.encode()

    for first, ping_s in ((silent, 0.05), (absent, 0.5), ("no.such.host.invalid", 60.0)):
        asyncio.run(run(first, ping_s))


def test_a_node_that_falls_silent_is_left_with_its_subscriptions(broker: LossyBroker) -> None:
    other = LossyBroker()
    try:
        with UdpClient(other.address, broker.address, timeout_s=PATIENCE_S, ping_s=0.05) as client:
            client.subscribe("a")
            client.subscribe("b")
            assert client.address == other.address
            other.is_silent = True
            end_s = time.monotonic() + PATIENCE_S
            while not {b"a", b"b"} <= broker.subscribers.keys() and time.monotonic() < end_s:
                assert client.receive(0.01) is None
            assert client.address == broker.address
    finally:
        other.close()


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
            client._renew_at_s = 0.0
            client._changed.set()
            await client.unsubscribe("a/b")
            with pytest.raises(Denied, match="not you"):
                await client.subscribe("denied")
        with pytest.raises(ClientClosed):
            client.publish("a", b"")
        return found

    assert asyncio.run(run()) == [b"0", b"1", b"2"]
