"""Numbered publishes at the owner: appended once, after any repetition and any loss."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tailrace.broker.process.settings import Durability
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams import deduplication
from tailrace.broker.streams.deduplication import is_numbered
from tailrace.broker.streams.owner import Owner
from tailrace.protocol.errors import Code
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta
from tailrace.shard.numbering import write_numbering
from tailrace.shard.producer_file import producers_path
from tests.broker.owning import Clock, Sink, around, batch, make_owner, policies

ME = b"producer"
mark_run = load("tailrace.shard.run_cy").mark_run


def run(
    number: int, *payloads: bytes, name: bytes = b"s", producer_id: bytes = ME, sink: Sink | None = None
) -> StreamBatch:
    """A publish of a producer."""
    made = batch(name, *payloads, sink=sink)
    made.frames = [mark_run(made.take_frames(), write_numbering(b"", producer_id, number))]
    made.numbered = True
    return made


def send(owner: Owner, *batches: StreamBatch) -> list[int | Code]:
    """Publish as one row; the first seq of each, or why not."""
    sinks = [each.parts[0][0] for each in batches]
    assert all(isinstance(sink, Sink) for sink in sinks)
    owner.append_row(list(batches), 1_000.0)
    return [outcome(sink) for sink in sinks if isinstance(sink, Sink)]


def outcome(sink: Sink) -> int | Code:
    return sink.published_at[0] if 0 in sink.published_at else sink.refusals[0][0]


def payloads(owner: Owner, name: bytes = b"s") -> list[bytes]:
    log = owner.catalog.open[name].log
    found = []
    for piece in log.walk(log.first_seq):
        found += [row[5] for row in load("tailrace.shard.frame_cy").parse(piece.frames, 0, len(piece.frames), True)]
    return found


def test_frames_of_a_producer_are_known_by_their_flag() -> None:
    assert is_numbered(run(0, b"x").frames[0])
    assert not is_numbered(batch(b"s", b"x").frames[0])


def test_what_comes_again_is_answered_and_not_appended(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    assert send(owner, run(0, b"a", b"b"), batch(b"s", b"other"), run(2, b"c")) == [0, 2, 3]
    assert owner.take_grown()[b"s"][:2] == (0, 4)
    assert send(owner, run(0, b"a", b"b"), run(2, b"c"), run(1, b"b")) == [0, 3, 1]
    assert not owner.grown
    assert send(owner, run(2, b"c", b"d")) == [3]
    assert payloads(owner) == [b"a", b"b", b"other", b"c", b"d"]
    owner.release()


def test_a_repeat_in_the_same_row(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    assert send(owner, run(0, b"a"), run(0, b"a"), run(1, b"b"), run(0, b"a")) == [0, 0, 1, 0]
    assert payloads(owner) == [b"a", b"b"]
    owner.release()


def test_a_gap_and_a_producer_that_is_not_known(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    assert send(owner, run(1, b"x")) == [Code.PRODUCER]
    sink = Sink()
    assert send(owner, run(0, b"a"), run(2, b"c", sink=sink), run(1, b"b")) == [0, Code.GAP, 1]
    assert "number 2 where 1 is the next" in sink.refusals[0][1]
    assert payloads(owner) == [b"a", b"b"]
    owner.release()


@pytest.mark.parametrize("metadata", [b"\x80", b"\x81\xa1p\xc4\x01x", b"\x81"])
def test_flags_without_a_numbering(tmp_path: Path, metadata: bytes) -> None:
    owner = make_owner(tmp_path / "data")
    made = batch(b"s", b"x")
    made.frames = [mark_run(made.take_frames(), metadata)]
    made.numbered = True
    assert send(owner, made) == [Code.USAGE]
    owner.release()


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_an_owner_that_is_replaced_knows_what_the_last_one_knew(tmp_path: Path, how: str) -> None:
    owner = make_owner(tmp_path / "data")
    send(owner, run(0, b"a"), run(1, b"b"))
    path = producers_path(owner.catalog.shard_path(b"s"), "s")
    if how == "killed":
        owner.catalog.open.pop(b"s").log.abandon()
    owner.release()
    assert path.exists() == (how == "closed")
    owner = make_owner(tmp_path / "data")
    assert send(owner, run(1, b"b"), run(2, b"c"), run(4, b"e")) == [1, 2, Code.GAP]
    owner.release()


def test_what_is_known_is_written_down_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "CHECKPOINT_BYTES", 1_000)
    owner = make_owner(tmp_path / "data")
    send(owner, run(0, b"a"))
    path = producers_path(owner.catalog.shard_path(b"s"), "s")
    assert not path.exists()
    owner.append(batch(b"s", b"x" * 1_000), 0.0)
    assert path.exists()
    path.unlink()
    owner.append(batch(b"s", b"x" * 900), 0.0)
    assert not path.exists()
    owner.release()


def test_a_publish_of_which_the_end_was_lost_is_completed(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    send(owner, run(0, b"a", b"b", b"c"))
    owner.catalog.open[b"s"].log.set_aside(1)
    assert send(owner, batch(b"s", b"other")) == [1]
    again, more = run(0, b"a", b"b", b"c"), run(3, b"d")
    assert send(owner, again, more) == [0, 4]
    assert send(owner, run(0, b"a"), run(1, b"b", b"c"), run(3, b"d")) == [0, 2, 4]
    assert payloads(owner) == [b"a", b"other", b"b", b"c", b"d"]
    owner.release()


def test_what_the_disk_did_not_take_is_not_taken_for_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    send(owner, run(0, b"a"))
    append = StreamLog.append

    def fail(*_args: object) -> int:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(StreamLog, "append", fail)
    assert send(owner, run(0, b"a"), run(1, b"b"), run(1, b"b")) == [0, Code.UNAVAILABLE, Code.UNAVAILABLE]
    monkeypatch.setattr(StreamLog, "append", append)
    assert send(owner, run(1, b"b")) == [1]
    owner.release()


def test_a_repeat_waits_for_the_disk_as_the_first_one_did(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(Durability.ALWAYS))
    first, second = Sink(), Sink()
    owner.append_row([run(0, b"a", sink=first)], 0.0)
    owner.append_row([run(0, b"a", sink=second)], 0.0)
    stream = owner.catalog.open[b"s"]
    assert (first.published_at, second.published_at, len(owner.syncs.urgent)) == ({}, {}, 2)
    owner.batches_synced(stream, stream.log.sync(), None)
    assert (first.published_at, second.published_at) == ({0: 0}, {0: 0})
    assert send(owner, run(0, b"a")) == [0]
    owner.release()


def held_by_one(owner: Owner, next_seq: int) -> None:
    """A node below reports that it holds the stream before `next_seq`."""
    owner.replicas.held(0, 0, [(b"s", owner.replicas.holders(b"s").line, 1, "node", next_seq, next_seq)])


def scattered(owner: Owner, sink: Sink, again: bytes = b"abcd") -> StreamBatch:
    """Messages 0, 1 of a producer are at seqs 0, 1 and its 2, 3 at 12, 13. Returns all of them as one publish."""
    send(owner, run(0, b"a", b"b"), batch(b"s", *[b"other"] * 10), run(2, b"c", b"d"))
    assert owner.catalog.open[b"s"].log.next_seq == 14
    return run(0, *(bytes([each]) for each in again), sink=sink)


@pytest.mark.parametrize("again", [b"abcd", b"abc", b"abcde"], ids=["all", "some", "and more"])
def test_a_repeat_that_is_scattered_over_the_log_waits_for_its_last_message(tmp_path: Path, again: bytes) -> None:
    owner = make_owner(tmp_path / "data")
    sink = Sink()
    repeated = scattered(owner, sink, again)
    last_seq = {b"abcd": 13, b"abc": 12, b"abcde": 14}[again]
    repeated.replicas = 1
    held_by_one(owner, 12)
    owner.append_row([repeated], 0.0)
    assert sink.published_at == {}, "nobody holds its last message"
    held_by_one(owner, last_seq)
    assert sink.published_at == {}
    held_by_one(owner, last_seq + 1)
    assert sink.published_at == {0: 0}
    owner.release()


def test_a_repeat_from_an_earlier_term_waits_for_nodes_that_are_in_the_present_one(tmp_path: Path) -> None:
    """A node that has not got to where the term begins may be passed over by the next promotion, with all it holds."""
    owner = make_owner(tmp_path / "data")
    send(owner, run(0, b"a"), batch(b"s", *[b"other"] * 9))
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 1))
    assert stream_roles.promote(owner, [b"s"]) == 2
    sink = Sink()
    repeated = run(0, b"a", sink=sink)
    repeated.replicas = 1
    held_by_one(owner, 9)
    owner.append_row([repeated], 0.0)
    assert sink.published_at == {}
    held_by_one(owner, 10)
    assert sink.published_at == {0: 0}
    owner.release()


def test_a_repeat_that_is_scattered_over_the_log_waits_until_its_last_message_is_on_the_disk(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    sink = Sink()
    repeated = scattered(owner, sink)
    repeated.sync = True
    stream = owner.catalog.open[b"s"]
    stream.log.synced_seq = 12
    owner.append_row([repeated], 0.0)
    owner.batches_synced(stream, 13, None)
    assert sink.published_at == {}
    owner.batches_synced(stream, 14, None)
    assert sink.published_at == {0: 0}
    owner.release()


def test_a_repeat_ends_in_what_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row appends the end of a run, and repeats all of it: none of it is logged, so the repeat is refused too."""
    owner = make_owner(tmp_path / "data")
    send(owner, run(0, b"a", b"b"), batch(b"s", *[b"other"] * 10))

    def fail(*_args: object) -> int:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(StreamLog, "append", fail)
    assert send(owner, run(2, b"c", b"d"), run(0, b"a", b"b", b"c", b"d")) == [Code.UNAVAILABLE] * 2
    owner.release()


