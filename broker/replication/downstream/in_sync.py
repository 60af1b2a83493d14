"""Since when each in-sync replica lacks messages of the streams of one owner.

Pure. A node that lacks nothing for long may stay in the set; one that was added belongs to it once it has everything
that was logged before. Each stream that a node lacks messages of is one entry; a node that has everything has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

UNKNOWN: Final = -1
"""The end of a stream that no node has followed yet; it is known once one does."""


class InSyncRow(NamedTuple):
    """For how long a node lacks messages, of how many streams; and whether it has all of before it was added."""

    node: str
    lag_s: float
    streams: int
    settled: bool


@dataclass(slots=True)
class NodeLag:
    """lacking: (end to be reached, since when) by stream, in the order of the times."""

    added_s: float
    lacking: dict[bytes, tuple[int, float]] = field(default_factory=dict)

    def row(self, node: str, now_s: float) -> InSyncRow:
        since_s = next((since_s for _, since_s in self.lacking.values()), now_s)
        return InSyncRow(node, now_s - since_s, len(self.lacking), not self.lacking or since_s > self.added_s)


class InSync:
    """The in-sync replicas of one owner's streams."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeLag] = {}

    def set_nodes(self, nodes: Iterable[str], ends: Callable[[str], Mapping[bytes, int]], now_s: float) -> None:
        """`ends`: the streams that a new node lacks messages of, and their ends."""
        wanted = frozenset(nodes)
        self.nodes = {node: lag for node, lag in self.nodes.items() if node in wanted}
        for node in sorted(wanted - self.nodes.keys()):
            self.nodes[node] = NodeLag(now_s, {name: (end_seq, now_s) for name, end_seq in ends(node).items()})

    def grew(self, name: bytes, end_seq: int, now_s: float) -> None:
        for lag in self.nodes.values():
            lag.lacking.setdefault(name, (end_seq, now_s))

    def held(self, node: str, name: bytes, next_seq: int, end_seq: int, now_s: float) -> None:
        """A node has a stream up to `next_seq`; it ends at `end_seq`."""
        lag = self.nodes.get(node)
        if lag is None or name not in lag.lacking:
            return
        target = lag.lacking[name][0]
        if next_seq >= (end_seq if target == UNKNOWN else target):
            del lag.lacking[name]
            if next_seq < end_seq:
                lag.lacking[name] = (end_seq, now_s)

    def gone(self, nodes: Iterable[str], name: bytes, end_seq: int, now_s: float) -> None:
        """These nodes do not report of a stream any more: they count as behind, even if nothing new is published."""
        for node in nodes:
            if (lag := self.nodes.get(node)) is not None:
                lag.lacking.setdefault(name, (end_seq, now_s))

    def dropped(self, name: bytes) -> None:
        """A stream was deleted."""
        for lag in self.nodes.values():
            lag.lacking.pop(name, None)

    def rows(self, now_s: float) -> list[InSyncRow]:
        return [lag.row(node, now_s) for node, lag in self.nodes.items()]
