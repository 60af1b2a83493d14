"""A whole night's work: the rollup, then the day's report, then the figures for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.errors import TailraceError
from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import DirectoryError
from tailrace.shard.files import replace_file
from tailrace.shard.frame import HEADER_BYTES
from tailrace.spark.rollup.engine import ChooseEngine, Show
from tailrace.spark.rollup.forecast import PolicyOf, Removal, forecast
from tailrace.spark.rollup.job import Job, Note, Outcome, run_job
from tailrace.spark.rollup.metrics import RunFigures, write_metrics
from tailrace.spark.rollup.nodes import commit_missing
from tailrace.spark.rollup.report import Told, render
from tailrace.spark.rollup.store import Store
from tailrace.spark.rollup.summary import STREAMS_SHOWN, read_day_bytes, summarize

KEPT_SHOWN: Final = 10


class Night(NamedTuple):
    """`policy_of` tells a stream's retention, where the configuration is known; `metrics` is the textfile. `more`: jobs
    of other nodes, for the same day and OUT."""

    job: Job
    policy_of: PolicyOf | None = None
    metrics: Path | None = None
    with_report: bool = True
    more: tuple[Job, ...] = ()


def run_night(night: Night, choose: ChooseEngine, show: Show) -> tuple[Outcome, Path | None]:
    """Gives what was done, and where the report is. Raises what `run_job` does; the figures then say that it failed."""
    begun_s = time.monotonic()
    outcome: Outcome | None = None
    try:
        outcome = run_jobs((night.job, *night.more), choose, show)
        report = write_report(night, outcome, show) if night.with_report else None
    finally:
        if night.metrics is not None:
            write_metrics(night.metrics, _figures(night.job, outcome, time.monotonic() - begun_s))
    return outcome, report


def run_jobs(jobs: Sequence[Job], choose: ChooseEngine, show: Show) -> Outcome:
    """One after the other. Of several nodes those that cannot be read are recorded, and the others go on.

    Raises what `run_job` does.
    """
    together = Outcome()
    for job in jobs:
        try:
            together.join(run_job(job, choose, show))
        except (DirectoryError, TailraceError) as error:
            if len(jobs) == 1:
                raise
            name = job.name or job.source.get("path") or job.source.get("brokers", "")
            commit_missing(Store(job.out), job.day, name, str(error))
            together.add(Note(name, f"this node is missing in the tables: {error}", True))
    return together


def write_report(night: Night, outcome: Outcome, show: Show) -> Path:
    """Put the day's report in its place. Raises OSError."""
    job = night.job
    store = Store(job.out)
    show("writing the report", 0, 1)
    jobs = (job, *night.more)
    removals = None if night.policy_of is None or len(jobs) > 1 else find_removals(job, night.policy_of)
    told = [Told(note.stream, note.text) for note in outcome.notes] + told_of_kept(outcome)
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    source = ", ".join(each.source.get("path") or each.source.get("brokers", "") for each in jobs)
    page = render(summarize(store, job.day), removals, told, made_at, source)
    path = store.report(job.day)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, page.encode())
    return path


def told_of_kept(outcome: Outcome) -> list[Told]:
    """Streams whose older rows were kept, the first few by name."""
    trimmed = "was trimmed since the day was rolled up before: what the tables had of it was kept"
    others = "has rows of another node, or of an earlier stream of this name, which were kept beside its own"
    return [*_told(outcome.kept, trimmed, "were trimmed likewise"), *_told(outcome.others, others, "have such rows")]


def _told(streams: list[str], text: str, text_of_more: str) -> list[Told]:
    told = [Told(stream, text) for stream in streams[:KEPT_SHOWN]]
    more = len(streams) - len(told)
    return [*told, Told(f"{more:,} more streams", text_of_more)] if more else told


def find_removals(job: Job, policy_of: PolicyOf) -> list[Removal] | None:
    """What retention will remove, the most first; None over brokers, where it is not to be seen. Raises OSError."""
    path = job.source.get("path")
    if not path:
        return None
    grown_bytes = {
        stream: nbytes + HEADER_BYTES * messages for stream, messages, nbytes in read_day_bytes(Store(job.out), job.day)
    }
    found = forecast(open_data_dir(Path(path)), policy_of, grown_bytes, time.time_ns() // 1_000)
    return sorted(found, key=lambda removal: removal.bytes, reverse=True)[:STREAMS_SHOWN]


def _figures(job: Job, outcome: Outcome | None, duration_s: float) -> RunFigures:
    done = outcome or Outcome()
    return RunFigures(
        day=job.day,
        ended_s=time.time(),
        duration_s=duration_s,
        is_success=outcome is not None,
        messages=done.messages,
        rows=sum(done.rows.values()),
        failures=done.failures,
        kept_streams=len(done.kept),
    )
