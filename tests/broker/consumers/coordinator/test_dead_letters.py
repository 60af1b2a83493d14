"""Dead letters: in the stream of them once, and with their consumers done with."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from tailrace.broker.consumers.coordinator import dead_letters as post_module
from tailrace.broker.streams.owner_calls import call
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.log import StreamLog
from tailrace.shard.names import dead_name
from tests.broker.consumers.desks import C, Office, S

DEAD = dead_name(S)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(tmp_path / "data")
    office.publish(*(b"%d" % number for number in range(10)))
    office.create(deliveries_max=1)
    return office


def letters(office: Office) -> list[tuple[str, str, bytes]]:
    """Seq, reason and payload of each."""
    if DEAD not in office.owner.catalog.names:
        return []
    found = []
    for metadata, payload in office.messages(DEAD):
        headers = msgpack.unpackb(metadata)["h"]
        found.append((headers["dead-seq"], headers["dead-reason"], payload))
    return found


def fail(office: Office, *seqs: int) -> None:
    office.get(failed=[[seq, f"no {seq}"] for seq in seqs], most=0)
    office.turn()


def buried(office: Office) -> bool:
    return not office.desk.book(S).consumers.unburied()


def test_what_has_failed_too_often_is_a_dead_letter(office: Office) -> None:
    office.runs(most=10)
    fail(office, 3, 5)
    assert letters(office) == [("3", "no 3", b"3"), ("5", "no 5", b"5")]
    assert not buried(office), "it is not on the disk yet"
    office.sync()
    assert buried(office) and office.rows()[C]["dead"] == 2
    assert office.runs(most=10) == [(0, 3, 0), (4, 1, 0), (6, 4, 0)]


def test_what_was_due_too_often_is_one_too(office: Office) -> None:
    office.create(b"quick", ack_wait_s=1.0, deliveries_max=2, retry_s=2.0)
    office.runs(consumer=b"quick", most=1)
    office.tick(1.5)
    office.tick(2.5)
    assert office.runs(consumer=b"quick", most=1) == [(0, 1, 1)]
    office.tick(1.5)
    assert [letter[::2] for letter in letters(office)] == [("0", b"0")]


@pytest.mark.parametrize("when", ["before it is published", "before it is on the disk", "before that is written down"])
def test_a_crash_on_the_way_neither_loses_nor_doubles_it(
    office: Office, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.runs(most=10)
    with monkeypatch.context() as patch:
        if when == "before it is published":
            patch.setattr(office.desk.post, "send", lambda: office.desk.post.waiting.clear())
        fail(office, 3, 5)
    if when == "before that is written down":
        office.upkeep.sync_urgent()
        office.syncer.work()
        office.upkeep.take_outcomes()
    assert len(letters(office)) == (0 if when == "before it is published" else 2)
    again = office.crash()
    again.rows()
    again.turn()
    again.sync()
    assert letters(again) == [("3", "no 3", b"3"), ("5", "no 5", b"5")]
    assert buried(again)
    last = again.crash()
    last.rows()
    last.sync()
    assert len(letters(last)) == 2 and buried(last)


def test_a_letter_that_cannot_be_published_is_tried_again(office: Office) -> None:
    office.owner.create(DEAD, by_command=True)
    dead_log = office.owner.stream(DEAD).log
    append = StreamLog.append

    def full(log: StreamLog, frames: bytearray, count: int, now_us: int, epoch: int) -> int:
        if log is dead_log:
            raise OSError(28, "No space left on device")
        return append(log, frames, count, now_us, epoch)

    office.runs(most=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamLog, "append", full)
        office.get(failed=[[3, "no"]], most=0)
        office.desk.work()
    office.turn()
    assert letters(office) == [] and not buried(office) and not office.desk.pending
    office.tick(1.0)
    office.sync()
    assert letters(office) == [("3", "no", b"3")] and buried(office)


def test_a_letter_whose_message_is_gone_is_done_with(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.runs(most=10)
    with monkeypatch.context() as patch:
        patch.setattr(office.desk.post, "send", lambda: office.desk.post.waiting.clear())
        fail(office, 3)
    call(office.owner, "trim", [S, ["seq", 5], False])
    office.desk.post.reconcile(office.desk.book(S))
    office.turn()
    assert buried(office) and letters(office) == []


def test_letters_wait_while_the_node_has_no_room(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """Whether the members have failed or their time was over; they are there once, in order, when there is room."""
    caplog.set_level("INFO", "tailrace.broker.consumers")
    office.create(b"slow", ack_wait_s=1.0, deliveries_max=1)
    office.runs(most=10)
    office.runs(consumer=b"slow", most=1)
    office.owner.space.is_met = True
    fail(office, 3, 5)
    for _ in range(3):
        office.tick(1.0)
    assert DEAD not in office.owner.catalog.names and not buried(office) and not office.desk.pending
    assert office.rows()[C]["dead"] == 2 and office.rows()[b"slow"]["dead"] == 1
    assert office.owner.metrics.held_letter_streams == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    office.owner.space.is_met = False
    office.tick(1.0)
    office.sync()
    assert letters(office) == [("3", "no 3", b"3"), ("5", "no 5", b"5"), ("0", "its deadline has passed", b"0")]
    assert buried(office)
    office.tick(1.0)
    assert office.owner.metrics.held_letter_streams == 0
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_letters_that_wait_for_room_survive_a_crash(office: Office) -> None:
    office.runs(most=10)
    office.owner.space.is_met = True
    fail(office, 3)
    again = office.crash()
    again.owner.space.is_met = True
    again.rows()
    again.turn()
    assert letters(again) == [] and not buried(again)
    again.owner.space.is_met = False
    again.tick(1.0)
    again.sync()
    assert letters(again) == [("3", "no 3", b"3")] and buried(again)


def test_a_lasting_failure_is_logged_once(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    office.owner.create(DEAD, by_command=True)
    office.runs(most=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamLog, "walk", lambda _log, _seq: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        fail(office, 3)
        for _ in range(3):
            office.tick(1.0)
    assert len([record for record in caplog.records if "cannot be published now" in record.message]) == 1
    office.tick(1.0)
    office.sync()
    assert letters(office) == [("3", "no 3", b"3")] and buried(office)


def test_letters_of_a_turn_are_bounded_in_bytes(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_module, "LETTER_BYTES_A_TURN", 1)
    office.runs(most=10)
    office.get(failed=[[seq, "no"] for seq in range(4)], most=0)
    for count in (1, 2, 3, 4):
        office.desk.work()
        assert len(letters(office)) == count
    office.turn()
    office.sync()
    assert buried(office)


def test_many_letters_go_a_few_at_a_time(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_module, "LETTERS_A_TURN", 2)
    office.runs(most=10)
    fail(office, *range(7))
    office.sync()
    office.sync()
    assert [letter[0] for letter in letters(office)] == [str(seq) for seq in range(7)]
    assert buried(office)


def test_a_letter_is_not_finished_by_a_book_that_is_gone(office: Office) -> None:
    """Its publish is known after the log was read anew, which sends it again: it is there once."""
    office.runs(most=10)
    fail(office, 3)
    book = office.desk.book(S)
    office.desk.discard(book, Refused(Code.UNAVAILABLE, "another reason"))
    office.sync()
    assert office.rows()[C]["dead"] == 1
    office.turn()
    office.sync()
    assert letters(office) == [("3", "no 3", b"3")] and buried(office)
