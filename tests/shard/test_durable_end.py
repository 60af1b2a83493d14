from __future__ import annotations

from tailrace.shard.durable_end import DurableEnd


def test_the_end_only_advances_and_an_unknown_offset_is_learned() -> None:
    end = DurableEnd(5)
    end.advance(4, 900)
    assert (end.seq, end.offset) == (5, 0)
    end.advance(5, 1_000)
    assert (end.seq, end.offset) == (5, 1_000)
    end.advance(5, 1_100)
    assert (end.seq, end.offset) == (5, 1_000)
    end.advance(7, 1_200)
    assert (end.seq, end.offset) == (7, 1_200)
