"""All nodes that follow streams through this worker: between their connections and the streams' owners.

Their positions go to the owners once a turn, the latest of each; the state of a stream comes from its owner when it
changes. A new owner is sent all positions again, and asked for the states.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sized
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.broker.replication.downstream import replica_state
from tailrace.broker.replication.downstream.replica_state import LINEAGES_MAX, ReplicaState
from tailrace.broker.replication.roles.node_file import FOLLOWERS_MAX
from tailrace.broker.streams.owner import Refused
from tailrace.protocol import sibling
from tailrace.protocol.sibling import HeldRow
from tailrace.shard.meta import Role

if TYPE_CHECKING:
    from tailrace.broker.replication.downstream.session import FollowerSession, ReplicaFeed
    from tailrace.broker.routing.link import WorkerLink
    from tailrace.broker.routing.link_table import LinkTable
    from tailrace.broker.services import Services
    from tailrace.broker.streams.owner import Owner

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")

HELD_ROWS_MAX = 4_096
"""Rows of one HELD to a sibling."""
SLICE_STREAMS = 8
"""Streams that are looked at for others in one go; each may have to be opened for that."""
FOLLOWED_SLOT = 0
"""Whose worker writes down what the node is to remember of its followers."""
COMPLAINT_S = 1.0
"""Between two log lines about peers that are refused."""
DEPOSED_TEXT = "logged here, but this node is not the stream's master any more"


class FollowerRegistry:
    """One per worker. `held`, `changed` and `wanted` are what `flush` sends; of the last two it may leave some."""

    def __init__(self, owner: Owner, services: Services, links: LinkTable, generation: int) -> None:
        self._owner = owner
        self._services = services
        self._links = links
        self._generation = generation
        self.nodes: dict[FollowerSession, None] = {}
        self._complained_s = 0.0
        self._connections = count(1)
        self._noted: set[tuple[()] | tuple[str, int]] = set()  # where followers are that were written down
        self._of: dict[bytes, dict[ReplicaFeed, None]] = {}
        self.held: dict[tuple[bytes, int, str], ReplicaFeed] = {}  # to be sent to the owners in this turn
        self.changed: dict[bytes, None] = {}  # streams of this worker, of which there is news to be sent
        self.wanted: deque[tuple[WorkerLink, bytes]] = deque()  # subscribers to changes: sibling, stream here

    def admit(self, follower: FollowerSession) -> int:
        """The number of its connection. A node that may follow streams of this one is written down for ever."""
        if follower.node and follower.trusted:
            self.nodes[follower] = None
            self._expect(follower)
        return next(self._connections)

    def complain(self, what: str) -> None:
        """Log that a peer was refused, at most every COMPLAINT_S."""
        if self._services.now_s - self._complained_s >= COMPLAINT_S:
            self._complained_s = self._services.now_s
            log.warning("%s", what)

    def _expect(self, follower: FollowerSession) -> None:
        owner, address = self._owner, follower.claimed_address
        if address in self._noted or address in owner.roles.followers or (owner.roles.was_followed and not address):
            return
        if len(self._noted) >= FOLLOWERS_MAX:
            self._noted.clear()
        self._noted.add(address)

        def written(value: Any) -> None:
            if isinstance(value, Refused):
                log.error("cannot write down that other nodes follow this one: %s", value.text)
                self._noted.discard(address)

        self._services.router.call_slot(FOLLOWED_SLOT, "followed", list(address), written)

    def add(self, following: ReplicaFeed) -> None:
        self._of.setdefault(following.name, {})[following] = None

    def remove(self, following: ReplicaFeed) -> None:
        """It has ended: nobody holds anything by way of it."""
        self._forget(following)
        for node in following.rows:
            self.send_gone(following, node)

    def remove_all(self, follower: FollowerSession, followings: list[ReplicaFeed]) -> None:
        """A connection has ended, with these."""
        self.nodes.pop(follower, None)
        for following in followings:
            self._forget(following)
        for slot in {self._slot_of(each.name) for each in followings if each.rows}:
            self._send_owner_gone(slot, follower.connection, [])

    def _forget(self, following: ReplicaFeed) -> None:
        followings = self._of.get(following.name)
        if followings is not None:
            followings.pop(following, None)
            if not followings:
                del self._of[following.name]
        for node in following.rows:
            self.held.pop((following.name, following.follower.connection, node), None)

    # --- to the owners ----------------------------------------------------------------------------------------------

    def send_held(self, following: ReplicaFeed, node: str) -> None:
        self.held[following.name, following.follower.connection, node] = following

    def send_gone(self, following: ReplicaFeed, node: str) -> None:
        connection = following.follower.connection
        self.held.pop((following.name, connection, node), None)
        self._send_owner_gone(self._slot_of(following.name), connection, [(following.name, node)])

    def _send_owner_gone(self, slot: int, connection: int, rows: list[tuple[bytes, str]]) -> None:
        if slot not in self._links.routes:
            self._owner.replicas.gone(slot, self._generation, connection, rows)
            return
        self._send(slot, sibling.pack_gone(connection, rows))

    def flush(self) -> None:
        """At the end of a turn: send the positions to the owners, and changed states to the other workers."""
        if self.held:
            self._flush_held()
        if self.changed:
            self._flush_news()
        if self.wanted:
            self._flush_wanted()

    def _flush_held(self) -> None:
        held, self.held = self.held, {}
        by_slot: dict[int, list[HeldRow]] = {}
        for (name, connection, node), following in held.items():
            row = (name, following.lineage.line, connection, node, *following.rows[node])
            by_slot.setdefault(self._slot_of(name), []).append(row)
        for slot, rows in by_slot.items():
            if slot not in self._links.routes:
                self._owner.replicas.held(slot, self._generation, rows)
                continue
            for start in range(0, len(rows), HELD_ROWS_MAX):
                self._send(slot, sibling.pack_held(rows[start : start + HELD_ROWS_MAX]))

    def _send(self, slot: int, envelope: bytes) -> None:
        """While the slot has no owner nothing is sent: its next one is sent everything."""
        link = self._links.link_to(slot)
        if link is not None:
            link.queue(envelope)
            self._links.touch(link)

    def _slot_of(self, name: bytes) -> int:
        return self._services.router.slot_of(name)

    # --- from the owners --------------------------------------------------------------------------------------------

    def owner_is(self, link: WorkerLink) -> None:
        """The slot at the other end has a new owner, which knows nothing of the followers here.

        It is asked past the route to it, in which the requests that its predecessor has not answered come first: those
        may be waiting for the positions sent here.
        """
        names = [name for name in self._of if self._slot_of(name) == link.slot]
        for start in range(0, len(names), LINEAGES_MAX):
            link.queue(sibling.pack_want(names[start : start + LINEAGES_MAX]))
        self._links.touch(link)

    def on_news(self, news: Iterable[tuple[bytes, list[Any]]]) -> None:
        for name, row in news:
            followings = self._of.get(name)
            if followings is None:
                continue
            found = replica_state.unpack(row)
            for following in list(followings):
                self._on_news(following, found)

    def _on_news(self, following: ReplicaFeed, found: ReplicaState) -> None:
        other_line = following.lineage.line != found.line
        following.follower.on_news(following, found)
        if other_line and following in self._of.get(
            following.name, ()
        ):  # the owner has dropped earlier positions; streams still followed are unchanged
            for node in following.rows:
                self.send_held(following, node)

    def send_ends(self) -> None:
        """From the timer: let those that are behind know how far."""
        for follower in list(self.nodes):
            follower.send_ends()
            if follower.sender is not None:
                follower.sender.retry()

    def role_changed(self, name: bytes) -> None:
        """The role of a stream of this worker, its terms or its way to the master may be others now."""
        owner = self._owner
        if name in owner.replicas.streams:
            if owner.roles.role(name) is not Role.MASTER:
                owner.replicas.refuse(name, DEPOSED_TEXT)
            self.changed[name] = None

    def _flush_news(self) -> None:
        """Send a part of the news if there is much: a stream may have to be opened for this."""
        if not self._owner.catalog.owning:
            self.changed.clear()
            return
        news = replica_state.lineages(self._owner, _some(self.changed, lambda: self.changed.popitem()[0]))
        self.on_news(news)
        for start in range(0, len(news), LINEAGES_MAX):
            envelope = sibling.pack_news(news[start : start + LINEAGES_MAX])
            for link in self._links.open.values():
                link.queue(envelope)
                self._links.touch(link)

    def want(self, link: WorkerLink, names: list[bytes]) -> None:
        """Nodes follow these streams of this worker through a sibling, which is to get their states: at once for
        those that are open, and so in use.
        """
        found = self._owner.catalog.open
        self._send_wanted(link, [name for name in names if name in found])
        self.wanted.extend((link, name) for name in names if name not in found)

    def _flush_wanted(self) -> None:
        wanted: dict[WorkerLink, list[bytes]] = {}
        for link, name in _some(self.wanted, self.wanted.popleft):
            wanted.setdefault(link, []).append(name)
        for link, names in wanted.items():
            self._send_wanted(link, names)

    def _send_wanted(self, link: WorkerLink, names: list[bytes]) -> None:
        if names and not link.closed:
            link.queue(sibling.pack_news(replica_state.lineages(self._owner, names)))
            self._links.touch(link)


def _some(row: Sized, take: Callable[[], _Item]) -> list[_Item]:
    """Take items from a row until it is empty, or SLICE_STREAMS are taken."""
    return [take() for _ in range(min(len(row), SLICE_STREAMS))]
