"""Messages by UDP: `UdpClient`, and `AsyncUdpClient` for asyncio. docs/udp.md says what UDP promises and what not.

    with UdpClient("127.0.0.1:5050") as client:
        client.publish("weather/rome", b"21.5")
        client.subscribe("weather/+")
        for message in client:
            print(message.topic, message.body)

Subscriptions are renewed as long as messages are waited for (with asyncio as long as the client is open). With the
addresses of several nodes a client uses the first one that answers. It pings that node, goes on to the next one when
there is no answer, and subscribes there again: while it publishes, waits for messages or for an answer (with asyncio
as long as it is open).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from math import inf
from types import TracebackType
from typing import Any, Final

from tailrace.core.address import Address, parse_addresses
from tailrace.core.datagram_nodes import PING_S, DatagramNodes, NodeStep
from tailrace.core.datagram_state import RENEWALS_A_LEASE, RETRY_S, DatagramState
from tailrace.core.options import check_positive
from tailrace.errors import ClientClosed, ConnectFailed, OperationTimeout
from tailrace.protocol.datagrams import DatagramMessage as DatagramMessage

RECEIVE_BYTES = 65_536
RECEIVE_BUFFER_BYTES = 4 << 20
TIMEOUT_S = 5.0
DRAINED_MAX: Final = 1_024
"""Datagrams that are taken at once, to see whether a node has answered."""

_UNREACHABLE: Final = frozenset(
    {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
)


def _socket_of(place: Address) -> socket.socket:
    """A connected socket. Raises ConnectFailed."""
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


def _any_socket(nodes: DatagramNodes) -> socket.socket:
    """For the current node, or else the next one whose name is found. Raises ConnectFailed."""
    reasons = []
    for _ in range(len(nodes)):
        try:
            return _socket_of(nodes.current)
        except ConnectFailed as error:
            reasons.append(str(error))
            nodes.go_on()
    raise ConnectFailed("; ".join(reasons))


def _is_refusal(nodes: DatagramNodes, error: OSError) -> bool:
    """Whether an error of the socket means that the node is not there. One that is the only one may come back."""
    return error.errno == errno.ECONNREFUSED or (len(nodes) > 1 and error.errno in _UNREACHABLE)


def _late(what: str, timeout_s: float) -> OperationTimeout:
    return OperationTimeout(f"{what} has no answer within {timeout_s:g} s; a datagram may be lost")


class UdpClient:
    """A client with blocking calls. Not for several threads at once."""

    def __init__(self, *addresses: str | Iterable[str], timeout_s: float = TIMEOUT_S, ping_s: float = PING_S) -> None:
        """Sends nothing yet. Raises ConnectFailed, InvalidArgument."""
        check_positive("timeout_s", timeout_s)
        self.timeout_s = timeout_s
        self._nodes = DatagramNodes(parse_addresses(addresses), ping_s)
        self._state = DatagramState()
        self._sock: socket.socket | None = _any_socket(self._nodes)
        self._nodes.begin(time.monotonic())
        self._renew_at_s = inf
        self._was_left = False  # the request before, which may have its answer still

    @property
    def address(self) -> str:
        """The node that is used now."""
        return str(self._nodes.current)

    def reach(self) -> None:
        """Waits until a node answers. Raises OperationTimeout."""
        if not self._nodes.has_answered:
            self._state.give_up()
            self._state.ping()
            self._wait(lambda: self._nodes.has_answered, "a ping", self._state.ping)

    def publish(self, topic: str | bytes, payload: bytes | str) -> None:
        """Sends a message, which may be lost. Raises InvalidTopic, ReservedName."""
        self._state.publish(topic, payload)
        self._tend()
        self._send()

    def publish_asked(self, topic: str | bytes, payload: bytes | str) -> int:
        """Publishes a message once and returns its seq.

        Raises OperationTimeout without an answer: it may or may not have been published. Raises BrokerError.
        """
        self._drain()  # answers that came twice, or unasked, do not count
        self._state.publish(topic, payload, asked=True)
        answer = self._wait(lambda: self._state.answer, "the publish")
        return int(answer.words[-1])

    def subscribe(self, topic: str | bytes) -> None:
        """Subscribes to a topic or a filter; asks until there is an answer. Raises OperationTimeout, BrokerError."""
        name = self._state.subscribe(topic)
        try:
            self._wait(lambda: self._state.topics.get(name), "the subscription", lambda: self._state.ask_again(name))
        except BaseException:
            self._state.topics.pop(name, None)
            raise
        self._renewed()

    def unsubscribe(self, topic: str | bytes) -> None:
        """Ends a subscription. Raises OperationTimeout, BrokerError."""
        self._state.unsubscribe(topic)
        self._wait(lambda: self._state.answer, "the request")

    def receive(self, timeout_s: float | None = None) -> DatagramMessage | None:
        """The next message; None if none comes within `timeout_s`. Raises ClientClosed."""
        end_s = inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._state.messages:
            now_s = time.monotonic()
            if now_s >= end_s:
                return None
            if now_s >= self._renew_at_s:
                self._state.renew()
                self._renewed()
            self._tend()
            self._send()
            self._receive(min(end_s, self._renew_at_s, self._nodes.due_s) - now_s)
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
        """Until there is an answer, or a refusal, which is raised.

        Answers have no numbers: a late one goes to the former port, and not to the next request. So does that of a
        request which the handler of a signal has ended by an exception.
        """
        has_moved = not self._was_left or self._reconnect()
        try:
            return self._answer(found, what, retry)
        finally:
            self._was_left = self._state.leave() or not has_moved

    def _answer(self, found: Callable[[], Any], what: str, retry: Callable[[], None] | None) -> Any:
        now_s = time.monotonic()
        end_s, retry_s = now_s + self.timeout_s, now_s + RETRY_S
        while True:
            self._tend()
            self._send()
            self._receive(max(min(retry_s, end_s, self._nodes.due_s) - time.monotonic(), 0.0))
            if refusal := self._state.refusal():
                raise refusal
            if value := found():
                return value
            if time.monotonic() >= end_s:
                self._state.give_up()
                self._reconnect()
                raise _late(what, self.timeout_s)
            if time.monotonic() >= retry_s:
                retry_s += RETRY_S
                if retry is not None:
                    retry()

    def _drain(self) -> None:
        """Takes the datagrams that wait."""
        for _ in range(DRAINED_MAX):
            if not self._receive(0.0):
                break

    # --- the nodes --------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """When it is time, pings the node, or goes on to the next one."""
        now_s = time.monotonic()
        if now_s < self._nodes.due_s:
            return
        self._drain()
        step = self._nodes.step(now_s)
        if step is NodeStep.PING:
            self._state.ping()
        elif step is NodeStep.GO_ON:
            self._go_on()

    def _go_on(self) -> None:
        self._nodes.go_on()
        self._reconnect()
        self._nodes.begin(time.monotonic())

    def _reconnect(self) -> bool:
        """From another port. The subscriptions are made again. Returns whether it was possible."""
        try:
            sock = _any_socket(self._nodes)
        except ConnectFailed:
            return False
        self._open().close()
        self._sock = sock
        self._state.go_on()
        return True

    def _was_refused(self, error: OSError) -> bool:
        """Goes on if that helps. Returns whether it does. Raises other errors than that the node is not there."""
        if not _is_refusal(self._nodes, error):
            raise error
        goes_on = self._nodes.refused(time.monotonic())
        if goes_on:
            self._go_on()
        return goes_on

    def _send(self) -> None:
        while self._state.outgoing:
            datagram = self._state.outgoing.popleft()
            for _attempt in range(2):
                try:
                    self._open().send(datagram)
                    break
                except OSError as error:  # of an earlier one: this one was not sent
                    self._was_refused(error)

    def _receive(self, timeout_s: float) -> bool:
        """Takes one datagram, if one comes in time."""
        sock = self._open()
        sock.settimeout(None if timeout_s == inf else max(timeout_s, 0.000_1))
        try:
            data = sock.recv(RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError as error:
            self._open()  # closed meanwhile, as by the handler of a signal
            if not self._was_refused(error):
                time.sleep(max(min(timeout_s, RETRY_S), 0.0))  # nobody listens there now
            return False
        self._nodes.heard()
        self._state.take(data)
        return True

    def _open(self) -> socket.socket:
        if self._sock is None:
            raise ClientClosed("the client was closed")
        return self._sock


class AsyncUdpClient:
    """The same for asyncio: `async with AsyncUdpClient("127.0.0.1:5050") as client`."""

    def __init__(self, *addresses: str | Iterable[str], timeout_s: float = TIMEOUT_S, ping_s: float = PING_S) -> None:
        """Raises InvalidArgument."""
        check_positive("timeout_s", timeout_s)
        self.timeout_s = timeout_s
        self._nodes = DatagramNodes(parse_addresses(addresses), ping_s)
        self._state = DatagramState()
        self._endpoint: _Endpoint | None = None
        self._came = asyncio.Event()
        self._changed = asyncio.Event()  # when there is something to do
        self._is_refused = False
        self._renew_at_s = inf
        self._tending: asyncio.Task[None] | None = None
        self._requesting = asyncio.Lock()
        self._was_left = False  # the request before, which may have its answer still

    async def __aenter__(self) -> AsyncUdpClient:
        """Raises ConnectFailed."""
        self._endpoint = await self._connect()
        self._nodes.begin(time.monotonic())
        self._tending = asyncio.create_task(self._tend())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The node that is used now."""
        return str(self._nodes.current)

    async def reach(self) -> None:
        """As `UdpClient.reach`."""
        async with self._request():
            if not self._nodes.has_answered:
                self._state.give_up()
                self._state.ping()
                await self._wait(lambda: self._nodes.has_answered, "a ping", self._state.ping)

    def publish(self, topic: str | bytes, payload: bytes | str) -> None:
        """Sends a message, which may be lost. Raises InvalidTopic, ReservedName."""
        self._state.publish(topic, payload)
        self._send()

    async def publish_asked(self, topic: str | bytes, payload: bytes | str) -> int:
        """As `UdpClient.publish_asked`. One request of a client is under way at a time: others wait for it."""
        async with self._request():
            self._state.publish(topic, payload, asked=True)
            answer = await self._wait(lambda: self._state.answer, "the publish")
        return int(answer.words[-1])

    async def subscribe(self, topic: str | bytes) -> None:
        """As `UdpClient.subscribe`."""
        async with self._request():
            name = self._state.subscribe(topic)
            try:
                again = lambda: self._state.ask_again(name)  # noqa: E731
                await self._wait(lambda: self._state.topics.get(name), "the subscription", again)
            except BaseException:
                self._state.topics.pop(name, None)
                raise
        self._renewed()
        self._changed.set()

    async def unsubscribe(self, topic: str | bytes) -> None:
        """As `UdpClient.unsubscribe`."""
        async with self._request():
            self._state.unsubscribe(topic)
            await self._wait(lambda: self._state.answer, "the request")

    async def receive(self, timeout_s: float | None = None) -> DatagramMessage | None:
        """The next message; None if none comes within `timeout_s`. Raises ClientClosed."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._state.messages:
                    self._open()
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
        if self._tending is not None:
            self._tending.cancel()
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
        self._came.set()

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        """Waits for the request before: answers have no numbers, so each is taken for that of the latest request."""
        async with self._requesting:
            has_moved = not self._was_left or await self._reconnect()
            try:
                yield
            finally:
                self._was_left = self._state.leave() or not has_moved

    async def _wait(self, found: Callable[[], Any], what: str, retry: Callable[[], None] | None = None) -> Any:
        now_s = time.monotonic()
        end_s, retry_s = now_s + self.timeout_s, now_s + RETRY_S
        while True:
            self._came.clear()
            self._send()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(min(retry_s, end_s) - time.monotonic(), 0.0)):
                    await self._came.wait()
            if refusal := self._state.refusal():
                raise refusal
            if value := found():
                return value
            if time.monotonic() >= end_s:
                self._state.give_up()
                await self._reconnect()
                raise _late(what, self.timeout_s)
            if time.monotonic() >= retry_s:
                retry_s += RETRY_S
                if retry is not None:
                    retry()

    # --- the nodes --------------------------------------------------------------------------------------------------

    def take(self, endpoint: _Endpoint, data: bytes) -> None:
        """A datagram has come."""
        if endpoint is self._endpoint:
            self._nodes.heard()
            self._state.take(data)
            self._came.set()
            self._send()

    def refuse(self, endpoint: _Endpoint, error: Exception) -> None:
        """Sending has failed, or nobody listens there now."""
        if endpoint is self._endpoint and isinstance(error, OSError) and _is_refusal(self._nodes, error):
            self._is_refused = True
            self._changed.set()

    async def _connect(self) -> _Endpoint:
        loop = asyncio.get_running_loop()
        sock = await loop.run_in_executor(None, _any_socket, self._nodes)
        transport, endpoint = await loop.create_datagram_endpoint(lambda: _Endpoint(self), sock=sock)
        endpoint.transport = transport
        return endpoint

    async def _tend(self) -> None:
        """Renews the subscriptions when it is time, pings the node, or goes on to the next one."""
        while True:
            self._changed.clear()
            now_s = time.monotonic()
            if now_s >= self._renew_at_s:
                self._state.renew()
                self._renewed()
            step = self._nodes.step(now_s)
            is_refused, self._is_refused = self._is_refused, False
            if step is NodeStep.GO_ON or (is_refused and self._nodes.refused(now_s)):
                await self._go_on()
            elif step is NodeStep.PING:
                self._state.ping()
            self._send()
            wait_s = min(self._renew_at_s, self._nodes.due_s) - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s == inf else wait_s):
                    await self._changed.wait()

    async def _go_on(self) -> None:
        self._nodes.go_on()
        if await self._reconnect():
            self._nodes.begin(time.monotonic())

    async def _reconnect(self) -> bool:
        """As `UdpClient._reconnect`."""
        try:
            endpoint = await self._connect()
        except (ConnectFailed, OSError):
            return False
        if self._endpoint is None:  # closed meanwhile
            endpoint.close()
            return False
        self._endpoint.close()
        self._endpoint = endpoint
        self._state.go_on()
        self._came.set()
        return True

    def _renewed(self) -> None:
        self._renew_at_s = time.monotonic() + self._state.lease_s / RENEWALS_A_LEASE

    def _send(self) -> None:
        endpoint = self._open()
        while self._state.outgoing:
            endpoint.send(self._state.outgoing.popleft())

    def _open(self) -> _Endpoint:
        if self._endpoint is None:
            raise ClientClosed("the client was closed, or is not open yet")
        return self._endpoint


class _Endpoint(asyncio.DatagramProtocol):
    """The socket for one node."""

    def __init__(self, client: AsyncUdpClient) -> None:
        self._client = client
        self.transport: asyncio.DatagramTransport | None = None

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Called by asyncio."""
        self._client.take(self, data)

    def error_received(self, exc: Exception) -> None:
        """Called by asyncio."""
        self._client.refuse(self, exc)

    def send(self, datagram: bytes) -> None:
        if self.transport is not None:
            self.transport.sendto(datagram)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
