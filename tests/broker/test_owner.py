from __future__ import annotations

from pathlib import Path

import pytest

from broker.owner import LOCK_PATIENCE_S, OpenStream, Refused
from broker.protocol.errors import Code
from broker.settings import Durability
from shard.errors import ShardLocked
from shard.meta import Role, StreamMeta, write_meta
from shard.stream_files import stream_paths
from tests.broker.owning import Sink, batch, make_owner, policies, publish


def test_the_first_publish_makes_a_stream_and_its_messages_count_on(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    sink = publish(owner, b"s", b"one", b"two")
    assert (sink.published_at, sink.created) == ({0: 0}, 1)
    assert publish(owner, b"s", b"three").published_at == {0: 2}
    growth = owner.take_grown()[b"s"]
    assert (growth.first_seq, growth.next_seq, growth.end_offset) == (2, 3, owner.open[b"s"].log.end_offset)
    assert owner.take_grown() == {}
    owner.release()


def test_parts_of_a_batch_get_their_own_seqs(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    first, second = Sink(), Sink()
    made = batch(b"s", b"a", b"b", sink=first)
    other = batch(b"s", b"c", sink=second)
    made.add(second, 7, 1, other.take_frames())
    owner.append(made, 0.0)
    assert (first.published_at, second.published_at) == ({0: 0}, {7: 2})
    owner.release()


def test_who_has_made_as_many_streams_as_it_may_makes_no_more(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    sink = Sink(may_create=False)
    owner.append(batch(b"s", b"x", sink=sink), 0.0)
    assert sink.refusals[0][0] is Code.STREAMS
    owner.release()


def test_the_node_has_a_limit_on_streams(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", total=5, max_streams=5)
    assert publish(owner, b"s").refusals[0][0] is Code.NODESTREAMS
    owner.release()


def test_without_auto_master_only_a_command_makes_streams(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", auto_master=False)
    assert publish(owner, b"s").refusals[0][0] is Code.DISABLED
    owner.create(b"s", by_command=True)
    assert publish(owner, b"s").published_at == {0: 0}
    owner.release()


def test_the_least_recently_used_are_closed(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", max_open_streams=8)
    for number in range(20):
        publish(owner, b"s%d" % number)
    publish(owner, b"s13")
    publish(owner, b"new")
    assert list(owner.open) == [*(b"s%d" % number for number in range(14, 20)), b"s13", b"new"]
    assert len(owner.names) == 21
    assert publish(owner, b"s0").published_at == {0: 1}
    owner.release()


def test_a_stream_that_publishers_wait_for_stays_open(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", max_open_streams=8, streams=policies(Durability.ALWAYS))
    sinks = [publish(owner, b"s%d" % number) for number in range(9)]
    assert len(owner.open) == 9 and not any(sink.published_at for sink in sinks)
    owner.batches_synced(owner.open[b"s0"], 1, None)
    assert sinks[0].published_at == {0: 0}
    publish(owner, b"another")
    assert b"s0" not in owner.open
    owner.release()


def test_what_was_appended_after_the_sync_began_waits_for_the_next(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(Durability.ALWAYS))
    first, second = publish(owner, b"s", b"1", b"2"), publish(owner, b"s", b"3")
    stream = owner.open[b"s"]
    owner.batches_synced(stream, 2, None)
    assert (first.published_at, second.published_at) == ({0: 0}, {})
    owner.batches_synced(stream, 3, OSError(5, "Input/output error"))
    assert second.refusals[0] == (Code.UNAVAILABLE, "logged, but the disk refused to sync it: Input/output error")
    assert stream.idle
    owner.release()


def test_streams_are_known_again_with_their_roles(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"kept")
    publish(owner, b"gone")
    owner.release()
    write_meta(owner.shard_path(b"gone"), StreamMeta("gone", role=Role.DISABLED, epoch=3))
    owner = make_owner(tmp_path / "data")
    assert set(owner.names) == {b"kept", b"gone"} and not owner.open
    assert (owner.role(b"kept"), owner.epoch(b"kept")) == (Role.MASTER, 1)
    assert (owner.role(b"gone"), owner.epoch(b"gone")) == (Role.DISABLED, 3)
    assert publish(owner, b"gone").refusals[0][0] is Code.DISABLED
    assert publish(owner, b"kept").published_at == {0: 1}
    owner.release()


def test_a_damaged_stream_refuses_alone_and_is_counted_once(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"hurt")
    publish(owner, b"sound")
    owner.release()
    Path(stream_paths(owner.shard_path(b"hurt"), "hurt").content_file).write_bytes(bytes(100))
    owner = make_owner(tmp_path / "data")
    for _ in range(3):
        code, text = publish(owner, b"hurt").refusals[0]
        assert code is Code.DAMAGED and "hurt.content" in text
    assert publish(owner, b"sound").published_at == {0: 1}
    assert owner.metrics.damaged_streams == 1
    owner.release()


def test_damaged_metadata_makes_its_stream_refuse(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"hurt")
    owner.release()
    write_meta(owner.shard_path(b"hurt"), StreamMeta("hurt", epoch=2))
    (meta,) = owner.shard_path(b"hurt").glob("hurt.meta")
    meta.write_bytes(meta.read_bytes()[:-1])
    owner = make_owner(tmp_path / "data")
    assert publish(owner, b"hurt").refusals[0][0] is Code.DAMAGED
    owner.release()


def test_shards_have_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data", slot=0, slots=2)
    other = make_owner(tmp_path / "data", slot=1, slots=2)
    monkeypatch.setattr("broker.owner.LOCK_PATIENCE_S", 0.0)
    with pytest.raises(ShardLocked):
        make_owner(tmp_path / "data", slot=1, slots=2)
    assert LOCK_PATIENCE_S > 1, "a predecessor that leaves is waited for"
    owner.release()
    other.release()


def test_who_has_released_its_shards_opens_nothing_any_more(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s")
    owner.release()
    assert publish(owner, b"s").refusals[0][0] is Code.UNAVAILABLE
    assert publish(owner, b"new").refusals[0][0] is Code.UNAVAILABLE
    with pytest.raises(Refused, match="does not own"):
        owner.stream(b"s")
    successor = make_owner(tmp_path / "data")
    assert publish(successor, b"s").published_at == {0: 1}
    successor.release()


def test_a_disk_that_refuses_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s")

    def fail(*_args: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("shard.log._pwrite", fail)
        code, text = publish(owner, b"s").refusals[0]
    assert code is Code.UNAVAILABLE
    assert "Input/output error" in text and "nothing of it was logged" in text
    assert publish(owner, b"s").published_at == {0: 1}
    owner.release()


def test_what_is_closed_before_its_sync_is_remembered_until_then(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", max_open_streams=8, async_sync_s=30.0)
    assert owner.unsynced_due_s == 0.0, "what a predecessor left is due at once"
    owner.unsynced_due_s, owner.whole_synced_s = float("inf"), 100.0
    for number in range(9):
        publish(owner, b"s%d" % number, now_s=90.0 + number)
    assert owner.unsynced == {b"s0"}
    assert owner.unsynced_due_s == 130.0, "appended at 90, but on the disk with all else since 100"
    publish(owner, b"later", now_s=150.0)
    assert owner.unsynced_due_s == 130.0
    owner.release()


def test_interval_closed_streams_keep_their_promise(tmp_path: Path) -> None:
    streams = policies(Durability.INTERVAL, interval_ms=200)
    owner = make_owner(tmp_path / "data", max_open_streams=8, streams=streams)
    owner.unsynced_due_s = float("inf")
    for number in range(9):
        publish(owner, b"s%d" % number, now_s=100.0)
    assert owner.unsynced_due_s == pytest.approx(100.2)
    assert isinstance(owner.open[b"s8"], OpenStream)
    owner.release()
