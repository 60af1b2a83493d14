"""The links to the other workers of the node, the routes to the owners of their slots, and the links with output."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from tailrace.broker.process.poller import Poller
from tailrace.broker.routing.link import LinkClosed, WorkerLink
from tailrace.broker.routing.route import Route
from tailrace.protocol import sibling


class LinkTable:
    """One per worker. `routes`: to every slot but its own, until it is retired.

    `open`: the open links by slot and generation of the worker at the other end. `touched`: those with output.
    """

    def __init__(self, slots: int, own: int, window_bytes: int, poller: Poller, clock: Callable[[], float]) -> None:
        self.open: dict[tuple[int, int], WorkerLink] = {}
        self._window_bytes = window_bytes
        self.poller = poller
        self.clock = clock
        self.routes = {slot: self._route(slot) for slot in range(slots) if slot != own}
        self.touched: dict[WorkerLink, None] = {}

    def follow_successor(self, own: int) -> None:
        """This worker is retired: requests for its own slot go to the slot's next owner."""
        self.routes[own] = self._route(own)

    def _route(self, slot: int) -> Route:
        return Route(slot, self._window_bytes, self.clock, self.touch, on_switch=self._send_switched)

    def _send_switched(self, owner: WorkerLink) -> None:
        """Notify the former owners of the slot that they may leave."""
        for link in self.open.values():
            if link.slot == owner.slot and link.generation < owner.generation:
                link.queue(sibling.pack_switched())
                self.touch(link)

    def touch(self, link: WorkerLink) -> None:
        """There is something to send over this link; it goes at the end of the turn."""
        self.touched[link] = None

    def send(self) -> None:
        """Send the queues now."""
        while self.touched:
            link, _ = self.touched.popitem()
            if link.closed:
                continue
            try:
                link.flush()
            except LinkClosed:
                link.drop_queue()  # bytes that came over it before the end are still read, and then the end
            self.poller.modify(link.fileno(), select.EPOLLIN | (select.EPOLLOUT if link.wants_write else 0))

    def link_to(self, slot: int) -> WorkerLink | None:
        """The link to the worker that owns the slot's shards, or None. A successor that stands by owns nothing yet."""
        route = self.routes.get(slot)
        return None if route is None else route.successor or route.link

    def queued_bytes(self) -> int:
        """The bytes that wait for the other workers, on links and on routes."""
        links = sum(link.queued_bytes for link in self.open.values())
        return links + sum(route.bytes_held for route in self.routes.values())

    def hand_over(self, link: WorkerLink, fd: int, state: dict[str, Any]) -> None:
        """Give a connection to the worker at the other end; the link owns `fd` (a duplicate) from here on."""
        link.queue(sibling.pack_handover(state), fd=fd)
        self.touch(link)
