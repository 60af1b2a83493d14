"""The frames of runs, read from a stream: as many as may go, and what becomes of those that are gone or to come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.consumers.edge.fetch import Fetched, OtherMessages, before, end_of, fetch
from tailrace.protocol.consuming import DeliveredRun
from tailrace.shard.errors import StreamCut
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import BOOT, append, open_log

_parse = load("tailrace.shard.frame_cy").parse

SIZES = [10, 20, 300, 40, 50, 60]
NOTHING = 10**6


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[tuple[StreamLog, StreamReader]]:
    log = open_log(tmp_path, "s")
    append(log, *(bytes([number]) * size for number, size in enumerate(SIZES)))
    reader = StreamReader.open(tmp_path, "s", boot_id=BOOT)
    yield log, reader
    reader.close()
    log.close()


def seqs(fetched: Fetched) -> list[list[int]]:
    """Those of the frames of each run; they are whole and right."""
    found = []
    for (first, count, _deliveries, _epoch), frames in zip(fetched.runs, fetched.frames, strict=True):
        parsed = _parse(frames, 0, len(frames), True)
        assert [each[0] for each in parsed] == list(range(first, first + count))
        assert all(bytes(each[5]) == bytes([each[0]]) * SIZES[each[0]] for each in parsed)
        found.append([each[0] for each in parsed])
    return found


def size(*numbers: int) -> int:
    return sum(HEADER_BYTES + SIZES[number] for number in numbers)


def test_the_frames_of_each_run_in_the_order_of_the_runs(stream: tuple[StreamLog, StreamReader]) -> None:
    runs: list[DeliveredRun] = [(4, 1, 2, 1), (0, 2, 0, 1), (2, 1, 1, 1)]
    fetched = fetch(stream[1], runs, NOTHING)
    assert (fetched.runs, seqs(fetched), fetched.trimmed) == (runs, [[4], [0, 1], [2]], 0)
    assert fetch(stream[1], [], NOTHING) == Fetched([], [], 0)


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (size(0, 1, 4, 5), [[0, 1], [4, 5]]),
        (size(0, 1, 4, 5) - 1, [[0, 1], [4]]),
        (size(0, 1, 4), [[0, 1], [4]]),
        (size(0, 1, 4) - 1, [[0, 1]]),
        (size(0, 1), [[0, 1]]),
        (size(0, 1) - 1, [[0]]),
        (1, [[0]]),
        (0, [[0]]),
    ],
)
def test_so_many_as_take_the_bytes_and_one_at_least(
    stream: tuple[StreamLog, StreamReader], nbytes: int, expected: list[list[int]]
) -> None:
    fetched = fetch(stream[1], [(0, 2, 0, 1), (4, 2, 3, 1)], nbytes)
    assert seqs(fetched) == expected
    assert [run[2] for run in fetched.runs] == [0, 3][: len(expected)]


def test_what_is_trimmed_is_counted_and_passed_over(stream: tuple[StreamLog, StreamReader]) -> None:
    log, reader = stream
    log.trim(3)
    fetched = fetch(reader, [(0, 2, 0, 1), (2, 3, 1, 1), (5, 1, 0, 1)], NOTHING)
    assert (seqs(fetched), fetched.trimmed) == ([[3, 4], [5]], 3)
    assert fetch(reader, [(0, 3, 0, 1)], NOTHING) == Fetched([], [], 3)


def test_what_has_not_come_is_an_error(stream: tuple[StreamLog, StreamReader]) -> None:
    with pytest.raises(ValueError, match="has messages before 6"):
        fetch(stream[1], [(5, 2, 0, 1)], NOTHING)


def test_another_line_of_messages_is_never_given(stream: tuple[StreamLog, StreamReader]) -> None:
    log, reader = stream
    log.set_aside(3)
    with pytest.raises(StreamCut):
        fetch(reader, [(0, 1, 0, 1)], NOTHING)


def test_other_messages_under_these_seqs_are_never_given(tmp_path: Path) -> None:
    """A copy that diverged from its master's without having learned of it; or one that has the term, but not yet its
    end.
    """
    log = open_log(tmp_path, "s")
    for epoch in (1, 1, 3, 3):
        append(log, b"x", epoch=epoch)
    with StreamReader.open(tmp_path, "s", boot_id=BOOT) as reader:
        for run in ((0, 2, 0, 2), (2, 2, 0, 1), (1, 2, 0, 1), (1, 2, 0, 3)):
            with pytest.raises(OtherMessages, match="of epoch"):
                fetch(reader, [run], NOTHING)
        assert fetch(reader, [(0, 2, 0, 1), (2, 2, 0, 3)], NOTHING).runs == [(0, 2, 0, 1), (2, 2, 0, 3)]
        unknown = [(1, 3, 5, 0)]
        assert fetch(reader, unknown, NOTHING).runs == [(1, 1, 5, 1)], "of terms that are forgotten one at a time"
    log.close()


def test_where_runs_end_and_what_of_them_is_before() -> None:
    runs: list[DeliveredRun] = [(4, 3, 1, 1), (0, 2, 0, 1)]
    assert (end_of(runs), end_of([])) == (7, 0)
    assert before(runs, 7) == runs
    assert before(runs, 5) == [(4, 1, 1, 1), (0, 2, 0, 1)]
    assert before(runs, 4) == [(0, 2, 0, 1)]
    assert before(runs, 1) == [(0, 1, 0, 1)]
