"""The leases under which this node takes messages, and the in-sync replicas that must hold them, in shared memory.

An agent beside the node, or an operator, gives both by commands, to any worker; from then on they hold in all of them.
Each group of streams has its own; the first command for one gives the number of groups. Without a
lease, and without `start_fenced`, a node takes messages for ever, as a node that is in no cluster does.
"""

from __future__ import annotations

import time
from typing import Final

from tailrace.protocol.names import ALL_STREAMS, GROUPS_MAX, StreamGroup
from tailrace.shard.names import group_key

_PART_BYTES: Final = 4_096
PAGE_BYTES: Final = _PART_BYTES * (1 + GROUPS_MAX)
"""Of the head and of each group; what no group needs is never touched."""
NODES_BYTES_MAX: Final = 2_048
"""Of the ids of all in-sync replicas of a group, with a comma between two."""
OVER_NS: Final = 1
"""An end that is over."""

CLUSTER_CELL: Final = 1
"""Of the cells: 0 if the node is in no cluster. The append path reads it first."""
GROUPS_CELL: Final = 2
_VERSION_CELL, _SINCE_CELL, _TOLD_CELL = 0, 3, 4  # changes of in-sync replicas, start, whether the groups are known
_PART_CELLS = _PART_BYTES // 8
_VERSION, _END, _TERM, _IDS_BYTES, _PROMISED, _IDS = range(6)  # of a group: cells, and then the ids
_READS_MAX = 1_000  # of ids that are being written; a writer that was killed in the middle leaves them so

LEASE_OVER_TEXT: Final = "this node has no lease as master; nothing of this was logged, try again"
LOGGED_WITHOUT_LEASE_TEXT: Final = "logged, but the lease of this node as master has ended; it may be lost"
TOO_FEW_TEXT: Final = "{isr} nodes are in sync, and {asked} beside the master are needed; nothing of this was logged"


def boottime_ns() -> int:
    """The clock of leases: monotonic, and goes on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LeasePage:
    """One per node: made before the first fork, and written by the worker that has got the command."""

    __slots__ = ("_memory", "cells")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory[:PAGE_BYTES]
        self.cells = self._memory.cast("Q")
        self.cells[GROUPS_CELL] = 1
        self.cells[_SINCE_CELL] = boottime_ns()

    def fence(self) -> None:
        self.cells[CLUSTER_CELL] = 1

    @property
    def groups(self) -> int:
        return self.cells[GROUPS_CELL]

    def knows(self, group: StreamGroup) -> bool:
        """Whether the node's streams are in this number of groups; the first who asks decides that."""
        if not self.cells[_TOLD_CELL]:
            self.cells[GROUPS_CELL], self.cells[_TOLD_CELL] = group.groups, 1
        return self.cells[GROUPS_CELL] == group.groups

    def grant(self, term: int, until_ns: int, group: StreamGroup = ALL_STREAMS) -> bool:
        """Whether the lease is taken: not if a later term was given, and while a promise lasts none of a later term."""
        now_ns, cells, at = boottime_ns(), self.cells, _at(group.number)
        if not self.knows(group) or term < cells[at + _TERM]:
            return False
        if term > cells[at + _TERM] and until_ns > now_ns and cells[at + _PROMISED] > now_ns:
            return False
        cells[at + _END] = OVER_NS  # no other worker takes the former end for one of this term
        cells[at + _TERM] = term
        cells[at + _END] = max(until_ns, OVER_NS)
        cells[CLUSTER_CELL] = 1
        return True

    def promise(self, term: int, length_ns: int, group: StreamGroup = ALL_STREAMS) -> bool:
        """Promise the leader of `term` to lead in no later one for this time. Only a node that has been told to follow
        in this term does: one without a lease, to which a lease of this term was the last that was given.
        """
        now_ns, cells, at = boottime_ns(), self.cells, _at(group.number)
        is_of_cluster = cells[CLUSTER_CELL] and cells[GROUPS_CELL] == group.groups
        if not is_of_cluster or term != cells[at + _TERM] or cells[at + _END] > now_ns:
            return False
        cells[at + _PROMISED] = max(cells[at + _PROMISED], now_ns + length_ns)
        return True

    def until_ns(self, group: int = 0) -> int:
        """When the lease ends, or has ended; 0 if the node is in no cluster."""
        return max(self.cells[_at(group) + _END], OVER_NS) if self.cells[CLUSTER_CELL] else 0

    def term(self, group: int = 0) -> int:
        return self.cells[_at(group) + _TERM]

    def promised_ns(self, group: int = 0) -> int:
        """When the last promise ends; 0 without one."""
        return self.cells[_at(group) + _PROMISED]

    @property
    def since_ns(self) -> int:
        """When the node started; it does not know of promises from before."""
        return self.cells[_SINCE_CELL]

    def set_isr(self, nodes: tuple[str, ...], group: StreamGroup = ALL_STREAMS) -> bool:
        """Whether the node has such a group. Raises ValueError if the ids are too long."""
        text = ",".join(nodes).encode()
        if len(text) > NODES_BYTES_MAX:
            raise ValueError(f"the ids of the nodes have {len(text)} bytes; at most {NODES_BYTES_MAX} can be kept")
        if not self.knows(group):
            return False
        cells, at = self.cells, _at(group.number)
        version = cells[at + _VERSION] | 1
        cells[at + _VERSION] = version  # odd: being written
        start = (at + _IDS) * 8
        self._memory[start : start + len(text)] = text
        cells[at + _IDS_BYTES] = len(text)
        cells[at + _VERSION] = version + 1
        cells[_VERSION_CELL] += 1
        return True

    def isr_version(self, group: int) -> int:
        """Another number when the in-sync replicas of a group have changed."""
        return self.cells[_at(group) + _VERSION]

    def read_isr(self, group: int = 0) -> tuple[int, tuple[str, ...]]:
        """(version, ids). While they are being written, or were not written to their end: none."""
        cells, at = self.cells, _at(group)
        start = (at + _IDS) * 8
        for _ in range(_READS_MAX):
            version = cells[at + _VERSION]
            text = bytes(self._memory[start : start + cells[at + _IDS_BYTES]])
            if not version & 1 and version == cells[at + _VERSION]:
                return version, tuple(text.decode().split(",")) if text else ()
        return version, ()


