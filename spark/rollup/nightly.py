"""A whole night's work, of a day or several: the rollup, then the day's report, then the figures for Prometheus."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from tailrace.errors import TailraceError
from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import DirectoryError
from tailrace.shard.files import replace_file
from tailrace.shard.frame import HEADER_BYTES
from tailrace.spark.rollup.delta import write_delta
from tailrace.spark.rollup.engine import ChooseEngine, EngineError, Show
from tailrace.spark.rollup.forecast import PolicyOf, Removal, forecast
from tailrace.spark.rollup.job import Job, Note, Outcome, run_locked
from tailrace.spark.rollup.metrics import RunFigures, write_metrics
from tailrace.spark.rollup.nodes import commit_missing
from tailrace.spark.rollup.report import Told, render
from tailrace.spark.rollup.store import Store
from tailrace.spark.rollup.summary import STREAMS_SHOWN, read_day_bytes, summarize

KEPT_SHOWN: Final = 10
GROUP_S: Final = 10.0
GROUP_DAYS_MAX: Final = 50
"""Days that are done within GROUP_S share a commit, at most GROUP_DAYS_MAX of them: a commit takes 0.1 to 0.5 s with
400 days in OUT."""
NOWHERE_TO_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""With these the other days of a run would fail, too."""


class Night(NamedTuple):
    """A day. `policy_of` returns a stream's retention, if the configuration is known. `more`: jobs of other nodes,
    for the same day and OUT. `is_fleet`: record a node that cannot be opened as missing. `with_delta`: write Delta Lake
    tables, too."""

    job: Job
    policy_of: PolicyOf | None = None
    with_report: bool = True
    more: tuple[Job, ...] = ()
    is_fleet: bool = False
    with_delta: bool = False


class NightResult(NamedTuple):
    """The result of a day. `outcome` is None if its tables are unchanged, because of `error`."""

    day: date
    outcome: Outcome | None
    report: str | None = None
    error: EngineError | OSError | None = None


def run_nights(
    nights: Sequence[Night],
    choose: ChooseEngine,
    show: Show,
    tell: Callable[[NightResult], None] = lambda _done: None,
    metrics: Path | None = None,
    store: Store | None = None,
) -> list[NightResult]:
    """Roll up one day after the other into one OUT, which is locked until the last is done. `tell` gets each result.

    A day that fails does not stop the others, unless they would fail likewise; then, and if there is only one, raises
    the errors of `run_locked`. Raises StoreInUse. `metrics`, the textfile, gets the figures in any case.
    `store`: by default the one at the OUT of the jobs.
    """
    begun_s = time.monotonic()
    done: list[NightResult] = []
    is_complete = False
    store = store or Store(nights[0].job.out)
    try:
        with store.locked():
            while len(done) < len(nights):
                for result in _run_group(store, nights[len(done) :], choose, show, is_alone=len(nights) == 1):
                    done.append(result)
                    tell(result)
        is_complete = all(each.outcome is not None for each in done)
    finally:
        if metrics is not None:
            write_metrics(metrics, _figures(nights[-1].job.day, done, time.monotonic() - begun_s, is_complete))
    return done


def _run_group(
    store: Store, nights: Sequence[Night], choose: ChooseEngine, show: Show, *, is_alone: bool
) -> Iterator[NightResult]:
    """The first of the days, in one commit; then their reports. Raises what stops the run, after the days before it."""
    end_s = time.monotonic() + GROUP_S
    results: list[NightResult] = []
    stopped_by: Exception | None = None
    with store.group():
        for night in nights[:GROUP_DAYS_MAX]:
            try:
                results.append(_run_one(store, night, choose, show, is_alone=is_alone))
            except (EngineError, OSError, DirectoryError, TailraceError) as error:
                stopped_by = error
                break
            if time.monotonic() >= end_s:
                break
    for night, result in zip(nights, results, strict=False):
        yield _add_report(store, night, result, show, is_alone=is_alone)
    if stopped_by is not None:
        raise stopped_by


def _run_one(store: Store, night: Night, choose: ChooseEngine, show: Show, *, is_alone: bool) -> NightResult:
    def do() -> NightResult:
        result = NightResult(night.job.day, run_jobs(store, night, choose, show))
        if night.with_delta:
            show("writing Delta Lake tables", 0, 1)
            write_delta(store, night.job.day)
        return result

    return _tried(night, is_alone, do)


