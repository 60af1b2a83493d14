"""The asyncio client: as the synchronous one, with the same names."""

from __future__ import annotations

import asyncio
import math
import random
import ssl
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tailrace.aio.batcher import AsyncBatcher
from tailrace.aio.driver import AsyncDriver
from tailrace.aio.subscription import AsyncSubscription
from tailrace.core.address import Address
from tailrace.core.arguments import (
    Payload,
    checked_payload,
    checked_payloads,
    checked_stream,
    checked_streams,
    make_publication,
)
from tailrace.core.batch import LINGER_S, MAX_BYTES, MAX_MESSAGES, BatchResult
from tailrace.core.headers import pack_headers
from tailrace.core.info import ClientInfo, first_addresses
from tailrace.core.message import Message, Receipt
from tailrace.core.options import CONSUMER_BATCH, CONSUMER_LINGER_S, WINDOW_BYTES, ClientOptions
from tailrace.core.places import START, EndPlace, Seq, StartPlace
from tailrace.core.session import Session
from tailrace.core.subscribe_options import OnTrimmed, SubscribeOptions, merged_options, spread, subscribe_options
from tailrace.core.values import PublishOptions, json_payload, msgpack_payload
from tailrace.errors import ConnectFailed, OperationTimeout, TailraceError
from tailrace.protocol.messages import Ack

if TYPE_CHECKING:
    from tailrace.aio.consumer import AsyncConsumer
    from tailrace.aio.replies import AsyncReplies
    from tailrace.core.calls import PendingCall
    from tailrace.core.consumer_calls import ConsumerInfo
    from tailrace.core.consumer_state import ConsumerOptions
    from tailrace.core.dead_letters import LetterSeqs
    from tailrace.core.listing import Calls, StreamInfo
    from tailrace.protocol.listing import WorkerRow

T = TypeVar("T")
_NONE, _APPENDED, _SYNCED = Ack.NONE, Ack.APPENDED, Ack.SYNCED


def connect_async(
    *addresses: str | Iterable[str],
    token: str | None = None,
    timeout_s: float = 30.0,
    connect_timeout_s: float = 10.0,
    reconnect_s: float = 120.0,
    heartbeat_s: float = 30.0,
    max_in_flight: int = 1_024,
    max_in_flight_bytes: int = 16 << 20,
    random_order: bool = False,
    idempotent: bool = True,
    silence_s: float = 5.0,
    tls: ssl.SSLContext | bool | None = None,
    user: str | None = None,
    password: str | None = None,
) -> Connecting:
    """As `connect`, for asyncio: `async with connect_async(...) as client` or `client = await connect_async(...)`."""
    options = ClientOptions(
        token,
        timeout_s,
        connect_timeout_s,
        reconnect_s,
        heartbeat_s,
        max_in_flight,
        max_in_flight_bytes,
        random_order,
        idempotent,
        silence_s,
        tls,
        user,
        password,
    )
    return Connecting(first_addresses(addresses, options), options)


class Connecting:
    """A client that is not connected yet: to be awaited, or entered as a context."""

    def __init__(self, addresses: list[Address], options: ClientOptions) -> None:
        self._addresses = addresses
        self._options = options
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AsyncClient:
        now_s = asyncio.get_running_loop().time()
        session = Session(self._addresses, self._options, random.random, now_s)
        return await AsyncClient.connected(session)


