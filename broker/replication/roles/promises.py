"""Asks other nodes for the promise to lead in no later term for a while, which keeps a leader without etcd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.broker.replication.roles.peers import NodeAddress
from tailrace.broker.replication.upstream.inquiry import Inquiry, InquiryServices
from tailrace.broker.services import Services
from tailrace.protocol.address import join_address
from tailrace.protocol.names import ALL_STREAMS, GROUPS_MAX, StreamGroup
from tailrace.protocol.replication import Ask, Told

ANSWER_S: Final = 1.0
"""Nodes that have not answered by then have not promised."""
REQUESTS_MAX: Final = GROUPS_MAX + 8
"""Of a worker at the same time."""

OnPromises = Callable[[list[tuple[str, str, bool]]], None]
"""The address of each node that was asked, its id, "" if it has not answered, and whether it has promised."""


class PromiseRequest:
    """One question to some nodes; `done` is called once."""

    def __init__(
        self, outside: InquiryServices, deadline_s: float, nodes: Sequence[NodeAddress], ask: Ask, done: OnPromises
    ) -> None:
        self.deadline_s = deadline_s
        self.ended = False
        self._done = done
        self._answers: dict[Inquiry, bool] = {}
        self._waiting: dict[Inquiry, None] = {}
        inquiries = [Inquiry(outside, *node, self._heard) for node in nodes]
        self._waiting.update(dict.fromkeys(inquiries))
        for inquiry in inquiries:
            self._answers[inquiry] = False
            inquiry.ask(ask)

    def _heard(self, inquiry: Inquiry, told: Told | str) -> None:
        self._answers[inquiry] = isinstance(told, Told) and told.promised
        self._waiting.pop(inquiry, None)
        if not self._waiting:
            self.end()

    def end(self) -> None:
        """Nodes that have not answered have not promised."""
        if self.ended:
            return
        self.ended = True
        rows = [(join_address(each.host, each.port), each.node, given) for each, given in self._answers.items()]
        for inquiry in self._answers:
            inquiry.close()
        self._done(rows)


class PromiseRequests:
    """Those of one worker."""

    def __init__(self, outside: InquiryServices, services: Services) -> None:
        self._outside = outside
        self._services = services
        self._running: dict[PromiseRequest, None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(
        self,
        nodes: Sequence[NodeAddress],
        term: int,
        length_ms: int,
        done: OnPromises,
        group: StreamGroup = ALL_STREAMS,
    ) -> bool:
        """Whether they are asked; not if too many requests wait already."""
        if len(self._running) >= REQUESTS_MAX:
            return False
        ask = Ask(1, promise=(term, length_ms), group=group)
        request = PromiseRequest(self._outside, self._services.now_s + ANSWER_S, nodes, ask, done)
        if not request.ended:
            self._running[request] = None
        return True

    def tick(self, now_s: float) -> None:
        for request in list(self._running):
            if now_s >= request.deadline_s:
                request.end()
            if request.ended:
                del self._running[request]

    def stop(self) -> None:
        self.tick(float("inf"))
