from __future__ import annotations

import os

import pytest

from tailrace.broker.process.scoreboard import STATE_READY, Board


def test_what_a_forked_process_writes_is_read_here() -> None:
    board = Board(3)
    pid = os.fork()
    if not pid:
        view = board.slot(1)
        view.connections, view.state, view.streams = 7, STATE_READY, 5
        view.beat()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (board.slot(1).connections, board.slot(1).state_name) == (7, "ready")
    assert board.slot(1).beat_age_s() < 60
    assert board.total_connections() == 7 and board.total_streams() == 5
    assert board.slot(0).connections == board.slot(2).connections == 0


def test_a_board_has_a_slot() -> None:
    with pytest.raises(ValueError):
        Board(0)


def test_slots_do_not_overlap() -> None:
    board = Board(4)
    names = ("pid", "generation", "state", "beat_ns", "connections", "streams", "restarts", "subscriptions")
    for index, view in enumerate(board):
        for number, name in enumerate(names):
            setattr(view, name, index * 100 + number)
    seen = [getattr(view, name) for view in board for name in names]
    assert len(set(seen)) == len(seen)


def test_rows_of_metrics_do_not_touch_the_slots() -> None:
    board = Board(3)
    for view in board:
        view.subscriptions = view.pid = 7
    for generation, row in enumerate(board.metric_rows, 1):
        assert board.take_row(generation) and board.row_of(generation) is row
        row._bytes[8:] = b"\xff" * (len(row._bytes) - 8)
    assert [row.generation for row in board.metric_rows] == [*range(1, len(board.metric_rows) + 1)]
    assert {(view.pid, view.subscriptions) for view in board} == {(7, 7)}
    board.free_row(2)
    assert [row.generation for row in board.metric_rows[:3]] == [1, 0, 3]
