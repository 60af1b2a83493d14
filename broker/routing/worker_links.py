"""The other workers of the node: a link to each, the messages on it, and which of them wants news of which stream.

The supervisor hands the links out (a fresh pair whenever either side is new) and sends who owns which slot; see
`broker.process.control`. The verbs of a link are in `protocol.sibling`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tailrace.broker.delivery.fanout import FanOut
from tailrace.broker.delivery.wanted import any_message, envelopes, no_interest
from tailrace.broker.delivery.wide import WideReading
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.work import Asker, WorkQueue
from tailrace.broker.replication.downstream.registry import FollowerRegistry
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.routing.growth_watch import GrowthWatch
from tailrace.broker.routing.interest import Interests
from tailrace.broker.routing.link import LOST_FD, LinkClosed, WorkerLink
from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.routing.requests import ForwardedBatches, OwnerCall
from tailrace.broker.routing.router import Router
from tailrace.broker.sharing.shared import SharedStreams
from tailrace.broker.streams.deduplication import is_numbered
from tailrace.broker.streams.owner import Grown, Owner, Refused
from tailrace.broker.streams.refused import OnResult
from tailrace.protocol import sibling
from tailrace.protocol.errors import Code

if TYPE_CHECKING:
    from tailrace.broker.delivery.cursor import Feed

log = logging.getLogger(__name__)

BODY_OVERHEAD_BYTES = 4 << 20  # of an envelope, beyond one read of publishes or one largest message
# While streams of a forwarded publish wait, those that have an outcome are answered at this interval, unless they are
# many: each answer wakes the other worker.
PARTLY_S, PARTLY_ROWS = 0.01, 64
LOOK = 0  # in GREW: the new end is not given, look yourself


class ForwardedStream:
    """One stream of a forwarded publish, on the owner's side."""

    __slots__ = ("_forwarded", "_may_create", "code", "created", "first_seq", "place", "subscribers", "text")

    wants_subscribers = True

    def __init__(self, forwarded: ForwardedPublish, place: int, may_create: bool) -> None:
        self._forwarded = forwarded
        self._may_create = may_create
        self.place = place
        self.first_seq = 0
        self.subscribers = 0
        self.created = False
        self.code = ""
        self.text = ""

    @property
    def asker(self) -> Asker:
        return self._forwarded

    @property
    def result(self) -> sibling.ForwardResult:
        return self.first_seq, self.subscribers, self.created, self.code, self.text

    def published(self, _key: int, first_seq: int, subscribers: int) -> None:
        self.first_seq, self.subscribers = first_seq, subscribers
        self._forwarded.part_done(self)

    def refused(self, _key: int, code: Code, text: str) -> None:
        self.code, self.text = code.value, text
        self._forwarded.part_done(self)

    def unreplicated(self, key: int, first_seq: int, text: str) -> None:
        self.first_seq = first_seq
        self.refused(key, Code.UNREPLICATED, text)

    def may_create(self, _name: bytes) -> bool:
        return self._may_create

    def creation_refusal(self, _name: bytes) -> Refused:
        """The worker of the connection knows why."""
        return Refused(Code.STREAMS, "this connection may not make this stream")

    def count_created(self) -> None:
        self.created = True


