"""Messages by UDP: `UdpClient`, and `AsyncUdpClient` for asyncio. docs/udp.md says what UDP promises and what not.

    with UdpClient("127.0.0.1:5050") as client:
        client.publish("weather/rome", b"21.5")
        client.subscribe("weather/+")
        for message in client:
            print(message.topic, message.body)

Subscriptions are renewed as long as messages are waited for (with asyncio as long as the client is open).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

from tailrace.core.address import parse_address
from tailrace.core.datagram_state import RENEWALS_A_LEASE, RETRY_S, DatagramState
from tailrace.errors import ClientClosed, ConnectFailed, OperationTimeout
from tailrace.protocol.datagrams import DatagramMessage as DatagramMessage

RECEIVE_BYTES = 65_536
RECEIVE_BUFFER_BYTES = 4 << 20
TIMEOUT_S = 5.0


def _socket_of(address: str) -> socket.socket:
    """A connected socket. Raises ConnectFailed, InvalidArgument."""
    place = parse_address(address)
    try:
        family, kind, _, _, name = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)[0]
        sock = socket.socket(family, kind)
    except OSError as error:
        raise ConnectFailed(f"cannot find {place}: {error.strerror or error}") from None
    try:
        sock.connect(name)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    except OSError as error:
        sock.close()
        raise ConnectFailed(f"cannot reach {place}: {error.strerror or error}") from None
    return sock


def _late(what: str, timeout_s: float) -> OperationTimeout:
    return OperationTimeout(f"{what} has no answer within {timeout_s:g} s; a datagram may be lost")


class UdpClient:
    """A client with blocking calls. Not for several threads at once."""

    def __init__(self, address: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        """Sends nothing yet. Raises ConnectFailed, InvalidArgument."""
        self.timeout_s = timeout_s
        self._state = DatagramState()
        self._sock: socket.socket | None = _socket_of(address)
        self._renew_at_s = float("inf")

    def publish(self, topic: str, payload: bytes | str) -> None:
        """Sends a message, which may be lost. Raises InvalidTopic."""
        self._state.publish(topic, payload)
        self._send()

    def publish_asked(self, topic: str, payload: bytes | str) -> int:
        """Publishes a message once and returns its seq.

        Raises OperationTimeout without an answer: it may or may not have been published. Raises BrokerError.
        """
        self._state.publish(topic, payload, asked=True)
        answer = self._wait(lambda: self._state.answer, "the publish")
        return int(answer.words[-1])

    def subscribe(self, topic: str) -> None:
        """Subscribes to a topic or a filter; asks until there is an answer. Raises OperationTimeout, BrokerError."""
        name = self._state.subscribe(topic)
        try:
            self._wait(lambda: self._state.topics.get(name), "the subscription", lambda: self._state.ask_again(name))
        except (OperationTimeout, OSError):
            self._state.topics.pop(name, None)
            raise
        self._renewed()

    def unsubscribe(self, topic: str) -> None:
        """Ends a subscription. Raises OperationTimeout, BrokerError."""
        self._state.unsubscribe(topic)
        self._wait(lambda: self._state.answer, "the request")

    def receive(self, timeout_s: float | None = None) -> DatagramMessage | None:
        """The next message; None if none comes within `timeout_s`."""
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._state.messages:
            now_s = time.monotonic()
            if now_s >= end_s:
                return None
            if now_s >= self._renew_at_s:
                self._state.renew()
                self._renewed()
            self._send()
            self._receive(min(end_s, self._renew_at_s) - now_s)
        return self._state.messages.popleft()

    def __iter__(self) -> Iterator[DatagramMessage]:
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Subscriptions that were not ended end with their lease."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def __enter__(self) -> UdpClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _renewed(self) -> None:
        self._renew_at_s = time.monotonic() + self._state.lease_s / RENEWALS_A_LEASE

    def _wait(self, found: Callable[[], Any], what: str, retry: Callable[[], None] | None = None) -> Any:
        """Until there is an answer, or a refusal, which is raised."""
        now_s = time.monotonic()
        end_s, retry_s = now_s + self.timeout_s, now_s + RETRY_S
        while True:
            self._send()
            self._receive(max(min(retry_s, end_s) - time.monotonic(), 0.0))
            if refusal := self._state.refusal():
                raise refusal
            if value := found():
                return value
            if time.monotonic() >= end_s:
                raise _late(what, self.timeout_s)
            if time.monotonic() >= retry_s:
                retry_s += RETRY_S
                if retry is not None:
                    retry()

    def _send(self) -> None:
        outgoing, self._state.outgoing = self._state.outgoing, []
        for datagram in outgoing:
            try:
                self._open().send(datagram)
            except ConnectionRefusedError:
                pass  # of an earlier one: nobody listens there now

    def _receive(self, timeout_s: float) -> None:
        """One datagram, if one comes in time."""
        sock = self._open()
        sock.settimeout(None if timeout_s == float("inf") else max(timeout_s, 0.000_1))
        try:
            self._state.take(sock.recv(RECEIVE_BYTES))
        except (TimeoutError, BlockingIOError):
            return
        except ConnectionRefusedError:
            time.sleep(min(timeout_s, RETRY_S))  # nobody listens there now

    def _open(self) -> socket.socket:
        if self._sock is None:
            raise ClientClosed("the client was closed")
        return self._sock


class AsyncUdpClient(asyncio.DatagramProtocol):
    """The same for asyncio: `async with AsyncUdpClient("127.0.0.1:5050") as client`."""

    def __init__(self, address: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._address = address
        self._state = DatagramState()
        self._transport: asyncio.DatagramTransport | None = None
        self._came = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> AsyncUdpClient:
        """Raises ConnectFailed, InvalidArgument."""
        loop = asyncio.get_running_loop()
        sock = await loop.run_in_executor(None, _socket_of, self._address)
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(self, topic: str, payload: bytes | str) -> None:
        """Sends a message, which may be lost. Raises InvalidTopic."""
        self._state.publish(topic, payload)
        self._send()

    async def publish_asked(self, topic: str, payload: bytes | str) -> int:
        """As `UdpClient.publish_asked`. One request of a client at a time."""
        self._state.publish(topic, payload, asked=True)
        answer = await self._wait(lambda: self._state.answer, "the publish")
        return int(answer.words[-1])

    async def subscribe(self, topic: str) -> None:
        """As `UdpClient.subscribe`."""
        name = self._state.subscribe(topic)
        try:
            again = lambda: self._state.ask_again(name)  # noqa: E731
            await self._wait(lambda: self._state.topics.get(name), "the subscription", again)
        except (OperationTimeout, OSError):
            self._state.topics.pop(name, None)
            raise
        self._renew_later()

    async def unsubscribe(self, topic: str) -> None:
        """As `UdpClient.unsubscribe`."""
        self._state.unsubscribe(topic)
        await self._wait(lambda: self._state.answer, "the request")

    async def receive(self, timeout_s: float | None = None) -> DatagramMessage | None:
        """The next message; None if none comes within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._state.messages:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return None
        return self._state.messages.popleft()

    async def __aiter__(self) -> AsyncIterator[DatagramMessage]:
        while (message := await self.receive()) is not None:
            yield message

    def close(self) -> None:
        """As `UdpClient.close`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Called by asyncio."""
        self._state.take(data)
        self._came.set()
        if self._transport is not None:
            self._send()

    def error_received(self, exc: Exception) -> None:
        """Called by asyncio: nobody listens there now."""

    async def _wait(self, found: Callable[[], Any], what: str, retry: Callable[[], None] | None = None) -> Any:
        end_s = time.monotonic() + self.timeout_s
        while True:
            self._came.clear()
            self._send()
            try:
                async with asyncio.timeout(min(RETRY_S, max(end_s - time.monotonic(), 0.0))):
                    await self._came.wait()
            except TimeoutError:
                if retry is not None:
                    retry()
            if refusal := self._state.refusal():
                raise refusal
            if value := found():
                return value
            if time.monotonic() >= end_s:
                raise _late(what, self.timeout_s)

    def _renew_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = self._state.lease_s / RENEWALS_A_LEASE
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._renew)

    def _renew(self) -> None:
        self._state.renew()
        self._send()
        self._renew_later()

    def _send(self) -> None:
        if self._transport is None:
            raise ClientClosed("the client was closed, or is not open yet")
        outgoing, self._state.outgoing = self._state.outgoing, []
        for datagram in outgoing:
            self._transport.sendto(datagram)