@pytest.mark.parametrize("together", [False, True], ids=["one take each", "one take"])
def test_a_slave_knows_what_its_master_knew(tmp_path: Path, together: bool) -> None:
    master, slave = make_owner(tmp_path / "master"), make_owner(tmp_path / "slave")
    slave.roles.set_meta(StreamMeta("s", Role.SLAVE, 1))
    slave.create(b"s", by_command=True)
    send(master, batch(b"s", b"plain"), run(0, b"a", b"b", b"c"))
    log = master.catalog.open[b"s"].log
    frames = b"".join(bytes(piece.frames) for piece in log.walk(0))
    cut = log.entry(2).offset - log.entry(0).offset  # in the middle of the run
    pieces = [memoryview(frames)[:cut], memoryview(frames)[cut:]]
    for taken in [pieces] if together else [pieces[:1], pieces[1:]]:
        slave.take_frames(b"s", taken, 0.0)
        assert slave.catalog.open[b"s"].producers is not None
    slave.roles.set_meta(StreamMeta("s", Role.MASTER, 2))
    assert send(slave, run(0, b"a", b"b", b"c"), run(3, b"d")) == [1, 4]
    master.release()
    slave.release()


def test_a_slave_whose_log_cannot_be_read_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = make_owner(tmp_path / "master"), make_owner(tmp_path / "slave")
    slave.roles.set_meta(StreamMeta("s", Role.SLAVE, 1))
    slave.create(b"s", by_command=True)
    send(master, run(0, b"a"))
    send(master, run(1, b"b"))
    first, second = (bytes(piece) for piece in _frames(master))
    asked = []

    def fail(*_args: object) -> None:
        asked.append(1)
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(deduplication, "rebuild", fail)
    slave.take_frames(b"s", [memoryview(first)], 0.0)
    slave.take_frames(b"s", [memoryview(second)], 0.0)
    assert len(asked) == 1
    slave.roles.set_meta(StreamMeta("s", Role.MASTER, 2))
    assert send(slave, run(1, b"b")) == [Code.UNAVAILABLE]
    monkeypatch.undo()
    assert send(slave, run(1, b"b")) == [1]
    master.release()
    slave.release()


