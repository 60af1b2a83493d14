"""`$cursor/X` on real files: read, appended to, kept short."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.consumers.coordinator import cursor_log as cursor_log_module
from tailrace.broker.consumers.coordinator.cursor_log import CheckpointFinder, CursorLog, log_name, read_records
from tailrace.broker.consumers.state.records import (
    CheckpointBegun,
    CheckpointEnded,
    ConsumerCreated,
    ConsumerRows,
    Record,
    pack,
)
from tailrace.broker.replication.roles.stream_roles import history_of
from tailrace.broker.streams.listing import disk_bytes
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.names import cursor_name
from tailrace.shard.stream_files import stream_paths
from tests.broker.consumers.desks import C, Office, S, code_of
from tests.broker.owning import publish

LOG = cursor_name(S)
PUBLISHED = 1_000

Rows = dict[bytes, dict[str, Any]]


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(tmp_path / "data", trim_grace_s=2.0)
    office.publish(*(b"%d" % number for number in range(PUBLISHED)))
    office.create()
    return office


def log_bytes(office: Office) -> int:
    return disk_bytes(stream_paths(office.owner.catalog.shard_path(LOG), LOG.decode()))


def ack_each(office: Office, rounds: int) -> None:
    """A get and an acknowledgement of each message by itself, over and over; a turn for each thousand."""
    for _ in range(rounds):
        office.get(most=PUBLISHED)
        for seq in range(PUBLISHED):
            office.get(finished=[[seq, seq]], most=0)
        office.turn()
        office.consume("reset", start=("seq", 0))
        office.clock.now_s += 0.1


def same(rows: Rows, others: Rows) -> bool:
    """But for the members that have nothing: of those only the owner that they have asked knows."""
    stripped = [{name: {**row, "members": 0} for name, row in each.items()} for each in (rows, others)]
    return stripped[0] == stripped[1]


def keep_house(office: Office) -> None:
    office.sync()
    office.tick(1.0)
    office.clock.now_s += 3.0
    office.upkeep.punch_due()
    office.sync()


def test_very_many_acks_leave_little_on_the_disk_and_little_to_read(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million of them leave less than 10 MB; this is a hundredth of it, with a hundredth of the measure."""
    monkeypatch.setattr(cursor_log_module, "COMPACT_BYTES", cursor_log_module.COMPACT_BYTES // 100)
    for _ in range(10):
        ack_each(office, 1)
        keep_house(office)
    stream_log = office.owner.stream(LOG).log
    assert stream_log.next_seq > 10_000
    kept_bytes = stream_log.end_offset - stream_log.entry(stream_log.first_seq).offset
    assert kept_bytes < 10 * cursor_log_module.COMPACT_BYTES, "all that is read when it is opened"
    assert log_bytes(office) < (10 << 20) / 10, "the files have room for more, which does not become less than this"
    before = office.rows()
    office.owner.close_logs()  # that goes back
    assert log_bytes(office) < (10 << 20) / 100
    assert same(office.crash().rows(), before)


def test_a_worker_that_takes_the_consumers_over_reads_few_records_in_a_turn(office: Office) -> None:
    """Each takes about 20 us, and the worker does nothing else meanwhile: 20,000 of them silenced a new leader."""
    most = 0
    for _ in range(15):
        ack_each(office, 1)
        keep_house(office)
        stream_log = office.owner.stream(LOG).log
        most = max(most, stream_log.next_seq - stream_log.first_seq)
    assert stream_log.next_seq > 15_000
    assert most < 7_500


def test_what_is_before_a_checkpoint_stays_until_that_is_on_the_disk(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_log_module, "COMPACT_BYTES", 100_000)
    while office.desk.book(S).log.checkpoint is None:
        ack_each(office, 1)
    stream_log = office.owner.stream(LOG).log
    checkpoint = office.desk.book(S).log.checkpoint
    assert checkpoint is not None
    office.desk.seldom()
    assert stream_log.first_seq == 0
    office.sync()
    office.desk.seldom()
    assert stream_log.first_seq == checkpoint.first_seq > 0
    assert office.desk.book(S).log.checkpoint is None


def test_a_long_log_is_read_by_small_parts(office: Office) -> None:
    """The interpreter keeps the memory of objects for good that were there at the same time once."""
    ack_each(office, 3)
    stream_log = office.owner.stream(LOG).log
    assert stream_log.next_seq - stream_log.first_seq > 3 * PUBLISHED
    gc.collect()
    before = sys.getallocatedblocks()
    peak = max(sys.getallocatedblocks() for _record in read_records(stream_log, stream_log.first_seq))
    records = list(read_records(stream_log, stream_log.first_seq))
    whole = sys.getallocatedblocks()
    assert 4 * (peak - before) < whole - before
    assert [seq for seq, _record in records] == list(range(stream_log.first_seq, stream_log.next_seq))


def test_a_checkpoint_says_all(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """All states on the way: in flight, come back, dead and not buried."""
    monkeypatch.setattr(cursor_log_module, "COMPACT_BYTES", 1)
    monkeypatch.setattr(cursor_log_module, "COMPACT_FACTOR", 0)
    monkeypatch.setattr(cursor_log_module, "PART_BYTES", 100)
    for number in range(20):
        office.create(b"other%d" % number)
    office.runs(b"a", most=10)
    office.get(b"a", finished=[[0, 2], [5, 5]], failed=[[4, "no"]], most=0)
    office.turn()
    office.sync()
    office.desk.seldom()
    stream_log = office.owner.stream(LOG).log
    kinds = [type(record) for _seq, record in read_records(stream_log, stream_log.first_seq)]
    assert (
        kinds[0] is CheckpointBegun
        and kinds[-1] is CheckpointEnded
        and kinds.count(ConsumerRows) > 1
        and ConsumerCreated not in kinds
    )
    before = office.rows()
    again = office.crash()
    assert again.rows() == before
    assert again.runs(b"b", most=1) == [(10, 1, 0)], "the failed one waits, also after the crash"
    again.tick(1.2)
    assert again.runs(b"c", most=1) == [(4, 1, 1)]
    assert again.runs(b"a", most=9) == [(3, 1, 0), (6, 4, 0)]


def test_a_checkpoint_that_was_cut_short_counts_for_nothing(office: Office) -> None:
    office.runs(most=4)
    before = office.rows()
    history = history_of(office.owner, office.owner.stream(S))
    publish(office.owner, LOG, pack(CheckpointBegun(history)), pack(ConsumerRows(())))
    again = office.crash()
    assert again.rows() == before and again.desk.book(S).log.checkpoint is None
    again.create(b"another")
    assert set(again.crash().rows()) == {C, b"another"}


def test_checkpoints_are_found_where_they_are_whole() -> None:
    finder = CheckpointFinder()
    begun, kept = CheckpointBegun(()), ConsumerRows(())
    rows: list[Record] = [CheckpointEnded(0), begun, kept, begun, kept, CheckpointEnded(2), begun, CheckpointEnded(1)]
    for seq, record in enumerate(rows):
        finder.visit(seq, record)
        assert finder.found is None
    rows = [begun, kept, kept, CheckpointEnded(2), ConsumerCreated(C, 1, 0, 1, 0)]
    for seq, record in enumerate(rows, 8):
        finder.visit(seq, record)
    assert finder.found == (8, 12)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", pack(CheckpointEnded(3))[:-1]])
def test_what_is_no_record_is_damage(office: Office, payload: bytes) -> None:
    office.desk.books.clear()
    publish(office.owner, LOG, payload)
    with pytest.raises(StreamDamaged, match="message"):
        CursorLog(office.owner, S).load()
    assert code_of(office.get()) is Code.DAMAGED


def test_a_name_that_is_too_long_for_a_log() -> None:
    with pytest.raises(Refused, match="no consumers"):
        log_name(b"x" * 193)


def test_a_log_that_cannot_be_made_refuses(tmp_path: Path) -> None:
    office = Office(tmp_path / "data", max_streams=1)
    office.owner._total_streams = lambda: len(office.owner.catalog.names)
    office.publish(b"x")
    assert code_of(office.consume("create", start=("seq", 0))) is Code.NODESTREAMS
    assert not office.desk.books
