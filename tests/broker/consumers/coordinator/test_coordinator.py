"""What an owner does for durable consumers, on real files: answered when it is logged, and known after a crash."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.consumers.coordinator import coordinator as desk_module
from tailrace.broker.consumers.coordinator import cursor_log
from tailrace.broker.consumers.state import decide
from tailrace.broker.replication.roles.rules import Rule, Rules
from tailrace.broker.routing.batch import StreamBatch
from tailrace.protocol.consuming import Get
from tailrace.protocol.errors import Code
from tailrace.shard.frame import pack_frame
from tailrace.shard.meta import Upstream
from tailrace.shard.names import cursor_name, dead_name
from tailrace.shard.stream_files import stream_paths
from tests.broker.consumers.desks import C, Office, S, code_of
from tests.broker.owning import around, batch

LOG = cursor_name(S)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(tmp_path / "data")
    office.publish(*(b"%d" % number for number in range(10)))
    office.create()
    return office


def test_a_get_is_answered_when_its_record_is_logged(office: Office) -> None:
    answers = office.get(most=3)
    before = office.owner.stream(LOG).log.next_seq
    assert not answers
    office.turn()
    assert answers == [{"runs": ((0, 3, 0, 1),), "stale": (), "trimmed": 0}]
    assert office.owner.stream(LOG).log.next_seq == before + 1


def test_what_a_turn_decides_is_one_write(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    append_row = office.owner.append_row

    def appended(row: list[StreamBatch], now_s: float) -> None:
        writes.append(len(row))
        append_row(row, now_s)

    monkeypatch.setattr(office.owner, "append_row", appended)
    answers = [office.get(b"a", most=2), office.get(b"b", most=2), office.get(b"c", most=2)]
    office.turn()
    assert writes == [1] and all(len(each) == 1 for each in answers)


def test_an_answer_waits_for_the_disk_where_that_was_asked(office: Office) -> None:
    answers = office.get(most=1, sync=True)
    office.turn()
    assert not answers
    office.sync()
    assert answers[0]["runs"] == ((0, 1, 0, 1),)


def test_what_changes_nothing_waits_for_what_it_rests_on(office: Office) -> None:
    """The same acknowledgement again, where the first one is in the log and not on the disk yet."""
    office.runs(most=1)
    office.get(finished=[[0, 0]], most=0)
    office.turn()
    again = office.get(finished=[[0, 0]], most=0, sync=True)
    office.turn()
    assert not again
    office.sync()
    assert again == [{"runs": (), "stale": (), "trimmed": 0}]


def test_an_answer_waits_for_other_nodes_where_that_was_asked(office: Office) -> None:
    answers = office.get(most=1, replicas=1)
    office.turn()
    assert not answers
    line = office.owner.replicas.holders(LOG).line
    office.owner.replicas.held(0, 1, [(LOG, line, 1, "node-b", office.owner.stream(LOG).log.next_seq, 0)])
    assert answers[0]["runs"] == ((0, 1, 0, 1),)


def test_a_restart_at_any_point_is_going_on(tmp_path: Path) -> None:
    """Two nodes get the same requests; one of them is killed and started again after each call."""
    steady, shaken = Office(tmp_path / "steady"), Office(tmp_path / "shaken")
    calls: list[dict[str, Any]] = [
        {"member": b"a", "most": 3},
        {"member": b"b", "most": 3},
        {"member": b"a", "most": 3},
        {"member": b"a", "finished": [[0, 1]], "failed": [[2, "no"]], "most": 2},
        {"member": b"b", "finished": [[4, 4]], "most": 4, "fresh": True},
        {"member": b"a", "finished": [[8, 8]], "most": 9},
        {"member": b"c", "most": 9},
    ]
    outcomes: list[list[Any]] = []
    for office in (steady, shaken):
        office.publish(*(b"%d" % number for number in range(20)))
        office.create(deliveries_max=3)
        found: list[Any] = []
        for call in calls:
            found.append(office.runs(**call))
            office.clock.now_s += 1
            if office is shaken:
                shaken = office = office.crash()
        found.append(office.rows())
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == [(3, 3, 0)]


def test_what_is_refused_is_forgotten(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.turn()
    log = office.owner.stream(LOG).log

    def full(*_args: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(type(log), "append", full)
        first, second = office.get(b"a", most=2), office.get(b"b", most=2, wait_ms=1_000)
        office.turn()
    assert code_of(first) is code_of(second) is Code.UNAVAILABLE
    assert office.runs(b"b", most=2) == [(0, 2, 0)], "nothing of it had happened"


def test_a_get_that_waits_hears_of_a_refusal(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.runs(most=10)
    waiting = office.get(b"other", wait_ms=1_000)
    office.turn()
    log = office.owner.stream(LOG).log
    monkeypatch.setattr(type(log), "append", lambda *_args: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    office.get(finished=[[0, 9]], most=0)
    assert not waiting
    office.turn()
    assert code_of(waiting) is Code.UNAVAILABLE


def test_a_disk_that_does_not_sync_is_told_and_survived(office: Office) -> None:
    answers = office.get(most=2, sync=True)
    office.turn()
    office.upkeep.sync_urgent()
    office.syncer.work(OSError(5, "Input/output error"))
    office.upkeep.take_outcomes()
    assert code_of(answers) is Code.UNAVAILABLE
    assert office.runs(most=2) == [(0, 2, 0)], "it was logged: the member has them"
    assert office.rows()[C]["in_flight"] == 2


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_get_waits_for_messages(office: Office) -> None:
    office.runs(most=10)
    waiting = office.get(finished=[[0, 9]], wait_ms=1_000)
    office.turn()
    assert not waiting
    office.publish(b"more")
    office.turn()
    assert waiting == [{"runs": ((10, 1, 0, 1),), "stale": (), "trimmed": 0}]
    assert not office.desk.waiters.count


def test_it_waits_as_long_as_it_said(office: Office) -> None:
    office.runs(most=10)
    waiting = office.get(finished=[[0, 9]], wait_ms=1_000)
    office.tick(0.9)
    assert not waiting
    office.tick(0.2)
    assert waiting == [{"runs": (), "stale": (), "trimmed": 0}]


def test_it_is_given_what_comes_back(office: Office) -> None:
    office.runs(b"a", most=10)
    waiting = office.get(b"b", wait_ms=60_000)
    office.turn()
    office.get(b"a", failed=[[4, "no"]], finished=[[0, 3], [5, 9]], most=0)
    office.turn()
    assert not waiting, "it has failed, and waits for a second first"
    office.tick(1.0)
    assert not waiting
    office.tick(0.2)  # the jitter
    assert waiting[0]["runs"] == ((4, 1, 1, 1),)


def test_it_is_given_at_once_what_returns_without_a_failure(office: Office) -> None:
    office.runs(b"a", most=10)
    waiting = office.get(b"b", wait_ms=60_000)
    office.turn()
    office.consume("leave", member=b"a")
    office.turn()
    assert waiting[0]["runs"] == ((0, 10, 0, 1),)


def test_it_is_given_what_is_due(office: Office) -> None:
    office.create(b"quick", ack_wait_s=2.0)
    office.runs(b"a", consumer=b"quick", most=10)
    waiting = office.get(b"b", consumer=b"quick", wait_ms=60_000, most=3)
    office.tick(1.9)
    assert not waiting
    office.tick(0.2)
    assert not waiting and office.rows()[b"quick"]["in_flight"] == 0
    office.tick(1.2)
    assert waiting[0]["runs"] == ((0, 3, 1, 1),)


def test_what_was_said_before_it_waited_is_told_with_the_answer(office: Office) -> None:
    office.runs(b"a", most=10)
    waiting = office.get(b"b", finished=[[2, 3]], wait_ms=1_000)
    office.turn()
    office.publish(b"more")
    office.turn()
    assert waiting == [{"runs": ((10, 1, 0, 1),), "stale": ((2, 3),), "trimmed": 0}]


def test_a_newer_get_of_the_member_ends_the_older(office: Office) -> None:
    office.runs(most=10)
    older = office.get(finished=[[0, 9]], wait_ms=1_000)
    newer = office.get(wait_ms=1_000)
    office.turn()
    assert older == [{"runs": (), "stale": (), "trimmed": 0}] and not newer


def test_the_member_that_waited_longest_comes_first(office: Office) -> None:
    office.runs(most=10)
    office.get(finished=[[0, 9]], most=0)
    waiting = [office.get(b"%d" % number, wait_ms=1_000, most=1) for number in range(3)]
    office.turn()
    office.publish(b"x", b"y")
    office.turn()
    assert [[run[0] for run in each[0]["runs"]] if each else None for each in waiting] == [[10], [11], None]


def test_members_without_any_are_not_asked_in_vain_one_by_one(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is left has the key of what one member has."""
    keyed = Office(office.path.parent / "keyed")
    metadata = msgpack.packb({"h": {"key": "k"}})

    def publish(*payloads: bytes) -> None:
        made = batch(S, *payloads)
        made.frames = [bytearray(b"".join(pack_frame(each, metadata=metadata) for each in payloads))]
        keyed.owner.append(made, 0.0)

    publish(b"first")
    keyed.create()
    waiting = {member: keyed.get(member, wait_ms=1_000, fresh=True) for member in (b"x", b"a", b"b", b"c")}
    keyed.turn()
    assert waiting.pop(b"x")[0]["runs"] == ((0, 1, 0, 1),)
    waiting[b"x"] = keyed.get(b"x", wait_ms=1_000, fresh=True)
    keyed.turn()
    asked: list[bytes] = []
    get = decide.get

    def counted(consumers: Any, ask: Get, *args: Any) -> Any:
        asked.append(ask.member)
        return get(consumers, ask, *args)

    monkeypatch.setattr(decide, "get", counted)
    publish(b"second")
    keyed.turn()
    assert asked == [b"a", b"x"], "the next is for the one that has the first, and for nobody else"
    assert waiting[b"x"][0]["runs"] == ((1, 1, 0, 1),) and not any(waiting[member] for member in (b"a", b"b", b"c"))


