"""`tailrace dump`: writes out messages of a stream, or of a tail that was cut off it, from the files."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from tailrace.cli.ending import NO_DIRECTORY, OK, REFUSED, CommandError, complain
from tailrace.cli.output import write_all
from tailrace.cli.progress import ProgressBar
from tailrace.cli.start import BadStart, parse_start, to_iso
from tailrace.cli.values import FilePath
from tailrace.core.headers import unpack_headers
from tailrace.core.places import Seq, Time
from tailrace.shard.directory import open_data_dir
from tailrace.shard.diverged import DIVERGED_SUFFIX, diverged_path
from tailrace.shard.errors import DirectoryError, StorageError, StreamCut, StreamDamaged, Trimmed
from tailrace.shard.export import Bounds, Section, diverged_sections, read_section, stream_section, torn_sections
from tailrace.shard.leaves import load
from tailrace.shard.names import InvalidName, file_stem, name_of_stem, validate_name
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.topics import topic_in
from tailrace.shard.torn import TORN_SUFFIX
from tailrace.shard.walk import FrameRun

EPILOG = """\b
Examples:
  tailrace dump ./data orders > orders.txt
  tailrace dump ./data orders --from '#1000' --to '#2000' --json | jq .payload
  tailrace dump ./data orders --from "2024-05-31T12:00" --to "1h ago" --format frames > part.frames
  tailrace dump ./data orders --diverged --part 2 --format json
  tailrace dump ./data/shard-07/orders.torn --skip-damaged

SOURCE is a data directory, with STREAM, or a .diverged or .torn file. Files are only read, and a broker may run: what
it has committed is there. Every checksum is verified.

\b
lines   each payload byte for byte, with a line feed after it
json    an object a line: stream, seq, timestamp_us, time, epoch, topic and headers if there are, and payload, or
        payload_base64 where it is not UTF-8; metadata_base64 holds all metadata as it is
frames  the very bytes of the log (docs/file-format.md)

Exit codes: 0 done, 1 something is damaged or is not there, 2 wrong arguments, 5 the data directory is unusable, 130
interrupted.
"""
STDOUT = 1

_parse = load("tailrace.shard.frame_cy").parse

Row = tuple[int, int, int, int, bytes, bytes]  # seq, timestamp_us, epoch, flags, metadata, payload


@dataclass
class DumpTally:
    """The count of messages written, and of those that could not be read."""

    messages: int = 0
    bad: int = 0
    with_line_feeds: int = 0


def _check_place(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Seq | Time | None:
    if value is None:
        return None
    try:
        place = parse_start(value)
    except BadStart as error:
        raise click.BadParameter(str(error)) from None
    if not isinstance(place, Seq | Time):
        raise click.BadParameter(f"{value!r} is neither #SEQ nor a time; a dump is of messages that are there")
    return place


@click.command("dump", epilog=EPILOG)
@click.argument("source", type=FilePath())
@click.argument("stream", required=False)
@click.option("--diverged", is_flag=True, help="Dump what was set aside when STREAM followed another master.")
@click.option("--torn", is_flag=True, help="Dump what recovery or repair cut off STREAM.")
@click.option("--part", type=click.IntRange(1), metavar="N", help="Only the Nth tail or cut.")
@click.option("--from", "first", callback=_check_place, metavar="PLACE", help="The first message: #SEQ or a time.")
@click.option("--to", "end", callback=_check_place, metavar="PLACE", help="Stop before this message: #SEQ or a time.")
@click.option("--format", "form", type=click.Choice(["lines", "json", "frames"]), default="lines", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--skip-damaged", is_flag=True, help="Report damaged parts and continue after them.")
def command(
    source: Path,
    stream: str | None,
    diverged: bool,
    torn: bool,
    part: int | None,
    first: Seq | Time | None,
    end: Seq | Time | None,
    form: str,
    as_json: bool,
    skip_damaged: bool,
) -> int:
    """Writes out the messages of a stream, or of tails that were cut off it, from the files in SOURCE."""
    if as_json:
        if form == "frames":
            raise click.UsageError("--json and --format frames: give one of them")
        form = "json"
    if form == "frames" and sys.stdout.isatty():
        raise click.UsageError("frames are binary: redirect the output to a file")
    if part is not None and stream is not None and not (diverged or torn):
        raise click.UsageError("--part is for --diverged, --torn or a file of those")
    bounds = _bounds(first, end)
    with ExitStack() as stack:
        try:
            opened = _open(stack, source, stream, diverged, torn, bounds)
            sections = opened if part is None else _nth(opened, part)
            tally = _dump(sections, bounds, _writer(form, _name(source, stream)), skip_damaged)
        except (Trimmed, StreamCut) as error:
            raise CommandError(f"{error}; the file changed while it was read: try again") from None
        except StreamDamaged as error:
            raise CommandError(f"{error}; `tailrace check` shows details") from None
        except DirectoryError as error:
            raise CommandError(str(error), NO_DIRECTORY) from None
        except StorageError as error:
            raise CommandError(str(error)) from None
    if tally.with_line_feeds:
        _warn(f"{tally.with_line_feeds:,} payloads have line feeds in them; --format json keeps messages apart")
    return REFUSED if tally.bad else OK


def _bounds(first: Seq | Time | None, end: Seq | Time | None) -> Bounds:
    bounds = Bounds()
    if isinstance(first, Seq):
        bounds = bounds._replace(first_seq=first.seq)
    elif first is not None:
        bounds = bounds._replace(first_us=first.timestamp_us)
    if isinstance(end, Seq):
        bounds = bounds._replace(end_seq=end.seq)
    elif end is not None:
        bounds = bounds._replace(end_us=end.timestamp_us)
    return bounds


def _name(source: Path, stream: str | None) -> str:
    """The stream's name; for a file whose name is a hash, that."""
    return stream if stream is not None else name_of_stem(source.stem) or source.stem


