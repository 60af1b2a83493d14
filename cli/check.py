"""`tailrace check`: verifies every byte of a data directory and repairs damage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from tailrace.cli.ending import IN_USE, NO_DIRECTORY, OK, REFUSED, CommandError, complain
from tailrace.cli.progress import ProgressBar
from tailrace.cli.start import to_iso
from tailrace.cli.values import FilePath
from tailrace.shard.catalog import count_streams
from tailrace.shard.check import check_data
from tailrace.shard.directory import DataDirectory, open_data_dir
from tailrace.shard.diverged import DivergedTail
from tailrace.shard.errors import DirectoryError, ShardLocked
from tailrace.shard.mend_data import mend_data
from tailrace.shard.report import FileFault, MendReport, StreamReport

EPILOG = """\b
Examples:
  tailrace check ./data
  tailrace check ./data --json | jq 'select(.ok | not)'
  tailrace check ./data --rebuild-index
  tailrace check ./data --repair

Checking only reads, and may run while a broker does. Damage is reported with its file and byte.

--rebuild-index makes the index of a damaged stream anew where its content is right: no message is lost. --repair also
cuts a damaged content where the damage begins; what is cut is kept beside it in NAME.torn. For both the broker must be
stopped.

Tails that were set aside when a stream followed another master are listed, and are no faults; `tailrace dump DATA
STREAM --diverged` writes them out.