def test_many_that_wait_are_served_in_several_turns(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "SERVED_A_TURN", 2)
    names = [b"c%d" % number for number in range(7)]
    for name in names:
        office.create(name, ("new", 0))
    waiting = [office.get(consumer=name, wait_ms=1_000) for name in names]
    office.turn()
    office.publish(b"more")
    office.desk.grew(office.owner.take_grown())
    office.desk.work()
    assert 0 < sum(map(len, waiting)) < 7 and office.desk.pending
    office.turn()
    assert sum(map(len, waiting)) == 7


def test_a_member_that_is_away(office: Office) -> None:
    office.runs(b"a", most=10)
    waiting = office.get(b"a", wait_ms=60_000, fresh=True)
    other = office.get(b"b", wait_ms=60_000, most=2)
    office.clock.now_s += 1
    assert office.consume("away", member=b"a", idle_ms=1_000) == [{}]
    office.turn()
    assert waiting[0]["runs"] == ()
    office.tick(4.9)
    assert not other
    office.tick(0.2)
    assert other[0]["runs"][0][:2] == (0, 2)


def test_a_member_that_is_away_after_what_it_had_long_waited_for(office: Office) -> None:
    """Its connection knows when it asked, and the owner gave it something a good while later."""
    office.runs(b"b", most=1_000)
    waiting = office.get(b"a", wait_ms=60_000)
    office.turn()
    office.clock.now_s += 8
    office.publish()
    office.turn()
    assert waiting[0]["runs"]
    office.clock.now_s += 1
    assert office.consume("away", member=b"a", idle_ms=9_000) == [{}]
    other = office.get(b"b", wait_ms=60_000, fresh=True)
    office.tick(4.9)
    assert not other
    office.tick(0.2)
    assert other[0]["runs"][0][0] == waiting[0]["runs"][0][0]


