"""The part of a worker that shares streams in memory with other nodes: its wants, and the messages of other nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.routing.batch import FramePublication
from tailrace.broker.routing.fixed_publisher import FixedPublisher
from tailrace.broker.routing.link import WorkerLink
from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.routing.route import Route
from tailrace.broker.routing.router import Router
from tailrace.broker.services import Services
from tailrace.broker.sharing.sender import SharingServices
from tailrace.broker.sharing.session import ShareSessions
from tailrace.broker.sharing.wants import LocalWants, NodeWants, pieces
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import sibling
from tailrace.protocol.errors import Code
from tailrace.protocol.sibling import WantRow
from tailrace.shard.directory import DataDirectory
from tailrace.shard.frame import FLAG_RELAYED, FLAGS_OFFSET
from tailrace.shard.leaves import load

WAITING_MAX_BYTES: Final = 16 << 20
"""Of messages that wait for their stream to be made or opened; further ones are dropped."""
ROWS_AN_ENVELOPE: Final = 16
"""To another worker; each has at most `INTEREST_BYTES` of filters."""

HERE: Final = "here"
"""This worker, as a source of wants."""

_measure: Callable[..., tuple[int, str]] = load("tailrace.shard.frame_cy").measure


class SharedStreams:
    """One per worker. `serving`: for the connections of other nodes; `sessions`: on the connections to them."""

    def __init__(self, owner: Owner, services: Services, work: WorkQueue, links: LinkTable) -> None:
        settings, router = services.settings, services.router
        nodes = owner.roles.peers.nodes if settings.share_memory else ()
        publisher = SharedPublisher(router, services.metrics, settings.max_message_bytes)
        self.node = NodeWants()
        self.sessions = ShareSessions(self.node, nodes, publisher.take)
        self.serving = SharingServices(services, work, owner.catalog.directory.is_in_memory)
        self._metrics = services.metrics
        self._local = services.fanout.wants.table
        self._links = links
        self._slot_of = router.slot_of
        self._informed: dict[int, WorkerLink] = {}  # by slot: the link over which all of this worker's wants went

    def flush(self) -> None:
        """At the end of a turn: send the changes."""
        if self._local.changed:
            self._spread(self._local.take_changes())
        if self.sessions.wants.changed:
            self.sessions.send_changes()
        if self.serving.blocked:
            self.serving.flush()

    def tick(self) -> None:
        self._metrics.shared_filters = len(self.serving.filters.trie)

    def _spread(self, rows: list[WantRow]) -> None:
        """To the owners of the streams."""
        by_slot: dict[int, list[WantRow]] = {}
        for row in rows:
            by_slot.setdefault(self._slot_of(row[0]), []).append(row)
        for slot, some in by_slot.items():
            link = self._links.link_to(slot)
            if slot not in self._links.routes:
                self.node.take(HERE, some)
            elif link is not None and self._informed.get(slot) is link:
                self._queue(link, some)
            elif link is not None:
                self.owner_is(slot)

    def owner_is(self, slot: int) -> None:
        """The slot has a new owner, which knows nothing yet."""
        link = self._links.link_to(slot)
        if link is not None and self._informed.get(slot) is not link:
            self._spread([row for row in self._local.take_changes() if self._slot_of(row[0]) != slot])
            self._informed[slot] = link
            self._queue(link, [row for row in self._local.whole() if self._slot_of(row[0]) == slot])

    def _queue(self, link: WorkerLink, rows: list[WantRow]) -> None:
        for some in _grouped(pieces(rows)):
            link.queue(sibling.pack_wants(some))
            self._links.touch(link)

    def take(self, source: Hashable, rows: list[WantRow]) -> None:
        """What another worker wants of streams that live here."""
        self.node.take(source, rows)

    def forget(self, source: Hashable) -> None:
        self.node.forget(source)


class SharedPublisher(FixedPublisher):
    """Publishes the messages of other nodes. To the router it is a client."""

    def __init__(self, router: Router, metrics: WorkerMetrics, max_message_bytes: int) -> None:
        super().__init__()
        self._router = router
        self._metrics = metrics
        self._max_message_bytes = max_message_bytes
        self._waiting_bytes = 0

    def take(self, name: bytes, chunks: Sequence[bytes | memoryview]) -> None:
        """Raises ValueError for frames that are not whole, or too long."""
        frames = bytearray().join(chunks)
        count, fault = _measure(frames, 0, len(frames), self._max_message_bytes)
        if fault:
            raise ValueError(f"a frame of stream {name.decode()} is wrong: {fault}")
        if self._waiting_bytes > WAITING_MAX_BYTES:
            self._metrics.shared_dropped += count
            return
        place = 0
        while place < len(frames):
            frames[place + FLAGS_OFFSET] = FLAG_RELAYED
            place += int.from_bytes(frames[place : place + 4], "little")
        self._metrics.shared_received += count
        self._waiting_bytes += len(frames)
        publication = FramePublication(self, len(frames), False, [name], count)
        self._router.publish_frames(self, publication, [name], frames, False)

    def publish_done(self, publication: FramePublication) -> None:
        self._waiting_bytes -= publication.request
        if publication.refusals:
            self._metrics.shared_dropped += publication.count

    def may_create(self, _name: bytes) -> bool:
        """The stream has subscribers here."""
        return True

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here")

    def pause_for(self, route: Route) -> None:
        """It is bounded by WAITING_MAX_BYTES."""

    def hold_up(self) -> None:
        """It is bounded by WAITING_MAX_BYTES."""

    def go_on(self) -> None: ...


def local_wants(settings: Settings, directory: DataDirectory) -> LocalWants:
    """For a worker with these settings."""
    return LocalWants(directory.is_in_memory if settings.share_memory else lambda _name: False)


def _grouped(rows: Iterator[WantRow]) -> Iterator[list[WantRow]]:
    group: list[WantRow] = []
    for row in rows:
        group.append(row)
        if len(group) == ROWS_AN_ENVELOPE:
            yield group
            group = []
    if group:
        yield group
