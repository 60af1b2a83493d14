"""Which days a run rolls up: a range of them, or also those that earlier nights have missed.

The table of nodes has a row of a node for each of its days. A day was missed if it comes after the node's first day in
the tables, and no run has rolled it up after it was over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from tailrace.errors import TailraceError
from tailrace.shard.errors import DirectoryError
from tailrace.spark.options import parse_options
from tailrace.spark.rollup.job import Job
from tailrace.spark.rollup.nodes import NodeRow, State, read_all_nodes
from tailrace.spark.rollup.store import Store
from tailrace.spark.source import SourceOptions, open_source

DAYS_MAX: Final = 1_100
"""Days of one run, about three years. Each is planned by itself."""
_ONE: Final = timedelta(days=1)
_DONE: Final[tuple[State, ...]] = ("whole", "partly")


def list_days(first: date, last: date) -> list[date]:
    """Both and those between, at most DAYS_MAX of them: the last ones."""
    first = max(first, last - (DAYS_MAX - 1) * _ONE)
    return [first + place * _ONE for place in range((last - first).days + 1)]


class SameNode(ValueError):
    """Two sources are of one node, or may be read from one; the text names both."""


def read_node_ids(jobs: Sequence[Job]) -> list[str]:
    """The id of the node of each job, empty for a node of a fleet that cannot be opened: the run itself reports that.

    Raises SameNode; DirectoryError or TailraceError if the only node cannot be opened.
    """
    sources = [parse_options(job.source).source for job in jobs]
    ids = [_read_node_id(source, len(jobs) == 1) for source in sources]
    names: dict[str, str] = {}
    for job, source, node in zip(jobs, sources, ids, strict=True) if len(jobs) > 1 else ():
        for each in filter(None, (node, *_find_others(source))):
            if names.setdefault(each, job.name) != job.name:
                raise SameNode(f"{names[each]} and {job.name} are or share one node, {each}; give it once")
    return ids


def _find_others(source: SourceOptions) -> Iterator[str]:
    """The addresses of a source, and if there are several the ids of the nodes there: any may be read in the end."""
    yield from map(str, source.brokers)
    for address in source.brokers if len(source.brokers) > 1 else ():
        yield _read_node_id(source._replace(brokers=(address,)), False)


def plan_catch_up(jobs: Sequence[Job], ids: Sequence[str], last: date) -> list[tuple[Job, ...]]:
    """The jobs of each day, in order: all jobs for `last`, for earlier days those of nodes that missed them. `ids` are
    those of their nodes. Raises OSError.
    """
    rows = read_all_nodes(Store(jobs[0].out).snapshot())
    missed = [find_missed(job, node, rows, last) for job, node in zip(jobs, ids, strict=True)]
    return [
        tuple(job._replace(day=day) for job, days in zip(jobs, missed, strict=True) if day in days)
        for day in sorted(set().union(*missed))
    ]


def find_missed(job: Job, node: str, rows: Iterable[tuple[date, NodeRow]], last: date) -> set[date]:
    """`last`, and the earlier days that the node has missed. `node`: its id, or empty. `rows`: of the table of nodes,
    with their days."""
    own = [(day, row) for day, row in rows if row.name == job.name or (node and node in (row.node, row.name))]
    first = min((day for day, _ in own), default=last)
    done = {day for day, row in own if is_done(day, row, job.streams)}
    return {last, *(day for day in list_days(first, last) if day not in done)}


def is_done(day: date, row: NodeRow, streams: Sequence[str] = ()) -> bool:
    """Whether the day was rolled up when it was over; with `streams` also if it was for some of the streams only."""
    is_read = row.state in _DONE or (row.state == "selected" and bool(streams))
    over = datetime.combine(day + _ONE, time(), UTC)
    return is_read and row.rolled_up_at is not None and row.rolled_up_at >= over


def _read_node_id(options: SourceOptions, is_alone: bool) -> str:
    try:
        with closing(open_source(options)) as source:
            return source.node_id()
    except (DirectoryError, TailraceError):
        if is_alone:
            raise
        return ""
