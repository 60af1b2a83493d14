"""Streams in memory: bounded at any rate, told to readers as a trim, and without all that needs a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.delivery import frame_chunks
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.settings import Durability, Settings, StreamPolicy
from tailrace.broker.streams.catalog import StreamCatalog
from tailrace.broker.streams.memory_rings import with_memory
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import Trimmed
from tailrace.shard.index import IndexRun
from tailrace.shard.memory_directory import make_memory_directory, memory_path, remove_memory_directory
from tests.broker.binary import BinaryPeer
from tests.broker.world import BOOT, SHARDS, World, world

BOUND = 256 << 10
LIVE = StreamPolicy("live", Durability.MEMORY, max_bytes=BOUND, linger_s=30)
RULES = (TopicRule("live/#", "live"), TopicRule("#", "{1}"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, topics=RULES, streams=(LIVE,)) as node:
        yield node


def files_of(path: Path) -> set[str]:
    """But for the lock and the clock, which is written anew at any time."""
    names = {file for _folder, _folders, files in os.walk(path) for file in files}
    return {name for name in names if not name.startswith(("LOCK", "clock.json"))}


def used_bytes(node: World) -> int:
    return sum(each.stat().st_blocks * 512 for each in node.memory_path.rglob("live.*"))


def test_topics_reach_subscribers_of_all_workers_and_leave_no_file(node: World) -> None:
    before = files_of(node.directory.path)
    readers = [node.connect(slot) for slot in (0, 1)]
    for reader in readers:
        node.ask(reader, "sub live/+/temp new wait")
    publisher = node.connect(0)
    node.ask(publisher, *(f"pub live/{number}/temp |{number}" for number in range(50)), "pub live/x/other |no")
    for reader in readers:
        assert [line.split("|")[1] for line in reader.lines] == [str(number) for number in range(50)]
    assert node.ask(node.connect(1), "sub live/7/temp 0")[-1].endswith("live/7/temp |7")
    assert files_of(node.directory.path) == before


def test_a_stream_takes_no_more_than_a_few_times_its_bound_at_any_rate(node: World) -> None:
    publisher = node.connect(node.owner_of("live"))
    line, most = b"pub live/1 |" + b"x" * 1_000, 0
    for _ in range(200):
        publisher.send(*[line] * 50)
        node.settle(node.owner_of("live"))
        most = max(most, used_bytes(node))
    assert most < 5 * BOUND, "of 10 MB"
    (stream,) = [worker.owner.catalog.open[b"live"] for worker in node.workers if b"live" in worker.owner.catalog.open]
    kept = stream.log.end_offset - stream.log.entry(stream.log.first_seq).offset
    assert BOUND // 2 < kept <= BOUND * 5 // 4 + 51_000


def test_the_bound_of_the_disk_is_not_theirs(tmp_path: Path) -> None:
    """They take nothing of it, and are published to when it is met."""
    most, payload = 16 << 20, "x" * 100_000
    named = StreamPolicy("new", Durability.MEMORY)
    with world(tmp_path, topics=RULES, streams=(LIVE, named), node_max_bytes=most) as node:
        publisher = node.connect()
        node.ask(publisher, "ack on")
        space = node.workers[0].owner.space
        before = space._total_bytes
        for _ in range(most // len(payload) + 1):
            assert node.ask(publisher, f"pub live/a |{payload}")[0].startswith("ok pub")
        assert space._total_bytes == before and not space.is_met
        space._share = lambda _nbytes, _is_whole: most
        space.look()
        assert node.ask(publisher, "pub disk |a")[0].startswith("err full")
        for name in ("live/a", "new"):
            assert node.ask(publisher, f"pub {name} |a")[0].startswith("ok pub")


@pytest.mark.parametrize("slot", [0, 1])
def test_a_reader_that_is_overrun_gets_a_notice_and_goes_on(node: World, slot: int) -> None:
    node.stop_timers()  # who takes nothing for seconds is dropped
    reader, publisher = node.connect(slot, small=True), node.connect(node.owner_of("live"))
    node.ask(reader, "sub live 0 wait")
    reader.deaf = True
    for number in range(4_000):
        publisher.send(b"pub live/1 |%d " % number + b"x" * 1_000)
        if not number % 50:
            node.settle()
    reader.deaf = False
    node.settle()
    seqs = [seq for _name, seq, _payload in reader.messages()]
    (notice,) = [line for line in reader.lines if line.startswith("err")]
    assert notice.startswith("err trimmed live: messages") and seqs[-1] == 3_999
    assert seqs == sorted(seqs) and len(seqs) < 4_000
    for _name, seq, payload in reader.messages():
        assert payload == f"{seq} " + "x" * 1_000


@pytest.mark.parametrize("slot", [0, 1])
def test_chunks_of_frames_are_never_zeros(node: World, slot: int) -> None:
    """A large one goes by sendfile from a disk; here its space may have been given back."""
    reader = BinaryPeer(node, slot, small=True)
    reader.subscribe(1, "live")
    reader.peer.deaf = True
    publisher = node.connect(node.owner_of("live"))
    for number in range(4_000):
        publisher.send(b"pub live/1 |%d " % number + b"x" * 1_000)
        if not number % 50:
            node.settle()
    reader.peer.deaf = False
    node.settle()
    reader.take()  # takes the frames apart, and looks at their checksums
    for seq, payload in reader.got.get(1, []):
        assert payload == b"%d " % seq + b"x" * 1_000


def test_what_is_given_back_while_it_is_read_is_a_trim(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner, in another process, may do so at any moment."""
    slot = node.owner_of("live")
    publisher = node.connect(slot)
    node.ask(publisher, *[b"pub live/1 |" + b"x" * 10_000] * 20)
    log, other = node.workers[slot].owner.catalog.open[b"live"].log, node.workers[1 - slot]
    run = IndexRun(0, other.readers.get(b"live").offset_of(0), log.next_seq, log.end_offset)
    chunk = other.frame_chunks._make(b"live", run, 1 << 20, shared=False)
    assert chunk.size > frame_chunks.SENDFILE_MIN_BYTES and chunk.frames is not None
    assert node.workers[slot].owner.catalog.directory.is_in_memory(b"live")
    read = frame_chunks._read

    def read_late(*args: Any) -> bytes:
        log.trim(10)
        log.punch(10)
        return read(*args)

    monkeypatch.setattr(frame_chunks, "_read", read_late)
    with pytest.raises(Trimmed):
        other.frame_chunks._make(b"live", run, 1 << 20, shared=False)


