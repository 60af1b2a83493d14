"""Whether nodes hold the same streams, seen from outside: their files are compared frame for frame.

Brokers may run meanwhile. Only committed messages are looked at; those not there yet are reported as missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from tailrace.shard.catalog import all_streams
from tailrace.shard.check import check_data
from tailrace.shard.directory import open_data_dir
from tailrace.shard.diverged import DIVERGED_SUFFIX
from tailrace.shard.errors import DirectoryError, StreamCut, StreamDamaged, StreamMissing, Trimmed
from tailrace.shard.export import diverged_sections
from tailrace.shard.frame import CRC_OFFSET, HEADER_BYTES, SEQ_OFFSET, unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.names import is_reserved
from tailrace.shard.reader import StreamReader
from tailrace.shard.walk import FrameRun, FrameWalk, fault_text
from tests.system.node import PATIENCE_S
from tests.system.tree_ledger import Names, name_in

ATTEMPTS_MAX = 5  # at a copy whose tail is set aside in that very moment
SHOWN_MAX = 20
SHOWN_BYTES = 40

_leaf = load("tailrace.shard.frame_cy")
_parse = _leaf.parse

_Value = TypeVar("_Value")

Nodes = Mapping[str, Path]
"""Data directories by the names of their nodes."""


class Logged(NamedTuple):
    """A message as it stands in a log."""

    seq: int
    timestamp_us: int
    epoch: int
    payload: bytes


class Extent(NamedTuple):
    """The messages a node has of a stream: first_seq to next_seq, the latter not included."""

    first_seq: int
    next_seq: int

    def __str__(self) -> str:
        return f"{self.first_seq} to {self.next_seq}"


def streams_of(data: Path) -> dict[str, Extent]:
    """What a node has of each stream, the broker's own left out. Raises DirectoryError, StreamDamaged."""
    found = {}
    for _shard, name in all_streams(open_data_dir(data)):
        if not is_reserved(name):
            extent = _again(partial(_extent, data, name))
            if extent is not None:
                found[name] = extent
    return found


def differences(nodes: Nodes, master: str, *, ends: bool = True, starts: bool = True) -> list[str]:
    """Differences between nodes and the master, a line for each stream and node; none when all are equal.

    Messages that both have must be the same, byte for byte. With `ends` both must end with the same one, with `starts`
    both must begin with the same one.
    """
    copies: dict[str, dict[str, Extent]] = {}
    found = []
    for node, data in nodes.items():
        try:
            copies[node] = streams_of(data)
        except (DirectoryError, StreamDamaged, OSError) as error:  # such as one that is just being removed
            found.append(f"{node}: {error}")
    if master not in copies:
        return found
    names = sorted({name for streams in copies.values() for name in streams})
    for name in names:
        for node in copies:
            if node != master:
                compare = partial(_difference, nodes, name, node, master, ends, starts)
                difference = _again(compare)
                found += [f"stream {name}: {difference}"] if difference else []
    return found


def assert_equal(nodes: Nodes, master: str, *, ends: bool = True, starts: bool = True) -> None:
    """Fails with what differs."""
    found = differences(nodes, master, ends=ends, starts=starts)
    assert not found, shown(found)


def wait_equal(nodes: Nodes, master: str, patience_s: float = PATIENCE_S, *, starts: bool = True) -> None:
    """Until all nodes have what the master has. Fails with what still differs."""
    deadline_s = time.monotonic() + patience_s
    while found := differences(nodes, master, starts=starts):
        assert time.monotonic() < deadline_s, f"after {patience_s} s still\n{shown(found)}"
        time.sleep(0.1)


def assert_sound(nodes: Nodes) -> None:
    """Every file of every node passes `tailrace check`."""
    found = [
        f"{node}: {report.name}: {fault}"
        for node, data in nodes.items()
        for report in check_data(open_data_dir(data))
        for fault in report.faults
    ]
    assert not found, shown(found)