def test_a_member_that_came_back_before_its_end_was_heard(office: Office) -> None:
    office.runs(b"a", most=10)
    office.clock.now_s += 5
    waiting = office.get(b"a", wait_ms=60_000, fresh=True)  # over another connection
    office.turn()
    assert office.consume("away", member=b"a", idle_ms=5_000) == [{}]
    office.tick(10)
    assert not waiting and office.rows()[C]["in_flight"] == 10


def test_a_get_can_be_woken(office: Office) -> None:
    waiting = office.get(most=1, wait_ms=1_000)
    office.turn()
    waiting = office.get(wait_ms=1_000, fresh=True, finished=[[0, 0]])
    office.turn()
    office.runs(b"b")
    waiting = office.get(wait_ms=1_000, fresh=True)
    assert office.consume("wake", member=b"m") == [{}]
    office.turn()
    assert waiting == [{"runs": (), "stale": (), "trimmed": 0}]
    assert office.consume("wake", member=b"nobody") == [{}]


def test_a_member_that_leaves(office: Office) -> None:
    office.runs(b"a", most=10)
    waiting = office.get(b"a", wait_ms=60_000, fresh=True)
    other = office.get(b"b", wait_ms=60_000, most=20)
    office.turn()
    before = office.owner.stream(LOG).log.next_seq
    left = office.consume("leave", member=b"a")
    assert not (waiting or other or left), "nothing of it is logged"
    office.turn()
    assert waiting == [{"runs": (), "stale": (), "trimmed": 0}] and left == [{}]
    assert other[0]["runs"] == ((0, 10, 0, 1),)
    assert office.owner.stream(LOG).log.next_seq == before + 2
    rows = office.rows()[C]
    assert (rows["in_flight"], rows["members"], rows["redelivered"]) == (10, 1, 0)
    again = office.consume("leave", member=b"a")
    office.turn()
    assert again == [{}]
    assert office.crash().rows()[C]["in_flight"] == 10


