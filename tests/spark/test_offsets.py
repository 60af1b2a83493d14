from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.offsets import DataLoss, Mark, Offset, OffsetPacker, admit, advance, pack_offset, parse_offset

FILES = (2**63, 4)


def at(**seqs: int) -> Offset:
    return {name: Mark(seq, FILES) for name, seq in seqs.items()}


def test_offsets_survive_a_checkpoint() -> None:
    offset = {
        **at(a=0, b=2**47),
        "ü/\\*": Mark(5, (0, 0)),
        "t": Mark(5, FILES, 7, 0, 3),
        "gone": Mark(5, FILES, is_gone=True),
    }
    assert parse_offset(json.loads(json.dumps(pack_offset(offset, OffsetPacker()))), OffsetPacker()) == offset
    assert parse_offset({}, OffsetPacker()) == {}


@pytest.mark.parametrize("said", [{"a": 5}, {"a": {"seq": 1}}, {"a": {"seq": "x", "id": 0, "cuts": 0}}])
def test_the_offset_of_another_source_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no offset of this source"):
        parse_offset(said, OffsetPacker())


@given(st.dictionaries(st.text(max_size=2), st.integers(1, 100), max_size=8), st.integers(1, 300))
def test_a_batch_is_full_and_fair(waiting: dict[str, int], rows: int) -> None:
    admitted = admit(waiting, rows)
    assert sum(admitted.values()) == min(rows, sum(waiting.values()))
    assert all(0 <= admitted[name] <= count for name, count in waiting.items())
    # Who did not get all has at least (about) as much as anybody else.
    short = [admitted[name] for name, count in waiting.items() if admitted[name] < count]
    assert not short or max(admitted.values()) - min(short) <= len(waiting)


def test_small_streams_are_not_starved_by_large_ones() -> None:
    assert admit({"large": 1_000_000, "small": 10, "middle": 100}, 1_000) == {"large": 890, "small": 10, "middle": 100}


def test_everything_without_a_limit() -> None:
    assert advance(at(a=1, b=2), at(a=5, b=2), None) == at(a=5, b=2)
    assert advance(at(a=1, b=2), at(a=5, b=2), 100) == at(a=5, b=2)
    assert advance(at(a=1), {}, None) == at(a=1)


def test_no_more_than_the_limit() -> None:
    assert advance(at(a=1, b=2), at(a=50, b=4), 10) == at(a=9, b=4)


def test_batch_after_batch_everything_comes_once() -> None:
    done, latest, seen = at(a=0, b=0, c=7), at(a=100, b=3, c=7), 0
    while done != latest:
        end = advance(done, latest, 9)
        size = sum(end[name].seq - done[name].seq for name in end)
        assert 0 < size <= 9
        seen, done = seen + size, end
    assert seen == 103


def test_a_loss_says_where_and_what_to_do() -> None:
    assert str(DataLoss("a", "5 messages are gone")) == (
        'stream \'a\': 5 messages are gone. option("failOnDataLoss", "false") continues with the remaining messages'
    )
