"""A run of the rollup, from the lock to the commit: plans, lets an engine read and write, merges."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from tailrace.shard.directory import open_data_dir
from tailrace.spark.options import parse_options
from tailrace.spark.patterns import is_wanted
from tailrace.spark.rollup import topics
from tailrace.spark.rollup.copies import Copies, compare_copies, find_copies, first_rows
from tailrace.spark.rollup.day_plan import DayPlan, plan_day
from tailrace.spark.rollup.engine import ChooseEngine, Show
from tailrace.spark.rollup.frame_view import frame_views
from tailrace.spark.rollup.merge import KEPT_FROM_MAX, Fresh, Identity, Kept, file_name, write_merged
from tailrace.spark.rollup.nodes import NodeRow, State, read_nodes, stage_node
from tailrace.spark.rollup.store import NODES, TABLES, TOPICS, Store, staged_node
from tailrace.spark.rollup.table import open_tables
from tailrace.spark.rollup.tasks import TableFile, TaskResult, Work
from tailrace.spark.rollup.terms import Histories, from_text, to_text
from tailrace.spark.rollup.topics import TOPIC
from tailrace.spark.source import open_source

LOG = logging.getLogger("tailrace.rollup")

_BEFORE: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("stream", "node", "stream_id")),
        *((name, pa.int64()) for name in ("first_seq", "last_seq", "messages", "gaps")),
    ]
)
GUESSED: Final = "@"
"""Before the time of its first message: the id of a stream that was read over a connection, beside rows without an id
of an earlier stream of its name."""
NOTES_MAX: Final = 10_000
"""Notes that are kept of a run; further streams that could not be read are only counted."""


class Job(NamedTuple):
    """`source`: the options of the data source with the location of the streams, path or brokers and token. `replace`:
    remove rows of other nodes, and of streams that are gone or were made anew. `name`: of the node, for the table of
    nodes; "" for its id. `topics`: how many topics of a stream and hour get a row, 0 for no table of topics.
    """

    source: Mapping[str, str]
    out: Path
    day: date
    streams: tuple[str, ...] = ()
    verify: bool = False
    replace: bool = False
    name: str = ""
    topics: int = 0


class Before(NamedTuple):
    """The rows of a stream and day in the tables. `has_first_gap`: also its first message has a gap, which is lost when
    the message before it is trimmed.
    """

    first_seq: int
    has_first_gap: bool = False
    last_seq: int = -1


class Note(NamedTuple):
    """A note on a stream for the operator; `is_failure` if its rows are incomplete."""

    stream: str
    text: str
    is_failure: bool


@dataclass
class Outcome:
    """The result of a run.

    `messages` of the day that were read, and `streams`: of copies that this run has read on several nodes, once.
    `counts`: the messages of each stream. `rows` of each table; `kept` are the streams of which older rows were kept,
    `others` those whose older rows are of another node or of an earlier stream of the same name, and stay beside the
    new ones; `copies` those whose rows of another node count the same messages, and were merged with the new ones;
    `failed` those that could not be read whole. `notes` has at most NOTES_MAX of them. `node` is the id of the node,
    and `copied` has the streams of `copies`, each with the id of a node that had the rows.
    """

    messages: int = 0
    streams: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    was_cleared: bool = False
    others: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    node: str = ""
    copied: set[tuple[str, str]] = field(default_factory=set)

    @property
    def failures(self) -> int:
        return len(self.failed)

    def join(self, other: Outcome) -> None:
        """Add what a run of another node did into the same tables."""
        of_other = {stream for stream, node in self.copied if node == other.node}
        again = {*other.copies, *of_other} & self.counts.keys() & other.counts.keys()
        self.copied |= other.copied
        twice = sum(min(self.counts[stream], other.counts[stream]) for stream in again)
        self.messages += other.messages - twice
        self.streams += other.streams - len(again)
        for stream, count in other.counts.items():
            before = self.counts.get(stream, 0)
            self.counts[stream] = max(before, count) if stream in again else before + count
        self.rows, self.was_cleared = other.rows, other.was_cleared
        for note in other.notes:
            self.add(note)
        self.failed |= other.failed
        for name in ("kept", "others", "copies"):
            setattr(self, name, sorted({*getattr(self, name), *getattr(other, name)}))

    def add(self, note: Note) -> None:
        if note.is_failure:
            self.failed.add(note.stream)
        if len(self.notes) < NOTES_MAX:
            self.notes.append(note)


def run_job(job: Job, choose: ChooseEngine, show: Show) -> Outcome:
    """Roll the day up and commit it. `choose` is called if there are messages to read.

    Raises StoreInUse, DirectoryError and others of opening the source, OSError, EngineError.
    """
    store = Store(job.out)
    with store.locked():
        return run_locked(store, job, choose, show)


def run_locked(store: Store, job: Job, choose: ChooseEngine, show: Show) -> Outcome:
    """The same, for a caller that holds the lock of the tables for longer."""
    plan = make_plan(job, show)
    outcome = Outcome(plan.messages, len(plan.first_seqs) + len(plan.bad), counts=plan.counts, node=plan.node)
    for bad in plan.bad:
        outcome.add(Note(bad.stream, bad.cause, True))
    for each in plan.contradictory:
        outcome.add(Note(each.stream, each.cause, True))
    for pattern in find_idle(job.streams, [*plan.first_seqs, *(bad.stream for bad in plan.bad)]):
        outcome.add(Note(pattern, "no stream has this name, or matches this pattern", True))
    with store.run() as run:
        changed = _Run(job, store, run, plan, outcome, choose, show).stage()
        nodes = store.partition(NODES, job.day)
        row = node_row(job, plan, outcome, read_terms(nodes).get(plan.node, {}))
        stage_node(run, nodes, row, keeps_own=bool(job.streams), keeps_others=bool(job.streams) or not job.replace)
        had_rows = store.partition("days", job.day).exists()
        store.commit(run, job.day, nodes=changed)
        tables = (*TABLES.values(), *([TOPICS] if job.topics else []))
        outcome.rows = {table: count_rows(store.partition(table, job.day)) for table in tables}
        outcome.was_cleared = had_rows and not any(outcome.rows.values())
    store.sweep()  # what a killed run's own processes went on writing until they noticed
    return outcome


def node_row(job: Job, plan: DayPlan, outcome: Outcome, before: Histories) -> NodeRow:
    """What the table of nodes gets of a run. `before`: the terms that it has of the node."""
    state: State = "selected" if job.streams else "partly" if outcome.failures else "whole"
    kept = {stream: history for stream, history in before.items() if stream not in plan.first_seqs}
    return NodeRow(
        name=job.name or plan.node,
        node=plan.node,
        state=state,
        streams=outcome.streams,
        messages=outcome.messages,
        rolled_up_at=datetime.now(UTC),
        terms=to_text(kept | plan.histories),
    )


def read_terms(nodes: Path) -> dict[str, Histories]:
    """The terms of the streams of each node, by its id, as far as they are in the day's table of nodes."""
    rows = read_nodes(nodes)
    return {row.node: from_text(row.terms) for row in rows if row.node is not None and row.terms is not None}