def _open(
    stack: ExitStack, source: Path, stream: str | None, diverged: bool, torn: bool, bounds: Bounds
) -> Iterator[Section]:
    """Returns the sections to dump. Raises StorageError, CommandError, click.UsageError."""
    if stream is None:
        if diverged or torn or source.is_dir():
            raise click.UsageError("STREAM is missing: which stream of the data directory?")
        return _open_file(stack, source, _name(source, stream))
    if diverged and torn:
        raise click.UsageError("--diverged and --torn are two different files: one at a time")
    try:
        directory = open_data_dir(source).stream_directory(validate_name(stream))
    except InvalidName as error:
        raise click.UsageError(str(error)) from None
    if diverged or torn:
        stem = file_stem(stream)
        path = diverged_path(directory, stem) if diverged else directory / (stem + TORN_SUFFIX)
        return _open_file(stack, path, stream)
    reader = stack.enter_context(StreamReader.open(directory, stream))
    if not reader.recovered:
        _warn("the machine was down since a broker ran: only messages that were synced by then are dumped")
    return iter([stream_section(reader, Path(stream_paths(directory, stream).content_file), bounds)])


def _open_file(stack: ExitStack, path: Path, name: str) -> Iterator[Section]:
    kinds: dict[str, Callable[[int, Path, str], Iterator[Section]]]
    kinds = {DIVERGED_SUFFIX: diverged_sections, TORN_SUFFIX: torn_sections}
    if path.suffix not in kinds:
        raise click.UsageError(
            f"{path} is not a {DIVERGED_SUFFIX} or {TORN_SUFFIX} file; for a stream, give DATA STREAM"
        )
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    stack.callback(os.close, fd)
    return kinds[path.suffix](fd, path, name)


def _nth(sections: Iterator[Section], part: int) -> Iterator[Section]:
    numbers = []
    for section in sections:
        if section.number == part:
            return iter([section])
        numbers.append(f"{section.number}")
    raise CommandError(f"part {part} has no messages; parts with messages: {', '.join(numbers) or 'none'}")


def _dump(
    sections: Iterator[Section], bounds: Bounds, write: Callable[[FrameRun, DumpTally], None], skip_damaged: bool
) -> DumpTally:
    tally = DumpTally()
    for section in sections:
        size = section.end_offset - section.offset
        with ProgressBar(section.title, size, is_bytes=True, wanted=not sys.stdout.isatty()) as bar:
            for found in read_section(section, bounds):
                if isinstance(found, FrameRun):
                    write(found, tally)
                    tally.messages += found.messages
                    bar.show(found.offset + len(found.frames) - section.offset, f"{tally.messages:,} messages")
                    continue
                tally.bad += 1
                if not skip_damaged:
                    raise CommandError(f"{section.title}: {found}; --skip-damaged continues after it")
                _warn(f"{section.title}: {found}")
    return tally


def _writer(form: str, name: str) -> Callable[[FrameRun, DumpTally], None]:
    """Returns the function that writes a run in this form."""

    def frames(run: FrameRun, _tally: DumpTally) -> None:
        write_all(STDOUT, bytes(run.frames))

    def lines(run: FrameRun, tally: DumpTally) -> None:
        payloads = [row[5] for row in _parse(run.frames, 0, len(run.frames), False)]
        tally.with_line_feeds += sum(b"\n" in payload for payload in payloads)
        write_all(STDOUT, b"\n".join([*payloads, b""]))

    def objects(run: FrameRun, _tally: DumpTally) -> None:
        rows = _parse(run.frames, 0, len(run.frames), False)
        write_all(STDOUT, "".join([f"{to_json(name, row)}\n" for row in rows]).encode())

    return {"frames": frames, "lines": lines, "json": objects}[form]


def to_json(stream: str, row: Row) -> str:
    """One message as one line."""
    seq, timestamp_us, epoch, flags, metadata, payload = row
    shown: dict[str, object] = {"stream": stream, "seq": seq, "timestamp_us": timestamp_us}
    shown |= {"time": to_iso(timestamp_us), "epoch": epoch}
    if flags:
        shown["flags"] = flags
    if metadata:
        if topic := topic_in(metadata):
            shown["topic"] = topic.decode(errors="replace")
        headers = unpack_headers(metadata)
        if headers:
            shown["headers"] = {str(key): _text(value) for key, value in headers.items()}
        shown["metadata_base64"] = base64.b64encode(metadata).decode()
    try:
        shown["payload"] = payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(payload).decode()
    return json.dumps(shown, ensure_ascii=False, default=str)  # headers may hold anything that msgpack can encode


def _text(value: object) -> object:
    """A header's value, bytes in base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _warn(text: str) -> None:
    complain(f"tailrace: {text}")