def test_a_leave_is_answered_when_it_is_on_the_disk_where_that_was_asked(office: Office) -> None:
    office.runs(b"a", most=10)
    left = office.consume("leave", member=b"a", sync=True)
    office.turn()
    assert not left
    office.sync()
    assert left == [{}]
    assert office.crash().runs(b"b", most=20) == [(0, 10, 0)]


def test_leaving_what_is_not_there(office: Office) -> None:
    assert code_of(office.consume("leave", name=b"x", member=b"a")) is Code.CONSUMER
    assert code_of(office.consume("leave", stream=b"none", member=b"a")) is Code.UNKNOWN
    assert code_of(office.consume("leave", member=b"")) is Code.USAGE


def test_a_consumer_that_is_deleted_while_a_get_waits(office: Office) -> None:
    office.runs(most=10)
    waiting = office.get(finished=[[0, 9]], wait_ms=1_000)
    office.turn()
    deleted = office.consume("delete")
    office.turn()
    assert deleted == [{"existed": True}]
    assert code_of(waiting) is Code.CONSUMER


# --- ends -------------------------------------------------------------------------------------------------------------


def test_who_waits_while_the_owner_is_replaced_is_answered_empty(office: Office) -> None:
    office.runs(most=10)
    waiting = office.get(finished=[[0, 9]], wait_ms=1_000)
    office.desk.retire()
    assert waiting == [{"runs": (), "stale": (), "trimmed": 0}]
    office.owner.release()
    successor = Office(office.path, office.clock)
    assert successor.rows()[C]["next_seq"] == 10
    later = successor.get(b"m", wait_ms=1_000)
    successor.desk.end_waits()
    successor.turn()
    assert len(later) == 1 and len(successor.get(b"m", wait_ms=1_000)) == 0
    successor.turn()


@pytest.mark.parametrize(("verb", "code"), [("unmaster", Code.DISABLED), ("slave", Code.UNAVAILABLE)])
def test_a_stream_that_is_no_more_decided_here(office: Office, verb: str, code: Code) -> None:
    from tailrace.broker.streams.owner_calls import call

    office.runs(most=10)
    waiting = office.get(finished=[[0, 9]], wait_ms=1_000)
    office.turn()
    call(office.owner, verb, [S, *(["127.0.0.1", 1, "seq", 0] if verb == "slave" else [])])
    assert code_of(waiting) is code
    assert code_of(office.get()) is code
    assert code_of(office.consume("list")) is code


def test_what_a_slave_is_asked_goes_up(office: Office) -> None:
    from tailrace.broker.streams.owner_calls import call

    asked: list[tuple[bytes, str, list[Any]]] = []

    def call_up(name: bytes, verb: str, args: list[Any], done: Any) -> None:
        asked.append((name, verb, args))
        done("the master's")

    around(office.owner).call_up = call_up
    call(office.owner, "slave", [S, "127.0.0.1", 1, "seq", 0])
    assert office.get() == ["the master's"] and office.consume("list") == ["the master's"]
    assert [each[:2] for each in asked] == [(S, "get"), (S, "consume")] and asked[1][2][1].do == "list"


