from __future__ import annotations

from collections import Counter

import pytest

from tests.system.fault_schedule import (
    AT_ONCE_MAX,
    LASTS_S,
    LENGTH_S,
    PAUSE_S,
    SEED_VARIABLE,
    Fault,
    Kind,
    chosen_seed,
    schedule,
    steps,
)

NODES = ["top", "left", "right", "left-a", "left-b", "right-a", "right-b"]
SEEDS = range(200)


def test_the_seed_says_it_all() -> None:
    assert schedule(7, NODES, "top", 60.0) == schedule(7, NODES, "top", 60.0)
    assert schedule(7, NODES, "top", 60.0) != schedule(8, NODES, "top", 60.0)


def test_the_seed_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SEED_VARIABLE, "4711")
    assert chosen_seed() == 4711
    monkeypatch.delenv(SEED_VARIABLE)
    other = chosen_seed()
    assert capsys.readouterr().out == f"{SEED_VARIABLE}=4711\n{SEED_VARIABLE}={other}\n"


@pytest.mark.parametrize("length_s", [3.0, LENGTH_S, 120.0])
def test_what_holds_for_every_schedule(length_s: float) -> None:
    for seed in SEEDS:
        faults = schedule(seed, NODES, "top", length_s)
        for number, fault in enumerate(faults):
            shortest_s, longest_s = LASTS_S[fault.kind]
            assert shortest_s <= fault.lasts_s <= longest_s
            assert fault.at_s >= 0 and fault.end_s <= length_s + 0.001, "all are over when the time is"
            assert not (fault.kind is Kind.REBUILD and fault.node == "top")
            before = faults[:number]
            assert all(other.at_s <= fault.at_s for other in before)
            assert sum(other.end_s > fault.at_s for other in before) < AT_ONCE_MAX
            assert all(other.end_s + PAUSE_S <= fault.at_s for other in before if other.node == fault.node)


def test_every_kind_comes_and_every_node_has_its_turn() -> None:
    for seed in SEEDS:
        kinds = Counter(fault.kind for fault in schedule(seed, NODES, "top", LENGTH_S))
        assert set(kinds) == set(Kind), f"seed {seed}"
    nodes = {fault.node for seed in SEEDS for fault in schedule(seed, NODES, "top", LENGTH_S)}
    assert nodes == set(NODES)


def test_one_node_alone_is_never_rebuilt() -> None:
    kinds = {fault.kind for seed in SEEDS for fault in schedule(seed, ["top"], "top", 30.0)}
    assert kinds == set(Kind) - {Kind.REBUILD}


def test_steps_are_in_order_and_each_fault_ends_but_that_of_a_worker() -> None:
    for seed in SEEDS:
        faults = schedule(seed, NODES, "top", 60.0)
        order = steps(faults)
        assert [step.at_s for step in order] == sorted(step.at_s for step in order)
        under_way: set[Fault] = set()
        for step in order:
            if step.begins:
                assert all(other.node != step.fault.node for other in under_way)
                under_way |= set() if step.fault.kind is Kind.KILL_WORKER else {step.fault}
            else:
                under_way.remove(step.fault)
        assert not under_way


def test_a_fault_reads_well() -> None:
    assert str(Fault(1.5, 2.0, Kind.CUT_LINK, "left")) == "  1.50 s: left: link cut, for 2.00 s"
    slow = Fault(12.0, 1.0, Kind.IMPAIR_LINK, "top", 40, 2.5)
    assert str(slow) == " 12.00 s: top: link slow and lossy, 40 ms and 2.5 %, for 1.00 s"


def test_one_node_alone_has_every_kind_but_that_it_is_rebuilt() -> None:
    for seed in SEEDS:
        kinds = {fault.kind for fault in schedule(seed, ["top"], "top", 40.0)}
        assert kinds == set(Kind) - {Kind.REBUILD}, f"seed {seed}"
