"""Dead letters that go back to their stream, or are purged; also over a crash in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.consumers.coordinator import redrive as redrive_module
from tailrace.broker.routing.batch import StreamBatch
from tailrace.protocol.errors import Code
from tailrace.shard.names import dead_name
from tests.broker.consumers.desks import C, Office, S, code_of

DEAD = dead_name(S)
LETTERS = 6


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    office.owner.create(S)
    office.publish(*(b"%d" % number for number in range(LETTERS)))
    office.create(deliveries_max=1)
    office.runs(most=LETTERS)
    office.get(failed=[[seq, "no"] for seq in range(LETTERS)], most=0)
    office.turn()
    office.sync()
    yield office


def asked(office: Office, do: str, first: int = 0, last: int = 99, stream: bytes = S) -> Any:
    answers = office.consume(do, stream=stream, name=b"", first_seq=first, last_seq=last)
    office.turn()
    office.sync()
    (answer,) = answers
    return answer


def again(office: Office) -> list[bytes]:
    """The payloads published to the stream after the messages that failed."""
    return [payload for _metadata, payload in office.messages(S)[LETTERS:]]


def test_all_go_back_as_they_were(office: Office) -> None:
    assert asked(office, "redrive") == {"count": LETTERS, "next_seq": LETTERS}
    assert again(office) == [b"%d" % number for number in range(LETTERS)]
    for metadata, _payload in office.messages(S)[LETTERS:]:
        assert set(msgpack.unpackb(metadata)) == {"p", "n"}, "no header of the letter is left"
    assert asked(office, "letters") == {"next_seq": LETTERS, "removed": [[0, LETTERS - 1]]}
    assert office.owner.stream(DEAD).log.first_seq == LETTERS, "their space can come back"
    assert asked(office, "redrive") == {"count": 0, "next_seq": LETTERS}
    assert office.runs(most=100) == [(LETTERS, LETTERS, 0)]


def test_one_in_the_middle_is_remembered(office: Office) -> None:
    assert asked(office, "redrive", 2, 3) == {"count": 2, "next_seq": 4}
    assert asked(office, "purge", 5, 5) == {"count": 1, "next_seq": LETTERS}
    office = office.crash()
    assert asked(office, "letters")["removed"] == [[2, 3], [5, 5]]
    assert again(office) == [b"2", b"3"] and office.owner.stream(DEAD).log.first_seq == 0
    assert asked(office, "purge", 0, 3) == {"count": 2, "next_seq": LETTERS}
    assert office.owner.stream(DEAD).log.first_seq == 4
    assert asked(office, "letters")["removed"] == [[0, 3], [5, 5]]


def test_a_request_has_a_bound(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_module, "LETTERS_MAX", 4)
    assert asked(office, "redrive") == {"count": 4, "next_seq": 4}
    monkeypatch.setattr(redrive_module, "BYTES_MAX", 1)
    assert asked(office, "redrive", 4) == {"count": 1, "next_seq": 5}


def test_a_crash_before_they_are_removed_doubles_nothing(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(redrive_module, "_remove", lambda *_args: None)
        answers = office.consume("redrive", name=b"", first_seq=0, last_seq=3)
        office.turn()
        office.sync()
    assert not answers and len(again(office)) == 4
    office = office.crash()
    assert asked(office, "letters")["removed"] == []
    assert asked(office, "redrive")["count"] == LETTERS
    assert again(office) == [b"%d" % number for number in range(LETTERS)]


def test_letters_that_were_lost_are_not_taken_for_later_ones(office: Office) -> None:
    asked(office, "purge", 4, 5)
    office.owner.stream(DEAD).log.set_aside(5)
    office = office.crash()
    assert asked(office, "letters") == {"next_seq": 5, "removed": [[4, 4]]}


def test_what_a_consumer_of_them_needs_is_not_dropped(office: Office) -> None:
    office.consume("create", stream=DEAD, name=C, start=("seq", 0))
    office.turn()
    asked(office, "purge")
    assert office.owner.stream(DEAD).log.first_seq == 0
    assert asked(office, "letters")["removed"] == [[0, LETTERS - 1]]


def test_what_its_stream_refuses_stays_a_letter(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    append_row = office.owner.append_row

    def some_are_refused(batches: list[StreamBatch], now_s: float) -> None:
        if batches[0].name == S:
            batches.pop(1).refused(Code.UNAVAILABLE, "the disk is broken")
        append_row(batches, now_s)

    monkeypatch.setattr(office.owner, "append_row", some_are_refused)
    answers = office.consume("redrive", name=b"", first_seq=0, last_seq=3)
    office.turn()
    office.sync()
    assert code_of(answers) is Code.UNAVAILABLE
    monkeypatch.undo()
    assert asked(office, "letters")["removed"] == [[0, 0], [2, 3]], "those that it took are removed"


def test_a_stream_without_any_and_one_of_letters(office: Office) -> None:
    office.owner.create(b"t")
    for do, nothing in (("letters", {"removed": []}), ("redrive", {"count": 0}), ("purge", {"count": 0})):
        assert asked(office, do, stream=b"t") == {"next_seq": 0, **nothing}
    assert code_of(office.consume("redrive", stream=DEAD, name=b"")) is Code.USAGE
    assert code_of(office.consume("letters", stream=b"unknown", name=b"")) is Code.UNKNOWN
