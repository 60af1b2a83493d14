"""Connections move to the workers that own their streams.

A connection that subscribes to a stream of a sibling, or whose publishes go mostly to one sibling (the router keeps
count) is handed over to it, between two answers and unseen by the peer: from then on its messages need no hop.
The act is the same handover that balancing and replacing workers use.
"""

from __future__ import annotations

from tailrace.broker.connection import handover
from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.delivery.cursor import Feed
from tailrace.broker.process.scoreboard import STATE_READY, Board
from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.services import Services

STAY_S = 10.0  # how long a connection that was moved stays there, at least
FEW_SUBSCRIBERS = 4  # of one stream on one worker: up to this number move to its owner
MOVING_MAX = 32  # publishers at a time: the handover of 32, at both ends, takes some milliseconds
PATIENCE_S = 1.0  # how long one that is to move may wait for its answers, not read meanwhile
SKEW_CONNECTIONS = 256  # a sibling with this many more than twice our connections gets no more by this way


class Migrations:
    """The connections of a worker that are about to move."""

    def __init__(self, services: Services, links: LinkTable, board: Board) -> None:
        self._services = services
        self._links = links
        self._board = board
        self.waiting: dict[ClientConnection, tuple[int, float]] = {}  # slot to go to, and until when to wait

    def consider(self, client: ClientConnection, slot: int) -> None:
        """By a client's window it belongs to `slot`: pause it, so that it moves when it is answered."""
        services = self._services
        target = self._board.slot(slot)
        if not services.settings.affinity or client.lingering_since_s or services.now_s - client.moved_s < STAY_S:
            return
        if client.bound or client.stays:
            return
        if any(services.router.slot_of(cursor.feed.name) != slot for cursor in client.cursors.values()):
            return
        if target.state != STATE_READY or target.connections > 2 * len(services.clients) + SKEW_CONNECTIONS:
            return
        client.moved_s = services.now_s
        self._wait(client, slot)

    def _wait(self, client: ClientConnection, slot: int) -> None:
        client.pause(Pause.MOVE)
        self.waiting[client] = (slot, self._services.now_s + PATIENCE_S)

    def place_node(self, client: ClientConnection, number: int, workers: int) -> None:
        """Worker `number` of the `workers` of another node has connected to copy the streams of its shards. If they are
        all with one sibling, as they are if this node has as many workers, the connection moves there before it follows
        any: each message, and each report of it, would take a hop.
        """
        slot = number % self._board.slots
        is_one = workers % self._board.slots == 0
        if is_one and self._services.settings.affinity and slot in self._links.routes and not client.stays:
            self._wait(client, slot)

    def consider_publisher(self, client: ClientConnection, slot: int) -> bool:
        """As `consider`. Returns False if too many move now: it is to be considered again soon."""
        if len(self.waiting) >= MOVING_MAX:
            return False
        self.consider(client, slot)
        return True

    def consider_subscriber(self, client: ClientConnection, feed: Feed) -> None:
        """A client has subscribed to a stream that lives elsewhere: it saves a hop there, unless it is one of many
        here.

        Many subscribers of one stream are better spread over the workers.
        """
        if feed.remote and feed.cursors <= FEW_SUBSCRIBERS:
            self.consider(client, self._services.router.slot_of(feed.name))

    def step(self) -> None:
        """Once a turn: hand over the connections that nothing holds back any more."""
        services = self._services
        for client, (slot, until_s) in list(self.waiting.items()):
            route = self._links.routes.get(slot)
            link = route.link if route is not None else None
            if client.closed:
                del self.waiting[client]
            elif link is not None and handover.is_settled(client) and not client.rooted:
                del self.waiting[client]
                self._links.hand_over(link, *handover.detach(client))
                services.metrics.handed_over += 1
            elif services.now_s > until_s or client.rooted:
                del self.waiting[client]
                client.resume(Pause.MOVE)
