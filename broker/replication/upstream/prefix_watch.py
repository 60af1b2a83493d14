"""The prefixes of stream names that this worker watches at each node that it follows, for new streams there. Pure.

The streams that a rule is for begin with its prefix. A stream that follows by itself may get companions: a node that is
asked for a prefix matches companions by the names of their streams, so its name is a prefix too.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.broker.replication.roles.internal_streams import is_companion
from tailrace.broker.replication.roles.peers import NodeAddresses
from tailrace.broker.replication.roles.rules import Rule, prefix_of

ALONE_MAX = 16
"""Streams of one upstream that are watched by name; where more follow alone, all names are heard and sifted here."""


class PrefixWatches:
    """`stale`: upstreams of which other prefixes are to be watched than when they were asked for last."""

    def __init__(self) -> None:
        self.stale: set[NodeAddresses] = set()
        self._ruled: dict[NodeAddresses, tuple[bytes, ...]] = {}
        self._alone: dict[NodeAddresses, set[bytes]] = {}

    def obey(self, rules: Iterable[Rule]) -> None:
        """These are the rules now. Those that follow are to join again."""
        ruled: dict[NodeAddresses, tuple[bytes, ...]] = {}
        for rule in rules:
            if rule.upstream is not None:
                where = rule.addresses
                ruled[where] = (*ruled.get(where, ()), prefix_of(rule.pattern))
        self.stale |= self._ruled.keys() | self._alone.keys() | ruled.keys()
        self._ruled = ruled
        self._alone.clear()

    def join(self, name: bytes, where: NodeAddresses) -> None:
        """A stream follows there now."""
        if not is_companion(name) and not name.startswith(self._ruled.get(where, ())):
            self._alone.setdefault(where, set()).add(name)
            self.stale.add(where)

    def leave(self, name: bytes, where: NodeAddresses) -> None:
        """It follows there no more."""
        names = self._alone.get(where)
        if names is not None and name in names:
            names.remove(name)
            if not names:
                del self._alone[where]
            self.stale.add(where)

    def prefixes(self, where: NodeAddresses) -> set[bytes]:
        """The prefixes of the stream names that are watched at this node."""
        alone = self._alone.get(where, set())
        return {*self._ruled.get(where, ()), *(alone if len(alone) <= ALONE_MAX else (b"",))}

    def ruled(self) -> Iterable[NodeAddresses]:
        """The upstreams of rules, which are followed before there is a stream."""
        return self._ruled.keys()
