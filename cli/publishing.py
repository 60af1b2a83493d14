"""`tailrace pub` without its face: lines from a descriptor to streams, in batches, every acknowledgement checked.

The client's window of unacknowledged publishes bounds the reading. While the input is silent, the client's keeper
thread sends the lines read before and answers the broker.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tailrace import Ack, BatchResult, BrokerError, Client, DiskFull, TailraceError
from tailrace.cli.ending import NO_CONNECTION, CommandError
from tailrace.cli.lines import LineSplitter
from tailrace.cli.template import NoStream
from tailrace.core.address import Address
from tailrace.core.headers import pack_headers
from tailrace.sync.batcher import Batcher

BLOCK_BYTES = 256 << 10  # of input a read
REFUSALS_MAX = 10  # shown one by one; the rest is counted
BATCHERS_MAX = 1_000  # streams that have a batch of their own; more than that begin anew
TICK_S = 0.1
CONSEQUENCES = frozenset({"producer", "gap", "full"})
"""Codes of what follows a message that was refused, since its number is missing or its stream's disk is full."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that is not in a stream: its number from 1 (0 if unknown), a code of the protocol, a text."""

    line: int
    code: str
    text: str


@dataclass
class PublishOutcome:
    """The result of publishing, so far or at the end."""

    lines: int = 0  # read, the last one perhaps in part
    input_bytes: int = 0
    acknowledged: int = 0
    refused: int = 0  # without acknowledgements: errors received
    refusals: list[Refusal] = field(default_factory=list)  # the first few
    first_seq: int = -1  # of one stream
    last_seq: int = -1
    seconds: float = 0.0
    full_at: int = -1  # the first line for which the node had no space; 0 if it is not known

    def refuse(self, lines: Sequence[int], code: str, text: str) -> None:
        self.refused += len(lines)
        shown = 1 if code == DiskFull.code else REFUSALS_MAX - len(self.refusals)
        for line in lines[:shown] if len(self.refusals) < REFUSALS_MAX else ():
            self.refusals.append(Refusal(line, code, text))


class Lane:
    """One stream: its batcher, and the numbers of its unacknowledged lines, in order."""

    def __init__(self, publisher: Publisher, stream: str) -> None:
        self._publisher = publisher
        self._numbers: deque[Sequence[int]] = deque()
        self._refused = False
        self.batcher: Batcher = publisher.client.batcher(
            stream,
            headers=publisher.headers,
            topic=publisher.topic,
            ack=publisher.ack,
            replicas=publisher.replicas,
            on_result=self._hear,
        )

    def extend(self, lines: list[bytes], numbers: Sequence[int]) -> None:
        self._numbers.append(numbers)
        separator = self._publisher.separator
        if separator is None:
            self.batcher.extend(lines)
            return
        for line in lines:
            key, found, payload = line.partition(separator)
            if found:
                self.batcher.add(payload, key=_shown_key(key))
            else:
                self.batcher.add(line)

    def is_consequence(self, error: BrokerError) -> bool:
        """Whether this refusal only says that an earlier batch of the stream was refused."""
        found = self._refused and error.code in CONSEQUENCES
        self._refused = True
        return found

    def _hear(self, result: BatchResult) -> None:
        numbers: list[int] = []
        while len(numbers) < result.count:
            head = self._numbers.popleft()
            room = result.count - len(numbers)
            numbers += head[:room]
            if room < len(head):
                self._numbers.appendleft(head[room:])
        self._publisher.hear(result, numbers, self)


