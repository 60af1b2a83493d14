"""The synchronous client."""

from __future__ import annotations

import math
import random
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

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
from tailrace.errors import ConnectFailed, OperationTimeout
from tailrace.protocol.messages import Ack
from tailrace.sync.batcher import Batcher
from tailrace.sync.driver import Driver
from tailrace.sync.subscription import Subscription

if TYPE_CHECKING:
    from tailrace.core.calls import PendingCall
    from tailrace.core.consumer_calls import ConsumerInfo
    from tailrace.core.consumer_state import ConsumerOptions
    from tailrace.core.dead_letters import LetterSeqs
    from tailrace.core.listing import Calls, StreamInfo
    from tailrace.protocol.listing import WorkerRow
    from tailrace.sync.consumer import Consumer
    from tailrace.sync.replies import Replies

T = TypeVar("T")


_NONE = Ack.NONE


def connect(
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
) -> Client:
    """A client of the broker at the first of the addresses (`HOST:PORT`; 127.0.0.1:5050 for none) that answers.

    It is spoken over TLS to an address that begins with `tails://`, and to all of them with `tls`.
    Raises ConnectFailed when none does, Denied when the broker wants another token. A connection that is lost later is
    made again, in the background, at any of the addresses; see `Options` for the rest.
    """
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
    return Client(Session(first_addresses(addresses, options), options, random.random, monotonic()))


