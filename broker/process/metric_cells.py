"""The cells of /metrics in the board's shared page: one row for each worker process, which alone writes it.

A cell is an aligned 8-byte float, as Prometheus's own values are, with one writer, so no lock is needed. The first cell
of a row has the generation of its worker, 0 while the row is free; the supervisor writes it: it takes a row before it
forks, and frees it when it has reaped the worker. Then come the values of all families of the table, then the texts of
those label values that the table does not know.

- Counters of dead workers stay in their rows. The next worker of a row adds to the values it finds there, so the sum
  over all rows never falls.
- Other families count only while their row is taken. They are cleared when it is taken again.
- A label value is written text first, then its value, then the number of texts. It keeps its cell for the life of the
  worker; its gauge goes to zero when the value is no longer measured.
- In a family that `vanishes` it goes to ABSENT then, and another label value may get the cell: its text while the cell
  is ABSENT, its value with the next numbers, so that nobody reads the one with the other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from tailrace.broker.process.metrics import OTHER, TABLE, MetricFamily, MetricKind, WorkerMetrics
from tailrace.protocol.address import ADDRESS_BYTES_MAX
from tailrace.protocol.names import CONSUMER_BYTES_MAX
from tailrace.shard.names import NAME_BYTES_MAX

CELL_BYTES = 8
# The longest label values: an address, and a stream's name beside a consumer's.
TEXT_BYTES = -(-max(ADDRESS_BYTES_MAX, NAME_BYTES_MAX + 1 + CONSUMER_BYTES_MAX) // CELL_BYTES) * CELL_BYTES
ABSENT = math.nan  # of a value that is not to be shown
PAGE_BYTES = 4_096
STORE_S = 1.0  # in which a worker has stored all of its numbers


@dataclass(frozen=True, slots=True)
class Columns:
    """The place of a family in each row: cells, and the number of its first text among all texts."""

    first_known: int
    texts: int  # the cell with the number of its texts; the cells of their values come next
    first_text: int


def _lay_out() -> tuple[dict[MetricFamily, Columns], int, int]:
    """The columns of each family; how many cells and how many texts a row has."""
    columns: dict[MetricFamily, Columns] = {}
    cells, texts = 1, 0
    for family in TABLE:
        places = family.texts_max + 1 if family.texts_max else 0  # the last one is kept for OTHER
        columns[family] = Columns(cells, cells + len(family.known), texts)
        cells += len(family.known) + 1 + places
        texts += places
    return columns, cells, texts


COLUMNS, _CELLS, _TEXTS = _lay_out()
_TEXTS_START = _CELLS * CELL_BYTES
_ROW_END = _TEXTS_START + _TEXTS * TEXT_BYTES
ROW_BYTES = -(-_ROW_END // PAGE_BYTES) * PAGE_BYTES  # no two workers write to one page


class MetricRow:
    """One row. `memory` is ROW_BYTES of it; without it the row is the process's own, and nobody else reads it."""

    __slots__ = ("_bytes", "_cells")

    def __init__(self, memory: memoryview | None = None) -> None:
        self._bytes = memoryview(bytearray(ROW_BYTES)) if memory is None else memory
        self._cells = self._bytes.cast("d")

    @property
    def generation(self) -> int:
        """The worker whose row this is, 0 for none."""
        return int(self._cells[0])

    def take(self, generation: int) -> None:
        """Begin a worker's row: without gauges, and with the counters of its predecessors."""
        for family, columns in COLUMNS.items():
            if not family.outlives_workers:
                for cell in (*self.cells_of(family).values(), columns.texts):
                    self._cells[cell] = 0.0
        self._cells[0] = generation

    def free(self) -> None:
        self._cells[0] = 0.0

    def cells_of(self, family: MetricFamily) -> dict[str, int]:
        """The cell of each label value that has one."""
        columns = COLUMNS[family]
        found = {value: columns.first_known + number for number, value in enumerate(family.known)}
        for number in range(int(self._cells[columns.texts])):
            text = bytes(self._bytes[self._text_at(columns, number)])
            found[text.rstrip(b"\0").decode(errors="replace")] = columns.texts + 1 + number
        return found

    def read(self, family: MetricFamily) -> dict[str, float]:
        """The family's values by label value."""
        return {value: self._cells[cell] for value, cell in self.cells_of(family).items()}

    def write(self, cell: int, number: float) -> None:
        self._cells[cell] = number

    def add_text(self, family: MetricFamily, value: str) -> int:
        """Give a label value a cell, which holds 0. There must be a place left."""
        columns = COLUMNS[family]
        number = int(self._cells[columns.texts])
        self._bytes[self._text_at(columns, number)] = value.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        cell = columns.texts + 1 + number
        self._cells[cell] = 0.0
        self._cells[columns.texts] = number + 1
        return cell

    def replace_text(self, family: MetricFamily, cell: int, value: str) -> None:
        """Give a cell to another label value, which is ABSENT at first."""
        columns = COLUMNS[family]
        self._cells[cell] = ABSENT
        number = cell - columns.texts - 1
        self._bytes[self._text_at(columns, number)] = value.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")

    def _text_at(self, columns: Columns, number: int) -> slice:
        start = _TEXTS_START + (columns.first_text + number) * TEXT_BYTES
        return slice(start, start + TEXT_BYTES)


