"""The calls to the masters of streams over one uplink that have no answer yet.

Each call ends once: with its value, with the refusal of the master's owner, or with `unavailable` when the link is gone
or the answer is far too late. It may have been done all the same: a repeated request must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tailrace.broker.replication.downstream.calls import CALLS_MAX, MemberRequest, pack_request, read_value
from tailrace.broker.replication.upstream.socket import UpstreamClosed
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.consuming import Consume
from tailrace.protocol.errors import Code, code_of
from tailrace.protocol.messages import pack
from tailrace.protocol.names import shown_text
from tailrace.protocol.replication import Call, Returned

PATIENCE_S: Final = 120.0
"""How long an answer may take: longer than any call waits by itself."""
IDS_MAX = (1 << 32) - 1

DOWN_TEXT = "the node that this one follows cannot be reached now; ask again"
LOST_TEXT = "the connection to the node that this one follows has ended; this may or may not be done, ask again"
LATE_TEXT = f"the master of this stream has said nothing for {PATIENCE_S:g} s; this may or may not be done, ask again"
FULL_TEXT = f"{CALLS_MAX} calls to the node that this one follows have no answer yet; ask again later"
NO_FILTERS_TEXT = "the stream's master has no durable consumers with a topic filter: it is another version"
OTHER_VERSION_TEXT = "the node that this one follows cannot be asked this: it is another version"


class _PendingCall(NamedTuple):
    request: MemberRequest
    deadline_s: float
    done: OnResult


class UpstreamCalls:
    """The calls of one uplink. `send_envelope` queues bytes for the other end."""

    def __init__(self, send_envelope: Callable[[bytes], None]) -> None:
        self._send_envelope = send_envelope
        self._is_up = False
        self._has_filters = False
        self._last_id = 0
        self._asked: dict[int, _PendingCall] = {}  # in the order in which they are late

    def __len__(self) -> int:
        return len(self._asked)

    def went_up(self, *, has_filters: bool) -> None:
        """`has_filters`: whether consumers may have topic filters there."""
        self._is_up, self._has_filters = True, has_filters

    def went_down(self) -> None:
        self._is_up = False
        self._fail_all(Code.UNAVAILABLE, LOST_TEXT)

    def tick(self, now_s: float) -> None:
        while self._asked:
            number, asked = next(iter(self._asked.items()))
            if asked.deadline_s > now_s:
                return
            del self._asked[number]
            asked.done(Refused(Code.UNAVAILABLE, LATE_TEXT))

    def call(self, verb: str, request: MemberRequest, done: OnResult, now_s: float) -> None:
        """Ask the owner of the request's stream at its master."""
        try:
            if not self._is_up:
                raise Refused(Code.UNAVAILABLE, DOWN_TEXT)
            if len(self._asked) >= CALLS_MAX:
                raise Refused(Code.OVERLOADED, FULL_TEXT)
            if isinstance(request, Consume) and request.topics and not self._has_filters:
                raise Refused(Code.UNSUPPORTED, NO_FILTERS_TEXT)
            packed = pack_request(request)
        except Refused as refused:
            done(refused)
            return
        self._last_id = self._last_id % IDS_MAX + 1
        self._asked[self._last_id] = _PendingCall(request, now_s + PATIENCE_S, done)
        self._send_envelope(pack(Call(self._last_id, request.stream, verb, packed)))

    def returned(self, message: Returned) -> None:
        """Raises UpstreamClosed for an invalid answer. A late one is passed over."""
        asked = self._asked.get(message.id)
        if asked is None:
            if message.id > self._last_id:
                raise UpstreamClosed(f"it answered call {message.id}, which nobody made")
            return
        value: Any = Refused(code_of(message.code), shown_text(message.text))
        if message.value is not None:
            try:
                value = read_value(asked.request, message.value)
            except ValueError as error:
                raise UpstreamClosed(f"it sent {error}") from None
        del self._asked[message.id]
        asked.done(value)

    def failed(self) -> None:
        """The other end does not know such messages."""
        self._fail_all(Code.UNSUPPORTED, OTHER_VERSION_TEXT)

    def _fail_all(self, code: Code, text: str) -> None:
        asked, self._asked = self._asked, {}
        for each in asked.values():
            each.done(Refused(code, text))