def _at(group: int) -> int:
    """The first cell of a group."""
    return (group + 1) * _PART_CELLS


class Lease:
    """The page as one worker reads it. `key` is the `group_key` of a stream."""

    __slots__ = ("_isrs", "_node", "_page", "cells", "ends")

    def __init__(self, page: LeasePage, node: str) -> None:
        self._page = page
        self.cells = page.cells
        self.ends = page.cells[_at(0) + _END :: _PART_CELLS]  # of the lease of each group
        self._node = node
        self._isrs: dict[int, tuple[int, frozenset[str]]] = {}  # group: version, the other nodes

    @property
    def is_needed(self) -> bool:
        """Whether the node is in a cluster."""
        return self.cells[CLUSTER_CELL] != 0

    @property
    def groups(self) -> int:
        return self.cells[GROUPS_CELL]

    def term(self, key: int) -> int:
        return self._page.term(key % self.cells[GROUPS_CELL])

    def is_over(self, key: int) -> bool:
        """This is one comparison on the append path; in a cluster, and a look at the clock."""
        cells = self.cells
        return cells[CLUSTER_CELL] != 0 and boottime_ns() >= self.ends[key % cells[GROUPS_CELL]]

    def is_over_for(self, name: bytes) -> bool:
        return self.cells[CLUSTER_CELL] != 0 and self.is_over(group_key(name))

    @property
    def version(self) -> int:
        """Another number when the in-sync replicas of a group have changed, or the node comes into a cluster."""
        return self.cells[_VERSION_CELL] * 2 + self.cells[CLUSTER_CELL]

    def others(self, key: int) -> frozenset[str] | None:
        """The in-sync replicas but this node; None if the node is in no cluster."""
        if self.cells[CLUSTER_CELL] == 0:
            return None
        group = key % self.cells[GROUPS_CELL]
        version, others = self._isrs.get(group, (0, frozenset[str]()))
        if version != self._page.isr_version(group):
            version, ids = self._page.read_isr(group)
            others = frozenset(ids) - {self._node}
            self._isrs[group] = version, others
        return others

    def others_for(self, name: bytes) -> frozenset[str] | None:
        return None if self.cells[CLUSTER_CELL] == 0 else self.others(group_key(name))
