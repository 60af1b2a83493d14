"""The question of a node that starts as a master, asked before it takes messages: has a later term begun elsewhere?

It may have been away while another node was promoted. So it claims its streams from the nodes that followed it last
and from its peers, as it would after a promotion (`broker.replication.upstream.leadership_claims`); one that knows of a
later term answers with that, and this node follows. Streams take no messages meanwhile: publishes wait. That has a
bound, and a node that cannot be reached at all is not waited for; then the node serves, and logs which nodes it could
not ask.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.internal_streams import is_companion
from tailrace.broker.replication.upstream.connection import UpstreamConnection, UpstreamPhase
from tailrace.broker.streams.owner import Owner
from tailrace.shard.meta import Role
from tailrace.shard.names import base_of, is_never_copied

log = logging.getLogger(__name__)

ASK_MAX_S: Final = 3.0
"""How long publishes wait for the answers, from the start of the worker."""
ASKED_AT_ONCE_MAX: Final = 10_000
"""Streams that are asked for at the start. With more of them each other one is when it is opened first."""


class StartCheck:
    """One per worker that starts with streams of its own. `nodes`: uplinks to the nodes that are asked."""

    def __init__(self, owner: Owner, nodes: Sequence[UpstreamConnection], now_s: float) -> None:
        self._owner = owner
        self._nodes = nodes
        self._until_s = now_s + ASK_MAX_S
        self._failed: set[UpstreamConnection] = set()  # nodes that could not be reached once, and are not waited for
        self._held: dict[bytes, list[bytes]] = {}  # with their companions that are open, too
        self._masters = dict.fromkeys(_masters(owner))  # those that were not asked for yet
        self._one_by_one = len(self._masters) > ASKED_AT_ONCE_MAX
        self.over = not self._masters or not nodes
        if not self.over and not self._one_by_one:
            for name in self._masters:
                self._ask(name)

    def hold(self, name: bytes) -> bool:
        """Whether a stream that is opened must wait. One that is opened after the bound is asked for, and does not."""
        base = base_of(name)
        if base not in self._masters or self._owner.roles.role(base) is not Role.MASTER:
            return False
        if self.over:
            del self._masters[base]
            self._ask(base)
            return False
        self._held.setdefault(base, []).append(name)
        self._ask(base)
        return True

    def wants(self, name: bytes) -> bool:
        """Whether the answers for a stream are still waited for."""
        return not self.over and name in self._masters

    def tick(self, now_s: float) -> None:
        if self.over:
            return
        self._failed.update(node for node in self._nodes if node.phase is UpstreamPhase.DOWN and node.tried)
        waited_for = [node for node in self._nodes if node.phase is UpstreamPhase.UP or node not in self._failed]
        self.over = now_s >= self._until_s or not waited_for
        for name in list(self._held):
            if self.over or not any(name in node.claims for node in waited_for):
                self._masters.pop(name, None)
                for each in self._held.pop(name):
                    self._owner.let_begin(each)
        if self.over:
            self._end()

    def _ask(self, name: bytes) -> None:
        for node in self._nodes:
            if node.phase is UpstreamPhase.UP or not self.over:
                node.claims.add(name)

    def _end(self) -> None:
        silent = [node for node in self._nodes if node.phase is not UpstreamPhase.UP and not node.is_self]
        for node in silent:
            for name in list(node.claims):
                if (node.host, node.port) not in [each[:2] for each in stream_roles.to_be_told(self._owner, name)]:
                    node.claims.drop(name)
        if silent:
            whom = ", ".join(f"{node.address} ({node.why or node.phase})" for node in silent)
            log.warning("serving without an answer from %s; a later term there is learnt when it is back", whom)
        if not self._one_by_one:
            self._masters.clear()


def _masters(owner: Owner) -> Iterable[bytes]:
    """No other node has terms of a stream in memory."""
    in_memory = owner.catalog.directory.is_in_memory
    copied = (name for name in owner.catalog.names if not is_never_copied(name) and not is_companion(name))
    return (name for name in copied if owner.roles.role(name) is Role.MASTER and not in_memory(name))
