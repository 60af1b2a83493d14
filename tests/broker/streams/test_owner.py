from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.lease import LEASE_OVER_TEXT, Lease, LeasePage, boottime_ns
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Durability
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.owner import FRESH_BYTES_MAX, Growth, OpenStream, Owner, Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import FramesRefused, StorageFull
from tailrace.shard.frame import pack_frame
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tests.broker.owning import Sink, around, batch, make_owner, policies, publish
from tests.broker.replication.upstream_node import Original


def test_the_first_publish_makes_a_stream_and_its_messages_count_on(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    sink = publish(owner, b"s", b"one", b"two")
    assert (sink.published_at, sink.created) == ({0: 0}, 1)
    assert publish(owner, b"s", b"three").published_at == {0: 2}
    growth = owner.take_grown()[b"s"]
    assert (growth.first_seq, growth.next_seq, growth.end_offset) == (2, 3, owner.catalog.open[b"s"].log.end_offset)
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


PART_KEY = 3  # of the parts of the tests


def append_part(owner: Owner, name: bytes, sink: Sink, *payloads: bytes) -> bool:
    """Whether it has an outcome, behind a part that has none."""
    frames = bytearray(b"".join(pack_frame(payload) for payload in payloads))
    missing = Sink(), 0, 1, bytearray()
    left = owner.append_parts({b"missing": missing, name: (sink, PART_KEY, len(payloads), frames)}, 1_000.0)
    assert left in ([b"missing"], [b"missing", name])
    return name not in left


def test_a_part_is_appended_without_a_batch(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s", b"one")
    owner.take_grown()
    sink = Sink()
    assert append_part(owner, b"s", sink, b"two", b"three") and sink.published_at == {PART_KEY: 1}
    growth = owner.take_grown()[b"s"]
    assert (growth.first_seq, growth.next_seq, growth.end_offset) == (1, 3, owner.catalog.open[b"s"].log.end_offset)
    assert b"s" in owner.syncs.dirty
    owner.release()


def test_a_part_of_a_stream_that_does_not_take_it_at_once_needs_a_batch(tmp_path: Path) -> None:
    sink = Sink()
    other = make_owner(tmp_path / "other")
    publish(other, b"s", b"one")
    assert not append_part(other, b"closed", sink, b"x")
    other.syncs.failed.found(b"s")
    assert not append_part(other, b"s", sink, b"two")
    other.syncs.failed.mended(b"s")
    other.space.is_met = True
    assert not append_part(other, b"s", sink, b"two")
    other.space.is_met = False
    other.catalog.open[b"s"].epoch = 0
    assert not append_part(other, b"s", sink, b"two") and not sink.published_at and not sink.refusals
    assert other.catalog.open[b"s"].log.next_seq == 1
    other.release()


def test_under_always_a_part_is_answered_once_it_is_synced(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(Durability.ALWAYS))
    publish(owner, b"s", b"one")
    stream = owner.stream(b"s")
    owner.batches_synced(stream, 1, None)
    owner.syncs.take_urgent()
    first, second, third = Sink(), Sink(), Sink()
    assert append_part(owner, b"s", first, b"two", b"three") and owner.syncs.take_urgent() == [stream]
    assert append_part(owner, b"s", second, b"four") and not first.published_at
    owner.batches_synced(stream, 3, None)
    assert first.published_at == {PART_KEY: 1} and not second.published_at
    assert append_part(owner, b"s", third, b"five")
    owner.batches_synced(stream, 5, OSError(errno.EIO, os.strerror(errno.EIO)))
    assert [sink.refusals[PART_KEY][0] for sink in (second, third)] == [Code.UNAVAILABLE] * 2
    owner.release()


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, Code.FULL), (errno.EIO, Code.UNAVAILABLE)])
def test_a_part_that_the_disk_refuses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: Code
) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s", b"one")
    owner.take_grown()

    def fail(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(StreamLog, "append", _full if number == errno.ENOSPC else fail)
        sink = Sink()
        assert append_part(owner, b"s", sink, b"two")
    assert sink.refusals[PART_KEY][0] is code and not sink.published_at and not owner.take_grown()
    sink = Sink()
    assert append_part(owner, b"s", sink, b"two") and sink.published_at == {PART_KEY: 1}
    owner.release()


def _full(log: StreamLog, *_arguments: object) -> None:
    raise StorageFull(log.name, Path("s.log"), 100)


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
    assert list(owner.catalog.open) == [*(b"s%d" % number for number in range(14, 20)), b"s13", b"new"]
    assert len(owner.catalog.names) == 21
    assert publish(owner, b"s0").published_at == {0: 1}
    owner.release()


def test_a_stream_that_publishers_wait_for_stays_open(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", max_open_streams=8, streams=policies(Durability.ALWAYS))
    sinks = [publish(owner, b"s%d" % number) for number in range(9)]
    assert len(owner.catalog.open) == 9 and not any(sink.published_at for sink in sinks)
    owner.batches_synced(owner.catalog.open[b"s0"], 1, None)
    assert sinks[0].published_at == {0: 0}
    publish(owner, b"another")
    assert b"s0" not in owner.catalog.open
    owner.release()


def test_what_was_appended_after_the_sync_began_waits_for_the_next(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(Durability.ALWAYS))
    first, second = publish(owner, b"s", b"1", b"2"), publish(owner, b"s", b"3")
    stream = owner.catalog.open[b"s"]
    owner.batches_synced(stream, 2, None)
    assert (first.published_at, second.published_at) == ({0: 0}, {})
    owner.batches_synced(stream, 3, OSError(5, "Input/output error"))
    assert second.refusals[0] == (Code.UNAVAILABLE, "logged, but the disk refused to sync it: Input/output error")
    assert stream.idle
    owner.release()


def test_a_disk_that_refuses_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s")

    def fail(*_args: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("tailrace.shard.log._pwrite", fail)
        code, text = publish(owner, b"s").refusals[0]
    assert code is Code.UNAVAILABLE
    assert "Input/output error" in text and "nothing of it was logged" in text
    assert publish(owner, b"s").published_at == {0: 1}
    owner.release()


def test_what_is_closed_before_its_sync_is_remembered_until_then(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", max_open_streams=8, async_sync_s=30.0)
    assert owner.syncs.unsynced_due_s == 0.0, "what a predecessor left is due at once"
    owner.syncs.unsynced_due_s, owner.syncs.whole_synced_s = float("inf"), 100.0
    for number in range(9):
        publish(owner, b"s%d" % number, now_s=90.0 + number)
    assert owner.syncs.unsynced == {b"s0"}
    assert owner.syncs.unsynced_due_s == 130.0, "appended at 90, but on the disk with all else since 100"
    publish(owner, b"later", now_s=150.0)
    assert owner.syncs.unsynced_due_s == 130.0
    owner.release()


def test_interval_closed_streams_keep_their_promise(tmp_path: Path) -> None:
    streams = policies(Durability.INTERVAL, interval_ms=200)
    owner = make_owner(tmp_path / "data", max_open_streams=8, streams=streams)
    owner.syncs.unsynced_due_s = float("inf")
    for number in range(9):
        publish(owner, b"s%d" % number, now_s=100.0)
    assert owner.syncs.unsynced_due_s == pytest.approx(100.2)
    assert isinstance(owner.catalog.open[b"s8"], OpenStream)
    owner.release()


# --- streams that follow a master elsewhere ---------------------------------------------------------------------------


UPSTREAM = Upstream("10.0.0.1", 5050)


def follow(owner: Owner, name: bytes = b"s") -> None:
    if name not in owner.catalog.names:
        owner.create(name)
    owner.roles.set_meta(StreamMeta(name.decode(), Role.SLAVE, 1, UPSTREAM))


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Original]:
    original = Original(tmp_path / "upstream")
    original.append(*(b"x" * 1_000 for _ in range(200)))
    yield original
    original.log.close()


def test_frames_of_the_master_are_appended_as_they_are(tmp_path: Path, original: Original) -> None:
    owner = make_owner(tmp_path / "data")
    follow(owner)
    frames = original.frames(0, 3)
    stream = owner.take_frames(b"s", [frames], 1_000.0)
    assert stream is owner.catalog.open[b"s"] and stream.log.next_seq == 3
    assert (owner.metrics.appended_messages, owner.metrics.appended_bytes) == (3, len(frames))
    growth = owner.take_grown()[b"s"]
    assert (growth.first_seq, growth.next_seq, growth.end_offset) == (0, 3, stream.log.end_offset)
    assert bytes(growth.frames) == bytes(frames) and growth.frames is not frames
    assert owner.syncs.dirty == {b"s": stream} and not owner.syncs.urgent


def test_only_a_small_run_is_kept_for_who_waits_for_it(tmp_path: Path, original: Original) -> None:
    """No subscriber's place is within the announced run, which is empty: waiting subscribers read the file."""
    owner = make_owner(tmp_path / "data")
    follow(owner)
    assert len(original.frames(0, 200)) > FRESH_BYTES_MAX
    end = owner.take_frames(b"s", [original.frames(0, 200)], 1_000.0).log.end_offset
    assert owner.take_grown()[b"s"] == Growth(200, 200, end, bytearray())


def test_two_runs_in_one_turn_are_announced_to_the_end(tmp_path: Path, original: Original) -> None:
    owner = make_owner(tmp_path / "data")
    follow(owner)
    owner.take_frames(b"s", [original.frames(0, 2)], 1_000.0)
    owner.take_frames(b"s", [original.frames(2, 5)], 1_000.0)
    growth = owner.take_grown()[b"s"]
    assert (growth.first_seq, growth.next_seq, bytes(growth.frames)) == (2, 5, bytes(original.frames(2, 5)))


@pytest.mark.parametrize("wrong", range(4))
def test_pieces_before_a_wrong_one_are_announced_as_ever(tmp_path: Path, original: Original, wrong: int) -> None:
    owner = make_owner(tmp_path / "data")
    follow(owner)
    pieces = [bytearray(original.frames(*each)) for each in ((0, 2), (2, 3), (3, 7), (7, 10))]
    pieces[wrong][-1] ^= 1
    with pytest.raises(FramesRefused):
        owner.take_frames(b"s", [memoryview(piece) for piece in pieces], 1_000.0)
    end_seq, grown = (0, 2, 3, 7)[wrong], owner.take_grown()
    assert owner.catalog.open[b"s"].log.next_seq == owner.metrics.appended_messages == end_seq
    if wrong:
        assert grown == {b"s": Growth(0, end_seq, owner.catalog.open[b"s"].log.end_offset, original.frames(0, end_seq))}
    else:
        assert not grown
    assert (b"s" in owner.syncs.dirty) == (wrong > 0)


def test_frames_that_do_not_come_next_change_nothing(tmp_path: Path, original: Original) -> None:
    owner = make_owner(tmp_path / "data")
    follow(owner)
    with pytest.raises(FramesRefused):
        owner.take_frames(b"s", [original.frames(1, 2)], 1_000.0)
    assert not owner.grown and not owner.syncs.dirty and owner.metrics.appended_messages == 0
    with pytest.raises(Refused) as refused:
        owner.take_frames(b"unknown", [original.frames(0, 1)], 1_000.0)
    assert refused.value.code is Code.UNKNOWN


@pytest.mark.parametrize(("durability", "due_s", "urgent"), [
    (Durability.ALWAYS, 1_000.0, True), (Durability.INTERVAL, 1_001.0, False), (Durability.ASYNC, 1_030.0, False)
])  # fmt: skip
def test_a_copy_is_synced_as_its_policy_says(
    tmp_path: Path, original: Original, durability: Durability, due_s: float, urgent: bool
) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(durability), async_sync_s=30.0)
    follow(owner)
    stream = owner.take_frames(b"s", [original.frames(0, 1)], 1_000.0)
    assert stream.sync_due_s == due_s and owner.syncs.urgent == ([stream] if urgent else [])
    owner.take_frames(b"s", [original.frames(1, 2)], 1_000.5)
    assert stream.sync_due_s == due_s, "counted from the first that is not synced"


@pytest.mark.parametrize("role", [Role.SLAVE, Role.DISABLED])
def test_only_a_master_logs_publishes(tmp_path: Path, role: Role) -> None:
    owner = make_owner(tmp_path / "data")
    sent: list[StreamBatch] = []
    around(owner).send_up = sent.append
    publish(owner, b"s")
    owner.roles.set_meta(StreamMeta("s", role, 1, UPSTREAM if role is Role.SLAVE else None))
    sink = publish(owner, b"s", b"x")
    assert owner.stream(b"s").log.next_seq == 1
    if role is Role.SLAVE:
        assert [each.name for each in sent] == [b"s"] and not sink.refusals and len(sent[0].take_frames()) == 33
    else:
        assert not sent and sink.refusals[0][0] is Code.DISABLED
    owner.roles.set_meta(StreamMeta("s", Role.MASTER, 2, None))
    assert publish(owner, b"s").published_at == {0: 1} and owner.stream(b"s").log.last_epoch == 2


def test_without_a_way_to_the_master_a_publish_is_refused(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    follow(owner)
    assert publish(owner, b"s").refusals[0][0] is Code.UNAVAILABLE


def test_while_its_end_is_set_aside_a_stream_is_neither_trimmed_nor_closed(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", max_open_streams=2)
    publish(owner, b"s", b"a", b"b")
    stream = owner.catalog.open[b"s"]
    stream.busy = True
    with pytest.raises(Refused) as refused:
        owner.trim(stream, 1)
    assert refused.value.code is Code.UNAVAILABLE and stream.log.first_seq == 0
    for name in (b"a", b"b", b"c"):
        publish(owner, name)
    assert owner.catalog.open[b"s"] is stream and not stream.log.closed


def test_a_stream_that_is_forgotten_is_opened_anew(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s", b"a")
    before = owner.catalog.open[b"s"]
    owner.forget(before)
    assert before.log.closed and owner.stream(b"s") is not before and b"s" in owner.syncs.unsynced
    owner.forget(before)
    assert not owner.stream(b"s").log.closed, "of the one that is open now nobody spoke"


# --- publishes that wait for replicas ---------------------------------------------------------------------------------


def publish_replicated(owner: Owner, replicas: int, *payloads: bytes) -> Sink:
    sink = Sink()
    made = batch(b"s", *(payloads or (b"x",)), sink=sink)
    made.replicas = replicas
    owner.append(made, 1_000.0)
    return sink


def test_a_publish_for_replicas_is_logged_and_answered_when_they_hold_it(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    sink = publish_replicated(owner, 1)
    assert owner.stream(b"s").log.next_seq == 1 and not sink.published_at
    owner.replicas.held(0, 1, [(b"s", owner.replicas.holders(b"s").line, 7, "node-b", 1, 0)])
    assert sink.published_at == {0: 0}


def test_under_always_it_is_on_the_disk_before_it_waits_for_others(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(Durability.ALWAYS))
    sink = publish_replicated(owner, 1)
    owner.replicas.held(0, 1, [(b"s", owner.replicas.holders(b"s").line, 7, "node-b", 1, 1)])
    assert not sink.published_at
    owner.batches_synced(owner.stream(b"s"), 1, None)
    assert sink.published_at == {0: 0}


def test_too_many_that_wait_are_refused_before_they_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.replication.downstream.replica_acks.WAITS_MAX", 2)
    owner = make_owner(tmp_path / "data")
    sinks = [publish_replicated(owner, 1) for _ in range(3)]
    assert [len(sink.refusals) for sink in sinks] == [0, 0, 1]
    assert sinks[2].refusals[0][0] is Code.OVERLOADED and owner.stream(b"s").log.next_seq == 2
    assert publish(owner, b"s").published_at == {0: 2}, "who waits for nobody is not concerned"


def test_who_waits_for_other_nodes_is_told_when_the_shards_are_given_up(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    sink = Sink()
    waiting = batch(b"s", b"x", sink=sink)
    waiting.replicas = 1
    owner.append(waiting, 0.0)
    assert not sink.refusals
    owner.release()
    assert sink.refusals[0][0] is Code.UNREPLICATED and sink.logged_at == {0: 0}


def test_publishes_that_wait_for_other_nodes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.replication.downstream.replica_acks.WAITS_MAX", 2)
    owner = make_owner(tmp_path)
    sinks = [Sink() for _ in range(3)]
    for sink in sinks:
        waiting = batch(b"s", b"x", sink=sink)
        waiting.replicas = 1
        owner.append(waiting, 0.0)
    assert [sink.refusals.get(0, ("",))[0] for sink in sinks] == ["", "", Code.OVERLOADED]
    assert owner.stream(b"s").log.next_seq == 2, "nothing of it is logged"
    owner.release()


# --- in a cluster -----------------------------------------------------------------------------------------------------


def lease_page(owner: Owner) -> LeasePage:
    page = Board(1).lease
    owner.replicas.lease = Lease(page, owner.catalog.directory.node_id)
    return page


def test_nothing_is_appended_without_a_lease(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s", b"one")
    page, sink = lease_page(owner), Sink()
    page.fence()
    assert publish(owner, b"s", b"two").refusals == {0: (Code.UNAVAILABLE, LEASE_OVER_TEXT)}
    assert not append_part(owner, b"s", sink, b"two")
    row = batch(b"s", b"two", sink=sink)
    owner.append_row([row], 0.0)
    assert sink.refusals == {0: (Code.UNAVAILABLE, LEASE_OVER_TEXT)}
    assert owner.catalog.open[b"s"].log.next_seq == 1
    page.grant(2, boottime_ns() + 10**12)
    assert publish(owner, b"s", b"two").published_at == {0: 1}
    owner.release()


def test_a_batch_is_not_acknowledged_as_synced_after_the_lease(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data", streams=policies(Durability.ALWAYS))
    page = lease_page(owner)
    page.grant(2, boottime_ns() + 10**12)
    sink = publish(owner, b"s", b"one")
    page.grant(2, 0)
    owner.batches_synced(owner.catalog.open[b"s"], 1, None)
    assert not sink.published_at and sink.refusals[0][0] == Code.UNAVAILABLE
    owner.release()


def test_a_publish_is_refused_if_too_few_nodes_are_in_sync(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    page, me = lease_page(owner), owner.catalog.directory.node_id
    page.grant(2, boottime_ns() + 10**12)
    for isr, refused in (((me,), True), ((me, "b"), False)):
        page.set_isr(isr)
        sink = Sink()
        wanted = batch(b"s", b"one", sink=sink)
        wanted.replicas = 1
        owner.append(wanted, 0.0)
        assert bool(sink.refusals) is refused
    assert owner.catalog.open[b"s"].log.next_seq == 1 and owner.replicas.waiting == 1
    owner.release()


def test_a_new_stream_is_of_the_term_of_the_lease(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    lease_page(owner).grant(5, boottime_ns() + 10**12)
    publish(owner, b"s", b"one")
    assert owner.catalog.open[b"s"].log.last_epoch == 5
    assert owner.roles.meta(b"s").history[-1][:2] == (5, 0)
    owner.release()
