"""One subscription, whatever connections it lives through. Pure: chunks in, batches of messages out.

Its rule for seqs: the first chunk begins where the broker said it would, and from there each message is the next. One
that was seen before is dropped. One that is missing ends the subscription with an error, unless the broker told of a
trim: then reading goes on behind the hole, after a Trimmed error or, where that was chosen, silently.

The broker may send only so much ahead of the reader (`window_bytes`); what is taken out by `pop` is granted again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from broker.protocol.fields import NUMBER_MAX
from broker.protocol.messages import Chunk, Ended, Place, Subscribe, Subscribed
from broker.protocol.places import From
from shard.leaves import load
from tailrace.backoff import Backoff
from tailrace.errors import (
    DamagedMessage,
    InvalidArgument,
    OperationTimeout,
    SeqFault,
    StreamBehind,
    TailraceError,
    Trimmed,
    broker_error,
)
from tailrace.message import Message
from tailrace.options import WINDOW_BYTES

RESUMED: Final = frozenset({"unavailable", "overloaded", "closing", "slow"})
"""Codes after which a subscription is asked for again."""

_parse = load("shard.frame_cy").parse


class State(Enum):
    WANTED = 0  # to be asked for, on this connection or the next
    ASKED = 1
    LIVE = 2
    OVER = 3  # at its end, cancelled, or failed: nothing more comes in


@dataclass(frozen=True, slots=True)
class Wish:
    """What a program wants to read. `window_bytes`: of frames that may be sent ahead; `timeout_s`: for the answer."""

    stream: str
    start: From
    skip: int = 0
    end: Place | None = None
    window_bytes: int = WINDOW_BYTES
    check_crc: bool = True
    raise_trimmed: bool = True
    timeout_s: float = math.inf

    def __post_init__(self) -> None:
        for name, value, least in (("skip", self.skip, 0), ("credit_bytes", self.window_bytes, 1)):
            if type(value) is not int or not least <= value <= NUMBER_MAX:
                raise InvalidArgument(f"{name} is {value!r}; it is a number from {least} to {NUMBER_MAX}")


class Reading:
    """`ready` once the broker has answered. After OVER `pop` gives what is left, then raises the error, if any."""

    def __init__(self, number: int, wish: Wish, random: Callable[[], float], now_s: float) -> None:
        self.id = number
        self.stream = wish.stream
        self.state = State.WANTED
        self.ready = False
        self.next_seq = -1  # of the next message to come in, once ready
        self.start_seq = -1  # of the first message, once ready
        self.end_seq: int | None = None
        self.trimmed_count = 0  # messages that were missed by trims
        self.error: TailraceError | None = None
        self.not_before_s = -math.inf
        self.deadline_s = now_s + wish.timeout_s  # for being ready, or ready again
        self.waiter: object = None  # whatever the shell wants to keep here
        self._wish = wish
        self._backoff = Backoff(random)
        self._batches: deque[tuple[list[Message], int] | Trimmed] = deque()
        self._held_bytes = 0
        self._owed_bytes = 0
        self._trim_told = False
        self._refusal: TailraceError | None = None

    # --- asking -----------------------------------------------------------------------------------------------------

    def request(self) -> Subscribe:
        """What to ask the broker: as at first, or from where it stands."""
        self.state = State.ASKED
        self._owed_bytes = 0
        self._trim_told = False
        wish, credit = self._wish, max(0, self._wish.window_bytes - self._held_bytes)
        if not self.ready:
            return Subscribe(self.id, self.stream.encode(), wish.start, wish.skip, wish.end, credit)
        end = None if self.end_seq is None else ("seq", self.end_seq)
        return Subscribe(self.id, self.stream.encode(), From("seq", self.next_seq), 0, end, credit)

    def connection_lost(self) -> None:
        if self.state is not State.OVER:
            self.state = State.WANTED
            if self.ready and self.next_seq == self.end_seq:
                self.state = State.OVER

    # --- what the broker says ---------------------------------------------------------------------------------------

    def subscribed(self, answer: Subscribed) -> None:
        if self.state is not State.ASKED:
            return
        start = self._wish.start
        expected = self.next_seq if self.ready else start.value if start.kind == "seq" else answer.next_seq
        if not self.ready:
            self.end_seq = answer.end_seq
            self.start_seq = answer.next_seq
        self.state = State.LIVE
        self.ready = True
        self.deadline_s = math.inf
        self._backoff.reset()
        self._refusal = None
        self.next_seq = expected
        if answer.next_seq < expected and expected != self.end_seq:
            self.fail(StreamBehind(self.stream, expected, answer.next_seq))
        elif answer.next_seq > expected:
            self._miss(answer.next_seq)

    def chunk(self, chunk: Chunk) -> None:
        if self.state is not State.LIVE:
            return
        nbytes = len(chunk.frames)
        try:
            found = _parse(chunk.frames, 0, nbytes, self._wish.check_crc)
        except ValueError as error:
            self.fail(DamagedMessage(f"{self.stream}: from seq {self.next_seq} on: {error}"))
            return
        if found[0][0] != self.next_seq:
            found = [each for each in found if each[0] >= self.next_seq]
            if not found:
                self._owed_bytes += nbytes
                return
            if found[0][0] > self.next_seq and not self._hole(found[0][0]):
                return
        stream, make = self.stream, tuple.__new__
        self._batches.append(
            (
                [
                    make(Message, (stream, seq, timestamp_us, payload, metadata))
                    for seq, timestamp_us, _epoch, _flags, metadata, payload in found
                ],
                nbytes,
            )
        )
        self._held_bytes += nbytes
        self.next_seq = found[-1][0] + 1

    def trimmed(self) -> None:
        """The broker says that messages were dropped before it could send them."""
        self._trim_told = True

    def refused(self, code: str, text: str, now_s: float, patience_s: float) -> None:
        """The broker does not do it, or not now: then it is asked again, for at most `patience_s`."""
        if self.state is State.OVER:
            return
        self._refusal = broker_error(code, text, self.stream)
        if code not in RESUMED:
            self.fail(self._refusal)
            return
        if self.ready:
            self.deadline_s = min(self.deadline_s, now_s + patience_s)
        self.state = State.WANTED
        self.not_before_s = now_s + self._backoff.next_s()

    def ended(self, answer: Ended, now_s: float, patience_s: float) -> None:
        if answer.code:
            self.refused(answer.code, answer.text, now_s, patience_s)
        elif self.state is not State.OVER and (answer.next_seq <= self.next_seq or self._hole(answer.next_seq)):
            self.state = State.OVER

    def expire(self, now_s: float) -> None:
        """Fail when the broker has not answered in time."""
        if self.state is not State.OVER and now_s >= self.deadline_s:
            text = f"{self.stream}: no answer to the subscription within {self._wish.timeout_s:g} s"
            self.fail(self._refusal or OperationTimeout(text))

    # --- ending -----------------------------------------------------------------------------------------------------

    def fail(self, error: TailraceError) -> None:
        if self.state is not State.OVER:
            self.state = State.OVER
            self.error = error

    def cancel(self) -> None:
        """What is held is let go, and iteration ends."""
        self.state = State.OVER
        self.error = None
        self._batches.clear()
        self._held_bytes = 0

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether `pop` has something to give or to raise, or can say that nothing more comes."""
        return bool(self._batches) or self.state is State.OVER

    def pop(self) -> list[Message]:
        """The next messages; [] for none now, or for ever when OVER. Raises what went wrong, once."""
        if not self._batches:
            error, self.error = self.error, None
            if error is not None:
                raise error
            return []
        head = self._batches.popleft()
        if isinstance(head, Trimmed):
            raise head
        messages, nbytes = head
        self._held_bytes -= nbytes
        self._owed_bytes += nbytes
        return messages

    def take_grant(self) -> int:
        """The bytes of credit to give now; 0 while it is too little to speak of."""
        owed = self._owed_bytes
        if self.state is not State.LIVE or owed == 0 or owed < self._wish.window_bytes // 2:
            return 0
        self._owed_bytes = 0
        return owed

    # --- holes ------------------------------------------------------------------------------------------------------

    def _hole(self, seq: int) -> bool:
        """Messages before `seq` did not come. Whether that is in order."""
        if not self._trim_told:
            text = f"{self.stream}: seq {seq} came where {self.next_seq} was next; subscribe again from there"
            self.fail(SeqFault(text))
            return False
        self._trim_told = False
        self._miss(seq)
        return True

    def _miss(self, seq: int) -> None:
        first_seq, last_seq = self.next_seq, seq - 1
        self.trimmed_count += seq - first_seq
        self.next_seq = seq
        if self._wish.raise_trimmed:
            text = f"{self.stream}: messages {first_seq} to {last_seq} were trimmed before they were read; "
            text += 'iterate again to go on behind them, or subscribe with on_trimmed="skip"'
            self._batches.append(Trimmed(text, self.stream, "", first_seq, last_seq))