class AsyncClient(ClientInfo):
    """A connection to a broker, made by `connect_async`. For tasks of one event loop."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._driver = AsyncDriver(session)
        self._replies: AsyncReplies | None = None
        session.bind(self.publish)

    @classmethod
    async def connected(cls, session: Session) -> AsyncClient:
        """Raises ConnectFailed, Denied."""
        client = cls(session)
        driver, timeout_s = client._driver, session.options.timeout_s
        try:
            driver.advance()
            deadline_s = driver.now_s() + timeout_s
            await driver.wait_until(lambda: session.connections > 0 or session.is_over, deadline_s)
            if not session.connections:
                raise session.failure or ConnectFailed(f"no broker has answered within {timeout_s:g} s")
        except BaseException:
            driver.abort()
            raise
        return client

    # --- publishing -------------------------------------------------------------------------------------------------

    async def publish(
        self,
        stream: str,
        payload: Payload,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        key: str | bytes | None = None,
        topic: str | None = None,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
        retry: bool = True,
    ) -> Receipt:
        """Publish one message and wait until what `ack` asks for is true. See `Client.publish`."""
        stream, data = checked_stream(stream), payload if type(payload) is bytes else checked_payload(payload)
        metadata = b"" if headers is None and key is None and topic is None else pack_headers(headers, key, topic)
        if ack is _NONE and not replicas:
            receipt = self._driver.hold(stream, data, metadata)
            if receipt is not None:
                return receipt
        elif timeout_s is None and retry and (ack is _APPENDED or ack is _SYNCED) and not replicas:
            waiter = self._driver.join(stream, data, metadata, ack)
            if waiter is not None:
                outcome = await waiter
                if isinstance(outcome, TailraceError):
                    raise outcome
                return outcome
        limit = self._session.limits["max_message_bytes"]
        wait_s = self._session.options.timeout_s if timeout_s is None else self._timeout(timeout_s)
        publication = make_publication((stream,), [data], metadata, ack, replicas, wait_s, retry, limit)
        await self._driver.publish(publication)
        return publication.outcome()[0]

    async def request(
        self,
        stream: str,
        payload: Payload,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Publish a request and wait for the first reply, as `Client.request`."""
        from tailrace.aio.replies import AsyncReplies

        now_s, replies = self._driver.now_s, self._replies
        deadline_s = now_s() + self._timeout(timeout_s)
        if replies is None or replies.is_over:
            replies = self._replies = AsyncReplies(self.subscribe, now_s)
        send = partial(self.publish, stream, payload, key=key, timeout_s=timeout_s)
        return await replies.request(lambda found: send(headers=found), headers, deadline_s)

    async def publish_json(self, stream: str, value: Any, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a value as JSON, which `message.json()` reads. Options and errors are those of `publish`."""
        return await self.publish(stream, json_payload(value), **options)

    async def publish_msgpack(self, stream: str, value: Any, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a value as msgpack, which `message.msgpack()` reads; else as `publish_json`."""
        return await self.publish(stream, msgpack_payload(value), **options)

    async def publish_many(
        self,
        stream: str,
        payloads: Iterable[Payload],
        *,
        headers: Mapping[str, str | bytes] | None = None,
        key: str | bytes | None = None,
        topic: str | None = None,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
        retry: bool = True,
    ) -> Receipt:
        """Publish messages in one request: all of them, with seqs one after the other, or none."""
        streams = (checked_stream(stream),)
        return (
            await self._publish(
                streams, checked_payloads(payloads), pack_headers(headers, key, topic), ack, replicas, timeout_s, retry
            )
        )[0]

    async def publish_to(
        self,
        streams: Iterable[str],
        payload: Payload,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        key: str | bytes | None = None,
        topic: str | None = None,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
        retry: bool = True,
    ) -> list[Receipt]:
        """Publish one message to several streams in one request; a receipt of each. See `Client.publish_to`."""
        names, payloads = checked_streams(streams), [checked_payload(payload)]
        return list(
            await self._publish(names, payloads, pack_headers(headers, key, topic), ack, replicas, timeout_s, retry)
        )

    def batcher(
        self,
        stream: str,
        *,
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
        linger_s: float = LINGER_S,
        headers: Mapping[str, str | bytes] | None = None,
        topic: str | None = None,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
        retry: bool = True,
        on_result: Callable[[BatchResult], None] | None = None,
    ) -> AsyncBatcher:
        """Publish many messages in batches: a batch is sent when it is full, or `linger_s` after its first message."""
        batch = self._batches(stream, max_messages, max_bytes, linger_s, ack, replicas, timeout_s, retry)
        return AsyncBatcher(self._driver, batch, headers, topic, on_result)

    async def _publish(
        self,
        streams: tuple[str, ...],
        payloads: list[bytes],
        metadata: bytes,
        ack: Ack,
        replicas: int,
        timeout_s: float | None,
        retry: bool,
    ) -> tuple[Receipt, ...]:
        limit, wait_s = self._session.limits["max_message_bytes"], self._timeout(timeout_s)
        publication = make_publication(streams, payloads, metadata, ack, replicas, wait_s, retry, limit)
        await self._driver.publish(publication)
        return publication.outcome()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all messages that were published with `Ack.NONE` are given to the transport. Raises
        OperationTimeout.
        """
        driver, session = self._driver, self._session
        session.check_alive()
        session.flush_held(driver.now_s())
        driver.advance()
        if not await driver.wait_until(lambda: session.is_flushed, driver.now_s() + self._timeout(timeout_s)):
            raise OperationTimeout("the messages without acknowledgement could not be sent in time")

    # --- subscribing ------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        stream: str | Iterable[str],
        start: StartPlace = START,
        end: EndPlace = None,
        *,
        skip: int = 0,
        credit_bytes: int = WINDOW_BYTES,
        check_crc: bool = True,
        on_trimmed: OnTrimmed = "raise",
        timeout_s: float | None = None,
        wait: bool = False,
        topics: str = "",
    ) -> AsyncSubscription:
        """The messages of a stream from `start` up to `end`, or for ever; see `Client.subscribe` for the arguments.

        The broker is asked at once. Await the subscription, or enter it as a context, to know that it has answered.
        """
        wait_s = self._timeout(timeout_s)
        stream, topics = spread(stream, topics)
        make = partial(
            subscribe_options,
            end=end,
            skip=skip,
            credit_bytes=credit_bytes,
            check_crc=check_crc,
            on_trimmed=on_trimmed,
            timeout_s=wait_s,
            topics=topics,
        )
        if not isinstance(stream, str) or "*" in stream:
            return self._subscribe_many(stream, merged_options(make, start, wait), end is None, wait_s)
        options = make(stream, start, wait=wait)
        state = self._session.subscribe(options, self._driver.now_s())
        subscription = AsyncSubscription(self._driver, state)
        self._driver.advance()
        return subscription

    def _subscribe_many(
        self,
        streams: str | Iterable[str],
        options: Callable[[str, bool], SubscribeOptions],
        follows: bool,
        timeout_s: float,
    ) -> AsyncSubscription:
        """follows: whether streams that are made later are read, too."""
        from tailrace.aio.merged_subscription import AsyncMergedSubscription
        from tailrace.core import merged_state
        from tailrace.core.listing import checked_patterns, find_names

        patterns = checked_patterns(streams)
        merged = merged_state.MergedState(self._session, patterns, options, follows=follows, timeout_s=timeout_s)

        async def begin(merged: merged_state.MergedState) -> None:
            names, version = await self._ask_each(find_names(patterns, timeout_s, merged.streams_max))
            merged.begin(names, version, self._driver.now_s())
            self._driver.advance()

        return AsyncMergedSubscription(self._driver, merged, begin)

    async def wait_for_stream(self, stream: str, timeout_s: float = math.inf) -> None:
        """Waits until a stream exists and has a message, without making it. Raises OperationTimeout, as `subscribe`."""
        deadline_s = self._driver.now_s() + timeout_s
        async with self.subscribe(stream, credit_bytes=1, on_trimmed="skip", wait=True) as messages:
            await messages.receive(deadline_s - self._driver.now_s())

    # --- durable consumers ------------------------------------------------------------------------------------------

    def consumer(
        self,
        stream: str | Iterable[str],
        name: str,
        *,
        start: StartPlace = START,
        member: str | None = None,
        batch: int = CONSUMER_BATCH,
        ack_wait_s: float | None = None,
        deliveries_max: int | None = None,
        retry_s: float | None = None,
        retry_max_s: float | None = None,
        topics: str = "",
        create: bool = True,
        linger_s: float = CONSUMER_LINGER_S,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        on_trimmed: OnTrimmed = "raise",
        timeout_s: float | None = None,
    ) -> AsyncConsumer:
        """A member of the durable consumer `name` of a stream; see `Client.consumer` for the arguments.

        The broker is asked at once. Await it, or enter it as a context, to know that the consumer is there.
        """
        from tailrace.aio.consumer import AsyncConsumer
        from tailrace.core import consumer_calls as calls

        wait_s, options = self._timeout(timeout_s), self._session.options
        member = calls.new_member() if member is None else member

        def choose(stream: str) -> ConsumerOptions:
            return calls.consumer_options(
                stream, name, member, batch, ack_wait_s, linger_s, ack, replicas, on_trimmed, options
            )

        def make(stream: str, later: bool = False) -> PendingCall:
            begin = START if later else start
            return calls.create_call(
                stream, name, begin, ack_wait_s, deliveries_max, ack, replicas, wait_s, retry_s, retry_max_s, topics
            )

        if not isinstance(stream, str) or "*" in stream:
            return self._consumer_of_many(stream, choose, make if create else None, wait_s)
        chosen, creating = choose(stream), None
        if create:
            creating = make(stream)
            self._session.call(creating, self._driver.now_s())
        state = self._session.consume(chosen, self._driver.now_s())
        self._driver.advance()
        return AsyncConsumer(self._driver, state, creating, wait_s)

    def _consumer_of_many(
        self,
        streams: str | Iterable[str],
        options: Callable[[str], ConsumerOptions],
        create: Callable[[str, bool], PendingCall] | None,
        timeout_s: float,
    ) -> AsyncConsumer:
        """create: the request that makes the consumer of a stream, which may have been made later."""
        from tailrace.aio.merged_consumer import AsyncMergedConsumer
        from tailrace.core.listing import checked_patterns, find_names
        from tailrace.core.merged_consumer_state import MergedConsumerState

        patterns, driver = checked_patterns(streams), self._driver
        merged = MergedConsumerState(self._session, patterns, options, create, timeout_s)

        async def begin() -> None:
            names, version = await self._ask_each(find_names(patterns, timeout_s))
            merged.begin(names, version, driver.now_s())
            driver.advance()
            await driver.wait_until(lambda: merged.ready, math.inf)
            merged.check()

        return AsyncMergedConsumer(driver, merged, begin, timeout_s)

    async def create_consumer(
        self,
        stream: str,
        name: str,
        start: StartPlace = START,
        *,
        ack_wait_s: float | None = None,
        deliveries_max: int | None = None,
        retry_s: float | None = None,
        retry_max_s: float | None = None,
        topics: str = "",
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> int:
        """Make a durable consumer whose first message is `start`; the seq of its first unfinished message.

        One that is there with these settings goes on as it is; with others BadRequest is raised.
        """
        from tailrace.core import consumer_calls as calls

        wait_s = self._timeout(timeout_s)
        call = calls.create_call(
            stream, name, start, ack_wait_s, deliveries_max, ack, replicas, wait_s, retry_s, retry_max_s, topics
        )
        return calls.next_seq_of(await self._ask(call))

    async def reset_consumer(
        self,
        stream: str,
        name: str,
        start: StartPlace,
        *,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> int:
        """Moves a durable consumer to `start`, earlier or later; returns its seq. Messages in flight are released.

        Raises NoSuchConsumer.
        """
        from tailrace.core import consumer_calls as calls

        call = calls.reset_call(stream, name, start, ack, replicas, self._timeout(timeout_s))
        return calls.next_seq_of(await self._ask(call))

    async def delete_consumer(
        self,
        stream: str,
        name: str,
        *,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> bool:
        """End a durable consumer: nothing is known of it any more. Whether there was one."""
        from tailrace.core import consumer_calls as calls

        return calls.was_deleted(
            await self._ask(calls.delete_call(stream, name, ack, replicas, self._timeout(timeout_s)))
        )

    async def consumers(self, stream: str, *, timeout_s: float | None = None) -> list[ConsumerInfo]:
        """The durable consumers of a stream, and how far each has come."""
        from tailrace.core import consumer_calls as calls

        return calls.infos_of(await self._ask(calls.list_call(stream, self._timeout(timeout_s))))

    async def dead_letters(
        self, stream: str, first_seq: int = 0, *, timeout_s: float | None = None
    ) -> AsyncIterator[Message]:
        """The dead letters that a stream has now, from the one with this seq on; see `Client.dead_letters`."""
        from tailrace.core import dead_letters as calls

        found = await self._ask_each(calls.find_letters(stream, self._timeout(timeout_s)))
        if first_seq < found.next_seq:
            name = calls.checked_letter_stream(stream)[1]
            letters = self.subscribe(name, Seq(first_seq), Seq(found.next_seq), on_trimmed="skip", timeout_s=timeout_s)
            async for letter in letters:
                if found.has(letter.seq):
                    yield letter

    async def redrive(
        self,
        stream: str,
        seqs: LetterSeqs = None,
        *,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> int:
        """Publishes dead letters to their stream again, once each, and removes them; see `Client.redrive`."""
        from tailrace.core import dead_letters as calls

        return await self._ask_each(calls.redrive_letters(stream, seqs, (ack, replicas), self._timeout(timeout_s)))

    async def purge(
        self,
        stream: str,
        seqs: LetterSeqs = None,
        *,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> int:
        """Removes dead letters of a stream for good: one, a range or all, as `redrive`. Returns how many."""
        from tailrace.core import dead_letters as calls

        return await self._ask_each(calls.purge_letters(stream, seqs, (ack, replicas), self._timeout(timeout_s)))

    async def delete_stream(self, stream: str, *, timeout_s: float | None = None) -> None:
        """Deletes a stream with its messages, consumers and dead letters, here and on the nodes that follow it.

        Its readers get StreamDeleted. A publish to its name makes another stream, which begins at seq 0. Raises
        UnknownStream, Denied unless this client may administer it, StreamDisabled if another node is its master.
        """
        from tailrace.core import consumer_calls as calls

        calls.require_dropped(await self._ask(calls.drop_call(stream, self._timeout(timeout_s))))

    # --- the node ---------------------------------------------------------------------------------------------------

    async def streams(self, prefix: str = "", *, timeout_s: float | None = None) -> list[StreamInfo]:
        """The streams of the node whose names begin with `prefix`, or are of that pattern (`orders.*`), by name.

        Only those that this client may read. The broker's own, and dead letters, only if the prefix has a `$`.
        """
        from tailrace.core.listing import find_streams

        return await self._ask_each(find_streams(prefix, self._timeout(timeout_s)))

    async def last(self, name: str, *, timeout_s: float | None = None) -> list[Message]:
        """The last message of each topic that a name stands for: a topic, a stream, a filter (`sensors/+/temp`) or a
        pattern. By stream and topic; without those that were deleted by a message without a payload.

        Where the operator's configuration keeps them (`last_values`), also of messages that were trimmed since.
        """
        from tailrace.core.last_values import find_last

        return await self._ask_each(find_last(name, self._timeout(timeout_s)))

    async def workers(self, *, timeout_s: float | None = None) -> list[WorkerRow]:
        """The node's worker processes. Raises Denied unless this client may administer."""
        from tailrace.core.listing import find_workers

        return await self._ask_each(find_workers(self._timeout(timeout_s)))

    async def _ask_each(self, calls: Calls[T]) -> T:
        """Make these calls one after the other; returns the result of them all."""
        done: Any = None
        while True:
            try:
                call = calls.send(done)
            except StopIteration as end:
                found: T = end.value
                return found
            done = await self._ask(call)

    async def _ask(self, call: PendingCall) -> PendingCall:
        """Wait until it is done."""
        self._session.call(call, self._driver.now_s())
        self._driver.advance()
        await self._driver.wait_until(lambda: call.done)
        return call

    # --- the connection ---------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float | None = None) -> None:
        """Waits until all publishes are answered and acknowledgements are stored, then closes. Iterations end."""
        await self._driver.close(self._timeout(timeout_s))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()
