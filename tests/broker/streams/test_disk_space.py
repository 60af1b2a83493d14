"""The bounds on disk space: when publishes are refused, when they are taken again, and which are never refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.settings import Settings
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.disk_space import LOG_INTERVAL_S, LOOK_BYTES, NOTHING_TEXT, SLACK_BYTES_MAX, DiskSpace
from tailrace.broker.streams.owner import FILES_BYTES, Owner
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.directory import DataDirectory
from tailrace.shard.frame import INDEX_ENTRY_BYTES, pack_frame
from tailrace.shard.growth import STEP_BYTES_MAX, STEP_BYTES_MIN, _Limits, limit_steps
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering
from tests.broker.owning import Clock, Sink, batch, make_owner, publish

mark_run = load("tailrace.shard.run_cy").mark_run
MIB = 1 << 20
GIB = 1 << 30
DIRECTORY = DataDirectory(Path("/data"), 1, "node")
MOST = 64 * MIB
SLACK = MOST // 16


@pytest.fixture(autouse=True)
def steps() -> Iterator[None]:
    yield
    limit_steps(STEP_BYTES_MAX)


class Node:
    """The other workers, and the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others_bytes = 0
        self.shared: list[tuple[int, bool]] = []
        self.free_bytes: int | None = 1 << 40
        self.looks = 0
        monkeypatch.setattr(os, "statvfs", self.statvfs)

    def share(self, nbytes: int, is_whole: bool) -> int:
        self.shared.append((nbytes, is_whole))
        self.looks += 1
        return nbytes + self.others_bytes

    def statvfs(self, _path: object) -> SimpleNamespace:
        if self.free_bytes is None:
            raise OSError("gone")
        return SimpleNamespace(f_bavail=self.free_bytes // 4_096, f_frsize=4_096)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def space_of(node: Node, clock: Clock | None = None, **settings: int) -> DiskSpace:
    made = Settings(**settings)  # type: ignore[arg-type]
    return DiskSpace(made, DIRECTORY, WorkerMetrics(), node.share, (clock or Clock()).seconds)


def state(space: DiskSpace) -> object:
    return space.report(0)[0][1]


def refusal(space: DiskSpace, name: bytes = b"orders") -> str:
    with pytest.raises(Refused) as refused:
        space.require(name, 3)
    assert refused.value.code is Code.FULL
    return refused.value.text


def test_without_bounds_nothing_is_looked_at(node: Node) -> None:
    space = space_of(node)
    assert not space.is_watched and not space.wants_sweep
    node.free_bytes = 0
    space.swept(7)
    space.require(b"orders", 1)
    assert node.shared == [(7, True)]  # for the command `space`


def test_a_look_comes_with_each_mib_and_counts_all_workers(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST)
    node.others_bytes = MOST - 3 * MIB
    for _ in range(LOOK_BYTES // 1_024 - 1):
        space.grew(b"a", 1_024, 0)
    assert node.looks == 0
    space.grew(b"b", 1_024, 0)
    assert node.looks == 1 and state(space) == "short"
    space.grew(b"b", 2 * MIB, 0)
    assert (
        refusal(space)
        == f"the streams of this node take what max_bytes in [node] allows, {MOST:,} bytes; {NOTHING_TEXT}"
    )


def test_a_refusal_ends_when_there_is_more_room_than_the_slack(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST)
    space.measured(b"a", MOST)
    space.swept(0)
    refusal(space)
    space.measured(b"a", MOST - SLACK)
    space.look()
    refusal(space)
    space.measured(b"a", MOST - SLACK - 1)
    space.look()
    space.require(b"orders", 1)
    assert not space.is_short


def test_the_slack_of_a_great_bound_is_small(node: Node) -> None:
    space = space_of(node, node_max_bytes=1 << 40)
    space.measured(b"a", (1 << 40) - SLACK_BYTES_MAX - 1)
    space.look()
    assert state(space) == "ample"
    space.measured(b"a", (1 << 40) - SLACK_BYTES_MAX)
    space.look()
    assert state(space) == "short"


def test_a_deletion_counts_at_the_next_look(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST)
    space.grew(b"a", MOST, 0)
    refusal(space)
    space.dropped(b"a")
    space.dropped(b"unknown")
    space.look()
    space.require(b"orders", 1)


def test_the_reserve_is_free_space_of_the_disk(node: Node) -> None:
    space = space_of(node, reserve_bytes=GIB)
    node.free_bytes = GIB
    space.look()
    assert (
        refusal(space)
        == f"less is free on the disk of this node than reserve_bytes in [node], {GIB:,} bytes; {NOTHING_TEXT}"
    )
    node.free_bytes = GIB + SLACK_BYTES_MAX
    space.look()
    refusal(space)
    node.free_bytes += 4_096
    space.look()
    space.require(b"orders", 1)
    node.free_bytes = None  # the appends themselves will fail
    space.look()
    space.require(b"orders", 1)
    assert space.report(5)[3] == ["free_bytes", "unknown"]


def test_the_bound_that_lacks_most_is_named(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST, reserve_bytes=GIB)
    space.measured(b"a", MOST + 1)
    node.free_bytes = 0
    space.look()
    assert "reserve_bytes" in refusal(space)
    node.free_bytes = 2 * GIB
    space.look()
    assert "max_bytes" in refusal(space)
    assert [row[1] for row in space.report(9)] == ["refusing", 9, MOST, 2 * GIB, GIB]


def test_what_consumers_have_finished_is_written_down_at_all_times(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST)
    space.grew(b"orders", MOST, 0)
    for name in (b"$cursor/orders", b"$cursor/orders/$dead", b"$last/orders"):
        space.require(name, 1)
    for name in (b"orders", b"$replies/7", b"orders/$dead"):
        refusal(space, name)


def test_a_copy_takes_the_companions_of_its_stream_and_not_the_stream(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST)
    space.grew(b"orders", MOST, 0)
    for name in (b"$cursor/orders", b"orders/$dead"):
        space.require_for_copy(name)
    with pytest.raises(Refused):
        space.require_for_copy(b"orders")


def test_the_room_limits_what_files_reserve_ahead(node: Node) -> None:
    space = space_of(node, node_max_bytes=1 << 40)
    for used, step in (((1 << 40) - 64 * GIB, STEP_BYTES_MAX), ((1 << 40) - GIB, 16 * MIB), (1 << 40, STEP_BYTES_MIN)):
        space.measured(b"a", used)
        space.look()
        assert _Limits.step_bytes_max == step


def test_the_first_sweep_is_hurried_and_a_predecessors_figure_stands_until_then(node: Node) -> None:
    space = space_of(node, node_max_bytes=MOST)
    assert space.wants_sweep
    space.look()
    space.swept(0)
    assert node.shared == [(0, False), (0, True)]
    assert not space.wants_sweep


def test_one_warning_a_minute(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    space = space_of(node, clock, node_max_bytes=MOST)
    space.grew(b"a", MOST, 0)
    for _ in range(5):
        refusal(space)
    clock.now_s += LOG_INTERVAL_S
    refusal(space)
    space.dropped(b"a")
    space.look()
    first, second, third = caplog.records
    assert first.levelno == second.levelno == logging.WARNING
    assert "max_bytes in [node]" in first.message and "5 more of these were not logged" in second.message
    assert third.levelno == logging.INFO and "publishes are taken again" in third.message


def test_metrics(node: Node) -> None:
    metrics = WorkerMetrics()
    space = DiskSpace(Settings(node_max_bytes=MOST, reserve_bytes=GIB), DIRECTORY, metrics, node.share)
    space.grew(b"a", MOST, 0)
    refusal(space)
    assert (metrics.data_max_bytes, metrics.data_reserve_bytes, metrics.data_used_bytes) == (MOST, GIB, MOST)
    assert (metrics.data_refusing, metrics.data_refused_messages) == (1, 3)


# --- an owner ---------------------------------------------------------------------------------------------------------


def fill(owner: Owner) -> None:
    """Let the node be at its bound, by what the other workers have."""
    owner.space._share = lambda _nbytes, _is_whole: MOST
    owner.space.look()


def make_room(owner: Owner) -> None:
    owner.space._share = lambda _nbytes, _is_whole: 0
    owner.space.look()


def full_owner(path: Path) -> Owner:
    """With a stream that has a message."""
    owner = make_owner(path, node_max_bytes=MOST)
    publish(owner, b"orders", b"first")
    fill(owner)
    return owner


def numbered(number: int) -> tuple[StreamBatch, Sink]:
    sink = Sink()
    made = batch(b"orders", b"message %d" % number, sink=sink)
    made.frames = [mark_run(made.take_frames(), write_numbering(b"", b"producer", number))]
    made.nbytes, made.numbered = sum(map(len, made.frames)), True
    return made, sink


def append(owner: Owner, *numbers: int) -> list[Sink]:
    made = [numbered(number) for number in numbers]
    owner.append_row([each for each, _sink in made], 0.0)
    return [sink for _batch, sink in made]


def codes(*sinks: Sink) -> list[Code | None]:
    return [sink.refusals[0][0] if sink.refusals else None for sink in sinks]


def test_an_owner_counts_what_it_appends(tmp_path: Path) -> None:
    owner = make_owner(tmp_path, node_max_bytes=MOST)
    publish(owner, b"a", b"x" * 100)
    owner.append_row([batch(b"a", b"x" * 100)], 0.0)
    assert owner.append_parts({b"a": (Sink(), 0, 1, bytearray(pack_frame(b"x" * 100)))}, 0.0) == []
    frames_bytes = owner.stream(b"a").log.end_offset - HEADER_PAGE_BYTES
    assert owner.space._total_bytes == FILES_BYTES + frames_bytes + 3 * INDEX_ENTRY_BYTES
    owner.release()


@pytest.mark.parametrize("name", [b"orders", b"new"])
def test_publishes_are_refused_and_make_no_stream(tmp_path: Path, name: bytes) -> None:
    owner = full_owner(tmp_path)
    first, second = Sink(), Sink()
    owner.append(batch(name, b"x", sink=first), 0.0)
    owner.append_row([batch(name, b"x", sink=second)], 0.0)
    assert codes(first, second) == [Code.FULL, Code.FULL]
    assert owner.append_parts({name: (Sink(), 0, 1, bytearray(pack_frame(b"x")))}, 0.0) == [name]  # left to `append`
    assert "max_bytes in [node]" in first.refusals[0][1]
    assert list(owner.catalog.names) == [b"orders"] and owner.stream(b"orders").log.next_seq == 1
    assert owner.metrics.data_refused_messages == 2
    make_room(owner)
    assert codes(publish(owner, name, b"x")) == [None]
    owner.release()


def test_administration_and_consumers_go_on(tmp_path: Path) -> None:
    owner = full_owner(tmp_path)
    owner.create(b"by-command", by_command=True)
    owner.trim(owner.stream(b"orders"), 1)
    first, second = Sink(), Sink()
    owner.append_row([batch(b"$cursor/orders", b"x", sink=first)], 0.0)
    owner.append(batch(b"orders/$dead", b"x", sink=second), 0.0)
    assert codes(first, second) == [None, Code.FULL]  # dead letters wait for room
    owner.release()


def test_a_repeat_of_what_is_logged_is_answered_and_the_producer_goes_on_after_a_refusal(tmp_path: Path) -> None:
    owner = make_owner(tmp_path, node_max_bytes=MOST)
    append(owner, 0)
    fill(owner)
    known = owner.stream(b"orders").producers
    repeat, refused, behind = append(owner, 0, 1, 2)
    assert codes(repeat, refused, behind) == [None, Code.FULL, Code.FULL]
    assert repeat.published_at == {0: 0}
    assert owner.stream(b"orders").producers is known  # a refusal costs no reading of the log
    make_room(owner)
    assert [sink.published_at for sink in append(owner, 1, 2)] == [{0: 1}, {0: 2}]
    owner.release()


def test_streams_without_a_look_by_bytes_stay_within_the_bound(tmp_path: Path) -> None:
    """Their files count as they are made, though hardly anything is appended."""
    owner = make_owner(tmp_path, node_max_bytes=20 * FILES_BYTES)
    sinks = [publish(owner, b"new-%d" % number) for number in range(30)]
    assert codes(*sinks) == [None] * 20 + [Code.FULL] * 10
    assert len(owner.catalog.names) == 20
    owner.release()


def test_a_slave_takes_no_frames(tmp_path: Path) -> None:
    owner = full_owner(tmp_path)
    with pytest.raises(Refused, match="max_bytes in"):
        owner.take_frames(b"orders", [memoryview(bytes(32))], 0.0)
    owner.release()
