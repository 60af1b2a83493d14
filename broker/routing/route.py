"""The way to the owner of a slot's shards: requests that wait or are in flight, and their fate when the owner goes.

A `Route` exists for every slot of the node but one's own. Requests go out in order over the link to the slot's present
owner and are kept until they are answered:

    waiting   not sent: the owner is down, being replaced, or the successor's link is not open yet
    inflight  sent and not answered

If the owner dies, requests in flight fail with `unavailable` (they may have been logged: only the publisher can find
out) and waiting ones go to the next owner, or fail when `unavailable_timeout_s` has passed. If the owner is replaced in
good order it answers MOVED to all it did not do; those requests go back to the head of the row, still in order, and the
successor gets nothing before the last answer of its predecessor is in, so that a publisher's order holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tailrace.protocol.errors import Code

OWNER = "the worker that owns this stream"
LOST_TEXT = "{who} ended before it answered; this may or may not be logged"
DOWN_TEXT = "{who} is down; nothing of this was logged, send it again"
OVERLOAD_TEXT = "{who} is too far behind; nothing of this was logged, send more slowly"

OVERLOAD_FACTOR = 4  # a route that holds this many windows refuses more with `overloaded`


class RequestLink(Protocol):
    """What requests go out over: a link to a sibling, or to another node."""

    def queue(self, *buffers: bytes | bytearray | memoryview) -> None: ...


class RoutedRequest(Protocol):
    """Something asked of an owner: a forwarded publish or a call."""

    request_id: int
    nbytes: int
    since_s: float

    def send(self, link: Any) -> None:
        """Queue the request's envelope on the link, which is a Carrier."""

    def fail(self, code: Code, text: str) -> None: ...


class Route:
    """One slot's row of requests. The worker calls; nothing here touches a socket but through `RoutedRequest.send`.

    `broker.replication` has a route of this kind to each node whose streams are followed: `who` is what errors call the
    other end.
    """

    __slots__ = (
        "_clock",
        "_moving",
        "_on_switch",
        "_wake",
        "bytes_held",
        "feeders",
        "inflight",
        "link",
        "slot",
        "successor",
        "waiting",
        "who",
        "window_bytes",
    )

    def __init__(
        self,
        slot: int,
        window_bytes: int,
        clock: Callable[[], float],
        wake: Callable[[Any], None],
        who: str = OWNER,
        *,
        on_switch: Callable[[Any], None],
    ) -> None:
        """on_switch: called with the new `link` when it has become another one."""
        self.slot = slot
        self.who = who
        self.window_bytes = window_bytes
        self.link: Any = None  # the owner's; all that is in flight went over it
        self.successor: Any = None  # becomes `link` when nothing is in flight on the old one
        self._moving = False  # the owner has begun to answer MOVED: send it nothing more
        self.waiting: deque[RoutedRequest] = deque()
        self.inflight: dict[int, RoutedRequest] = {}
        self.bytes_held = 0
        self._on_switch = on_switch
        self.feeders: set[Callable[[], None]] = set()  # what to call when there is room again
        self._clock = clock
        self._wake = wake

    @property
    def congested(self) -> bool:
        return self.bytes_held > self.window_bytes

    @property
    def overloaded(self) -> bool:
        return self.bytes_held > OVERLOAD_FACTOR * self.window_bytes

    def submit(self, request: RoutedRequest) -> None:
        """Send the request now if the owner can take it, else let it wait. Refuses it when the row is far over its
        window.
        """
        if self.overloaded:
            request.fail(Code.OVERLOADED, OVERLOAD_TEXT.format(who=self.who))
            return
        request.since_s = self._clock()
        self.bytes_held += request.nbytes
        if self.link is None or self._moving or self.successor is not None:
            self.waiting.append(request)
        else:
            self._send(request, self.link)

    def settle(self, request_id: int) -> RoutedRequest | None:
        """The request that an answer is for; None when it has failed in the meantime."""
        request = self.inflight.pop(request_id, None)
        if request is not None:
            self._release(request)
            self._maybe_switch()
        return request

    def lighten(self, request_id: int, nbytes: int) -> RoutedRequest | None:
        """Let a request under way count for `nbytes` from now on: the owner has taken the rest of it over."""
        request = self.inflight.get(request_id)
        if request is not None:
            freed, request.nbytes = request.nbytes - nbytes, nbytes
            self._free(freed)
        return request

    def moved(self, request_id: int) -> None:
        """The owner gave its shards up before it did this request: keep it for the successor, in order."""
        request = self.inflight.pop(request_id, None)
        if request is None:
            return
        self._moving = True
        position = sum(1 for each in self.waiting if each.request_id < request_id)
        self.waiting.insert(position, request)
        self._maybe_switch()

    def take_back(self) -> None:
        """Keep all unanswered requests for the next owner: the other end has done nothing of them."""
        for request_id in sorted(self.inflight, reverse=True):
            self.moved(request_id)

    def switch(self, link: RequestLink) -> None:
        """From here on the slot's owner is at the other end of this link."""
        self.successor = link
        self._maybe_switch()

    def link_closed(self, link: RequestLink) -> None:
        """The owner is gone: the requests in flight have an unknown outcome."""
        if link is self.successor:
            self.successor = None
        if link is not self.link:
            return
        self.link = None
        lost, self.inflight = self.inflight, {}
        for request in lost.values():
            self._release(request)
            request.fail(Code.UNAVAILABLE, LOST_TEXT.format(who=self.who))
        self._maybe_switch()

    def expire(self, older_than_s: float) -> None:
        """Fail the requests that have waited since before `older_than_s`."""
        while self.waiting and self.waiting[0].since_s < older_than_s:
            request = self.waiting.popleft()
            self._release(request)
            request.fail(Code.UNAVAILABLE, DOWN_TEXT.format(who=self.who))

    def give_up(self, chosen: Callable[[RoutedRequest], bool], text: str) -> None:
        """Fail those that wait and are chosen: nobody will take them here. Nothing of them was logged."""
        lost = [request for request in self.waiting if chosen(request)]
        self.waiting = deque(request for request in self.waiting if not chosen(request))
        for request in lost:
            self._release(request)
            request.fail(Code.UNAVAILABLE, text)

    def _send(self, request: RoutedRequest, link: RequestLink) -> None:
        self.inflight[request.request_id] = request
        request.send(link)
        self._wake(link)

    def _maybe_switch(self) -> None:
        if self.successor is None or self.inflight:
            return
        self.link, self.successor, self._moving = self.successor, None, False
        while self.waiting:
            self._send(self.waiting.popleft(), self.link)
        self._on_switch(self.link)

    def _release(self, request: RoutedRequest) -> None:
        self._free(request.nbytes)

    def _free(self, nbytes: int) -> None:
        self.bytes_held -= nbytes
        if self.feeders and self.bytes_held <= self.window_bytes // 2:
            feeders, self.feeders = self.feeders, set()
            for resume in feeders:
                resume()
