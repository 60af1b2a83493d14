"""Publishers and durable consumers through faults of every kind: the books agree to the message.

TAILRACE_FAULTS_S=180 lets the faults go on for that many seconds; TAILRACE_TEST_SEED repeats a run's schedule, if it is
as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import tailrace
from tests.system.consumer_faults import shifts
from tests.system.consumer_ledger import faults as faults_of_consumer
from tests.system.consumer_ledger import read, read_last
from tests.system.consumer_members import Members
from tests.system.consumer_party import Spec
from tests.system.consumer_workers import keep_books
from tests.system.fault_schedule import chosen_length_s, chosen_seed, schedule
from tests.system.node import wait_for
from tests.system.test_tree_failover import follow_all, let_follow
from tests.system.tree_check import assert_sound, names_in, read_diverged, wait_equal
from tests.system.tree_faults import play
from tests.system.tree_ledger import faults, name_in
from tests.system.tree_load import Load
from tests.system.tree_node import MachineNode, Parents, Tree, growing
from tests.thorough import THOROUGH, only_thorough

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS = ["s0", "s1"]
CONSUMERS = ["billing", "audit", "search"]
PUBLISHERS = 4
LENGTH_S = 5.0 if THOROUGH else 3.0
PAUSE_S = 0.1  # of each publisher, so that the books keep up on a small machine
CALL_S = 60.0
CATCH_UP_S = 180.0
WISHES = {"start": tailrace.START, "deliveries_max": 0}
CONFIG = """
[timing]
upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
"""
PAIR: Parents = {"old": None, "heir": "old"}
SHAPES: Mapping[str, Parents] = {
    "one node": {"top": None},
    "a master and its slaves": {"top": None, "a": "top", "b": "a"},
}


def specs(tree: Tree, folder: Path) -> dict[str, Spec]:
    """A member for each stream of each consumer; they enter at every node in turn."""
    addresses = [node.address for node in tree.nodes.values()]
    found = {}
    for number, consumer in enumerate(CONSUMERS):
        entry = (addresses[number % len(addresses)],)
        for stream in STREAMS:
            books = folder / f"{consumer}.db"
            member = f"{consumer}-{stream}"
            found[member] = Spec(entry, stream, books, member, CALL_S, 2.0, name=consumer, consumer=WISHES)
    return found


def load(tree: Tree, folder: Path) -> Load:
    addresses = [[node.address] for node in tree.nodes.values()]
    publishers = {f"p{number}": addresses[number % len(addresses)] for number in range(PUBLISHERS)}
    options = {"retry": True, "timeout_s": CALL_S}
    return Load(publishers, STREAMS, folder / "load", pause_s=PAUSE_S, options=options)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", ["one node", *only_thorough("a master and its slaves")])
def test_the_books_agree(tmp_path: Path, shape: str) -> None:
    seed, length_s = chosen_seed(), chosen_length_s(LENGTH_S)
    parents = SHAPES[shape]
    plan = schedule(seed, list(parents), "top", length_s)
    with growing(tmp_path, parents, config=CONFIG, workers=2, configured=True) as tree:
        members = specs(tree, tmp_path)
        with load(tree, tmp_path) as publishing, Members(members, keep_books) as running, ThreadPoolExecutor(1) as pool:
            publishing.wait_for_progress()
            changing = pool.submit(running.play, shifts(seed, list(members), length_s))
            play(tree, plan)
            changing.result()
            publishing.wait_for_progress()
            sent = publishing.finish()
            logs = names_in(tree.nodes["top"].data)
            wait_for(
                lambda: all(is_through(spec, logs[spec.stream]) for spec in members.values()),
                "all is done",
                CATCH_UP_S,
                step_s=0.2,
            )
            running.leave_all()
        assert faults(sent, logs) == []
        for spec in members.values():
            effects = read(spec.books, spec.stream, spec.name)
            assert faults_of_consumer(logs[spec.stream], effects) == [], spec.member
        fates = Counter(message.fate.value for message in sent)
        print(f"{len(plan)} faults, {len(sent)} messages: {dict(fates)}; {len(members)} books agree")
    assert_sound(tree.data())


def is_through(spec: Spec, log: Mapping[int, str]) -> bool:
    last = read_last(spec.books, spec.stream, spec.name)
    return not log or (last is not None and last.seq == max(log))


@pytest.mark.thorough
@pytest.mark.parametrize("alone", [True, False], ids=["it was alone", "it was followed"])
def test_the_books_agree_when_a_master_is_lost_with_what_only_it_had(tmp_path: Path, *, alone: bool) -> None:
    """Acknowledged as appended, read and done, but on no other node: other messages take their places, and are done.

    If it was followed, its slave may have the end of a stream without that of its consumers, or the other way round.
    """
    with growing(tmp_path, PAIR, config=CONFIG, workers=2) as tree:
        follow_all(tree)
        old, heir = tree.nodes["old"], tree.nodes["heir"]
        both = (old.address, heir.address)
        members = {name: replace(spec, addresses=both) for name, spec in specs(tree, tmp_path).items()}
        publishers = {f"p{number}": both for number in range(PUBLISHERS)}
        options = {"retry": True, "timeout_s": CALL_S}
        with (
            Load(publishers, STREAMS, tmp_path / "load", kinds=["binary"], pause_s=PAUSE_S, options=options) as load,
            Members(members, keep_books) as running,
        ):
            load.wait_for_progress(20)
            if alone:
                tell(heir, "unslave")
            load.wait_for_progress(20)
            old.kill()
            tell(heir, "promote")
            load.wait_for_progress(20)
            old.start()
            let_follow(old, heir)
            load.wait_for_progress(20)
            load.finish()
            logs = names_in(heir.data)
            wait_for(
                lambda: all(is_through(spec, logs[spec.stream]) for spec in members.values()),
                "all is done",
                CATCH_UP_S,
                step_s=0.2,
            )
            running.leave_all()
        wait_equal(tree.data(), "heir", starts=False)
        lost = {name_in(message.payload) for tail in read_diverged(old.data).values() for message in tail}
        for spec in members.values():
            check_survivors(spec, logs[spec.stream], lost)
        print(f"{sum(map(len, logs.values()))} messages, {len(lost)} lost with their master")
        assert lost or not alone
    assert_sound(tree.data())


def tell(node: MachineNode, command: str) -> None:
    """For each of the streams."""
    for stream in STREAMS:
        answer = node.ask(f"{command} {stream}")
        assert answer.startswith(f"ok {command}"), answer


def check_survivors(spec: Spec, log: Mapping[int, str], lost: set[str]) -> None:
    """Every surviving message was done once; the other messages done are the lost ones."""
    effects = read(spec.books, spec.stream, spec.name)
    there = [effect for effect in effects if log.get(effect.seq) == effect.name]
    assert faults_of_consumer(log, there) == [], spec.member
    gone = [effect.name for effect in effects if log.get(effect.seq) != effect.name]
    assert set(gone) <= lost and len(gone) == len(set(gone)), spec.member
    print(f"{spec.member}: {len(there)} done that are there, {len(gone)} that are not")