class Client(ClientInfo):
    """A connection to a broker, made by `connect`. Threads may share it. Use it as a context, or call `close`."""

    def __init__(self, session: Session) -> None:
        """Connects: raises ConnectFailed, Denied."""
        super().__init__(session)
        timeout_s = session.options.timeout_s
        self._driver = driver = Driver(session)
        self._replies: Replies | None = None
        self._replies_begin = Lock()
        session.bind(self.publish)
        with driver.lock, driver.step:
            try:
                driver.wait_until(lambda: session.connections > 0 or session.is_over, monotonic() + timeout_s)
                if not session.connections:
                    text = f"no broker has answered within {timeout_s:g} s"
                    raise session.failure or ConnectFailed(text)
            except BaseException:
                driver.abort()
                raise
        driver.start()

    # --- publishing -------------------------------------------------------------------------------------------------

    def publish(
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
        """Publish one message and wait until what `ack` asks for is true.

        With `Ack.REPLICATED`: until `replicas` nodes below the stream's master hold it, at least and by default one.
        NotReplicated means that it is logged, but held by fewer; such a message is not retried. When the connection
        breaks before the answer, the message is sent again on the next one; it is in the stream once, unless the client
        was made with `idempotent=False`. `topic` is a name with levels, such as `sensors/7/temp`, by which
        subscriptions choose messages. With `retry=False` that raises ConnectionLost instead. With several addresses the
        client leaves a node that is no longer the stream's master (`disabled`) for the next. Raises BrokerError,
        OperationTimeout, ClientClosed, InvalidArgument.
        """
        stream, data = checked_stream(stream), payload if type(payload) is bytes else checked_payload(payload)
        metadata = b"" if headers is None and key is None and topic is None else pack_headers(headers, key, topic)
        if ack is _NONE and not replicas:
            receipt = self._driver.hold(stream, data, metadata, timeout_s)
            if receipt is not None:
                return receipt
        limit = self._session.limits["max_message_bytes"]
        wait_s = self._session.options.timeout_s if timeout_s is None else self._timeout(timeout_s)
        publication = make_publication((stream,), [data], metadata, ack, replicas, wait_s, retry, limit)
        self._driver.publish(publication)
        return publication.outcome()[0]

    def request(
        self,
        stream: str,
        payload: Payload,
        *,
        headers: Mapping[str, str | bytes] | None = None,
        key: str | bytes | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Publish a request and wait for the first reply, which a reader of the stream makes by `message.reply`.

        The replies come in a stream of this client's own, `reply-to/NAME`, which the broker trims when nobody reads it
        any more. Raises OperationTimeout if no reply comes in time (the request stays in the stream), and as `publish`.
        """
        from tailrace.sync.replies import Replies

        deadline_s = monotonic() + self._timeout(timeout_s)
        with self._replies_begin:
            replies = self._replies
            if replies is None or replies.is_over:
                replies = self._replies = Replies(self.subscribe)
        send = partial(self.publish, stream, payload, key=key, timeout_s=timeout_s)
        return replies.request(lambda found: send(headers=found), headers, deadline_s)

    def publish_json(self, stream: str, value: Any, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a value as JSON, which `message.json()` reads. Options and errors are those of `publish`."""
        return self.publish(stream, json_payload(value), **options)

    def publish_msgpack(self, stream: str, value: Any, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish a value as msgpack, which `message.msgpack()` reads; else as `publish_json`."""
        return self.publish(stream, msgpack_payload(value), **options)

    def publish_many(
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
        """Publish messages in one request: all of them, with seqs one after the other, or none. Raises as `publish`."""
        streams = (checked_stream(stream),)
        return self._publish(
            streams, checked_payloads(payloads), pack_headers(headers, key, topic), ack, replicas, timeout_s, retry
        )[0]

    def publish_to(
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
        """Publish one message to several streams in one request; a receipt of each, in their order.

        Raises PartlyPublished if only some succeeded; else as `publish`.
        """
        names, payloads = checked_streams(streams), [checked_payload(payload)]
        return list(self._publish(names, payloads, pack_headers(headers, key, topic), ack, replicas, timeout_s, retry))

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
    ) -> Batcher:
        """Publish many messages in batches: a batch is sent when it is full, or `linger_s` after its first message."""
        batch = self._batches(stream, max_messages, max_bytes, linger_s, ack, replicas, timeout_s, retry)
        return Batcher(self._driver, batch, headers, topic, on_result)

    def _publish(
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
        self._driver.publish(publication)
        return publication.outcome()

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all messages that were published with `Ack.NONE` are sent. Raises OperationTimeout."""
        driver, session = self._driver, self._session
        with driver.lock, driver.step:
            session.check_alive()
            session.flush_held(monotonic())
            driver.push()
            if not driver.wait_until(lambda: session.is_flushed, monotonic() + self._timeout(timeout_s)):
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
    ) -> Subscription:
        """The messages of a stream from `start` (START, NEW, Seq(n), Last(n), Time(us), a datetime) to `end`, if any.

        A list of names, or a pattern such as `orders.*`, makes a `MergedSubscription`: it reads all these streams, and
        with a pattern and no `end` those that are made later too, within a second or two, from their first message on.

        `topics` is a filter: only messages whose topic matches come, such as `sensors/+/temp` or `sensors/#`. A message
        without a topic has the name of its stream as one. `stream` may be the filter itself, or a topic.

        Returns when the broker has answered, so that NEW includes all messages published after the call. The broker
        sends at most `credit_bytes` ahead of the reader. `skip` leaves out this number of messages at exactly the time
        `start`. Messages that were trimmed before they were read raise Trimmed, unless `on_trimmed` is "skip". Reading
        makes no stream: an unknown one raises UnknownStream, or with `wait` is read from its first message on, once it
        is made. Raises BrokerError, OperationTimeout, StreamBehind, ClientClosed, InvalidArgument.
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
        driver, session = self._driver, self._session
        with driver.lock, driver.step:
            state = session.subscribe(options, monotonic())
            subscription = Subscription(driver, state)
            driver.push()
            driver.wait_until(lambda: state.ready or state.has_news)
            if not state.ready:
                state.first()  # raises why not
        return subscription

    def _subscribe_many(
        self,
        streams: str | Iterable[str],
        options: Callable[[str, bool], SubscribeOptions],
        follows: bool,
        timeout_s: float,
    ) -> Subscription:
        """follows: whether streams that are made later are read, too."""
        from tailrace.core import merged_state
        from tailrace.core.listing import checked_patterns, find_names
        from tailrace.sync.merged_subscription import MergedSubscription

        patterns, driver = checked_patterns(streams), self._driver
        merged = merged_state.MergedState(self._session, patterns, options, follows=follows, timeout_s=timeout_s)
        names, version = self._ask_each(find_names(patterns, timeout_s, merged.streams_max))
        with driver.lock, driver.step:
            merged.begin(names, version, monotonic())
            subscription = MergedSubscription(driver, merged)
            driver.push()
            driver.wait_until(lambda: merged.ready or merged.has_news)
            merged.check()
        return subscription

    def wait_for_stream(self, stream: str, timeout_s: float = math.inf) -> None:
        """Waits until a stream exists and has a message, without making it. Raises OperationTimeout, as `subscribe`."""
        deadline_s = monotonic() + timeout_s
        with self.subscribe(stream, credit_bytes=1, on_trimmed="skip", wait=True) as messages:
            messages.receive(deadline_s - monotonic())

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
    ) -> Consumer:
        """A member of the durable consumer `name` of a stream: give it messages until each is finished by some member.

        The broker stores the acknowledgements, so that a restarted program resumes there; with several members each
        message goes to one of them. With `create` the consumer is created if it does not exist: its first message is
        `start`, a message that is not acknowledged within `ack_wait_s` is delivered again, a failed one after
        `retry_s`, a time that doubles with each failure up to `retry_max_s`, and after `deliveries_max` deliveries it
        is a dead letter (0: never). None takes an existing consumer as it is, and the broker's defaults (30 s, 1 s,
        60 s, 10 deliveries) for a new one. With `topics`, a filter such as `sensors/+/temp`, only messages whose topic
        matches are delivered: it is the consumer's, for all its members. `member` is
        this member's name: a restarted program with the same name at once receives the messages in flight there. At
        most `batch` messages are requested at a time. `ack` and `replicas` choose how safely acknowledgements are
        stored. They are sent with the next request, or `linger_s` later. Raises BrokerError, OperationTimeout,
        ClientClosed, InvalidArgument.

        A list of names, or a pattern such as `orders.*`, makes a `MergedConsumer`: one member of the consumers `name`
        of all these streams, and with a pattern of those made later too, within a second or two, from their first
        message on; of at most 256 streams.
        """
        from tailrace.core import consumer_calls as calls
        from tailrace.sync.consumer import Consumer

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
        chosen = choose(stream)
        if create:
            self._ask(make(stream)).outcome()
        with self._driver.lock, self._driver.step:
            return Consumer(self._driver, self._session.consume(chosen, monotonic()), wait_s)

    def _consumer_of_many(
        self,
        streams: str | Iterable[str],
        options: Callable[[str], ConsumerOptions],
        create: Callable[[str, bool], PendingCall] | None,
        timeout_s: float,
    ) -> Consumer:
        """create: the request that makes the consumer of a stream, which may have been made later."""
        from tailrace.core.listing import checked_patterns, find_names
        from tailrace.core.merged_consumer_state import MergedConsumerState
        from tailrace.sync.merged_consumer import MergedConsumer

        patterns, driver = checked_patterns(streams), self._driver
        merged = MergedConsumerState(self._session, patterns, options, create, timeout_s)
        names, version = self._ask_each(find_names(patterns, timeout_s))
        with driver.lock, driver.step:
            consumer = MergedConsumer(driver, merged, timeout_s)
            merged.begin(names, version, monotonic())
            driver.push()
            driver.wait_until(lambda: merged.ready)
            merged.check()
        return consumer

    def create_consumer(
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
        return calls.next_seq_of(self._ask(call))

    def reset_consumer(
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
        return calls.next_seq_of(self._ask(call))

    def delete_consumer(
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

        return calls.was_deleted(self._ask(calls.delete_call(stream, name, ack, replicas, self._timeout(timeout_s))))

    def consumers(self, stream: str, *, timeout_s: float | None = None) -> list[ConsumerInfo]:
        """The durable consumers of a stream, and how far each has come."""
        from tailrace.core import consumer_calls as calls

        return calls.infos_of(self._ask(calls.list_call(stream, self._timeout(timeout_s))))

    def dead_letters(self, stream: str, first_seq: int = 0, *, timeout_s: float | None = None) -> Iterator[Message]:
        """The dead letters that a stream has now, from the one with this seq on; neither redriven nor purged ones.

        Raises UnknownStream.
        """
        from tailrace.core import dead_letters as calls

        found = self._ask_each(calls.find_letters(stream, self._timeout(timeout_s)))
        if first_seq < found.next_seq:
            name = calls.checked_letter_stream(stream)[1]
            letters = self.subscribe(name, Seq(first_seq), Seq(found.next_seq), on_trimmed="skip", timeout_s=timeout_s)
            yield from (letter for letter in letters if found.has(letter.seq))

    def redrive(
        self,
        stream: str,
        seqs: LetterSeqs = None,
        *,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> int:
        """Publishes dead letters to their stream again, with their keys and headers, and removes them: the letter with
        this seq, those of a range (`range(3, 10)`), or all (None). Each is published once, also if this is repeated
        after an error. They are new messages, for every consumer of the stream. Returns how many letters were removed.

        Raises UnknownStream, Denied and other BrokerErrors, OperationTimeout for a request of at most 64 letters.
        """
        from tailrace.core import dead_letters as calls

        return self._ask_each(calls.redrive_letters(stream, seqs, (ack, replicas), self._timeout(timeout_s)))

    def purge(
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

        return self._ask_each(calls.purge_letters(stream, seqs, (ack, replicas), self._timeout(timeout_s)))

    def delete_stream(self, stream: str, *, timeout_s: float | None = None) -> None:
        """Deletes a stream with its messages, consumers and dead letters, here and on the nodes that follow it.

        Its readers get StreamDeleted. A publish to its name makes another stream, which begins at seq 0. Raises
        UnknownStream, Denied unless this client may administer it, StreamDisabled if another node is its master.
        """
        from tailrace.core import consumer_calls as calls

        calls.require_dropped(self._ask(calls.drop_call(stream, self._timeout(timeout_s))))

    # --- the node ---------------------------------------------------------------------------------------------------

    def streams(self, prefix: str = "", *, timeout_s: float | None = None) -> list[StreamInfo]:
        """The streams of the node whose names begin with `prefix`, or are of that pattern (`orders.*`), by name.

        Only those that this client may read. The broker's own, and dead letters, only if the prefix has a `$`.
        """
        from tailrace.core.listing import find_streams

        return self._ask_each(find_streams(prefix, self._timeout(timeout_s)))

    def last(self, name: str, *, timeout_s: float | None = None) -> list[Message]:
        """The last message of each topic that a name stands for: a topic, a stream, a filter (`sensors/+/temp`) or a
        pattern. By stream and topic; without those that were deleted by a message without a payload.

        Where the operator's configuration keeps them (`last_values`), also of messages that were trimmed since.
        """
        from tailrace.core.last_values import find_last

        return self._ask_each(find_last(name, self._timeout(timeout_s)))

    def workers(self, *, timeout_s: float | None = None) -> list[WorkerRow]:
        """The node's worker processes. Raises Denied unless this client may administer."""
        from tailrace.core.listing import find_workers

        return self._ask_each(find_workers(self._timeout(timeout_s)))

    def _ask_each(self, calls: Calls[T]) -> T:
        """Make these calls one after the other; returns the result of them all."""
        done: Any = None
        while True:
            try:
                call = calls.send(done)
            except StopIteration as end:
                found: T = end.value
                return found
            done = self._ask(call)

    def _ask(self, call: PendingCall) -> PendingCall:
        """Wait until it is done."""
        driver = self._driver
        with driver.lock, driver.step:
            self._session.call(call, monotonic())
            driver.push()
            driver.wait_for(call)
        return call

    # --- the connection ---------------------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None) -> None:
        """Waits until all publishes are answered and acknowledgements are stored, then closes. Iterations end."""
        if self._driver.is_severed:
            return
        with self._driver.lock, self._driver.step:
            self._driver.close(self._timeout(timeout_s))
        self._driver.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
