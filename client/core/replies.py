"""Requests and replies on the ordinary log: their headers, and the replies that a client waits for. Pure bookkeeping.

A request has the headers `reply-to`, the stream that its client reads for replies, and `correlation`, which the reply
repeats. Everybody who reads the request may reply; the first reply counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.core.consumer_calls import new_member
from tailrace.core.headers import CORRELATION, REPLY_TO
from tailrace.core.message import Message
from tailrace.errors import InvalidArgument
from tailrace.shard.names import REPLIES_PREFIX


class PendingReplies:
    """Those of one client, which come in `stream`."""

    def __init__(self) -> None:
        self.stream = REPLIES_PREFIX.decode() + new_member()
        self._waiting: dict[str, Message | None] = {}
        self._number = 0

    def begin(self, headers: Mapping[str, str | bytes] | None) -> tuple[str, dict[str, str | bytes]]:
        """The correlation of a new request, and its headers. Raises InvalidArgument."""
        for name in (REPLY_TO, CORRELATION):
            if headers and name in headers:
                raise InvalidArgument(f"the header {name!r} of a request is the client's own")
        self._number += 1
        correlation = str(self._number)
        self._waiting[correlation] = None
        return correlation, {**(headers or {}), REPLY_TO: self.stream, CORRELATION: correlation}

    def arrived(self, message: Message) -> None:
        """Another reply to the same request, and one to a request that has timed out, are dropped."""
        correlation = message.headers.get(CORRELATION)
        if isinstance(correlation, str) and self._waiting.get(correlation, message) is None:
            self._waiting[correlation] = message

    def reply(self, correlation: str) -> Message | None:
        return self._waiting[correlation]

    def end(self, correlation: str) -> None:
        self._waiting.pop(correlation, None)