Exit codes: 0 everything is as it was written (or has been mended), 1 faults were found (or could not be mended), 2
wrong arguments, 3 the data directory is in use, 5 it is unusable.
"""


@dataclass
class CheckSummary:
    """The sum of all reports."""

    streams: int
    seen: int = 0
    messages: int = 0
    damaged: int = 0
    mended: int = 0
    tails: int = 0

    def add(self, report: StreamReport | MendReport) -> None:
        self.seen += 1
        self.messages += report.messages
        if isinstance(report, StreamReport):
            self.tails += len(report.diverged)
        if isinstance(report, MendReport) and not report.error:
            self.mended += 1
        else:
            self.damaged += isinstance(report, MendReport) or not report.ok

    def __str__(self) -> str:
        damaged = f"{self.damaged:,} damaged" if self.damaged else "no damage"
        mended = f", {self.mended:,} mended" if self.mended else ""
        tails = f"; {self.tails:,} tail{'s' * (self.tails != 1)} set aside" if self.tails else ""
        return f"{self.streams:,} streams, {self.messages:,} messages: {damaged}{mended}{tails}"


@click.command("check", epilog=EPILOG)
@click.argument("data", type=FilePath())
@click.option("--rebuild-index", is_flag=True, help="Make indexes anew from contents that are right.")
@click.option("--repair", is_flag=True, help="Mend what can be mended, cutting damaged contents as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each stream, damaged or not.")
def command(data: Path, rebuild_index: bool, repair: bool, as_json: bool) -> int:
    """Verify every stream in the data directory DATA."""
    with _data_errors(data):
        directory = open_data_dir(data)
        summary = CheckSummary(count_streams(directory))
    _show(_reports(data, directory, rebuild_index, repair), summary, as_json)
    (complain if as_json else click.echo)(str(summary))
    return REFUSED if summary.damaged else OK


@contextmanager
def _data_errors(data: Path) -> Iterator[None]:
    """Around what reads and mends the data: what the output does not take is another error."""
    try:
        yield
    except ShardLocked as error:
        raise CommandError(f"{error}; stop the broker before mending", IN_USE) from None
    except DirectoryError as error:
        raise CommandError(str(error), NO_DIRECTORY) from None
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror}", NO_DIRECTORY) from None


def _reports(
    data: Path, directory: DataDirectory, rebuild_index: bool, repair: bool
) -> Iterator[StreamReport | MendReport]:
    with _data_errors(data):
        # What loses nothing is tried first, also when more is allowed.
        mends = rebuild_index or repair
        reports = mend_data(directory, may_rebuild=True, may_repair=repair) if mends else iter(check_data(directory))
    while True:
        with _data_errors(data):
            report = next(reports, None)
        if report is None:
            return
        yield report


def _show(reports: Iterator[StreamReport | MendReport], summary: CheckSummary, as_json: bool) -> None:
    with ProgressBar("checking", summary.streams, is_bytes=False) as bar:
        for report in reports:
            summary.add(report)
            bar.show(summary.seen, f"{summary.damaged:,} damaged")
            for line in _lines(report, as_json):
                click.echo(line)


def _lines(report: StreamReport | MendReport, as_json: bool) -> Iterable[str]:
    if isinstance(report, MendReport):
        return [mend_json(report)] if as_json else mend_lines(report)
    return [report_json(report)] if as_json else report_lines(report)


def report_lines(report: StreamReport) -> Iterable[str]:
    """The line about one stream for the operator; None if nothing is wrong."""
    for fault in report.faults:
        yield f"{report.name}: DAMAGED: {fault}"
    if report.unsynced_messages or report.torn_bytes:
        yield (
            f"{report.name}: the machine went down while it was open: past the last sync {report.unsynced_messages:,} "
            f"messages are whole and stay, {report.torn_bytes:,} bytes after them are torn and will be cut"
        )
    for kept in report.diverged:
        yield f"{report.name}: {tail_line(kept, report.diverged_file)}"
    for note in report.notes:
        yield f"{report.name}: {note}"


def tail_line(kept: DivergedTail, file: Path | None) -> str:
    """One line for each tail that was set aside: when, and which file."""
    tail = kept.tail
    epochs = f"epoch {tail.first_epoch}"
    if tail.last_epoch != tail.first_epoch:
        epochs = f"epochs {tail.first_epoch} to {tail.last_epoch}"
    return (
        f"tail {kept.number}: messages {tail.first_seq} to {tail.next_seq - 1}, {epochs}, {tail.nbytes:,} bytes, set "
        f"aside {to_iso(kept.at_s * 1_000_000).partition('.')[0]}Z in {file}"
    )


def report_json(report: StreamReport) -> str:
    """Everything that is known of one stream, on one line."""
    return json.dumps(
        {
            "stream": report.name,
            "shard": report.shard,
            "ok": report.ok,
            "messages": report.messages,
            "message_bytes": report.message_bytes,
            "first_seq": report.first_seq,
            "next_seq": report.next_seq,
            "synced_seq": report.synced_seq,
            "unsynced_messages": report.unsynced_messages,
            "torn_bytes": report.torn_bytes,
            "faults": _faults(report.faults),
            "notes": list(report.notes),
            "diverged": [_tail(kept, report.diverged_file) for kept in report.diverged],
        },
        ensure_ascii=False,
    )


def mend_lines(report: MendReport) -> Iterable[str]:
    """The line about one damaged stream and its repair."""
    for fault in report.before.faults:
        yield f"{report.name}: DAMAGED: {fault}"
    if report.error:
        yield f"{report.name}: NOT MENDED: {report.error}"
        return
    text = f"{report.name}: mended, {report.messages:,} messages"
    if report.cut_bytes:
        text += f"; {report.cut_bytes:,} bytes were cut and are kept in {report.kept_in}"
    if report.disabled:
        text += "; its .meta could not be read, so it is disabled here until it becomes a master or a slave again"
    yield text


def mend_json(report: MendReport) -> str:
    """Everything that is known of one stream that was damaged, on one line."""
    return json.dumps(
        {
            "stream": report.name,
            "shard": report.shard,
            "ok": not report.error,
            "mended": not report.error,
            "error": report.error,
            "messages": report.messages,
            "next_seq": report.next_seq,
            "cut_bytes": report.cut_bytes,
            "kept_in": str(report.kept_in) if report.kept_in else None,
            "disabled": report.disabled,
            "faults": _faults(report.before.faults),
        },
        ensure_ascii=False,
    )


def _tail(kept: DivergedTail, file: Path | None) -> dict[str, object]:
    return {"tail": kept.number, **kept.tail._asdict(), "at_s": kept.at_s, "file": str(file), "offset": kept.offset}


def _faults(faults: Iterable[FileFault]) -> list[dict[str, object]]:
    return [{"file": str(fault.file), "offset": fault.offset, "cause": fault.cause} for fault in faults]
