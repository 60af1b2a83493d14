from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.consumers.coordinator.stream_consumers import StreamConsumers
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.names import cursor_name
from tests.broker.consumers.desks import C, Office, S


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(tmp_path / "data")
    office.publish(*(b"%d" % number for number in range(10)))
    office.create()
    return office


def test_a_book_is_what_the_log_says(office: Office) -> None:
    office.runs(most=4)
    office.get(finished=[[0, 1]], most=0)
    office.turn()
    book = StreamConsumers(office.owner, S)
    assert book.consumers.by_name[C].floor_seq == 2
    assert not book.log.staged, "nothing has come of reading it"


def test_the_log_that_is_looked_at_is_the_open_one(office: Office) -> None:
    book = office.desk.book(S)
    office.owner.close_logs()
    office.publish(b"more")
    assert book.current().next_seq == 11 and not book.current().log.closed


def test_whether_there_is_something_for_a_member(office: Office) -> None:
    book = office.desk.book(S)
    assert book.has_some(C) and book.has_some(b"unknown"), "which is to be said"
    office.runs(b"a", most=10)
    assert not book.has_some(C)
    office.get(b"a", failed=[[3, "no"]], most=0)
    assert not book.has_some(C), "it waits"
    office.tick(1.2)
    assert book.has_some(C)


def test_messages_that_a_crash_took_are_given_anew(office: Office) -> None:
    """The machine went down: the log of the consumers has what the stream has lost."""
    office.runs(most=10)
    office.get(finished=[[0, 8]], most=0)
    office.turn()
    office.owner.stream(S).log.set_aside(6)
    again = office.crash()
    book = again.desk.book(S)
    assert book.consumers.by_name[C].next_seq == 6 and book.log.staged
    again.turn()
    again.publish(b"other")
    assert again.runs(most=10) == [(6, 1, 0)]
    assert again.crash().rows()[C]["next_seq"] == 6


def test_a_log_that_follows_another_node_is_not_written_to(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.shard.meta import Role

    role = office.owner.roles.role
    monkeypatch.setattr(office.owner.roles, "role", lambda name: Role.SLAVE if name == cursor_name(S) else role(name))
    with pytest.raises(Refused) as caught:
        StreamConsumers(office.owner, S)
    assert caught.value.code is Code.DISABLED