@pytest.mark.parametrize(
    "line",
    ["get live c 10 0", "consumers live", "delete live", "slave 127.0.0.1 9 live 0", "unmaster live", "promote live"],
)
def test_it_has_no_consumers_copies_or_deletion(node: World, line: str) -> None:
    peer = node.connect(0)
    node.ask(peer, "pub live/1 |x")
    before = files_of(node.directory.path)
    answer = node.ask(peer, line)[0]
    assert answer.startswith(("err unsupported this stream is in memory", "err usage", "err command")), answer
    assert files_of(node.directory.path) == before
    assert node.ask(peer, "ack on", "pub live/1 |y")[1] == "ok pub live 1"


@pytest.mark.parametrize("more", [{"ack": m.Ack.SYNCED}, {"ack": m.Ack.REPLICATED, "replicas": 1}])
def test_nothing_of_it_is_on_a_disk_or_another_node(node: World, more: dict[str, object]) -> None:
    peer = BinaryPeer(node, 0)
    peer.open("live")
    peer.publish(1, b"x", **more)  # type: ignore[arg-type]
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Failed) and answer.code == Code.UNSUPPORTED and "in memory" in answer.text, answer


def test_without_a_subscriber_its_messages_go_after_a_while(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = node.workers[node.owner_of("live")]
    now_s = owner.upkeep._clock()
    monkeypatch.setattr(owner.upkeep, "_clock", lambda: now_s)
    reader, publisher = node.connect(1 - owner.slot), node.connect(0)
    node.ask(reader, "sub live 0 wait")
    node.ask(publisher, "pub live/1 |x")

    def kept(later_s: float) -> int:
        nonlocal now_s
        now_s += later_s
        owner.upkeep._visit(b"live")
        log = owner.owner.catalog.open[b"live"].log
        return log.next_seq - log.first_seq

    assert [kept(LIVE.linger_s), kept(LIVE.linger_s)] == [1, 1]
    node.ask(reader, "unsub live")
    assert [kept(1), kept(LIVE.linger_s - 1), kept(1)] == [1, 1, 0]
    assert node.ask(publisher, "ack on", "pub live/1 |y")[-1] == "ok pub live 1", "its numbers go on"


def test_a_successor_goes_on_with_it(node: World) -> None:
    slot = node.owner_of("live")
    reader, publisher = node.connect(1 - slot), node.connect(1 - slot)
    node.ask(reader, "sub live 0 wait")
    node.ask(publisher, "pub live/1 |before")
    node.replace(slot, 9)
    node.ask(publisher, "pub live/1 |after")
    assert [payload.split("|")[-1] for _name, _seq, payload in reader.messages()] == ["before", "after"]


def test_other_nodes_are_not_told_of_it(node: World) -> None:
    owner = node.workers[node.owner_of("live")]
    node.ask(node.connect(0), "pub live/1 |x", f"pub {node.name(owner.slot)} |x")
    names = [name for worker in node.workers for name in worker.owner.catalog.names]
    assert b"live" in names
    found: list[Any] = []
    owner.router.call_slot(owner.slot, "names", [0, 0], found.append)
    assert len(found[0][2]) == 2 and b"live" not in found[0][2]


def test_a_name_with_a_dollar_is_kept_as_a_stream_on_the_disk(tmp_path: Path) -> None:
    """Its messages were never synced, and dropped above the bound of a stream in memory."""
    with world(tmp_path, workers=1, streams=(StreamPolicy("*", Durability.MEMORY),)) as node:
        client = node.connect(0)
        node.ask(client, "pub a$b |1", "pub ab |2")
        owner = node.workers[0].owner
        for name, in_memory in ((b"a$b", False), (b"ab", True)):
            assert owner.catalog.open[name].in_memory is owner.catalog.directory.is_in_memory(name) is in_memory
            assert (name in owner.space.rings.streams) is in_memory


def test_files_of_before_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with world(tmp_path, topics=RULES) as node:
        node.fill("live", [b"on the disk"])
    (tmp_path / "again").mkdir()
    (tmp_path / "data").rename(tmp_path / "again" / "data")
    node_file = tmp_path / "again" / "data" / "node.json"
    assert node_file.exists()
    directory = open_data_dir(node_file.parent)
    make_memory_directory(memory_path(directory.node_id), SHARDS)
    try:
        both = with_memory(directory, Settings(streams=(LIVE,)))
        catalog = StreamCatalog(both, 0, 1, BOOT, WorkerMetrics())
        catalog.lock()
        assert b"live" not in catalog.names and "its files in" in caplog.text
        catalog.unlock()
        assert [path for path in directory.stream_path(b"live").iterdir() if path.name.startswith("live")]
    finally:
        remove_memory_directory(memory_path(directory.node_id))