def _add_report(store: Store, night: Night, result: NightResult, show: Show, *, is_alone: bool) -> NightResult:
    outcome = result.outcome
    if outcome is None or not night.with_report:
        return result
    return _tried(night, is_alone, lambda: result._replace(report=write_report(store, night, outcome, show)))


def _tried(night: Night, is_alone: bool, do: Callable[[], NightResult]) -> NightResult:
    """A failure becomes a result, but for one that is to stop the run."""
    try:
        try:
            return do()
        except pa.ArrowInvalid as error:  # a file of an earlier run cannot be read; the text names it
            raise OSError(str(error)) from error
    except (EngineError, OSError) as error:
        if is_alone or getattr(error, "errno", None) in NOWHERE_TO_WRITE:
            raise
        return NightResult(night.job.day, None, None, error)


def run_jobs(store: Store, night: Night, choose: ChooseEngine, show: Show) -> Outcome:
    """Run the jobs of a day, with the lock held. Nodes of a fleet that cannot be read are recorded; the others go on.

    Raises the errors of `run_locked`.
    """
    together = Outcome()
    store.prepare(night.job.day)
    for job in (night.job, *night.more):
        try:
            together.join(run_locked(store, job, choose, show))
        except (DirectoryError, TailraceError) as error:
            if not night.is_fleet:
                raise
            name = job.name or job.source.get("path") or job.source.get("brokers", "")
            commit_missing(store, job.day, name, str(error))
            together.add(Note(name, f"this node is missing in the tables: {error}", True))
    return together


def write_report(store: Store, night: Night, outcome: Outcome, show: Show) -> str:
    """Put the day's report in its place. Raises OSError."""
    job = night.job
    show("writing the report", 0, 1)
    jobs = (job, *night.more)
    removals = None if night.policy_of is None or len(jobs) > 1 else find_removals(job, night.policy_of)
    told = [Told(note.stream, note.text) for note in outcome.notes] + reports_of_kept(outcome)
    store.prepare_report(job.day)
    now = datetime.now(UTC)
    source = ", ".join(each.source.get("path") or each.source.get("brokers", "") for each in jobs)
    page = render(summarize(store, job.day, now), removals, told, f"{now:%Y-%m-%d %H:%M} UTC", source)
    path = store.report(job.day)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, page.encode())
    return store.publish_report(job.day)


def reports_of_kept(outcome: Outcome) -> list[Told]:
    """Streams whose older rows were kept, the first few by name."""
    trimmed = "was trimmed since the previous rollup of the day: the former rows were kept"
    others = "has rows of another node, or of an earlier stream of this name, which were kept beside its own"
    return [*_told(outcome.kept, trimmed, "were trimmed likewise"), *_told(outcome.others, others, "have such rows")]


def _told(streams: list[str], text: str, text_of_more: str) -> list[Told]:
    told = [Told(stream, text) for stream in streams[:KEPT_SHOWN]]
    more = len(streams) - len(told)
    return [*told, Told(f"{more:,} more streams", text_of_more)] if more else told


def find_removals(job: Job, policy_of: PolicyOf) -> list[Removal] | None:
    """The coming removals by retention, the largest first; None over brokers, where they are unknown. Raises
    OSError."""
    path = job.source.get("path")
    if not path:
        return None
    grown_bytes = {
        stream: nbytes + HEADER_BYTES * messages for stream, messages, nbytes in read_day_bytes(Store(job.out), job.day)
    }
    found = forecast(open_data_dir(Path(path)), policy_of, grown_bytes, time.time_ns() // 1_000)
    return sorted(found, key=lambda removal: removal.bytes, reverse=True)[:STREAMS_SHOWN]


def _figures(day: date, done: Sequence[NightResult], duration_s: float, is_success: bool) -> RunFigures:
    """The sums of all days; `day` is the last."""
    outcomes = [each.outcome for each in done if each.outcome is not None]
    return RunFigures(
        day=day,
        ended_s=time.time(),
        duration_s=duration_s,
        is_success=is_success,
        messages=sum(outcome.messages for outcome in outcomes),
        rows=sum(sum(outcome.rows.values()) for outcome in outcomes),
        failures=sum(outcome.failures for outcome in outcomes),
        kept_streams=len({stream for outcome in outcomes for stream in outcome.kept}),
    )
