"""The verbs of an owner, as a worker's router calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol.errors import Code
from tailrace.shard.names import cursor_name
from tests.broker.consumers.desks import C, Office, S, code_of


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(tmp_path / "data")
    office.publish(*(b"%d" % number for number in range(10)))
    return office


def now(office: Office, answers: list[Any]) -> Any:
    office.turn()
    (answer,) = answers
    return answer


def test_a_consumer_is_made_once(office: Office) -> None:
    assert office.create(start=("seq", 3), ack_wait_s=2.5, deliveries_max=4) == {"next_seq": 3, "created": True}
    assert office.create(start=("seq", 7)) == {"next_seq": 3, "created": False}
    row = office.rows()[C]
    assert (row["ack_wait_s"], row["deliveries_max"]) == (2.5, 4)
    assert code_of([office.create(deliveries_max=5)]) is Code.USAGE


@pytest.mark.parametrize(("place", "seq"), [(("new", 0), 10), (("seq", 4), 4), (("seq", 99), 10), (("time", 0), 0)])
def test_where_it_begins(office: Office, place: tuple[str, int], seq: int) -> None:
    assert office.create(start=place)["next_seq"] == seq


def test_a_stream_that_does_not_exist_is_not_made(office: Office) -> None:
    names = set(office.owner.catalog.names)
    assert code_of(office.consume("create", stream=b"new", start=("seq", 0))) is Code.UNKNOWN
    assert set(office.owner.catalog.names) == names
    assert code_of(office.consume("reset", stream=b"none", start=("seq", 0))) is Code.UNKNOWN
    assert code_of(office.get(name=b"none")) is Code.UNKNOWN


def test_the_log_of_consumers_is_made_where_only_a_command_makes_streams(tmp_path: Path) -> None:
    office = Office(tmp_path / "data", auto_master=False)
    assert code_of(office.consume("create", start=("seq", 0))) is Code.UNKNOWN
    office.owner.create(S, by_command=True)
    assert now(office, office.consume("create", start=("seq", 0)))["created"], "its log is the broker's own affair"


@pytest.mark.parametrize("name", [cursor_name(S), b"$other", b"x" * 193])
def test_streams_that_have_no_consumers(office: Office, name: bytes) -> None:
    if not name.startswith(b"$"):  # the name of its log of consumers would be too long
        office.owner.create(name)
    assert code_of(office.consume("create", stream=name, start=("seq", 0))) is Code.USAGE


def test_reset_and_delete(office: Office) -> None:
    office.create()
    office.runs(most=10)
    assert now(office, office.consume("reset", start=("seq", 5))) == {"next_seq": 5}
    assert office.runs(most=2) == [(5, 2, 0)]
    assert now(office, office.consume("delete")) == {"existed": True}
    assert code_of(office.get()) is Code.CONSUMER
    assert code_of(office.consume("reset", start=("seq", 5))) is Code.CONSUMER


def test_the_list_says_how_far_each_is(office: Office) -> None:
    office.create()
    office.create(b"done", ("new", 0))
    office.clock.now_s += 3
    office.runs(most=4)
    rows = office.rows()
    assert rows[C] == {
        "name": C,
        "next_seq": 0,
        "lag_messages": 10,
        "lag_us": 3_000_000,
        "in_flight": 4,
        "members": 1,
        "redelivered": 0,
        "dead": 0,
        "idle_us": 0,
        "ack_wait_s": 30.0,
        "deliveries_max": 10,
        "retry_s": 1.0,
        "retry_max_s": 60.0,
    }
    assert "lag_us" not in rows[b"done"] and rows[b"done"]["idle_us"] == 3_000_000


def test_a_get_of_too_many_that_wait_for_other_nodes(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.create()
    monkeypatch.setattr(office.owner.replicas, "full", lambda name: name == cursor_name(S))
    before = office.rows()
    assert code_of(office.get(most=1, replicas=1)) is Code.OVERLOADED
    assert code_of(office.consume("reset", start=("seq", 3), replicas=1)) is Code.OVERLOADED
    assert office.rows() == before
    assert office.runs(most=1) == [(0, 1, 0)]


def test_a_stream_that_cannot_be_read(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.create()
    log = office.owner.stream(S).log

    def broken(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(type(log), "entry", broken)
        assert code_of(office.get()) is Code.UNAVAILABLE
    assert office.runs(most=1) == [(0, 1, 0)]


def test_away_and_wake_of_nobody(office: Office) -> None:
    for do in ("away", "wake"):
        assert office.consume(do, member=b"m") == [{}]
        office.create()
        assert office.consume(do, member=b"m") == [{}]


def test_a_program_that_took_the_place_of_one_that_is_away_stays(office: Office) -> None:
    """The end of its predecessor's connection is reported late, and known by the session, however short the time."""
    office.create()
    assert office.runs(session=1, most=2) == [(0, 2, 0)]
    assert office.runs(session=2, most=2) == [(0, 2, 1)]
    assert office.consume("away", member=b"m", idle_ms=0, session=1) == [{}]
    office.tick(6.0)
    assert office.rows()[C]["in_flight"] == 2
    assert office.consume("away", member=b"m", idle_ms=6_000, session=2) == [{}]
    office.tick(6.0)
    assert office.rows()[C]["in_flight"] == 0


def test_an_owner_that_begins_anew_takes_the_first_session_for_the_one_before(office: Office) -> None:
    office.create()
    assert office.runs(session=1, most=2) == [(0, 2, 0)]
    office = office.crash()
    assert office.runs(session=2, most=2) == [(0, 2, 0)]
    assert office.runs(session=3, most=2) == [(0, 2, 1)]
