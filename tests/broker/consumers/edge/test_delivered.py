"""What a connection was given, and which message a seq means there."""

from __future__ import annotations

import random

import msgpack
import pytest

from tailrace.broker.consumers.edge import delivered
from tailrace.broker.consumers.edge.delivered import DeliveredMessages

KEY = (b"s", b"n")


def test_what_is_given_in_order_takes_one_run() -> None:
    known = DeliveredMessages()
    for seq in range(1_000):
        known.note(KEY, seq, seq, 1)
    assert known.export_state() == [[*KEY, [(0, 999, 1)]]]
    assert known.meant(KEY, 5, 2_000) == ([(5, 999, 1)], [(1_000, 2_000)])
    assert known.meant((b"s", b"other"), 5, 5) == ([], [(5, 5)])


def test_a_seq_means_the_last_one_that_was_given() -> None:
    """Held against a dictionary."""
    chance, known, truth = random.Random(7), DeliveredMessages(), dict[int, int]()
    for epoch in range(1, 300):
        first = chance.randrange(60)
        last = first + chance.randrange(8)
        known.note(KEY, first, last, epoch // 5 + 1)
        truth.update(dict.fromkeys(range(first, last + 1), epoch // 5 + 1))
        low = chance.randrange(60)
        high = low + chance.randrange(20)
        rows, unknown = known.meant(KEY, low, high)
        found = {seq: epoch for first, last, epoch in rows for seq in range(first, last + 1)}
        assert found == {seq: truth[seq] for seq in range(low, high + 1) if seq in truth}
        assert {seq for first, last in unknown for seq in range(first, last + 1)} == set(range(low, high + 1)) - set(
            found
        )


def test_it_is_the_same_after_a_move() -> None:
    known, again = DeliveredMessages(), DeliveredMessages()
    known.note(KEY, 3, 5, 2)
    known.note((b"t", b"n"), 0, 0, 9)
    again.restore_state(msgpack.unpackb(msgpack.packb(known.export_state())))
    assert again.export_state() == known.export_state()


def test_so_much_is_remembered_and_what_is_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered, "RUNS_MAX", 4)
    known = DeliveredMessages()
    for key in (KEY, (b"t", b"n")):
        for seq in (0, 2, 4):
            known.note(key, seq, seq, 1)
    assert known.meant(KEY, 0, 4) == ([(4, 4, 1)], [(0, 3)])
    for seq in (10, 12, 14):
        known.note((b"t", b"n"), seq, seq, 1)
    assert known.export_state() == [[b"t", b"n", [(4, 4, 1), (10, 10, 1), (12, 12, 1), (14, 14, 1)]]]
