"""Publishes numbered messages of one producer over one connection after the other, each once.

Publishes without an answer are kept, and are sent again with their numbers, in their order, after a lost connection and
after an answer that the broker could not take them at this moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from tailrace.core.address import Address
from tailrace.errors import (
    BrokerClosing,
    ConnectFailed,
    ConnectionLost,
    OperationTimeout,
    TailraceError,
    Unsupported,
    broker_error,
)
from tailrace.protocol import messages as m
from tailrace.protocol.opcodes import Op
from tailrace.protocol.outgoing import OutgoingBuffer
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering
from tailrace.spark.broker_connection import BrokerConnection, BrokerLogin, Chunk

WINDOW_BYTES: Final = 8 << 20
WINDOW_REQUESTS: Final = 256
"""Bytes and requests that may wait for their answers."""
HANDLES_MAX: Final = 1_024
"""Streams of a connection, if a broker does not name its limit."""
RETRY_S: Final = 60.0
"""Without any answer for this long a publish is given up. Spark then tries the task again."""
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
FAR: Final = 1 << 62
"""A number that no producer's message has: a publish of it is refused, and the code tells whether there are others."""
MAX_MESSAGE_BYTES: Final = 1 << 20
"""If a broker does not name its limit."""
RETRIED: Final = frozenset({"unavailable", "overloaded", "closing"})
"""Codes of what may go well a moment later."""
RETRIED_ELSEWHERE: Final = RETRIED | {"disabled"}
"""The same if there is another address, which may be the stream's master."""
GAP: Final = "gap"
UNKNOWN: Final = "producer"
LOST: Final = (ConnectFailed, ConnectionLost, OperationTimeout, BrokerClosing)

_mark_run = load("tailrace.shard.run_cy").mark_run


class Waiting(NamedTuple):
    """A request without an answer. `frames` carry its number; `asks`: it appends nothing, and its answer is kept."""

    stream: str
    frames: OutgoingBuffer
    ack: m.Ack
    asks: bool


PublishAnswer: TypeAlias = m.Published | m.Failed


class PublishingConnection(BrokerConnection):
    """Also opens streams, and sends publishes without waiting for their answers."""

    def __init__(self, addresses: Sequence[Address], login: BrokerLogin) -> None:
        super().__init__(addresses, login, (m.PRODUCERS_FEATURE,))
        self._handles: dict[str, int] = {}
        if m.PRODUCERS_FEATURE not in self.welcome.features:
            self.close()
            raise Unsupported(f"{self.welcome.software} at {self.address} does not support producers", "")

    def has_room(self, stream: str) -> bool:
        """Whether it may publish to this stream, too."""
        return stream in self._handles or len(self._handles) < self.welcome.limits.get("max_handles", HANDLES_MAX)

    def publish(self, request: int, stream: str, frames: OutgoingBuffer, ack: m.Ack, replicas: int) -> None:
        """Raises ConnectionLost, OperationTimeout."""
        head = b""
        if stream not in self._handles:
            self._handles[stream] = len(self._handles) + 1
            head = m.pack(m.Open(self._handles[stream], stream.encode()))
        publish = m.pack_publish(request, ack, [self._handles[stream]], frames, replicas)
        self.send_bytes(b"".join((head, publish, frames)))

    def next_answer(self) -> PublishAnswer:
        """The next answer to a publish, or an error. Raises ConnectionLost, OperationTimeout, BrokerFault."""
        while True:
            answer = self.next_response()
            if isinstance(answer, m.Published | m.Failed):
                return answer


