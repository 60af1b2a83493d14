from __future__ import annotations

import random

from tests.system.consumer_cells import DELAY_MOST_S, Call, Cell, Point, Victim, at_random, matrix


def test_the_matrix_has_every_cell_once() -> None:
    cells = matrix()
    assert len(cells) == len(set(cells)) == len(Victim) * len(Point) * len(Call) == 140
    assert len({str(cell) for cell in cells}) == len(cells)
    assert matrix([Victim.NODE]) == [cell for cell in cells if cell.victim is Victim.NODE]


def test_a_seed_gives_the_same_cells_again() -> None:
    cells = at_random(random.Random(7), Victim.NODE, 50)
    assert cells == at_random(random.Random(7), Victim.NODE, 50) != at_random(random.Random(8), Victim.NODE, 50)
    assert {cell.call for cell in cells} == set(Call)
    assert all(0 <= cell.delay_s <= DELAY_MOST_S and 0 <= cell.part <= 1 for cell in cells)


def test_who_calls_is_killed_by_its_own_cells_only() -> None:
    assert [cell.call for cell in matrix([Victim.PUBLISHER]) if cell.kills_caller] == [Call.PUT] * len(Point)
    assert not Cell(Victim.NODE, Point.SENT, Call.GET).kills_caller
    assert Cell(Victim.SUBSCRIBER, Point.SENT, Call.GET).kills_caller
