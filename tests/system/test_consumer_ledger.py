from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.system.consumer_ledger import Effect, effect_of, faults, group_faults, open_books, read, write

LOG = {0: "a/0", 1: "b/0", 2: "a/1", 3: "b/1", 4: "/4"}
DONE = [Effect(seq, name) for seq, name in LOG.items()]


def key_of(name: str) -> str:
    return name.split("/")[0]


def test_what_is_done_once_and_in_order_has_no_fault() -> None:
    assert faults(LOG, DONE) == []
    assert faults(LOG, DONE[2:], first_seq=2) == []


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        (DONE[:2] + DONE[3:], "message 2, a/1, was never done"),
        ([*DONE, DONE[4]], "message 4 was done 2 times"),
        ([DONE[1], DONE[0], *DONE[2:]], "message 0 was done behind 1"),
        ([*DONE, Effect(5, "c/0")], "message 5 was done as c/0, and the log has nothing there"),
        ([*DONE[:4], Effect(4, "old")], "message 4 was done as old, and the log has /4 there"),
    ],
)
def test_what_must_not_be_is_told(effects: list[Effect], expected: str) -> None:
    assert expected in faults(LOG, effects)


def test_what_comes_before_the_beginning_is_told() -> None:
    assert faults(LOG, DONE, first_seq=1) == ["message 0 was done, which is before 1"]


def test_a_group_keeps_the_order_of_each_key_only() -> None:
    order = [4, 1, 0, 3, 2]
    assert group_faults(LOG, [DONE[seq] for seq in order], key_of) == []
    assert group_faults(LOG, [DONE[seq] for seq in (0, 3, 1, 2, 4)], key_of) == ["key b: message 1 was done behind 3"]


def test_a_group_may_do_again_what_was_delivered_again() -> None:
    done = [Effect(seq, name, "m", 1) for seq, name in LOG.items()]
    again = Effect(0, "a/0", "n", 2)
    assert group_faults(LOG, [*done, again], key_of) == []
    assert group_faults(LOG, [*done, again._replace(deliveries=1)], key_of) == [
        "message 0 was done by m and by n as the same delivery"
    ]
    assert group_faults(LOG, done[1:], key_of) == ["message 0, a/0, was never done"]


def test_books_are_kept_of_each_consumer_and_stream(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    assert read(path, "s", "c") == []
    with closing(open_books(path)) as books:
        with books:
            write(books, "s", "c", effect_of(3, b"name|padding", "m", 2))
        write(books, "s", "c", effect_of(4, b"not committed", "m", 1))
    assert read(path, "s", "c") == [Effect(3, "name", "m", 2)]
    assert read(path, "s", "d") == read(path, "t", "c") == []