class NumberedPublisher:
    """Use it as a context. All methods raise TailraceError."""

    def __init__(
        self, addresses: Sequence[Address], login: BrokerLogin, producer: bytes, ack: m.Ack, replicas: int = 0
    ) -> None:
        self._addresses = list(addresses)
        self._login = login
        self._ack, self._replicas = ack, replicas
        self._retried = RETRIED_ELSEWHERE if len(self._addresses) > 1 else RETRIED
        self._waiting: dict[int, Waiting] = {}  # by request, the oldest first
        self._waiting_bytes = 0
        self._answers: dict[int, PublishAnswer] = {}  # to questions
        self._requests = 0
        self._failing_since_s: float | None = None
        self._pause_s = PAUSE_S
        self._connection = PublishingConnection(self._addresses, login)
        self.producer = (self._connection.welcome.producer_prefix or b"") + producer

    @property
    def max_message_bytes(self) -> int:
        return self._connection.welcome.limits.get("max_message_bytes", MAX_MESSAGE_BYTES)

    def publish(self, stream: str, frames: OutgoingBuffer, metadata: bytes, number: int) -> None:
        """Takes unstamped frames, of which the first has this metadata and gets this number. Waits only for room."""
        self._add(Waiting(stream, self._numbered(frames, metadata, number), self._ack, False))

    def flush(self) -> None:
        """Waits until everything is answered."""
        while self._waiting:
            self._take_answer()

    def find_begun(self, streams: Iterable[str]) -> list[str]:
        """Returns the streams that have messages of this producer already. Appends nothing."""
        asked = {self._ask(stream, FAR): stream for stream in streams}
        self.flush()
        return [stream for request, stream in asked.items() if self._code(request) == GAP]

    def first_seq(self, stream: str) -> int:
        """The seq of this producer's first message in a stream that has some; 0 if the broker does not know any more.

        Appends nothing.
        """
        request = self._ask(stream, 0)
        self.flush()
        answer = self._answers.pop(request)
        return answer.results[0][0] if isinstance(answer, m.Published) else 0

    def chunks(self, stream: str, first_seq: int) -> Iterator[Chunk]:
        """The present messages of a stream from `first_seq` on, over a connection of their own."""
        with BrokerConnection(self._addresses, self._login) as connection:
            place = connection.place(stream, From("time", 0))
            end_seq = place.next_seq if place.end_seq is None else place.end_seq
            start = max(first_seq, place.first_seq)
            if start < end_seq:
                yield from connection.chunks(stream, start, end_seq)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> NumberedPublisher:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _numbered(self, frames: OutgoingBuffer, metadata: bytes, number: int) -> OutgoingBuffer:
        marked: bytearray = _mark_run(frames, write_numbering(metadata, self.producer, number))
        return marked

    def _ask(self, stream: str, number: int) -> int:
        """Sends a message with a number that makes the broker append nothing. Returns the request."""
        return self._add(Waiting(stream, self._numbered(pack_frame(b""), b"", number), m.Ack.APPENDED, True))

    def _code(self, request: int) -> str:
        answer = self._answers.pop(request)
        return answer.code if isinstance(answer, m.Failed) else ""

    def _add(self, waiting: Waiting) -> int:
        nbytes = len(waiting.frames)
        while self._waiting and not self._has_room(nbytes):
            self._take_answer()
        if not self._connection.has_room(waiting.stream):
            self.flush()
            self._connection.close()
            self._connection = PublishingConnection(self._addresses, self._login)
        self._requests += 1
        self._waiting[self._requests] = waiting
        self._waiting_bytes += nbytes
        try:
            self._send(self._requests)
        except LOST as error:
            self._send_again(error)
        return self._requests

    def _has_room(self, nbytes: int) -> bool:
        return len(self._waiting) < WINDOW_REQUESTS and self._waiting_bytes + nbytes <= WINDOW_BYTES

    def _send(self, request: int) -> None:
        stream, frames, ack, _ = self._waiting[request]
        self._connection.publish(request, stream, frames, ack, self._replicas if ack is m.Ack.REPLICATED else 0)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _take_answer(self) -> None:
        try:
            answer = self._connection.next_answer()
        except LOST as error:
            self._send_again(error)
            return
        request = answer.request if isinstance(answer, m.Published) else answer.id if answer.op == Op.PUBLISH else 0
        waiting = self._waiting.get(request)
        if isinstance(answer, m.Failed) and not (waiting and waiting.asks and answer.code in (GAP, UNKNOWN)):
            self._failed(answer, request, waiting.stream if waiting else "")
        elif waiting is not None:
            self._done(request, waiting, answer)

    def _done(self, request: int, waiting: Waiting, answer: PublishAnswer) -> None:
        del self._waiting[request]
        self._waiting_bytes -= len(waiting.frames)
        if waiting.asks:
            self._answers[request] = answer
        self._failing_since_s, self._pause_s = None, PAUSE_S

    def _failed(self, answer: m.Failed, request: int, stream: str) -> None:
        """Sends everything again, or raises."""
        error = broker_error(answer.code, answer.text, stream)
        if answer.code in self._retried or (answer.code == GAP and self._is_behind(request, stream)):
            self._send_again(error)
            return
        raise error

    def _is_behind(self, request: int, stream: str) -> bool:
        """Whether an earlier publish to the stream has no answer yet: the broker refuses a number that leaves a gap."""
        return any(each.stream == stream for number, each in self._waiting.items() if number < request)

    def _send_again(self, error: TailraceError) -> None:
        """Connects again, at the next address, and sends all that waits. Raises the last error after RETRY_S."""
        now_s = time.monotonic()
        self._failing_since_s = self._failing_since_s or now_s
        give_up_s = self._failing_since_s + RETRY_S
        self._connection.close()
        while time.monotonic() + self._pause_s < give_up_s:
            time.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
            self._addresses.append(self._addresses.pop(0))
            try:
                self._connection = PublishingConnection(self._addresses, self._login)
                for request in self._waiting:
                    self._send(request)
                return
            except LOST as failure:
                error = failure
        raise error