class ForwardedPublish:
    """A forwarded publish, answered when each of its streams has an outcome.

    While some of them wait to be opened, those that have an outcome are answered now and then (`send_some`); at the end
    of the turn in which the first of them has to wait at once. The parts refer to this, and this refers to none of them
    that is answered: a finished part is freed at once.
    """

    __slots__ = ("_due_s", "_held_up", "_moved", "_news", "_parts", "_siblings", "_waiting", "link", "request_id")

    def __init__(self, siblings: WorkerLinks, link: WorkerLink, request_id: int) -> None:
        self.link = link
        self.request_id = request_id
        self._siblings = siblings
        self._waiting = 0
        self._held_up = self._moved = False
        self._due_s = 0.0  # when the parts with an outcome are answered
        self._news: list[ForwardedStream] = []  # that have an outcome and are not answered
        self._parts = 0

    def part(self, may_create: bool) -> ForwardedStream:
        part = ForwardedStream(self, self._parts, may_create)
        self._parts += 1
        self._waiting += 1
        return part

    def hold_up(self) -> None:
        self._held_up = True
        self._siblings.note_partly(self)

    def go_on(self) -> None:
        """The other end sees that from the answers."""

    def part_done(self, part: ForwardedStream) -> None:
        self._waiting -= 1
        if self.link.closed:
            return
        self._news.append(part)
        if self._held_up and self._waiting:
            self._siblings.note_partly(self)
        elif not self._waiting:
            # The parts that are not answered yet, in the order of the streams.
            results = [each.result for each in sorted(self._news, key=lambda part: part.place)]
            self._news.clear()
            self.link.queue(sibling.pack_forwarded(self.request_id, results))
            self._siblings.links.touch(self.link)

    def is_due(self, now_s: float) -> bool:
        """Whether the other end is to get some results now."""
        return now_s >= self._due_s or len(self._news) >= PARTLY_ROWS or not self._waiting or self.link.closed

    def send_some(self, now_s: float) -> None:
        """Answer the parts that have an outcome, if others have none."""
        if self._waiting and not self._moved and not self.link.closed:
            news, self._news, self._due_s = self._news, [], now_s + PARTLY_S
            self.link.queue(sibling.pack_partly(self.request_id, [(part.place, part.result) for part in news]))
            self._siblings.links.touch(self.link)

    def move(self) -> None:
        """The parts without an outcome go to the successor of this worker."""
        if not self._moved and not self.link.closed:
            self.send_some(0.0)
            self._moved = True
            self._siblings.send_moved(self.link, self.request_id)


class DelayedBatch(StreamBatch):
    """A part of a forwarded publish to a stream that is not open here, apart from what others publish to it."""

    __slots__ = ("_forwarded",)

    def __init__(self, name: bytes, slot: int, forwarded: ForwardedPublish, replicas: int) -> None:
        super().__init__(name, slot, None, replicas)
        self._forwarded = forwarded

    def give_back(self, _resubmit: Callable[[StreamBatch], None]) -> None:
        self._forwarded.move()


class SiblingCall:
    """A call of a sibling: the other end is notified that it waits, so that it holds up the asker."""

    __slots__ = ("_link", "_request_id", "_siblings")

    def __init__(self, siblings: WorkerLinks, link: WorkerLink, request_id: int) -> None:
        self._siblings = siblings
        self._link = link
        self._request_id = request_id

    def hold_up(self) -> None:
        if not self._link.closed:
            self._link.queue(sibling.pack_partly(self._request_id, []))
            self._siblings.links.touch(self._link)

    def go_on(self) -> None:
        """The other end sees that from the answer."""

    def move(self) -> None:
        if not self._link.closed:
            self._siblings.send_moved(self._link, self._request_id)


