"""The lease under which this node takes messages, and the in-sync replicas that must hold them, in shared memory.

An agent beside the node, or an operator, gives both by commands, to any worker; from then on they hold in all of them.
Without a lease, and without `start_fenced`, a node takes messages for ever, as a node that is in no cluster does.
"""

from __future__ import annotations

import time
from typing import Final

PAGE_BYTES: Final = 4_096
NODES_BYTES_MAX: Final = 2_048
"""Of the ids of all in-sync replicas, with a comma between two."""
OVER_NS: Final = 1
"""An end that is over."""
END_CELL: Final = 1
"""Of the cells: when the lease ends, in ns; 0 if the node is in no cluster. The append path reads it first."""
_HEAD_BYTES = 48  # version, end, term, bytes of the ids, end of the promise, when the page was made
_READS_MAX = 1_000  # of ids that are being written; a writer that was killed in the middle leaves them so

LEASE_OVER_TEXT: Final = "this node has no lease as master; nothing of this was logged, try again"
LOGGED_WITHOUT_LEASE_TEXT: Final = "logged, but the lease of this node as master has ended; it may be lost"
TOO_FEW_TEXT: Final = "{isr} nodes are in sync, and {asked} beside the master are needed; nothing of this was logged"


def boottime_ns() -> int:
    """The clock of leases: monotonic, and goes on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LeasePage:
    """One per node: made before the first fork, and written by the worker that has got the command."""

    __slots__ = ("_ids", "cells")

    def __init__(self, memory: memoryview) -> None:
        self.cells = memory[:_HEAD_BYTES].cast("Q")
        self._ids = memory[_HEAD_BYTES : _HEAD_BYTES + NODES_BYTES_MAX]
        self.cells[5] = boottime_ns()

    def fence(self) -> None:
        self.cells[END_CELL] = OVER_NS

    def grant(self, term: int, until_ns: int) -> bool:
        """Whether the lease is taken: not if a later term was given, and while a promise lasts none of a later term."""
        now_ns = boottime_ns()
        if term < self.cells[2] or (term > self.cells[2] and until_ns > now_ns and self.cells[4] > now_ns):
            return False
        self.cells[END_CELL] = OVER_NS  # no other worker takes the former end for one of this term
        self.cells[2] = term
        self.cells[END_CELL] = max(until_ns, OVER_NS)
        return True

    def promise(self, term: int, length_ns: int) -> bool:
        """Promise the leader of `term` to lead in no later one for this time. Only a node that has been told to follow
        in this term does: one without a lease, to which a lease of this term was the last that was given.
        """
        now_ns = boottime_ns()
        end_ns = self.cells[END_CELL]
        if term != self.cells[2] or end_ns == 0 or end_ns > now_ns:
            return False
        self.cells[4] = max(self.cells[4], now_ns + length_ns)
        return True

    @property
    def promised_ns(self) -> int:
        """When the last promise ends; 0 without one."""
        return self.cells[4]

    @property
    def since_ns(self) -> int:
        """When the node started; it does not know of promises from before."""
        return self.cells[5]

    def set_isr(self, nodes: tuple[str, ...]) -> None:
        """Raises ValueError if the ids are too long."""
        text = ",".join(nodes).encode()
        if len(text) > NODES_BYTES_MAX:
            raise ValueError(f"the ids of the nodes have {len(text)} bytes; at most {NODES_BYTES_MAX} can be kept")
        version = self.cells[0] | 1
        self.cells[0] = version  # odd: being written
        self._ids[: len(text)] = text
        self.cells[3] = len(text)
        self.cells[0] = version + 1

    def read_isr(self) -> tuple[int, tuple[str, ...]]:
        """(version, ids). While they are being written, or were not written to their end: none."""
        for _ in range(_READS_MAX):
            version = self.cells[0]
            text = bytes(self._ids[: self.cells[3]])
            if not version & 1 and version == self.cells[0]:
                return version, tuple(text.decode().split(",")) if text else ()
        return version, ()


class Lease:
    """The page as one worker reads it."""

    __slots__ = ("_isr", "_node", "_page", "_version", "cells")

    def __init__(self, page: LeasePage, node: str) -> None:
        self._page = page
        self.cells = page.cells
        self._node = node
        self._version = 0
        self._isr: frozenset[str] = frozenset()

    @property
    def is_needed(self) -> bool:
        """Whether the node is in a cluster."""
        return self.cells[END_CELL] != 0

    @property
    def term(self) -> int:
        return self.cells[2]

    def is_over(self) -> bool:
        """This is one comparison on the append path; with a lease, and a look at the clock."""
        until_ns = self.cells[END_CELL]
        return until_ns != 0 and boottime_ns() >= until_ns

    @property
    def version(self) -> int:
        """Another number when the in-sync replicas have changed."""
        return self.cells[0]

    def others(self) -> frozenset[str] | None:
        """The in-sync replicas but this node; None if the node is in no cluster."""
        if self.cells[END_CELL] == 0:
            return None
        if self._version != self.cells[0]:
            self._version, ids = self._page.read_isr()
            self._isr = frozenset(ids) - {self._node}
        return self._isr
