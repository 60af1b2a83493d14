"""`tailrace check`: is every byte of a data directory what was written? And mending what is not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from shard.catalog import count_streams
from shard.check import check_data
from shard.directory import DataDirectory, open_data_dir
from shard.errors import DirectoryError
from shard.report import StreamReport
from tailrace.command.progress import ProgressBar
from tailrace.errors import NO_DIRECTORY, OK, REFUSED, CommandError

EPILOG = """\b
Examples:
  tailrace check ./data
  tailrace check ./data --json | jq 'select(.faults != [])'

Checking only reads, and may run while a broker does. Each stream that is not as it was written is told with the file
and the byte.

Exit codes: 0 everything is as it was written, 1 faults were found, 2 wrong arguments, 3 the data directory is in use, 5
it is unusable.
"""


@dataclass
class Summary:
    """What all reports together say."""

    streams: int = 0
    messages: int = 0
    message_bytes: int = 0
    damaged: int = 0

    def add(self, report: StreamReport) -> None:
        self.streams += report.shard >= 0
        self.messages += report.messages
        self.message_bytes += report.message_bytes
        self.damaged += not report.ok

    def __str__(self) -> str:
        damaged = f"{self.damaged:,} damaged" if self.damaged else "no damage found"
        return f"{self.streams:,} streams, {self.messages:,} messages, {self.message_bytes:,} bytes: {damaged}"


@click.command("check", epilog=EPILOG)
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a stream, whatever its state.")
def command(data: Path, as_json: bool) -> int:
    """Verify every stream in the data directory DATA."""
    directory = _open(data)
    summary = Summary()
    try:
        _check(directory, summary, as_json)
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror}", NO_DIRECTORY) from None
    click.echo(str(summary), err=as_json)
    return REFUSED if summary.damaged else OK


def _open(data: Path) -> DataDirectory:
    try:
        return open_data_dir(data)
    except DirectoryError as error:
        raise CommandError(str(error), NO_DIRECTORY) from None
    except OSError as error:
        raise CommandError(f"{data}: {error.strerror}", NO_DIRECTORY) from None


def _check(directory: DataDirectory, summary: Summary, as_json: bool) -> None:
    with ProgressBar("checking", count_streams(directory), is_bytes=False) as bar:
        for report in check_data(directory):
            summary.add(report)
            bar.show(summary.streams, f"{summary.damaged} damaged")
            for line in [report_json(report)] if as_json else report_lines(report):
                click.echo(line)


def report_lines(report: StreamReport) -> Iterable[str]:
    """What a person needs to know of one stream: nothing when all is well."""
    for fault in report.faults:
        yield f"{report.name}: DAMAGED: {fault}"
    if report.unsynced_messages or report.torn_bytes:
        yield (
            f"{report.name}: the machine went down while it was open: past the last sync {report.unsynced_messages:,} "
            f"messages are whole and stay, {report.torn_bytes:,} bytes after them are torn and will be cut"
        )
    for note in report.notes:
        yield f"{report.name}: {note}"


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
            "faults": [
                {"file": str(fault.file), "offset": fault.offset, "cause": fault.cause} for fault in report.faults
            ],
            "notes": list(report.notes),
        },
        ensure_ascii=False,
    )