def shown(found: list[str]) -> str:
    more = [f"… and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
    return "\n".join([*found[:SHOWN_MAX], *more])


def read_log(data: Path, stream: str) -> Iterator[Logged]:
    """Every message that is kept, each verified. Raises AssertionError for one that is not right."""
    with _opened(data, stream) as reader:
        for run in _walk(reader, reader.first_seq(), reader.next_seq(), f"{data.name}, stream {stream}"):
            for seq, timestamp_us, epoch, _flags, _metadata, payload in _parse(run.frames, 0, len(run.frames), False):
                yield Logged(seq, timestamp_us, epoch, payload)


def names_in(data: Path) -> Names:
    """The names of the messages in a node's streams, for the ledger."""
    return {
        stream: {message.seq: name_in(message.payload) for message in read_log(data, stream)}
        for stream in streams_of(data)
    }


def read_diverged(data: Path) -> dict[str, list[Logged]]:
    """What a node has set aside, by its files' stems. Raises TailsDamaged."""
    found: dict[str, list[Logged]] = {}
    for path in sorted(data.glob(f"shard-*/*{DIVERGED_SUFFIX}")):
        stem = path.name.removesuffix(DIVERGED_SUFFIX)
        with path.open("rb") as file:
            for section in diverged_sections(file.fileno(), path, stem):
                frames = os.pread(file.fileno(), section.end_offset - section.offset, section.offset)
                rows = _parse(frames, 0, len(frames), True)
                found.setdefault(stem, []).extend(Logged(row[0], row[1], row[2], row[5]) for row in rows)
    return found


# --- two copies -------------------------------------------------------------------------------------------------------


def _again(look: Callable[[], _Value]) -> _Value:
    """What `look` gives; it is tried again when a tail was set aside, or messages trimmed, while it looked."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return look()
        except (StreamCut, Trimmed):
            pass
    return look()


def _extent(data: Path, name: str) -> Extent | None:
    try:
        with _opened(data, name) as reader:
            return Extent(reader.first_seq(), reader.next_seq())
    except StreamMissing:
        return None


@contextmanager
def _opened(data: Path, name: str) -> Iterator[StreamReader]:
    """Raises StreamMissing, StreamDamaged, DirectoryError."""
    with StreamReader.open(open_data_dir(data).stream_directory(name), name) as reader:
        yield reader


def _difference(nodes: Nodes, name: str, node: str, master: str, ends: bool, starts: bool) -> str:
    """How a node's copy of a stream is not the master's, "" when it is."""
    with ExitStack() as stack:
        try:
            ours, theirs = (stack.enter_context(_opened(nodes[each], name)) for each in (node, master))
        except StreamMissing as error:
            absent, present = (node, master) if error.directory.is_relative_to(nodes[node]) else (master, node)
            return f"{absent} does not have it, and {present} has {_extent(nodes[present], name)}"
        except (StreamDamaged, DirectoryError) as error:
            return f"{node} against {master}: {error}"
        # The copy first: the master must already have any message that it has then.
        here, there = (Extent(each.first_seq(), each.next_seq()) for each in (ours, theirs))
        if here.next_seq > there.next_seq or (ends and here.next_seq != there.next_seq):
            return f"{node} has messages {here}, {master} has {there}"
        if starts and here.first_seq != there.first_seq:
            return f"{node} begins at {here.first_seq}, {master} at {there.first_seq}"
        first = max(here.first_seq, there.first_seq)
        return _first_difference(ours, theirs, first, max(first, min(here.next_seq, there.next_seq)), node, master)


def _first_difference(ours: StreamReader, theirs: StreamReader, first: int, end: int, node: str, master: str) -> str:
    """Between two copies, in the messages first to end, that both have."""
    shift = ours.offset_of(first) - theirs.offset_of(first)
    for run in _walk(theirs, first, end, master):
        frames = bytearray(len(run.frames))
        ours.read_into(memoryview(frames), run.offset + shift)
        theirs.next_seq()  # the bytes read were not replaced meanwhile
        if frames != run.frames:
            return _describe(frames, run, node, master)
    return ""


def _walk(reader: StreamReader, first: int, end: int, whose: str) -> Iterator[FrameRun]:
    """The frames of messages first to end, their checksums and seqs verified."""
    walk = FrameWalk(reader.content_fd, reader.offset_of(first), reader.offset_of(end), first)
    for run in walk:
        reader.next_seq()
        yield run
    reader.next_seq()
    assert not walk.fault, f"{whose}: message {walk.seq}: {fault_text(walk.fault)}"
    assert walk.seq == end, f"{whose}: the messages end at {walk.seq}, not at {end}"


def _describe(frames: bytearray, run: FrameRun, node: str, master: str) -> str:
    """The first message of a run whose bytes differ in another copy, and the difference."""
    offset = 0
    for seq in range(run.seq, run.seq + run.messages):
        length = unpack_header(run.frames, offset).length
        theirs, ours = bytes(run.frames[offset : offset + length]), bytes(frames[offset : offset + length])
        if ours != theirs:
            return f"message {seq}: {_differing(ours, theirs, node, master)}"
        offset += length
    raise AssertionError("the bytes differ, and no frame does")


def _differing(ours: bytes, theirs: bytes, node: str, master: str) -> str:
    here, there = unpack_header(ours), unpack_header(theirs)
    fields = [
        f"{field} {getattr(here, field)} in {node}, {getattr(there, field)} in {master}"
        for field in ("length", "seq", "timestamp_us", "epoch", "flags", "metadata_bytes")
        if getattr(here, field) != getattr(there, field)
    ]
    if ours[HEADER_BYTES:] != theirs[HEADER_BYTES:]:
        mine, others = (frame[HEADER_BYTES:][:SHOWN_BYTES] for frame in (ours, theirs))
        fields.append(f"payload {mine!r} in {node}, {others!r} in {master}")
    mine, others = (frame[CRC_OFFSET:SEQ_OFFSET] for frame in (ours, theirs))
    return "; ".join(fields) or f"checksum {mine.hex()} in {node}, {others.hex()} in {master}"