class RowWriter:
    """Carries a worker's numbers into its row. There is one for a row at a time."""

    def __init__(self, row: MetricRow) -> None:
        self._row = row
        self._cells = {family: row.cells_of(family) for family in TABLE}
        # What earlier workers of this row have counted.
        self._before = {family: row.read(family) if family.outlives_workers else {} for family in TABLE}
        self._stored: dict[MetricFamily, Mapping[str, float]] = {}
        self._next = 0  # the place in the table at which `store_due` goes on
        self._stored_s = float("-inf")  # its last call

    def store(self, metrics: WorkerMetrics) -> None:
        """Make the present numbers visible: up to half a millisecond."""
        self._store_families(metrics, 0, len(TABLE))

    def store_due(self, metrics: WorkerMetrics, now_s: float) -> None:
        """Do the same for as many families, in turn, that all have had their turn in STORE_S, however often this is
        called.
        """
        share = min((now_s - self._stored_s) / STORE_S, 1.0)
        self._stored_s = now_s
        end = self._next + math.ceil(share * len(TABLE))
        self._store_families(metrics, self._next, end)
        if end >= len(TABLE):
            end -= len(TABLE)
            self._store_families(metrics, 0, end)
        self._next = end

    def _store_families(self, metrics: WorkerMetrics, start: int, end: int) -> None:
        for family, read in islice(TABLE.items(), start, end):
            values = read(metrics)
            if values != self._stored.get(family):
                self._stored[family] = dict(values)
                self._store(family, values)

    def _store(self, family: MetricFamily, values: Mapping[str, float]) -> None:
        cells, before = self._cells[family], self._before[family]
        totals: dict[str, float] = {}
        renamed: set[str] = set()
        for value, number in values.items():
            place = value if value in cells else self._find_place(family, value, values, renamed)
            totals[place] = totals.get(place, 0.0) + number
        totals |= dict.fromkeys(renamed, ABSENT)
        missing = ABSENT if family.vanishes else 0.0
        for value, cell in cells.items():
            self._row.write(cell, before.get(value, 0.0) + totals.get(value, missing))
        if renamed:
            del self._stored[family]  # their values come the next time

    def _find_place(self, family: MetricFamily, value: str, values: Mapping[str, float], renamed: set[str]) -> str:
        """The label value that a new one is counted as: itself, or OTHER if there are too many."""
        cells = self._cells[family]
        if len(cells) - len(family.known) >= family.texts_max:
            free = (each for each in cells if each not in values and each != OTHER) if family.vanishes else iter(())
            if (old := next(free, None)) is not None:
                cells[value] = cells.pop(old)
                self._row.replace_text(family, cells[value], value)
                renamed.add(value)
                return value
            value = OTHER
        if value not in cells:
            cells[value] = self._row.add_text(family, value)
        return value


def sum_up(rows: Iterable[MetricRow], family: MetricFamily) -> dict[str, float]:
    """A family's values over all rows, by label value."""
    combine = max if family.kind in (MetricKind.GAUGE_MAX, MetricKind.COUNTER_MAX) else operator.add
    found: dict[str, float] = {}
    for row in _counted(rows, family):
        for value, number in row.read(family).items():
            if math.isnan(number):
                continue
            found[value] = combine(found[value], number) if value in found else number
    return found


def _counted(rows: Iterable[MetricRow], family: MetricFamily) -> Iterator[MetricRow]:
    return (row for row in rows if row.generation or family.outlives_workers)
