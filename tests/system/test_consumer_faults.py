from __future__ import annotations

from itertools import pairwise

from tests.system.consumer_faults import PAUSE_S, Change, Shift, shifts, steps

MEMBERS = ["one", "two", "three"]


def test_a_seed_gives_the_same_changes_again() -> None:
    plan = shifts(1, MEMBERS, 60.0)
    assert plan == shifts(1, MEMBERS, 60.0) != shifts(2, MEMBERS, 60.0)
    assert {shift.change for shift in plan} == set(Change)
    assert {shift.member for shift in plan} == set(MEMBERS)
    assert all(shift.at_s + shift.lasts_s <= 60.002 for shift in plan)


def test_a_member_is_back_for_a_while_before_it_goes_again() -> None:
    plan = shifts(3, MEMBERS, 60.0)
    for member in MEMBERS:
        mine = [shift for shift in plan if shift.member == member]
        gaps_s = [after.at_s - before.at_s - before.lasts_s for before, after in pairwise(mine)]
        assert len(gaps_s) > 3 and min(gaps_s) >= PAUSE_S - 0.002


def test_steps_come_in_the_order_of_time() -> None:
    plan = shifts(4, MEMBERS, 20.0)
    found = steps(plan)
    assert [step.at_s for step in found] == sorted(step.at_s for step in found)
    assert sum(step.begins for step in found) == len(plan) == len(found) / 2


def test_a_member_that_is_back_at_once_has_gone_before() -> None:
    plan = [Shift(1.0, 0.5, Change.PAUSE, "one"), Shift(2.0, 0.0, Change.KILL, "one")]
    assert [step.begins for step in steps(plan)] == [True, False, True, False]
