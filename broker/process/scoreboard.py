"""The board: one shared page of numbers that the supervisor and every worker can read without a message.

Made by the supervisor as an anonymous shared mapping before the first fork. Each cell is one aligned 8-byte integer
with one writer: the worker that holds the slot (or the supervisor, for `pid`, `generation` and `restarts`), so no
lock is needed. A reader may see one cell newer than another; nothing here needs more than that. Behind the slots are
the rows of /metrics (`broker.process.metric_cells`).
"""

from __future__ import annotations

import mmap
import secrets
import time
from collections.abc import Iterator

from tailrace.broker.process.lease import PAGE_BYTES as LEASE_BYTES
from tailrace.broker.process.lease import LeasePage
from tailrace.broker.process.metric_cells import PAGE_BYTES, ROW_BYTES, MetricRow

STATE_EMPTY, STATE_STARTING, STATE_READY, STATE_DRAINING = range(4)
STATE_NAMES = ("empty", "starting", "ready", "draining")

_CELLS = (
    *("pid", "generation", "state", "beat_ns", "connections", "streams", "restarts", "subscriptions", "disk_bytes"),
    "names_version",
)
_SLOT_BYTES = 128  # two cache lines, so that two workers' beats never share one
ADDRESS_CELLS = 8_192  # of a worker, 4 bytes each
_HALF = ADDRESS_CELLS // 2
_ADDRESS_BYTES = ADDRESS_CELLS * 4
ROWS_SPARE = 8  # a slot has two workers while one is replaced; this many more may take long to die


def _cell(index: int) -> property:
    def get(self: SlotView) -> int:
        return self._cells[index]

    def put(self: SlotView, value: int) -> None:
        self._cells[index] = value

    return property(get, put)


class SlotView:
    """The cells of one worker slot; plain integers, 0 until written."""

    __slots__ = ("_cells", "index")

    def __init__(self, index: int, cells: memoryview) -> None:
        self.index = index
        self._cells = cells

    pid = _cell(0)
    generation = _cell(1)
    state = _cell(2)
    beat_ns = _cell(3)
    connections = _cell(4)
    streams = _cell(5)
    restarts = _cell(6)
    subscriptions = _cell(7)
    disk_bytes = _cell(8)
    names_version = _cell(9)

    def beat(self) -> None:
        """Record that the work loop moves (CLOCK_MONOTONIC, the same clock in every process of the machine)."""
        self._cells[3] = time.monotonic_ns()

    def beat_age_s(self) -> float:
        return (time.monotonic_ns() - int(self.beat_ns)) / 1e9

    @property
    def state_name(self) -> str:
        return STATE_NAMES[self.state]


class AddressCells:
    """Counts by address, of one worker, in shared memory: two cells each, found by hash. The smaller sum over all
    workers is the count of an address, or more if others share both of its cells.

    The hash is the same in all processes that were forked from one, and cannot be known outside.
    """

    __slots__ = ("_own", "_rows")

    def __init__(self, rows: list[memoryview], own: memoryview) -> None:
        self._rows = rows
        self._own = own

    def add(self, key: str, count: int) -> None:
        for cell in _cells_of(key):
            self._own[cell] = max(self._own[cell] + count, 0)

    def total(self, key: str) -> int:
        return min(sum(row[cell] for row in self._rows) for cell in _cells_of(key))

    def clear(self) -> None:
        for cell in range(ADDRESS_CELLS):
            if self._own[cell]:
                self._own[cell] = 0


def _cells_of(key: str) -> tuple[int, int]:
    value = hash(key)
    return value % _HALF, _HALF + (value >> 24) % _HALF


class Board:
    """`slots` slots of shared cells. Inherited through fork; never pickled, never on disk."""

    __slots__ = ("_addresses", "_mapping", "_views", "lease", "metric_rows", "run", "slots")

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a board needs at least one slot, not {slots}")
        self.slots = slots
        self.run = secrets.randbits(63)  # of this run of the node, the same in all its processes
        rows_start = -(-slots * _SLOT_BYTES // PAGE_BYTES) * PAGE_BYTES
        rows_end = rows_start + (2 * slots + ROWS_SPARE) * ROW_BYTES
        ends = [rows_end + (index + 1) * _ADDRESS_BYTES for index in range(slots)]
        self._mapping = mmap.mmap(-1, ends[-1] + LEASE_BYTES)
        memory = memoryview(self._mapping)
        self.lease = LeasePage(memory[ends[-1] :])
        cells = memory[:rows_start].cast("Q")
        step = _SLOT_BYTES // 8
        self._views = [SlotView(i, cells[i * step : i * step + len(_CELLS)]) for i in range(slots)]
        self.metric_rows = tuple(
            [MetricRow(memory[start : start + ROW_BYTES]) for start in range(rows_start, rows_end, ROW_BYTES)]
        )

        self._addresses = [memory[end - _ADDRESS_BYTES : end].cast("I") for end in ends]

    def address_cells(self, slot: int | None) -> AddressCells:
        """Those of a slot; None: some that nobody else reads, for a worker that does not have a slot."""
        own = memoryview(bytearray(_ADDRESS_BYTES)).cast("I") if slot is None else self._addresses[slot]
        return AddressCells(self._addresses, own)

    def slot(self, index: int) -> SlotView:
        return self._views[index]

    def __iter__(self) -> Iterator[SlotView]:
        return iter(self._views)

    def total_connections(self) -> int:
        return sum(view.connections for view in self._views)

    def total_streams(self) -> int:
        return sum(view.streams for view in self._views)

    def names_version(self) -> int:
        """Another number, and a greater one, after each stream of the node that was made or deleted."""
        return sum(view.names_version for view in self._views)

    def total_disk_bytes(self) -> int:
        return sum(view.disk_bytes for view in self._views)

    # --- rows of metrics --------------------------------------------------------------------------------------------

    def take_row(self, generation: int) -> bool:
        """For the supervisor, before it forks a worker. False if all rows are held by workers that have not ended."""
        row = next((row for row in self.metric_rows if not row.generation), None)
        if row is not None:
            row.take(generation)
        return row is not None

    def free_row(self, generation: int) -> None:
        """For the supervisor, when the worker has been reaped."""
        for row in self.metric_rows:
            if row.generation == generation:
                row.free()

    def row_of(self, generation: int) -> MetricRow:
        """The row that was taken for a worker; if none was, one that nobody else reads."""
        return next((row for row in self.metric_rows if row.generation == generation), None) or MetricRow()