def test_what_is_asked_of_a_stream_that_would_follow_goes_up(office: Office) -> None:
    """The master may have it, and this node not know it yet."""
    asked: list[bytes] = []
    around(office.owner).call_up = lambda name, _verb, _args, _done: asked.append(name)
    office.owner.roles.rules = Rules((Rule(b"follows/*", Upstream("127.0.0.1", 1)),))
    assert office.get(name=b"follows/s") == office.consume("list", stream=b"follows/s") == []
    assert asked == [b"follows/s"] * 2 and b"follows/s" not in office.owner.catalog.names
    assert code_of(office.get(name=b"other")) is Code.UNKNOWN


def test_a_promotion_goes_on_where_the_log_ends(office: Office) -> None:
    from tailrace.broker.streams.owner_calls import call

    office.runs(most=4)
    office.get(finished=[[0, 1]], most=0)
    office.turn()
    call(office.owner, "slave", [S, "127.0.0.1", 1, "seq", 0])
    call(office.owner, "promote", [S])
    assert office.runs(most=4) == [(2, 2, 0)]
    office.publish(b"in the next term")
    assert office.runs(finished=[[2, 3]], most=9) == [(4, 6, 0), (10, 1, 0)], "a run is of one epoch"


def test_the_least_used_books_are_put_away(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "BOOKS_MAX", 2)
    for name in (b"s1", b"s2", b"s3"):
        office.publish(name=name)
        answers = office.consume("create", stream=name, start=("seq", 0))
        office.turn()
        assert answers[0]["created"]
    assert list(office.desk.books) == [b"s2", b"s3"]
    assert office.runs(most=2) == [(0, 2, 0)]


def test_nothing_is_kept_of_streams_that_nobody_consumes(tmp_path: Path) -> None:
    office = Office(tmp_path / "data")
    office.publish(b"x")
    assert code_of(office.get()) is Code.CONSUMER
    assert office.rows() == {}
    office.turn()
    assert not office.desk.pending and LOG not in office.owner.catalog.names
    assert not Path(stream_paths(office.owner.catalog.shard_path(LOG), LOG.decode()).content_file).exists()


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(6))
def test_going_on_after_crashes_is_as_if_there_had_been_none(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes get the same requests; one is killed now and then, also with appended requests that are not answered
    yet.
    """
    monkeypatch.setattr(cursor_log, "COMPACT_BYTES", 500)
    dice = random.Random(seed)
    steady, shaken = Office(tmp_path / "steady"), Office(tmp_path / "shaken")
    consumers = [b"c%d" % number for number in range(3)]
    for office in (steady, shaken):
        office.publish(*(b"%d" % number for number in range(30)))
        for name in consumers:
            office.create(name, ack_wait_s=5.0, deliveries_max=3)
    for _ in range(150):
        name, first = dice.choice(consumers), dice.randrange(30)
        wanted: dict[str, Any] = {
            "consumer": name,
            "finished": [[first, min(first + dice.randrange(4), 29)]] if dice.random() < 0.6 else [],
            "failed": [[dice.randrange(30), "no"]] if dice.random() < 0.3 else [],
            "most": dice.choice([0, 1, 3, 8]),
            "fresh": dice.random() < 0.5,
        }
        passes_s = dice.choice([0.0, 0.1, 3.0])
        found = []
        for office in (steady, shaken):
            found.append(office.runs(**wanted))
            office.tick(passes_s)
            office.sync()
        assert found[0] == found[1], f"seed {seed}"
        if dice.random() < 0.2:
            shaken = shaken.crash()
            shaken.rows()
            shaken.turn()
            shaken.sync()
        if dice.random() < 0.1:
            for office in (steady, shaken):
                office.consume("reset", name=name, start=("seq", first))
                office.turn()
    unlogged = {"members": 0, "idle_us": 0}  # who asked for something and when, if nothing changed by it
    rows = [{name: {**row, **unlogged} for name, row in office.rows().items()} for office in (steady, shaken)]
    assert rows[0] == rows[1] and sum(row["dead"] for row in rows[0].values()) > 0, f"seed {seed}"
    letters = [sorted(office.messages(dead_name(S))) for office in (steady, shaken)]
    assert letters[0] == letters[1]