def make_plan(job: Job, show: Show) -> DayPlan:
    """Raises DirectoryError and others of opening the source."""
    options = parse_options(job.source).source
    by_frames = frame_views(open_data_dir(Path(options.path))) if options.path else None
    with closing(open_source(options)) as source:
        return plan_day(
            source,
            job.day,
            job.streams,
            lambda done, total: show("looking at streams", done, total),
            frame_views=by_frames,
            verify=job.verify,
        )


class _Run:
    """The part between begin and commit: everything in it happens in the run's own folder."""

    def __init__(
        self, job: Job, store: Store, run: Path, plan: DayPlan, outcome: Outcome, choose: ChooseEngine, show: Show
    ) -> None:
        self._job = job
        self._run = run
        self._raw = run / "raw"
        self._old = {table: store.snapshot().by_node(table, job.day) for table in TABLES.values()}
        self._nodes = store.partition(NODES, job.day)
        self._old_topics = store.snapshot().by_node(TOPICS, job.day).get(plan.node) if job.topics else None
        self._plan = plan
        self._outcome = outcome
        self._choose = choose
        self._show = show

    def stage(self) -> set[str]:
        """Returns the ids of the nodes whose rows are replaced by the staged ones."""
        self._raw.mkdir()
        results = self._roll_up() if self._plan.tasks else []
        unreadable = self._take_notes(results)
        before = read_before(list(self._old["days"].values()))
        minutes = [self._raw / result.files["minute"] for result in results if "minute" in result.files]
        copies = self._find_copies(before, minutes)
        former = self._find_former(before, minutes, unreadable, copies)
        found = [
            each._replace(end_seq=copies.end_seqs.get(each.was, each.end_seq))
            for each in find_kept(self._plan, before, unreadable, self._job, copies.found, former)
        ]
        self._report_kept(found)
        changed = find_changed(self._plan.node, before, found)
        merged = [each for each in found if each.was.node in changed]
        fresh = {
            level: [self._raw / result.files[level] for result in results if level in result.files] for level in TABLES
        }
        if merged or copies.fresh:
            self._merge(fresh, changed, merged, copies)
        else:
            self._take(fresh)
        if self._job.topics:
            self._stage_topics([self._raw / result.files[TOPIC] for result in results if TOPIC in result.files])
        return changed

    def _stage_topics(self, fresh: Sequence[Path]) -> None:
        job, plan, old = self._job, self._plan, self._old_topics
        folder = staged_node(self._run, TOPICS, plan.node)
        folder.mkdir(parents=True)

        def now_of(stream: str, stream_id: str | None) -> str | None:
            same = find_same(Identity(stream, plan.node, stream_id), plan)
            return stream_id if same is None else plan.stream_ids[stream]

        def is_dropped(stream: str, stream_id: str | None) -> bool:
            is_gone = job.replace and find_same(Identity(stream, plan.node, stream_id), plan) is None
            return is_gone and is_wanted(stream, job.streams)

        with closing(TableFile(folder / file_name(0), schema=topics.SCHEMA)) as file:
            topics.merge_topics(fresh, old, now_of, is_dropped, file.add)

    def _merge(
        self, fresh: Mapping[str, Sequence[Path]], changed: set[str], found: Sequence[Kept], copies: Copies
    ) -> None:
        old = {table: [nodes[node] for node in sorted(changed & nodes.keys())] for table, nodes in self._old.items()}
        node, run, phase = self._plan.node, self._run, "keeping rows of trimmed messages"
        left_out = write_merged(
            fresh, old, node, found, run, lambda done, total: self._show(phase, done, total), copies.fresh
        )
        self._report_left_out(left_out)

    def _report_left_out(self, messages: Mapping[Identity, int]) -> None:
        for each, count in messages.items():
            text = f"{count:,} messages of node {each.node} are not counted: another copy is of a later term"
            self._outcome.add(Note(each.stream, text, False))

    def _report_kept(self, wanted: list[Kept]) -> None:
        """Rows of streams that this run was not asked for stay, too, and those of the other nodes of a fleet; nobody
        needs a message."""
        kept, others, copies = set[str](), set[str](), set[str]()
        fleet = self._find_fleet()
        for each in wanted:
            if is_wanted(each.was.stream, self._job.streams) and (each.now or each.was.node not in fleet):
                is_copy = each.now is not None and find_same(each.was, self._plan) is None
                (copies if is_copy else others if is_another(each, self._plan) else kept).add(each.was.stream)
                if is_copy:
                    self._outcome.copied.add((each.was.stream, each.was.node))
        self._outcome.kept, self._outcome.others, self._outcome.copies = map(sorted, (kept, others, copies))

    def _find_fleet(self) -> set[str | None]:
        """The ids of the other nodes that have a name, if this one has."""
        rows = read_nodes(self._nodes) if self._job.name else []
        return {row.node for row in rows if row.name not in (row.node, self._job.name)}

    def _find_copies(self, before: Mapping[Identity, Before], minutes: Sequence[Path]) -> Copies:
        """Rows of other nodes that count the messages of streams that were read now."""
        plan = self._plan
        if self._job.replace:
            return Copies(set(), {}, [])
        same = {was: find_same(was, plan) is not None for was in before if was.stream in plan.first_seqs}
        others = [was for was, is_own in same.items() if not is_own]
        found = find_copies(minutes, list(self._old["minutes"].values()), others)
        now = {stream: Identity(stream, plan.node, stream_id) for stream, stream_id in plan.stream_ids.items()}
        last_seqs = {was: row.last_seq for was, row in before.items()}
        last_seqs |= {now[stream]: last_seq for stream, last_seq in plan.last_seqs.items()}
        return compare_copies(now, plan.histories, same, read_terms(self._nodes), found, last_seqs)

    def _find_former(
        self, before: Mapping[Identity, Before], minutes: Sequence[Path], unreadable: set[str], copies: Copies
    ) -> set[Identity]:
        """Rows of earlier streams of the names, shown by their first message if no id shows it.
        What was read over a connection becomes rows of the id that the tables have of it already."""
        plan = self._plan
        if self._job.replace:
            return set()
        doubtful = find_doubtful(plan, before, unreadable)
        new, old = first_rows(minutes, list(self._old["minutes"].values()), doubtful)
        former = {was for was in doubtful if old.get(was) != new.get(was.stream)}
        merged = {each.now.stream for each in copies.fresh}
        ids = {was.stream: was.stream_id for was in doubtful - former}
        for was in former:
            if was.stream_id is None and was.stream in new:
                ids.setdefault(was.stream, f"{GUESSED}{new[was.stream].start_us}")
        for stream, stream_id in ids.items():
            if plan.stream_ids[stream] is None and stream_id is not None and stream not in merged:
                now = Identity(stream, plan.node, None)
                copies.fresh.append(Fresh(now, now._replace(stream_id=stream_id)))
        return former

    def _roll_up(self) -> list[TaskResult]:
        """In the order of the tasks."""
        engine = self._choose(self._plan.messages)
        source = parse_options(self._job.source).source
        work = Work(source, str(self._raw), self._plan.node, self._job.verify, self._job.topics)
        return sorted(engine.run(work, self._plan.tasks, self._show))

    def _take_notes(self, results: Sequence[TaskResult]) -> set[str]:
        """Collects the notes of the tasks; returns the streams with messages that could not be read."""
        unreadable = {bad.stream for bad in self._plan.bad}
        for note in (note for result in results for note in result.notes):
            # A trim that came first is in order; everything else is a failure.
            self._outcome.add(Note(note.stream, note.text, not note.missing or note.damaged > 0))
            unreadable.add(note.stream)
        return unreadable

    def _take(self, fresh: Mapping[str, Sequence[Path]]) -> None:
        """Nothing to merge: the rows are the tables as they are."""
        for level, files in fresh.items():
            folder = staged_node(self._run, TABLES[level], self._plan.node)
            if files:
                folder.mkdir(parents=True)
            for number, file in enumerate(files):
                os.rename(file, folder / file_name(number))