def _frames(owner: Owner) -> list[bytes]:
    log = owner.catalog.open[b"s"].log
    whole = b"".join(bytes(piece.frames) for piece in log.walk(0))
    cut = log.entry(1).offset - log.entry(0).offset
    return [whole[:cut], whole[cut:]]


def test_a_producer_that_is_idle_for_too_long_begins_anew(tmp_path: Path) -> None:
    clock = Clock()
    owner = make_owner(tmp_path / "data", clock, producer_expiry_s=60.0)
    send(owner, run(0, b"a"))
    clock.now_s += 61
    assert send(owner, run(1, b"b")) == [Code.PRODUCER]
    assert send(owner, run(0, b"b")) == [1]
    owner.release()


def test_a_row_to_a_stream_that_is_not_known_is_made_by_whoever_may(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    assert send(owner, run(0, b"a", sink=Sink(may_create=False))) == [Code.STREAMS]
    assert send(owner, run(0, b"a", sink=Sink(may_create=False)), run(1, b"b")) == [0, 1]
    owner.release()


def test_a_row_to_a_stream_that_is_not_taken_here_goes_to_its_master(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 1))
    owner.create(b"s", by_command=True)
    sent: list[StreamBatch] = []
    around(owner).send_up = sent.append
    row = [run(0, b"a"), run(1, b"b")]
    owner.append_row(row, 0.0)
    assert sent == row
    assert is_numbered(sent[1].take_frames())
    owner.release()
