"""Durable consumers of several brokers: each asks for batches, says what it has finished, and counts what is confirmed.

All take BATCH messages at a time, and say of a batch that it is finished together with the next request. tailrace and
JetStream have AHEAD requests under way; Redis gains nothing by it. Messages are counted and thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from bench.peers.base import PAYLOAD_MARK, Puller
from tailrace.protocol.consuming import GOT_HEAD, GOT_RANGE, GOT_RUN, FinishedRow, Get, Run
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.messages import Op, pack

BATCH: Final = 1_000
"""Messages of one request."""
AHEAD: Final = 2
"""Requests that stand at the broker at one time, so that it need not wait for the next."""
WAIT_MS: Final = 10_000
"""How long a request of tailrace's waits for messages."""
MEMBER: Final = b"m"

_REDIS_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n")
_REDIS_HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
_REDIS_ACKED = re.compile(rb":(\d+)\r\n")
_JETSTREAM_HEAD = re.compile(rb"MSG b\.\S+ \d+ (\S+) \d+\r\n")
_JETSTREAM_HEAD_BYTES_MAX = 1_024  # and a message with it: the last whole head is in so many bytes
_PONG = b"PONG\r\n"


class TailraceConsumers(Puller):
    """`consumers` of one stream on one connection, of which each takes `due` messages; at most `lanes` GETs stand at
    the broker at one time, `AHEAD` of them of one consumer.
    """

    def __init__(self, name: str, consumers: Sequence[bytes], due: int, lanes: int = AHEAD, batch: int = BATCH) -> None:
        self._stream = name.encode()
        self._batch = batch
        self._left = dict.fromkeys(consumers, due)  # still to be asked for
        self._idle = iter([consumer for consumer in consumers for _ in range(AHEAD)])
        self._lanes = [_Lane() for _ in range(lanes)]
        self._input = bytearray()  # the head of a GOT, as far as it has come
        self._needed = HEAD_BYTES
        self._skipping = 0  # bytes of frames

    def open(self) -> bytes:
        return b"".join(self._begin(number) for number in range(len(self._lanes)))

    def feed(self, data: bytes) -> bytes:
        said, start = b"", 0
        while start < len(data):
            if self._skipping:
                skipped = min(self._skipping, len(data) - start)
                self._skipping -= skipped
                start += skipped
                continue
            end = start + self._needed - len(self._input)
            self._input += data[start:end]
            start = end
            if len(self._input) == self._needed:
                said += self._look()
        return said

    def _look(self) -> bytes:
        """A head is there: need more of it, or take what it says and pass over the frames behind it."""
        opcode, length = HEAD.unpack_from(self._input)
        if opcode == Op.ERROR and self._needed < HEAD_BYTES + length:
            self._needed = HEAD_BYTES + length
            return b""
        if opcode != Op.GOT:
            raise ValueError(f"tailrace says {bytes(self._input)!r}")
        if self._needed == HEAD_BYTES:
            self._needed += GOT_HEAD.size
            return b""
        number, runs, stale, _trimmed = GOT_HEAD.unpack_from(self._input, HEAD_BYTES)
        start = HEAD_BYTES + GOT_HEAD.size
        end = start + runs * GOT_RUN.size + stale * GOT_RANGE.size
        if self._needed < end:
            self._needed = end
            return b""
        said = self._got(
            number, [GOT_RUN.unpack_from(self._input, start + GOT_RUN.size * place) for place in range(runs)]
        )
        self._skipping = HEAD_BYTES + length - end
        self._input.clear()
        self._needed = HEAD_BYTES
        return said

    def _begin(self, number: int) -> bytes:
        """Let a lane go on with another consumer."""
        consumer = next(self._idle, None)
        if consumer is None:
            return b""
        self._lanes[number] = _Lane(consumer)
        return self._ask(number)

    def _got(self, number: int, rows: Sequence[Run]) -> bytes:
        lane = self._lanes[number]
        self.messages += sum(last - first + 1 for first, last, _ in lane.held)  # this confirms them
        lane.held = tuple((first, first + count - 1, epoch) for first, count, _, epoch in rows)
        self._left[lane.consumer] += lane.asked - sum(run[1] for run in rows)
        over = not rows and not lane.asked
        return self._begin(number) if over else self._ask(number)

    def _ask(self, number: int) -> bytes:
        """The next batch, and that the last one is finished; that alone where there is nothing more to ask for."""
        lane = self._lanes[number]
        lane.asked = min(self._batch, self._left[lane.consumer])
        self._left[lane.consumer] -= lane.asked
        get = Get(number, self._stream, lane.consumer, MEMBER, lane.held, (), lane.asked, wait_ms=WAIT_MS, fresh=True)
        return pack(get)


