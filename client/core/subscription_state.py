"""One subscription across its connections. Pure: chunks in, batches of messages out.

Its rule for seqs: the first chunk begins at the announced seq, and from there each message is the next; with a filter
of topics, a later one. Repeated messages are dropped. A missing one ends the subscription with an error, unless the
broker has reported a trim: then reading continues after the hole, after a Trimmed error or, with `on_trimmed="skip"`,
silently.

A repeated SUBSCRIBE asks for the last message too, to check that it is still the same: another node may have become the
stream's master, and have others there.

The broker may send only so much ahead of the reader (`window_bytes`); what the reader is done with is granted again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from tailrace.core.backoff import BRIEF_MOST_S, Backoff
from tailrace.core.message import Message
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.errors import (
    DamagedMessage,
    OperationTimeout,
    SeqFault,
    StreamBehind,
    StreamDeleted,
    StreamDiverged,
    TailraceError,
    Trimmed,
    UnknownStream,
    broker_error,
)
from tailrace.protocol.messages import Chunk, Ended, Subscribe, Subscribed
from tailrace.protocol.places import From
from tailrace.shard.leaves import load

RESUMED: Final = frozenset({"unavailable", "overloaded", "closing", "slow"})
"""Codes after which a subscription is asked for again."""
RESUMED_ELSEWHERE: Final = RESUMED | {"unknown"}
"""Likewise, of one that was read from another node: this one may not have its copy of the stream yet."""

NO_LAST: Final = (-1, 0, 0)
"""Stands for the seq, time and epoch of the last message while none has come in."""

_parse = load("tailrace.shard.frame_cy").parse


class SubscriptionPhase(Enum):
    WANTED = 0  # to be asked for, on this connection or the next
    ASKED = 1
    LIVE = 2
    OVER = 3  # at its end, cancelled, or failed: nothing more comes in


class Arrived(NamedTuple):
    """Consecutive messages, and the seq after them; or a trimmed hole, and its error."""

    messages: list[Message]
    nbytes: int  # of their frames
    next_seq: int
    trimmed: Trimmed | None = None


class SubscriptionState:
    """`ready` once the broker has answered. After OVER `first` returns the rest, then raises the error, if any."""

    def __init__(self, number: int, options: SubscribeOptions, random: Callable[[], float], now_s: float) -> None:
        self.id = number
        self.stream = options.stream
        self.phase = SubscriptionPhase.WANTED
        self.ready = False
        self.start_seq = -1  # of the first message, once ready
        self.end_seq: int | None = None
        self.trimmed_count = 0  # messages that were missed by trims
        self.error: TailraceError | None = None
        self.not_before_s = -math.inf
        self.deadline_s = now_s + options.timeout_s  # for being ready, or ready again
        self.waiter: object = None  # for the shell's use
        self.message_kind = Message
        self._options = options
        self._topics = options.topics.encode()
        self._holder = ""  # the stream that has the messages, if the name is that of a topic, or a filter
        self._backoff = Backoff(random, most_s=BRIEF_MOST_S)
        self._arrived: deque[Arrived] = deque()
        self._base_seq = -1  # of the next message to come in, if no message that has arrived shows it
        self._held_bytes = 0
        self._owed_bytes = 0  # below 0: bytes held beyond the window
        self._trim_reported = False
        self._refusal: TailraceError | None = None
        self._last = options.last or NO_LAST
        self._asked_seq = -1
        if options.last is not None:
            self._base_seq = options.start.value

    @property
    def has_filter(self) -> bool:
        """Whether it has a filter of topics, and so holes between its seqs."""
        return bool(self._topics or self._holder)

    @property
    def resumes(self) -> bool:
        """Whether some of the stream was read before."""
        return self.ready or self._options.resumes

    @property
    def next_seq(self) -> int:
        """The seq of the next message to come in, once ready."""
        return self._arrived[-1].next_seq if self._arrived else self._base_seq

    @property
    def last(self) -> tuple[int, int, int]:
        """Seq, time and epoch of the last message that came in, or NO_LAST."""
        return self._last

    @property
    def _has_place(self) -> bool:
        """Whether the messages before `next_seq` have been read."""
        return self.ready or self._options.last is not None

    # --- asking -----------------------------------------------------------------------------------------------------

    def request(self) -> Subscribe:
        """The SUBSCRIBE to send: as at first, or from its position."""
        self.phase = SubscriptionPhase.ASKED
        self._trim_reported = False
        options, room_bytes = self._options, self._options.window_bytes - self._held_bytes
        credit, self._owed_bytes = max(0, room_bytes), min(0, room_bytes)
        if not self._has_place:
            name, wait = self.stream.encode(), options.wait
            return Subscribe(self.id, name, options.start, options.skip, options.end, credit, wait, self._topics)
        end = options.end
        if self.ready:
            end = None if self.end_seq is None else ("seq", self.end_seq)
        has_last = self._last[0] == self.next_seq - 1 >= 0
        self._asked_seq = self.next_seq - 1 if has_last else self.next_seq
        waits = options.wait and self.next_seq == 0
        start = From("seq", self._asked_seq)
        return Subscribe(self.id, self.stream.encode(), start, 0, end, credit, waits, self._topics)

    def connection_lost(self) -> None:
        if self.phase is not SubscriptionPhase.OVER:
            self.phase = SubscriptionPhase.WANTED
            if self.ready and self.next_seq == self.end_seq:
                self.phase = SubscriptionPhase.OVER

    def recover(self) -> None:
        """Rebuilds derived state after an interrupted step; the connection is lost."""
        self._held_bytes = sum(each.nbytes for each in self._arrived)
        self.connection_lost()

    # --- messages of the broker --------------------------------------------------------------------------------------

    def subscribed(self, answer: Subscribed, now_s: float = 0.0, patience_s: float = 0.0) -> None:
        """`patience_s`: how long a stream may be behind the messages read from another node."""
        if self.phase is not SubscriptionPhase.ASKED:
            return
        start = self._options.start
        expected = self.next_seq if self._has_place else start.value if start.kind == "seq" else answer.next_seq
        least = self._asked_seq if self._has_place else expected
        reaches_seq = answer.next_seq
        if self._has_place and not self.ready and self._options.end == ("now", 0) and answer.end_seq is not None:
            least, reaches_seq = expected, max(answer.next_seq, answer.end_seq)
        is_behind = reaches_seq < least and expected != self.end_seq
        if self.resumes and patience_s and is_behind:
            self._ask_again(StreamBehind(self.stream, expected, reaches_seq), now_s, patience_s)
            return
        self._holder = answer.stream or ""
        has_begun = self.ready
        if not self.ready:
            self.end_seq = answer.end_seq
            self.start_seq = answer.next_seq
            self._base_seq = expected
            self.ready = True
        self.phase = SubscriptionPhase.LIVE
        self.deadline_s = math.inf
        self._backoff.reset()
        self._refusal = None
        if is_behind and expected != self.end_seq:
            self.fail(StreamBehind(self.stream, expected, reaches_seq, has_begun=has_begun))
        elif answer.next_seq > expected:
            self._miss(answer.next_seq)

    def chunk(self, chunk: Chunk) -> None:
        if self.phase is not SubscriptionPhase.LIVE:
            return
        nbytes = len(chunk.frames)
        try:
            found = _parse(chunk.frames, 0, nbytes, self._options.check_crc, self.has_filter)
        except ValueError as error:
            self.fail(DamagedMessage(f"{self.stream}: from seq {self.next_seq} on: {error}"))
            return
        if found[0][0] != self.next_seq:
            if not self._is_same(found):
                return
            found = [each for each in found if each[0] >= self.next_seq]
            if not found:
                self._owed_bytes += nbytes
                return
            if found[0][0] > self.next_seq and not self._hole(found[0][0]):
                return
        stream, make, kind = self._holder or self.stream, tuple.__new__, self.message_kind
        messages = [
            make(kind, (stream, seq, timestamp_us, payload, metadata, epoch))
            for seq, timestamp_us, epoch, _flags, metadata, payload in found
        ]
        self._arrived.append(Arrived(messages, nbytes, found[-1][0] + 1))
        self._held_bytes += nbytes
        self._last = found[-1][:3]

    def trimmed(self) -> None:
        """The broker reports that messages were dropped before it could send them."""
        self._trim_reported = True

    def refused(self, code: str, text: str, now_s: float, patience_s: float, resumed: frozenset[str] = RESUMED) -> None:
        """The broker does not do it, or not now (`resumed`): then it is asked again, for at most `patience_s`."""
        if self.phase is SubscriptionPhase.OVER:
            return
        refusal = broker_error(code, text, self.stream)
        if code in resumed:
            self._ask_again(refusal, now_s, patience_s)
        elif code == UnknownStream.code and self.ready and self.phase is SubscriptionPhase.ASKED:
            # the notice of its end was lost with a connection
            self.fail(StreamDeleted(f"{text}; it was there before the connection was lost", self.stream))
        else:
            self.fail(refusal)

    def _ask_again(self, refusal: TailraceError, now_s: float, patience_s: float) -> None:
        self._refusal = refusal
        if self.resumes:
            self.deadline_s = min(self.deadline_s, now_s + patience_s)
        self.phase = SubscriptionPhase.WANTED
        self.not_before_s = now_s + self._backoff.next_s()

    def ended(self, answer: Ended, now_s: float, patience_s: float) -> None:
        if answer.code == StreamDiverged.code:
            self.fail(StreamDiverged(answer.text, self.stream, next_seq=answer.next_seq))
        elif answer.code:
            self.refused(answer.code, answer.text, now_s, patience_s)
        elif self.phase is SubscriptionPhase.LIVE and (answer.next_seq <= self.next_seq or self._hole(answer.next_seq)):
            self.phase = SubscriptionPhase.OVER

    def expire(self, now_s: float) -> None:
        """Fail when the broker has not answered in time."""
        if self.phase is not SubscriptionPhase.OVER and now_s >= self.deadline_s:
            text = f"{self.stream}: no answer to the subscription within {self._options.timeout_s:g} s"
            self.fail(self._refusal or OperationTimeout(text))

    # --- ending -----------------------------------------------------------------------------------------------------

    def fail(self, error: TailraceError) -> None:
        if self.phase is not SubscriptionPhase.OVER:
            self.phase = SubscriptionPhase.OVER
            self.error = error

    def leave(self) -> None:
        """Ends it here; held messages are still read."""
        self.phase = SubscriptionPhase.OVER

    def cancel(self) -> None:
        """Drops held messages and ends iteration."""
        self.phase = SubscriptionPhase.OVER
        self.error = None
        self._base_seq = self.next_seq
        self._arrived.clear()
        self._held_bytes = 0

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether `first` has something to return or to raise, or can report the end."""
        return bool(self._arrived) or self.phase is SubscriptionPhase.OVER

    @property
    def holds_any(self) -> bool:
        """Whether items are here that the program is not done with."""
        return bool(self._arrived)

    def first(self) -> Arrived | None:
        """Returns the oldest item that arrived, until it is `done_with`; None for nothing now, or for ever when OVER.

        Raises what went wrong, behind all that came before it.
        """
        if self._arrived:
            return self._arrived[0]
        if self.error is not None:
            raise self.error
        return None

    def done_with(self, arrived: Arrived | None) -> None:
        """The program has it. May be called again."""
        if arrived is not None and self._arrived and self._arrived[0] is arrived:
            self._base_seq = arrived.next_seq
            self._arrived.popleft()
            self._held_bytes -= arrived.nbytes
            self._owed_bytes += arrived.nbytes

    def skip_to(self, seq: int, last: tuple[int, int, int]) -> None:
        """All before `seq` was read elsewhere; `last`: of the message before it, or NO_LAST."""
        if seq <= self._base_seq:
            return
        ahead = seq > self.next_seq
        kept = [(each, [one for one in each.messages if one.seq >= seq]) for each in self._arrived]
        dropped_bytes = sum(each.nbytes for each, messages in kept if not messages and each.next_seq <= seq)
        self._arrived = deque(
            each._replace(messages=messages) for each, messages in kept if messages or each.next_seq > seq
        )
        self._base_seq = seq
        self._held_bytes -= dropped_bytes
        self._owed_bytes += dropped_bytes
        if ahead:
            self._last = last

    def take_grant(self) -> int:
        """The bytes of credit to give now; 0 while it is too little to speak of."""
        owed = self._owed_bytes
        if self.phase is not SubscriptionPhase.LIVE or owed <= 0 or owed < self._options.window_bytes // 2:
            return 0
        self._owed_bytes = 0
        return owed

    # --- holes ------------------------------------------------------------------------------------------------------

    def _is_same(self, found: list[tuple[int, int, int, int, bytes, bytes]]) -> bool:
        """Whether the last message that came in is unchanged, if it is among these."""
        last = self._last
        for row in found:
            if row[0] == last[0] and row[:3] != last:
                text = (
                    f"{self.stream}: message {last[0]}, and perhaps some before it, differ from those that were read: "
                )
                text += "another node is the stream's master, and did not have them"
                self.fail(StreamDiverged(text, self.stream, next_seq=last[0]))
                return False
        return True

    def _hole(self, seq: int) -> bool:
        """Messages before `seq` did not come. Whether that is in order."""
        if self.has_filter and not self._trim_reported:
            return True
        if not self._trim_reported:
            text = f"{self.stream}: seq {seq} came where {self.next_seq} was next; subscribe again from there"
            self.fail(SeqFault(text))
            return False
        self._trim_reported = False
        self._miss(seq)
        return True

    def _miss(self, seq: int) -> None:
        first_seq, last_seq = self.next_seq, seq - 1
        self.trimmed_count += seq - first_seq
        trimmed = None
        if self._options.raise_trimmed:
            text = f"{self.stream}: messages {first_seq} to {last_seq} were trimmed before they were read; "
            text += 'iterate again to continue after them, or subscribe with on_trimmed="skip"'
            trimmed = Trimmed(text, self.stream, "", first_seq, last_seq)
        self._arrived.append(Arrived([], 0, seq, trimmed))
