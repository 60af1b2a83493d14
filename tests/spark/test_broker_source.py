from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest

import tailrace
from tailrace.core.address import Address
from tailrace.errors import ConnectFailed, DamagedMessage, SeqFault, StreamBehind, UnknownStream, broker_error
from tailrace.shard.directory import DataDirectory
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.spark import broker_source
from tailrace.spark.broker_connection import BrokerConnection, Chunk
from tailrace.spark.broker_source import BrokerSource, take_apart
from tailrace.spark.directory_source import DirectorySource
from tailrace.spark.entries import Entries
from tailrace.spark.places import Place, Range
from tailrace.spark.plan import make_plan
from tailrace.spark.slices import Slice, Task
from tailrace.spark.source import Scan, Source, SourceOptions, prepared
from tests.spark.data import START_US, make_directory, plain
from tests.spark.rollup.test_frame_view import set_time
from tests.system.node import Node

MINUTE_US = 60_000_000
LARGE = 60_000  # messages of the stream that takes many chunks: 8 MB

_stamp = load("tailrace.shard.frame_cy").stamp


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDirectory:
    made = make_directory(
        tmp_path_factory.mktemp("broker") / "data", {"a": plain(100), "ü*": plain(3), "empty": [], "b/c": plain(7)}
    )
    from tests.spark.data import open_log

    log = open_log(made, "large")
    for i in range(60):
        frames = bytearray(b"".join(pack_frame(b"%0100d" % (i * 1_000 + k)) for k in range(LARGE // 60)))
        log.append(frames, LARGE // 60, START_US + i * MINUTE_US // 4, 1 + i // 30)
    log.close()
    return made


@pytest.fixture(scope="module")
def node(data: DataDirectory) -> Iterator[Node]:
    found = Node(data.path).start()
    yield found
    found.kill()


@pytest.fixture
def source(node: Node) -> Iterator[BrokerSource]:
    with closing(BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", node.port),)))) as found:
        yield found


def all_of(source: Source, task: Task) -> list[tuple[str, int, int, int, int]]:
    found = []
    for slice_ in task:
        with source.open(slice_) as reader:
            for entries, _ in reader.blocks(frames=False):
                columns = (entries.seq, entries.timestamp_us, entries.size, entries.table["epoch"])
                found += [(slice_.stream, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return found


def planned(
    source: Source,
    *patterns: str,
    range_: Range = Range(),  # noqa: B008
    rows_per_task: int | None = None,
    align_us: int = 0,
) -> list[tuple[str, int, int]]:
    plan = make_plan(source, patterns, range_, rows_per_task, align_us)
    assert not plan.bad
    return [(slice_.stream, slice_.first_seq, slice_.end_seq) for task in plan.tasks for slice_ in task]


@pytest.mark.system
def test_the_same_plan_and_messages_as_from_the_directory(source: BrokerSource, data: DataDirectory) -> None:
    files = DirectorySource(SourceOptions(str(data.path)))
    for range_ in (Range(), Range(Place("time", START_US + 50_000), Place("time", START_US + 5 * MINUTE_US))):
        assert planned(source, range_=range_) == planned(files, range_=range_)
    aligned = planned(source, "large", rows_per_task=5_000, align_us=MINUTE_US)
    assert aligned == planned(files, "large", rows_per_task=5_000, align_us=MINUTE_US)
    assert len(aligned) > 5
    for task, same in zip(make_plan(source, ()).tasks, make_plan(files, ()).tasks, strict=True):
        assert all_of(source, task) == all_of(files, same)


@pytest.mark.system
def test_a_name_with_levels_is_that_of_a_stream_or_refused(source: BrokerSource) -> None:
    """The rules of the node make it a topic; the stream may be there from before, or copied from another node."""
    assert planned(source, "b/*") == planned(source, "b/c") == [("b/c", 0, 7)]
    (bad,) = make_plan(source, ["b/d"]).bad
    assert "'b/d' is a topic of the stream 'b': give that name" in bad.cause
    with pytest.raises(UnknownStream, match="'b/d' is a topic of the stream 'b': give that name"):
        all_of(source, (Slice("b/d", -1, 0, 7),))


@pytest.mark.system
def test_a_wrong_time_in_the_index_of_the_node_misleads_nobody(
    source: BrokerSource, data: DataDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """It is plausible: between those of its neighbours."""
    set_time(data, "a", 50, START_US + 49_500)
    try:
        assert planned(source, "a", range_=Range(Place("time", START_US + 50_000))) == [("a", 50, 100)]
        assert "the index of its node is wrong beside seq 51" in caplog.text
        assert planned(source, "a", range_=Range(Place("time", START_US + 49_000))) == [("a", 49, 100)]
    finally:
        set_time(data, "a", 50, START_US + 50_000)


@pytest.mark.system
def test_frames_are_those_of_the_log(source: BrokerSource) -> None:
    with source.open(Slice("large", -1, 10, 40_000)) as reader:
        blocks = list(reader.blocks(frames=True))
    assert len(blocks) > 3
    assert [block.entries.first_seq for block in blocks[1:]] == [block.entries.end_seq for block in blocks[:-1]]
    first = blocks[0]
    assert first.frames is not None
    assert bytes(first.frames[32:132]) == b"%0100d" % 10
    assert first.entries.nbytes == len(first.frames)


@pytest.mark.system
def test_single_messages(source: BrokerSource) -> None:
    with source.open(Slice("a", -1, 50, 60)) as reader:
        assert reader.entries(49, 1).timestamp_us.tolist() == [START_US + 49_000]
        assert reader.entries(-1, 1).messages == 0
    with source.open(Slice("large", -1, 0, 1)) as reader:
        assert reader.entries(5, 30_000).seq.tolist() == list(range(5, 30_005))


@pytest.mark.system
def test_patterns_ask_the_node_for_its_streams(source: BrokerSource) -> None:
    assert [ref.stream for ref in source.streams(())] == ["a", "b/c", "empty", "large", "ü*"]
    assert [ref.stream for ref in source.streams(("l*", "other"))] == ["large", "other"]


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "data", workers=2).start()
    yield made
    made.kill()


@pytest.mark.system
def test_a_scan_finds_the_streams_that_have_grown(growing: Node) -> None:
    def publish(*names: str) -> None:
        with tailrace.connect(f"127.0.0.1:{growing.port}") as client:
            for name in names:
                client.publish(name, b"x")

    publish(*"abcd")
    with closing(BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", growing.port),)))) as source:
        first = source.scan(())
        assert list(first.refs) == ["a", "b", "c", "d"]
        assert first.changed == first.refs.keys(), "nothing is known yet"
        assert source.scan(()) == Scan(first.refs, set(), set())
        publish("b", "d")
        found = source.scan(())
        assert found.refs is first.refs
        assert found.changed == {"b", "d"}
        assert not source.scan(()).changed, "since the scan before"
        publish("new", "c")
        found = source.scan(())
        assert list(found.refs) == ["a", "b", "c", "d", "new"]
        assert found.changed == {"c", "new"}
        growing.kill()
        growing.start()
        assert source.scan(()).changed == found.refs.keys(), "a restarted node may have lost unsynced messages"
        assert not source.scan(()).changed
        found = source.scan(("[ab]", "named"))
        assert (list(found.refs), found.changed, found.unsettled) == (
            ["a", "b", "named"],
            {"a", "b", "named"},
            {"named"},
        )


@pytest.mark.system
def test_ends_that_were_asked_for_together_are_shown_once(growing: Node) -> None:
    with (
        tailrace.connect(f"127.0.0.1:{growing.port}") as client,
        closing(BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", growing.port),)))) as source,
    ):

        def end_of(name: str) -> int:
            with source.view(source.ref(name)) as view:
                return view.next_seq

        client.publish("a", b"x")
        source.prepare([source.ref(name) for name in "ab"])
        client.publish("a", b"x")
        assert [end_of("a"), end_of("a"), end_of("b")] == [1, 2, 0]
        source.prepare([source.ref("a")])
        client.publish("a", b"x")
        growing.kill()
        growing.start()
        assert source.scan(()).changed == {"a"} and end_of("a") == 3, "nothing of before the loss is shown"
        growing.kill()
        growing.start()
        source.prepare([source.ref("a")])
        assert end_of("a") == 3


@pytest.mark.system
def test_ends_are_known_without_a_request_for_each_stream(growing: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number:03}" for number in range(300)]
    with tailrace.connect(f"127.0.0.1:{growing.port}") as client:
        for name in names:
            client.publish(name, name.encode())
    counts = Counter[str]()
    for name in ("place", "chunks", "ends"):
        method = getattr(BrokerConnection, name)
        monkeypatch.setattr(BrokerConnection, name, counted(counts, name, method))
    with closing(BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", growing.port),)))) as source:
        found = {}
        for ref in prepared(source, [source.ref(name) for name in [*names, "unknown"]]):
            with source.view(ref) as view:
                found[ref.stream] = (view.next_seq, view.stamp_at(view.next_seq - 1) if view.next_seq else None)
        assert counts == {"ends": 1}, "for those that are not listed"
        assert found.pop("unknown") == (0, None)
        for name, (next_seq, stamp) in found.items():
            with source.view(source.ref(name)) as view:
                assert (view.next_seq, view.stamp_at(0)) == (next_seq, stamp)


@pytest.mark.system
def test_ids_of_streams_are_of_the_node_that_was_reached_first(growing: Node, node: Node, data: DataDirectory) -> None:
    """Those that hold the same streams have others."""
    with tailrace.connect(f"127.0.0.1:{growing.port}") as client:
        client.publish("a", b"x")
    addresses = tuple(Address("127.0.0.1", each.port) for each in (growing, node))
    with closing(BrokerSource(SourceOptions(brokers=addresses))) as source:

        def look(name: str) -> tuple[int, bool]:
            with source.view(source.ref(name)) as view:
                return view.stream_id, view.exists

        found = look("a")
        with closing(DirectorySource(SourceOptions(str(growing.data)))) as files, files.view(files.ref("a")) as view:
            assert found == (view.stream_id, True)
        assert look("unknown") == (0, False)
        growing.stop()
        assert look("a") == look("empty") == (0, True)
        assert look("unknown") == (0, False)


def counted(counts: Counter[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        counts[name] += 1
        return method(*args)

    return call


@pytest.mark.system
def test_slices_are_read_over_one_connection(source: BrokerSource, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BrokerConnection] = []

    def connect(*args: Any) -> BrokerConnection:
        made.append(BrokerConnection(*args))
        return made[-1]

    monkeypatch.setattr(broker_source, "BrokerConnection", connect)
    assert [len(all_of(source, (Slice("a", -1, seq, seq + 9),))) for seq in range(0, 90, 9)] == [9] * 10
    assert len(made) == 1
    with source.open(Slice("large", -1, 0, LARGE)) as reader:
        blocks = reader.blocks(frames=False)
        assert isinstance(blocks, Generator)
        next(blocks)
        blocks.close()  # the rest of it is on its way
    assert len(all_of(source, (Slice("a", -1, 0, 100),))) == 100
    assert len(made) == 2
    made[-1].close()  # as a broker does with one that nobody answers for
    assert len(all_of(source, (Slice("a", -1, 0, 100),))) == 100
    assert len(made) == 3


@pytest.mark.system
def test_from_another_machine_patterns_work_too(growing: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_args: object) -> Never:
        raise broker_error("denied", "this command is only for connections from this machine")

    monkeypatch.setattr(broker_source, "list_streams", denied)
    monkeypatch.setattr(broker_source, "list_grown", denied)
    with tailrace.connect(f"127.0.0.1:{growing.port}") as client:
        for name in "ab":
            client.publish(name, b"x")
        with closing(BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", growing.port),)))) as source:
            assert list(source.scan(("[a-y]",)).changed) == ["a", "b"]
            client.publish("b", b"x")
            client.publish("z", b"x")
            assert source.scan(("[a-y]",)).changed == {"b"}


@pytest.mark.system
def test_a_node_that_is_replaced_while_it_is_read(data: DataDirectory, node: Node, source: BrokerSource) -> None:
    """Between two chunks, with the rest still on its way: no message is lost, none comes twice."""
    seen: list[int] = []
    with source.open(Slice("large", -1, 0, LARGE)) as reader:
        for entries, _ in reader.blocks(frames=False):
            seen += entries.seq.tolist()
            if len(seen) < 20_000:
                node.kill()
                node.start()
    assert seen == list(range(LARGE))
    assert planned(source, "a") == [("a", 0, 100)]


def test_nobody_there_is_told_after_some_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    source = BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", 1),)))
    with source.open(Slice("a", -1, 0, 10)) as reader, pytest.raises(ConnectFailed):
        list(reader.blocks(frames=False))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2]
    with pytest.raises(ConnectFailed):
        make_plan(source, ("a",))


def test_an_empty_slice_asks_nobody() -> None:
    source = BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", 1),)))
    with source.open(Slice("a", -1, 5, 5)) as reader:
        assert list(reader.blocks(frames=True)) == []


# --- received rows ----------------------------------------------------------------------------------------------------


def chunk(first_seq: int, *, trimmed: bool = False, flip: int = -1) -> Chunk:
    frames = bytearray(pack_frame(b"one") + pack_frame(b"two"))
    _stamp(frames, first_seq, START_US, 1, 0)
    if flip >= 0:
        frames[flip] ^= 1
    return Chunk(memoryview(frames), trimmed)


def test_a_chunk_begins_where_the_last_one_ended() -> None:
    found = take_apart("a", chunk(5), 5)
    assert isinstance(found, Entries)
    assert found.seq.tolist() == [5, 6]
    assert np.array_equal(found.timestamp_us, [START_US] * 2)
    assert take_apart("a", chunk(9, trimmed=True), 5).first_seq == 9
    with pytest.raises(SeqFault, match="seq 6 came where 5 was next"):
        take_apart("a", chunk(6), 5)
    with pytest.raises(StreamBehind):
        take_apart("a", chunk(4), 5)


@pytest.mark.parametrize("place", [33, 4, 0, 69])
def test_a_chunk_with_a_wrong_byte_is_damage(place: int) -> None:
    with pytest.raises(DamagedMessage, match="a: message"):
        take_apart("a", chunk(5, flip=place), 5)