class _Lane:
    """One GET after the other of one consumer. `held`: got, and not said to be finished."""

    __slots__ = ("asked", "consumer", "held")

    def __init__(self, consumer: bytes = b"") -> None:
        self.consumer = consumer
        self.asked = 0
        self.held: tuple[FinishedRow, ...] = ()


class JetStreamConsumer(Puller):
    """A pull consumer whose acknowledgement of a message is one of all before it, which is the cheapest for it."""

    def __init__(self, request: Callable[[int], bytes], due: int) -> None:
        self._request = request
        self._due = due
        self._got = self._asked = self._acked = 0
        self._tail = b""  # the end of what came, in which the head of the last message is

    def open(self) -> bytes:
        return b"".join(self._ask() for _ in range(AHEAD))

    def feed(self, data: bytes) -> bytes:
        self._tail += data
        if self._got == self._due:
            if _PONG in self._tail:  # the acknowledgement before the PING has been taken
                self.messages = self._got
            return b""
        self._got += data.count(PAYLOAD_MARK)
        if self._got < min(self._acked + BATCH, self._due) or not (heads := _JETSTREAM_HEAD.findall(self._tail)):
            self._tail = self._tail[-_JETSTREAM_HEAD_BYTES_MAX:]
            return b""
        self._tail = self._tail[-_JETSTREAM_HEAD_BYTES_MAX:]
        said = b"PUB %s 4\r\n+ACK\r\n" % heads[-1]
        while self._acked + BATCH <= self._got:
            self._acked += BATCH
            said += self._ask()
        return said + (b"PING\r\n" if self._got == self._due else b"")

    def _ask(self) -> bytes:
        count = min(BATCH, self._due - self._asked)
        self._asked += count
        return self._request(count) if count else b""


class RedisConsumer(Puller):
    """XREADGROUP, and XACK with the ids of the batch before it."""

    def __init__(self, command: Callable[..., bytes], name: str, due: int) -> None:
        self._command = command
        self._name = name.encode()
        self._due = due
        self._got = 0
        self._reply = bytearray()
        self._seen = 0

    def open(self) -> bytes:
        return self._read(min(BATCH, self._due))

    def feed(self, data: bytes) -> bytes:
        self._reply += data
        self._seen += data.count(PAYLOAD_MARK)
        acked = _REDIS_ACKED.match(self._reply)
        if acked:
            self.messages += int(acked[1])
            del self._reply[: acked.end()]
        head = _REDIS_HEAD.match(self._reply)
        if not head or self._seen < int(head[1]) or not self._reply.endswith(b"\r\n"):
            return b""
        ids = _REDIS_ENTRY.findall(self._reply)
        self._reply.clear()
        self._got += len(ids)
        self._seen = 0
        left = self._due - self._got
        ack = self._command(b"XACK", self._name, b"g", *ids)
        return ack + (self._read(min(BATCH, left)) if left else b"")

    def _read(self, count: int) -> bytes:
        return self._command(
            b"XREADGROUP", b"GROUP", b"g", MEMBER, b"COUNT", b"%d" % count, b"STREAMS", self._name, b">"
        )