def _shown_key(key: bytes) -> str | bytes:
    """A text, as programs write keys, if it is one."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


class Publisher:
    """One run of `tailrace pub`."""

    def __init__(
        self,
        client: Client,
        server: Address,
        input_fd: int,
        stream: str | Callable[[bytes], str],
        *,
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        headers: dict[str, str | bytes] | None = None,
        topic: str | None = None,
        separator: bytes | None = None,
        tick: Callable[[PublishOutcome], None] = lambda _outcome: None,
    ) -> None:
        """`stream`: one for all lines, or a function from a line to its own. `separator`: between a line's key and its
        message. `tick` is called about every TICK_S."""
        self.outcome = PublishOutcome()
        self.client = client
        self.ack = ack
        self.replicas = replicas
        self.headers = headers or {}
        self.topic = topic
        self.separator = separator
        self._server = server
        self._input_fd = input_fd
        self._stream = stream
        self._tick = tick
        self._max_bytes = client.limits["max_message_bytes"] - len(pack_headers(headers, topic=topic))
        self._lanes: dict[str, Lane] = {}
        self._lost: TailraceError | None = None
        self._lost_from = 0  # the first line that may be missing

    def run(self) -> PublishOutcome:
        """Publish until the input ends and every line has its outcome. Raises CommandError."""
        started_s = ticked_s = time.monotonic()
        splitter = LineSplitter(self._max_bytes)
        ended = False
        while not ended and self.outcome.full_at < 0:
            if self._has_input():
                block = os.read(self._input_fd, BLOCK_BYTES)
                ended = not block
                ended_before = splitter.ended
                lines = splitter.split(block) if block else splitter.finish()
                self.outcome.input_bytes += len(block)
                self.outcome.lines = splitter.begun
                if lines:
                    self._publish(lines, range(ended_before + 1, ended_before + 1 + len(lines)))
            self._check()
            now_s = time.monotonic()
            if now_s - ticked_s >= TICK_S:
                ticked_s = now_s
                self.outcome.seconds = now_s - started_s
                self._tick(self.outcome)
        self._finish()
        self.outcome.seconds = time.monotonic() - started_s
        self._tick(self.outcome)
        return self.outcome

    def hear(self, result: BatchResult, numbers: list[int], lane: Lane) -> None:
        """Records the result of the lines with these numbers."""
        outcome = self.outcome
        if result.receipt is not None:
            if self.ack is not Ack.NONE:
                outcome.acknowledged += result.count
                outcome.first_seq = result.receipt.seq if outcome.first_seq < 0 else outcome.first_seq
                outcome.last_seq = result.receipt.last_seq
        elif isinstance(result.error, BrokerError):
            if lane.is_consequence(result.error):
                outcome.refused += len(numbers)
            else:
                outcome.refuse(numbers, result.error.code, result.error.text)
            self._note_full(result.error, numbers[0])
        else:
            self._lost = self._lost or result.error
            self._lost_from = min(self._lost_from or numbers[0], numbers[0])

    def _note_full(self, error: TailraceError | None, line: int) -> None:
        """The node has no space: reading more would only be refused too."""
        if isinstance(error, DiskFull) and self.outcome.full_at < 0:
            self.outcome.full_at = line

    # --- one block ----------------------------------------------------------------------------------------------------

    def _has_input(self) -> bool:
        poller = select.poll()
        poller.register(self._input_fd, select.POLLIN)
        return bool(poller.poll(TICK_S * 1_000))

    def _publish(self, lines: list[bytes], numbers: Sequence[int]) -> None:
        if max(map(len, lines)) > self._max_bytes:
            lines, numbers = self._without_large(lines, numbers)
        if isinstance(self._stream, str):
            if lines:
                self._lane(self._stream).extend(lines, numbers)
            return
        for stream, (some_lines, some_numbers) in self._by_stream(self._stream, lines, numbers).items():
            self._lane(stream).extend(some_lines, some_numbers)

    def _without_large(self, lines: list[bytes], numbers: Sequence[int]) -> tuple[list[bytes], Sequence[int]]:
        text = f"the line exceeds the broker's limit of {self._max_bytes:,} bytes"
        self.outcome.refuse(
            [n for n, each in zip(numbers, lines, strict=True) if len(each) > self._max_bytes], "size", text
        )
        kept = [(n, each) for n, each in zip(numbers, lines, strict=True) if len(each) <= self._max_bytes]
        return [each for _, each in kept], [n for n, _ in kept]

    def _by_stream(
        self, stream_of: Callable[[bytes], str], lines: list[bytes], numbers: Sequence[int]
    ) -> dict[str, tuple[list[bytes], list[int]]]:
        found: dict[str, tuple[list[bytes], list[int]]] = {}
        for number, line in zip(numbers, lines, strict=True):
            try:
                some = found.setdefault(stream_of(line), ([], []))
            except NoStream as error:
                self.outcome.refuse([number], "name", str(error))
                continue
            some[0].append(line)
            some[1].append(number)
        return found

    def _lane(self, stream: str) -> Lane:
        lane = self._lanes.get(stream)
        if lane is None:
            if len(self._lanes) >= BATCHERS_MAX:
                self._flush()
                self._lanes.clear()
            lane = self._lanes[stream] = Lane(self, stream)
        return lane

    # --- the end ------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        for lane in self._lanes.values():
            lane.batcher.flush()

    def _check(self) -> None:
        """Raises CommandError when the connection is gone for good."""
        if self.ack is Ack.NONE:
            self._note_full(self.client.last_refusal, 0)
        lost = self._lost or self.client.failure
        if lost is not None:
            self._flush()  # so that each line is counted
            raise CommandError(self._lost_text(lost), NO_CONNECTION)

    def _finish(self) -> None:
        self._flush()
        self.client.close()
        if self.ack is Ack.NONE:
            self.outcome.refused += self.client.refused
            refusal = self.client.last_refusal
            if isinstance(refusal, BrokerError):
                self.outcome.refusals.append(Refusal(0, refusal.code, refusal.text))
        self._check()

    def _lost_text(self, lost: TailraceError) -> str:
        outcome = self.outcome
        text = f"connection to {self._server} lost ({lost}); "
        if self.ack is Ack.NONE:
            return f"{text}{outcome.lines:,} lines were read; how many arrived is unknown"
        text += f"{outcome.acknowledged:,} of {outcome.lines:,} lines read were acknowledged"
        return f"{text}; line {self._lost_from:,} and later lines may be missing" if self._lost_from else text