def find_idle(patterns: Sequence[str], streams: Sequence[str]) -> list[str]:
    """The patterns that mean none of the streams."""
    return [pattern for pattern in patterns if not any(is_wanted(stream, [pattern]) for stream in streams)]


def find_kept(
    plan: DayPlan,
    old: Mapping[Identity, Before],
    unreadable: set[str],
    job: Job,
    copies: Collection[Identity] = (),
    former: Collection[Identity] = (),
) -> list[Kept]:
    """The streams of which the tables may have rows that cannot be made again. `former` are earlier streams that only
    their messages tell from those of the plan.

    A stream that is gone, or cannot be read, keeps its former rows, and so does every other node and every earlier
    stream of a name: their rows are not this run's. Rows of a copy on another node are merged with the new ones.
    """
    kept = []
    for was, before in old.items():
        stream = was.stream
        now = find_same(was, plan)
        if was in former:
            kept.append(Kept(was))
        elif now is not None:
            kept_from = KEPT_FROM_MAX if stream in unreadable else plan.first_seqs[stream]
            if kept_from > before.first_seq or (kept_from == before.first_seq and before.has_first_gap):
                kept.append(Kept(was, kept_from, now))
        elif was in copies:
            kept.append(Kept(was, KEPT_FROM_MAX, Identity(stream, plan.node, plan.stream_ids[stream])))
        elif stream in unreadable or not (job.replace and is_wanted(stream, job.streams)):
            kept.append(Kept(was))
    return kept