class WorkerLinks:
    """`adopt` takes a connection that a sibling hands over: its socket and its state.

    members: of the durable consumers of each stream that lives here.
    """

    def __init__(
        self,
        links: LinkTable,
        owner: Owner,
        router: Router,
        calls: WorkerCalls,
        work: WorkQueue,
        fanout: FanOut,
        followers: FollowerRegistry,
        shared: SharedStreams,
        settings: Settings,
        slot: int,
        adopt: Callable[[socket.socket, dict[str, Any]], None],
        members: Mapping[bytes, int],
        wide: WideReading,
    ) -> None:
        self.links = links
        self._members = members
        self._shared = shared
        self._owner = owner
        self._router = router
        self._calls = calls
        self._work = work
        self._fanout = fanout
        self._followers = followers
        self._poller = links.poller
        self._settings = settings
        self._slot = slot
        self._adopt = adopt
        self._wide = wide
        self.watch = GrowthWatch(owner, links, wide.own)
        self.interest = Interests(settings.max_filter_bytes, settings.topic_cache_bytes)
        self._recounted: dict[bytes, Feed] = {}  # streams of siblings whose subscribers here have changed in this turn
        self._renewed: dict[bytes, None] = {}  # those of them whose subscribers of before this turn are all gone
        self._informed: dict[int, WorkerLink] = {}  # by slot: the link over which all of this worker's interest went
        self._replicated: list[
            tuple[WorkerLink, int, StreamBatch]
        ] = []  # publishes for replicas that came in this turn
        self._called: dict[tuple[WorkerLink, int], None] = {}  # calls that came in this turn and have no answer yet
        self.partly: dict[ForwardedPublish, None] = {}  # publishes of which some wait, with news for the other end
        self.switched: set[WorkerLink] = set()  # whose other end counts on this worker for nothing any more
        self._handlers: Mapping[int, Callable[[WorkerLink, memoryview], None]] = {
            sibling.FORWARD: self._forward,
            sibling.FORWARDED: self._forwarded,
            sibling.TAKEN: self._taken,
            sibling.PARTLY: self._answered_partly,
            sibling.CALL: self._call,
            sibling.REPLY: self._reply,
            sibling.MOVED: self._moved,
            sibling.INTEREST: self._interest,
            sibling.GREW: self._grew,
            sibling.WOKE: lambda link, body: self._wide.grew(link.slot, sibling.unpack_woke(body)),
            sibling.CUT: lambda _link, body: self._fanout.cut(*sibling.unpack_cut(body)),
            sibling.HANDOVER: self._handover,
            sibling.HELD: self._held,
            sibling.GONE: self._gone,
            sibling.NEWS: lambda _link, body: self._followers.on_news(sibling.unpack_news(body)),
            sibling.WANT: self._want,
            sibling.WANTS: lambda link, body: self._shared.take(link, sibling.unpack_wants(body)),
            sibling.SWITCHED: lambda link, _body: self.switched.add(link),
        }

    # --- links ------------------------------------------------------------------------------------------------------

    def add(self, slot: int, generation: int, fd: int) -> WorkerLink:
        settings = self._settings
        body_max_bytes = 4 * settings.link_window_bytes + settings.max_message_bytes + BODY_OVERHEAD_BYTES
        link = WorkerLink(socket.socket(fileno=fd), slot, generation, body_max_bytes)
        self.links.open[slot, generation] = link
        self._poller.register(link.fileno(), select.EPOLLIN, lambda mask: self._on_event(link, mask))
        return link

    def owner_is(self, slot: int, generation: int) -> None:
        """The supervisor has named a slot's owner: send it the waiting requests, and this worker's interest."""
        route = self.links.routes.get(slot)
        link = self.links.open.get((slot, generation))
        if route is None or link is None:
            return
        route.switch(link)
        self._followers.owner_is(link)
        self._send_whole(slot, link)
        self._wide.owner_is(slot)
        self._shared.owner_is(slot)

    @property
    def all_switched(self) -> bool:
        """Whether this worker, which is retired, may leave: its siblings have moved on and everything is sent."""
        return all(
            not link.wants_write and (link in self.switched or link.slot == self._slot)
            for link in self.links.open.values()
        )

    def flush(self) -> None:
        """Send the siblings the queues of this turn."""
        followers = self._followers
        if followers.held or followers.changed or followers.wanted:
            followers.flush()
        self._shared.flush()
        if self.partly:
            self._send_some()
        if self._replicated or self._called:
            self._send_taken()
        if self._recounted:
            self._send_interest()
        if self.links.touched:
            self.links.send()

    def _send_some(self) -> None:
        now_s = self.links.clock()
        for forwarded in [each for each in self.partly if each.is_due(now_s)]:
            del self.partly[forwarded]
            forwarded.send_some(now_s)

    def close(self) -> None:
        """Send what the links take at once, and close them."""
        self.flush()
        for link in list(self.links.open.values()):
            self._closed(link)

    def _slot_of(self, name: bytes) -> int:
        return self._router.slot_of(name)

    def _on_event(self, link: WorkerLink, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self.links.touch(link)
        if not mask & ~select.EPOLLOUT:
            return
        try:
            for opcode, body in link.receive():
                self._handlers[opcode](link, body)
        except LinkClosed:
            self._closed(link)

    def _closed(self, link: WorkerLink) -> None:
        if link.closed:
            return
        self._poller.unregister(link.fileno())
        self.links.open.pop((link.slot, link.generation), None)
        self.switched.discard(link)
        self.interest.forget_link(link)
        self._shared.forget(link)
        self._owner.replicas.worker_gone(link.slot, link.generation)
        link.close()
        route = self.links.routes.get(link.slot)
        if route is not None:
            route.link_closed(link)

    # --- publishes and calls ----------------------------------------------------------------------------------------

    def _forward(self, link: WorkerLink, body: memoryview) -> None:
        request_id, groups, frames = sibling.unpack_forward(body)
        if not self._owner.catalog.owning:
            self.send_moved(link, request_id)
            return
        router, opened, waiting = self._router, self._owner.catalog.open, self._work.waiting
        forwarded = ForwardedPublish(self, link, request_id)
        start = 0
        for name, count, nbytes, may_create, sync, replicas in groups:
            piece = bytearray(frames[start : start + nbytes])
            start += nbytes
            if name in opened and name not in waiting:
                part = forwarded.part(may_create)
                if not (sync or replicas) and router.stage_lone(name, part, count, piece):
                    continue
                batch = router.batch_for(name, piece, replicas)
            else:
                part = forwarded.part(may_create)
                batch = DelayedBatch(name, self._slot, forwarded, replicas)
                batch.numbered = is_numbered(piece)
                router.alone(batch)
            batch.add(part, 0, count, piece)
            batch.sync |= sync
            if replicas:
                self._replicated.append((link, request_id, batch))
        router.staged_bytes += start

    def _send_taken(self) -> None:
        """Let siblings take requests that may take long out of their windows: publishes that are logged here and wait
        for other nodes only, and calls whose answers are not known in the turn they came in.
        """
        replicated, self._replicated = self._replicated, []
        called, self._called = self._called, {}
        taken: dict[WorkerLink, list[int]] = {}
        for link, request_id, batch in replicated:
            if batch.waiting and not link.closed:
                taken.setdefault(link, []).append(request_id)
        for link, request_id in called:
            if not link.closed:
                taken.setdefault(link, []).append(request_id)
        for link, request_ids in taken.items():
            link.queue(sibling.pack_taken(request_ids))
            self.links.touch(link)

    def _taken(self, link: WorkerLink, body: memoryview) -> None:
        route = self.links.routes[link.slot]
        for request_id in sibling.unpack_taken(body):
            request = route.inflight.get(request_id)
            if isinstance(request, ForwardedBatches | OwnerCall):
                route.lighten(request_id, request.taken())

    def note_partly(self, forwarded: ForwardedPublish) -> None:
        self.partly[forwarded] = None

    def _answered_partly(self, link: WorkerLink, body: memoryview) -> None:
        request_id, rows = sibling.unpack_partly(body)
        route = self.links.routes[link.slot]
        request = route.inflight.get(request_id)
        if isinstance(request, ForwardedBatches | OwnerCall):
            route.lighten(request_id, request.partly(rows))

    def _forwarded(self, link: WorkerLink, body: memoryview) -> None:
        request_id, results = sibling.unpack_forwarded(body)
        request = self.links.routes[link.slot].settle(request_id)
        if isinstance(request, ForwardedBatches):
            request.answered(results)

    def _call(self, link: WorkerLink, body: memoryview) -> None:
        request_id, verb, args = sibling.unpack_call(body)
        if not self._calls.answers(verb) and not self._owner.catalog.owning:
            self.send_moved(link, request_id)
            return
        self._router.flush()  # publishes that came over this link before it come first
        called = link, request_id
        self._called[called] = None

        def done(value: Any) -> None:
            self._called.pop(called, None)
            if link.closed:
                return
            if isinstance(value, Refused):
                link.queue(sibling.pack_reply(request_id, None, value.code.value, value.text))
            else:
                link.queue(sibling.pack_reply(request_id, value, "", ""))
            self.links.touch(link)

        asked = SiblingCall(self, link, request_id)

        def move() -> None:
            self._called.pop(called, None)
            asked.move()

        self._calls.call_slot(self._slot, verb, args, done, asked, move)

    def _reply(self, link: WorkerLink, body: memoryview) -> None:
        request_id, value, code, text = sibling.unpack_reply(body)
        request = self.links.routes[link.slot].settle(request_id)
        if isinstance(request, OwnerCall):
            request.answered(value, code, text)

    def _moved(self, link: WorkerLink, body: memoryview) -> None:
        self.links.routes[link.slot].moved(sibling.unpack_moved(body))

    def send_moved(self, link: WorkerLink, request_id: int) -> None:
        link.queue(sibling.pack_moved(request_id))
        self.links.touch(link)

    # --- growth -----------------------------------------------------------------------------------------------------

    def announce(self, grown: Grown) -> None:
        """Send the interested siblings how far this turn's streams have grown: one note per sibling."""
        notes: dict[WorkerLink, list[tuple[bytes, int, int]]] = {}
        for name, growth in grown.items():
            for link in self.interest.to_notify(name, growth):
                notes.setdefault(link, []).append((name, growth.next_seq, growth.end_offset))
        for link, streams in notes.items():
            link.queue(sibling.pack_grew(streams))
            self.links.touch(link)

    def announce_all(self, grown: Grown) -> None:
        """Notify the workers that watch the growth of all streams, which come behind the notes to those interested."""
        if rows := self.watch.announce(grown):
            self._wide.grew(self._slot, rows)

    def watch_growth(self, announce: Callable[[], None], args: list[Any], done: OnResult) -> None:
        """[slot, generation, whether it is wanted] -> rows of lately grown streams; None if they are not known."""

        def watch() -> None:
            self._router.flush()
            announce()  # earlier messages are no growth
            done(self.watch.watch(*args))

        if not (args[-1] and self._owner.roles.copies.on_demand and self._owner.context.await_copies(watch, done)):
            watch()

    def tick(self) -> None:
        """About once a second."""
        self.watch.tick(self.links.clock())
        self._wide.tick()

    def announce_cut(self, name: bytes, seq: int, *, is_deleted: bool = False) -> None:
        """Notify every worker of the node: any may have the stream open."""
        self.interest.cut(name)
        self.watch.forget(name)
        for link in self.links.open.values():
            link.queue(sibling.pack_cut(name, seq, is_deleted=is_deleted))
            self.links.touch(link)

    def recount(self, feed: Feed) -> None:
        """A stream that lives elsewhere has more or fewer subscribers here now: its owner is notified in this turn."""
        if self._recounted.get(feed.name, feed) is not feed:
            self._renewed[feed.name] = None
        self._recounted[feed.name] = feed

    def subscribers(self, name: bytes) -> int:
        """Subscribers on the whole node of a stream that lives here, as far as known; members of consumers included."""
        feed = self._fanout.feeds.get(name)
        elsewhere = self.interest.streams.get(name)
        members = self._members.get(name, 0)
        return (0 if feed is None else feed.cursors) + (0 if elsewhere is None else elsewhere.subscribers) + members

    def _send_interest(self) -> None:
        """Notify the owners of the changes of this turn; an owner that is new here of everything."""
        recounted, self._recounted = self._recounted, {}
        renewed, self._renewed = self._renewed, {}
        rows: dict[WorkerLink, list[sibling.InterestRow]] = {}
        for name, feed in recounted.items():
            slot = self._slot_of(name)
            link = self.links.link_to(slot)
            if link is None:  # the next link is sent every feed
                if feed.wanted is not None:
                    feed.wanted.forget_changes()
                continue
            if self._informed.get(slot) is not link:
                self._send_whole(slot, link)
                continue
            changed = rows.setdefault(link, [])
            if name in renewed:
                changed.append(no_interest(name))
            changed.extend(_rows_of(feed, is_whole=name in renewed))
        for link, changed in rows.items():
            self._queue_interest(link, changed)

    def _send_whole(self, slot: int, link: WorkerLink) -> None:
        self._informed[slot] = link
        rows: list[sibling.InterestRow] = []
        for name, feed in self._fanout.feeds.items():
            if feed.remote and self._slot_of(name) == slot:
                rows.extend(_rows_of(feed, is_whole=True))
        self._queue_interest(link, rows)

    def _queue_interest(self, link: WorkerLink, rows: list[sibling.InterestRow]) -> None:
        """In envelopes of bounded size: an owner reads one at a time."""
        for each in envelopes(rows):
            link.queue(sibling.pack_interest(each))
            self.links.touch(link)

    def _interest(self, link: WorkerLink, body: memoryview) -> None:
        looks: dict[bytes, None] = {}
        for row in sibling.unpack_interest(body):
            if self.interest.take(link, row):
                looks[row[0]] = None
        self._send_looks(link, looks)

    def _send_looks(self, link: WorkerLink, names: Iterable[bytes]) -> None:
        """Appends from before this were not announced: have the sibling look."""
        if looks := [(name, LOOK, 0) for name in names]:
            link.queue(sibling.pack_grew(looks))
            self.links.touch(link)

    def announce_trim(self, name: bytes) -> None:
        """Have those siblings look that were not notified of all growth, while they can read the trimmed messages."""
        for link in self.interest.filtered_links(name):
            self._send_looks(link, [name])

    def _grew(self, _link: WorkerLink, body: memoryview) -> None:
        for name, next_seq, end_offset in sibling.unpack_grew(body):
            self._fanout.grew(name, next_seq, end_offset)

    # --- followers --------------------------------------------------------------------------------------------------

    def _held(self, link: WorkerLink, body: memoryview) -> None:
        self._owner.replicas.held(link.slot, link.generation, sibling.unpack_held(body))

    def _gone(self, link: WorkerLink, body: memoryview) -> None:
        self._owner.replicas.gone(link.slot, link.generation, *sibling.unpack_gone(body))

    def _want(self, link: WorkerLink, body: memoryview) -> None:
        self._followers.want(link, sibling.unpack_want(body))

    # --- connections ------------------------------------------------------------------------------------------------

    def _handover(self, link: WorkerLink, body: memoryview) -> None:
        fd = link.take_fd()
        if fd == LOST_FD:
            log.error("a connection that worker %d passed on is lost: no file descriptor is left for it", link.slot)
            return
        try:
            sock = socket.socket(fileno=fd)
        except OSError:  # the peer was gone before it came here
            os.close(fd)
            return
        self._adopt(sock, sibling.unpack_handover(body))


def _rows_of(feed: Feed, *, is_whole: bool) -> Iterable[sibling.InterestRow]:
    """The rows for the owner of a feed's stream: of all filters, or of the changes."""
    if feed.wanted is None:
        return [any_message(feed.name, feed.cursors) if feed.cursors else no_interest(feed.name)]
    if is_whole:
        return feed.wanted.whole(feed.name, feed.cursors)
    return feed.wanted.changes(feed.name, feed.cursors)
