"""Members of one consumer that come, go, stop and die under load: nothing is lost, and each key keeps its order."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import tailrace
from tailrace import Client
from tests.system.consumer_faults import shifts
from tests.system.consumer_ledger import Effect, group_faults, read
from tests.system.consumer_members import Members
from tests.system.consumer_party import Spec
from tests.system.consumer_workers import BAD, DEADLY, work
from tests.system.fault_schedule import chosen_length_s, chosen_seed
from tests.system.node import Node, running, wait_for
from tests.system.processes import worker_pid
from tests.system.streams import owner_of
from tests.system.tree_check import read_log
from tests.system.tree_ledger import MARK, name_in

pytestmark = [pytest.mark.system, pytest.mark.slow]

GROUP = "workers"
WORKERS = 2
CALL_S = 30.0
LENGTH_S = 5.0
ACK_WAIT_S = 1.0
CATCH_UP_S = 180.0
KEYS = [f"k{number}" for number in range(12)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("groups") / "data", workers=WORKERS) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def specs(node: Node, folder: Path, stream: str, names: list[str], work_s: float, **wishes: object) -> dict[str, Spec]:
    """Members of one group, with books of their own each, of a stream that exists from now on."""
    with node.client() as admin:
        assert admin.ask(f"master {stream}").startswith("ok ")
    entry = (f"127.0.0.1:{node.port}",)
    return {
        name: Spec(entry, stream, folder / f"{name}.db", name, CALL_S, name=GROUP, consumer=wishes, work_s=work_s)
        for name in names
    }


def effects_of(members: Mapping[str, Spec]) -> list[Effect]:
    """What all of them have done, in the order of each of their books."""
    paths = dict.fromkeys(spec.books for spec in members.values())
    return [effect for path in paths for effect in read(path, next(iter(members.values())).stream, GROUP)]


def log_of(node: Node, stream: str) -> dict[int, str]:
    return {message.seq: name_in(message.payload) for message in read_log(node.data, stream)}


def key_of(name: str) -> str:
    return name.split("/")[0]


def publish(client: Client, stream: str, names: list[str]) -> None:
    """Each with its key, if it has one."""
    with client.batcher(stream) as batcher:
        for name in names:
            batcher.add(name.encode() + MARK, key=key_of(name) or None)


def wait_done(members: Mapping[str, Spec], seqs: set[int]) -> None:
    wait_for(lambda: seqs <= {effect.seq for effect in effects_of(members)}, "all is done", CATCH_UP_S, step_s=0.1)


@pytest.mark.thorough
def test_work_spreads_evenly(node: Node, client: Client, tmp_path: Path) -> None:
    """Over members that are equal: nobody has 20 % more or less than its share."""
    members = specs(node, tmp_path, "even", ["a", "b", "c", "d"], 0.002, start=tailrace.START, batch=20)
    with Members(members, work) as running_members:
        publish(client, "even", [f"/{number}" for number in range(2_000)])
        wait_done(members, set(range(2_000)))
        running_members.leave_all()
    shares = Counter(effect.member for effect in effects_of(members))
    print(dict(shares))
    assert set(shares) == set(members)
    assert all(0.8 * 500 <= share <= 1.2 * 500 for share in shares.values()), shares
    assert group_faults(log_of(node, "even"), effects_of(members), key_of) == []


@pytest.mark.thorough
def test_members_come_and_go_under_load(node: Node, client: Client, tmp_path: Path) -> None:
    """Killed, paused for longer than their messages may take, leaving and coming back, added, removed for good.

    The worker that owns the stream is killed now and then, too.
    """
    seed, length_s = chosen_seed(), chosen_length_s(LENGTH_S)
    dice = random.Random(seed)
    wishes = {"start": tailrace.START, "ack_wait_s": ACK_WAIT_S, "retry_s": 0.05, "deliveries_max": 0, "batch": 30}
    members = specs(node, tmp_path, "chaos", ["a", "b", "c", "new"], 0.001, **wishes)
    members = {name: replace(spec, books=tmp_path / "shared.db") for name, spec in members.items()}  # one order of all
    count = 0

    def publish_some() -> None:
        nonlocal count
        names = [f"{dice.choice([*KEYS, '', ''])}/{number}" for number in range(count, count + dice.randint(1, 150))]
        publish(client, "chaos", names)
        count += len(names)
        time.sleep(dice.uniform(0, 0.1))

    def killed_with_some(name: str, seqs: range) -> bool:
        """Publishes these messages and kills the member among them. Whether it had any, which others do again."""
        publish(client, "chaos", [f"/{number}" for number in seqs])
        wait_for(lambda: any(each.member == name for each in done(seqs)) or through(seqs), "it has some", CATCH_UP_S)
        running_members.kill(name)
        wait_done(members, set(seqs))
        return any(each.deliveries > 1 for each in done(seqs))

    def done(seqs: range) -> list[Effect]:
        return [each for each in effects_of(members) if each.seq in seqs]

    def through(seqs: range) -> bool:
        return {each.seq for each in done(seqs)} == set(seqs)

    with Members(members, work, later=["new"]) as running_members, ThreadPoolExecutor(1) as pool:
        changing = pool.submit(running_members.play, shifts(seed, ["a", "b", "c"], length_s))
        while not changing.done():
            publish_some()
            if dice.random() < 0.03:
                os.kill(worker_pid(node, owner_of("chaos", WORKERS)), signal.SIGKILL)
        changing.result()
        running_members.begin("new")
        wait_for(lambda: client.consumers("chaos")[0].members == len(members), "it is a member", CATCH_UP_S)
        deadline_s = time.monotonic() + CATCH_UP_S
        while not killed_with_some("a", range(count, count + 500)):
            assert time.monotonic() < deadline_s, "nothing that a member had when it was killed came to another"
            count += 500
            running_members.begin("a")
        count += 500
        first = count

        def all_that_stay_have_some() -> bool:
            publish_some()
            return {"b", "c", "new"} <= {effect.member for effect in effects_of(members) if effect.seq >= first}

        wait_for(all_that_stay_have_some, "all that stay have some", CATCH_UP_S)
        wait_done(members, set(range(count)))
        running_members.leave_all()
    effects = effects_of(members)
    assert group_faults(log_of(node, "chaos"), effects, key_of) == []
    (standing,) = client.consumers("chaos")
    again = {effect.seq for effect in effects if effect.deliveries > 1}
    print(f"{count} messages, {len(effects)} times done, {len(again)} in a later delivery; {standing}")
    assert (standing.next_seq, standing.lag_messages, standing.in_flight, standing.dead) == (count, 0, 0, 0)
    assert standing.redelivered >= len(again) > 0, "what the one had that was removed"


def test_what_a_member_had_when_it_died_is_delivered_again_and_counted(node: Node, client: Client) -> None:
    publish(client, "died", [f"/{number}" for number in range(30)])
    client.create_consumer("died", GROUP, start=tailrace.START, ack_wait_s=60.0)
    with tailrace.connect(f"127.0.0.1:{node.port}") as other:
        dying = other.consumer("died", GROUP, member="one", create=False)
        first = dying.receive(CALL_S)
        assert first is not None and first.deliveries == 1
        (standing,) = client.consumers("died")
        held = standing.in_flight
        assert held >= 1 and standing.redelivered == 0
    done: list[tuple[int, int]] = []
    with client.consumer("died", GROUP, member="two", create=False) as consumer:
        while len(done) < 30:
            with next(consumer) as message:
                done.append((message.seq, message.deliveries))
    assert sorted(done) == [(seq, 2 if seq < held else 1) for seq in range(30)]
    (standing,) = client.consumers("died")
    assert (standing.redelivered, standing.lag_messages, standing.dead) == (held, 0, 0)


def test_what_cannot_be_done_is_a_dead_letter(node: Node, client: Client, tmp_path: Path) -> None:
    """Once each, with the reason; the rest of its key goes on behind it."""
    names = [f"{BAD if number % 10 == 3 else 'k'}/{number}" for number in range(60)]
    bad = [number for number, name in enumerate(names) if name.startswith(BAD)]
    members = specs(node, tmp_path, "letters", ["a", "b"], 0.0, start=tailrace.START, deliveries_max=3, retry_s=0.05)
    with Members(members, work) as running_members:
        with client.batcher("letters") as batcher:
            for name in names:
                batcher.add(name.encode() + MARK, key="one")
        wait_done(members, set(range(60)) - set(bad))
        wait_for(lambda: client.consumers("letters")[0].dead == len(bad), "there are as many dead letters")
        running_members.leave_all()
    log = log_of(node, "letters")
    assert group_faults({seq: name for seq, name in log.items() if seq not in bad}, effects_of(members), key_of) == []
    letters = list(client.subscribe("letters/$dead", end=tailrace.NOW, wait=True))
    assert [name_in(letter.payload) for letter in letters] == [names[number] for number in bad]
    for letter, seq in zip(letters, bad, strict=True):
        told = letter.headers
        assert told["key"] == "one" and told["dead-reason"] in ("a cannot do it", "b cannot do it")
        assert {key: told[f"dead-{key}"] for key in ("stream", "seq", "consumer", "deliveries")} == {
            "stream": "letters", "seq": str(seq), "consumer": GROUP, "deliveries": "3",
        }  # fmt: skip


def test_what_kills_each_member_is_a_dead_letter(node: Node, client: Client, tmp_path: Path) -> None:
    """A member that is started again each time, under its own name, gets it again as often as it may, and no more."""
    wishes = {"start": tailrace.START, "deliveries_max": 2, "ack_wait_s": 1.0}
    members = specs(node, tmp_path, "deadly", ["a"], 0.0, **wishes)
    with Members(members, work) as running_members:
        publish(client, "deadly", ["/0", f"{DEADLY}/1", "/2"])
        deadline_s = time.monotonic() + CATCH_UP_S
        deaths = 0
        while {effect.seq for effect in effects_of(members)} != {0, 2}:
            assert time.monotonic() < deadline_s, f"{deaths} deaths, and no end"
            if running_members.is_gone("a"):
                deaths += 1
                running_members.kill("a")
                running_members.begin("a")
            time.sleep(0.01)
        running_members.leave_all()
    letters = list(client.subscribe("deadly/$dead", end=tailrace.NOW, wait=True))
    assert [name_in(letter.payload) for letter in letters] == [f"{DEADLY}/1"]
    assert letters[0].headers["dead-deliveries"] == "2"
    print(f"{deaths} deaths: {letters[0].headers}")
    assert deaths >= 2
