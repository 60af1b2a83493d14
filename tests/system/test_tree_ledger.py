from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.tree_ledger import Fate, Sent, faults, name_in, parse_sent, read_sent


def told(number: int, fate: Fate, seq: int = -1, *, stream: str = "s", connection: int = 1, who: str = "p") -> Sent:
    return Sent(who, connection, number, stream, fate, seq)


SENT = [
    told(0, Fate.ACKNOWLEDGED, 0),
    told(1, Fate.ACKNOWLEDGED, 2),
    told(2, Fate.UNKNOWN, connection=1),
    told(3, Fate.REFUSED, connection=2),
    told(4, Fate.UNKNOWN, connection=2),
    told(5, Fate.ACKNOWLEDGED, 4, connection=2),
    told(0, Fate.ACKNOWLEDGED, 1, who="q"),
    told(1, Fate.ACKNOWLEDGED, 0, who="q", stream="t"),
]
RIGHT = {"s": {0: "p/1/0", 1: "q/1/0", 2: "p/1/1", 3: "p/1/2", 4: "p/2/5"}, "t": {0: "q/1/1"}}


def changed(stream: str, log: dict[int, str]) -> dict[str, dict[int, str]]:
    return {**RIGHT, stream: {**RIGHT[stream], **log}}


def test_what_kept_its_promises_has_no_fault() -> None:
    assert faults(SENT, RIGHT) == []


def test_a_message_of_an_old_connection_may_come_late() -> None:
    """Its publisher got no answer; messages it sent on another connection do not wait for it."""
    late = {"s": {0: "p/1/0", 1: "q/1/0", 2: "p/1/1", 4: "p/2/5", 5: "p/1/2"}, "t": {0: "q/1/1"}}
    assert faults(SENT, late) == []


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (changed("s", {4: "p/2/4"}), ["stream s: p/2/5 was acknowledged as 4, where there is p/2/4"]),
        ({"s": RIGHT["s"]}, ["stream t: q/1/1 was acknowledged as 0, where there is nothing"]),
        (changed("s", {5: "p/1/2"}), ["stream s: p/1/2 is there twice, as 3 and as 5"]),
        (changed("s", {5: "p/2/3"}), ["message 5 is p/2/3, whose publisher was told that it is not logged"]),
        (changed("s", {5: "r/1/0"}), ["stream s: message 5 is r/1/0, which nobody has sent"]),
        (changed("s", {5: "garbage"}), ["stream s: message 5 is garbage, which nobody has sent"]),
        (changed("t", {1: "p/2/4"}), ["stream t: message 1 is p/2/4, which was sent to s"]),
        (changed("s", {5: "p/2/4"}), ["stream s: p/2/4 is 5, behind p/2/5, which is 4"]),
    ],
)
def test_every_broken_promise_is_told(logs: dict[str, dict[int, str]], expected: list[str]) -> None:
    found = faults(SENT, logs)
    for text in expected:
        assert any(text in fault for fault in found), found


def test_a_message_of_unknown_fate_may_come_late_where_nodes_stand_still() -> None:
    logs = changed("s", {5: "p/2/4"})
    assert faults(SENT, logs, may_be_late=True) == []
    swapped = [told(0, Fate.REFUSED), told(1, Fate.ACKNOWLEDGED, 1)]
    assert len(faults(swapped, {"s": {1: "p/1/1", 2: "p/1/0"}}, may_be_late=True)) == 2, "refused, and out of order"


def test_an_acknowledged_message_that_overtook_another_is_told() -> None:
    """Each of two connections is in order by itself."""
    sent = [told(0, Fate.ACKNOWLEDGED, 1), told(1, Fate.ACKNOWLEDGED, 0, connection=2)]
    assert faults(sent, {"s": {0: "p/2/1", 1: "p/1/0"}}) == ["stream s: p/2/1 is 0, p/1/0 before it 1"]


def test_a_number_that_was_sent_twice_is_told() -> None:
    found = faults([SENT[0], SENT[0]], {"s": {0: "p/1/0"}})
    assert "1 messages have a name that another one has: the publishers are wrong" in found


def test_lines_are_read_back_but_not_the_one_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "p.sent"
    path.write_text("".join(message.line() for message in SENT) + SENT[0].line()[:-3])
    assert read_sent([path]) == SENT
    assert [parse_sent(message.line()) for message in SENT] == SENT


def test_the_name_ends_at_its_mark() -> None:
    assert name_in(b"p/1/0|xx|x") == name_in(b"p/1/0|") == "p/1/0"
    assert name_in(b"\xff") == "\\xff"