def find_changed(node: str, before: Collection[Identity], kept: Sequence[Kept]) -> set[str]:
    """The ids of the nodes whose rows change: the one that was read, and those that lose rows or have some that are
    merged with new ones."""
    unchanged = {each.was for each in kept if each.now is None}
    return {node, *(was.node for was in before if was not in unchanged)}


def find_doubtful(plan: DayPlan, before: Mapping[Identity, Before], unreadable: set[str]) -> set[Identity]:
    """Former rows that may be of an earlier stream of the name, as the ids of both are not known; the first message of
    the day shows it, which is kept and can be read."""
    return {
        was
        for was, row in before.items()
        if find_same(was, plan) is not None
        and (plan.stream_ids[was.stream] is None or not is_known(was.stream_id))
        and was.stream not in unreadable
        and plan.first_seqs[was.stream] <= row.first_seq
    }


def is_known(stream_id: str | None) -> bool:
    return stream_id is not None and not stream_id.startswith(GUESSED)


def find_same(was: Identity, plan: DayPlan) -> Identity | None:
    """Returns the planned stream of these rows, None for another. An id that is not known matches any."""
    stream = was.stream
    if stream not in plan.first_seqs or was.node != plan.node:
        return None
    stream_id = plan.stream_ids[stream]
    if stream_id is not None and is_known(was.stream_id) and was.stream_id != stream_id:
        return None
    return Identity(stream, plan.node, stream_id or was.stream_id)


def is_another(kept: Kept, plan: DayPlan) -> bool:
    """Whether the rows are of another node, or of an earlier stream of the same name."""
    return kept.now is None and (kept.was.node != plan.node or kept.was.stream in plan.first_seqs)


def read_before(days: Sequence[Path]) -> dict[Identity, Before]:
    """Reads the former rows of each stream; `days` are the nodes' folders of the day."""
    dataset = open_tables(days, days[0].parent, _BEFORE) if days else None
    if dataset is None:
        return {}
    table = dataset.to_table()
    rows = zip(*(table[name].to_pylist() for name in _BEFORE.names), strict=True)
    return {
        Identity(stream, node, stream_id): Before(first_seq, first_seq > 0 and messages == gaps, last_seq)
        for stream, node, stream_id, first_seq, last_seq, messages, gaps in rows
    }


def count_rows(path: Path) -> int:
    """Counts the rows of the Parquet files in a folder, from their footers."""
    return int(ds.dataset(path, format="parquet").count_rows()) if path.is_dir() else 0
