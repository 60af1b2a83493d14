"""The expensive steps of a turn: who is served when, and that nothing is lost or overtaken."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import NODE_HELD_UP_MAX
from tailrace.broker.process.work import NOBODY, WorkQueue
from tailrace.broker.routing.requests import ForwardedBatches
from tailrace.broker.routing.worker_links import PARTLY_ROWS, PARTLY_S
from tailrace.protocol import messages as m
from tailrace.protocol import sibling
from tailrace.protocol.errors import Code
from tests.broker.binary import BinaryPeer
from tests.broker.world import World, world


def is_busy(work: WorkQueue) -> bool:
    """Whether the next turn has something to do at once."""
    return work.stirred or bool(work.turns)


class Asker:
    def __init__(self) -> None:
        self.held_up = 0

    def hold_up(self) -> None:
        self.held_up += 1

    def go_on(self) -> None:
        self.held_up -= 1


class Bench:
    """Work whose steps take a second each by its clock; `done` are their names."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_wanted = False
        self.work = WorkQueue(lambda: self.now_s, lambda: self.is_wanted)
        self.done: list[str] = []

    def ask(self, asker: object, stream: bytes, step: str) -> None:
        def do() -> None:
            self.now_s += 1.0
            self.done.append(step)

        self.work.do(stream, (asker,), do)  # type: ignore[arg-type]

    def turn(self) -> list[str]:
        self.done.clear()
        self.work.begin_turn()
        self.work.run()
        return list(self.done)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 2.0)
    return Bench()


def test_steps_that_ask_for_the_next_one_do_not_fill_the_stack(bench: Bench) -> None:
    """Such as pages of names: a call to this worker is answered before it returns, and the answer asks for the next."""
    left = 5_000

    def step() -> None:
        nonlocal left
        left -= 1
        if left:
            bench.work.do(b"", (NOBODY,), step)

    bench.work.do(b"", (NOBODY,), step)
    assert left, "some wait"
    for _ in range(5_000):
        if left:
            bench.turn()
    assert (left, len(bench.work)) == (0, 0)
    with pytest.raises(ZeroDivisionError):
        bench.work.do(b"", (NOBODY,), lambda: 1 // 0)
    assert bench.work.may_begin(b""), "a step that fails is over"


def test_a_turn_does_as_much_as_it_has_time_for(bench: Bench) -> None:
    asker = Asker()
    for number in range(5):
        bench.ask(asker, b"s%d" % number, str(number))
    assert bench.done == ["0", "1"] and asker.held_up == 3 and len(bench.work) == 3 and is_busy(bench.work)
    assert bench.turn() == ["2", "3"]
    assert bench.turn() == ["4"] and asker.held_up == 0 and is_busy(bench.work), "its answers go out in the next turn"
    assert bench.turn() == [] and not bench.work.waiting


def test_askers_take_turns(bench: Bench) -> None:
    many, one = Asker(), Asker()
    for number in range(100):
        bench.ask(many, b"s%d" % number, str(number))
    bench.ask(one, b"t", "t")
    assert bench.turn() == ["2", "t"] and one.held_up == 0


def test_a_step_with_several_askers_leaves_the_worker_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a turn for each of them; with none left that does anything, the worker sleeps again."""
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_MAX_S", 0.0)
    with world(tmp_path) as node:
        work = node.workers[0].work
        work.later(b"s", (Asker(), Asker()), lambda: None)
        for _ in range(3):
            node.workers[0].turn()
        assert not is_busy(work)


def test_steps_of_a_stream_keep_their_order_whoever_asks(bench: Bench) -> None:
    many, one = Asker(), Asker()
    bench.turn()
    for number in range(100):
        bench.ask(many, b"s%d" % number, str(number))
    bench.ask(one, b"s50", "one")
    bench.ask(many, b"s50", "later")
    assert bench.turn() == ["2", "50"] and bench.turn() == ["3", "one"] and one.held_up == 0
    rest = [step for _ in range(60) for step in bench.turn()]
    assert rest == [*map(str, range(4, 50)), "later", *map(str, range(51, 100))]
    assert many.held_up == 0 and not bench.work.waiting


def test_a_long_step_ends_the_turn_and_each_turn_does_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)
    bench.ask(NOBODY, b"s", "1")
    bench.ask(NOBODY, b"s", "2")
    assert bench.done == [] and bench.turn() == ["1"] and bench.turn() == ["2"]


def test_a_turn_goes_on_while_nobody_else_wants_anything(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_MAX_S", 5.0)
    bench.turn()
    for number in range(20):
        bench.work.later(b"s%d" % number, (NOBODY,), lambda: bench.ask(NOBODY, b"t", "x"))
    assert len(bench.turn()) == 5
    bench.is_wanted = True
    assert len(bench.turn()) == 2
    bench.is_wanted = False
    bench.work.later(b"u", (NOBODY,), lambda: setattr(bench, "is_wanted", True), first=True)
    assert len(bench.turn()) == 5 and len(bench.turn()) == 5


def test_a_blocked_stream_waits_and_no_other_does(bench: Bench) -> None:
    asker, other = Asker(), Asker()
    bench.work.block(b"s")
    bench.work.block(b"s")
    bench.ask(asker, b"s", "1")
    bench.ask(asker, b"s", "2")
    bench.ask(other, b"t", "t")
    assert bench.done == ["t"] and bench.turn() == [] and asker.held_up == 2 and not is_busy(bench.work)
    bench.work.unblock(b"s")
    assert bench.turn() == []
    bench.work.unblock(b"s")
    assert bench.turn() == ["1", "2"] and asker.held_up == 0 and not bench.work.waiting


def test_what_waits_is_given_back(bench: Bench) -> None:
    asker = Asker()
    given: list[int] = []
    bench.work.block(b"s")
    for number in range(3):
        bench.work.do(b"s", (asker,), lambda: None, lambda number=number: given.append(number))  # type: ignore[misc]
    for step in bench.work.take_all():
        step.give_back()
    assert given == [0, 1, 2] and asker.held_up == 0 and not len(bench.work)
    bench.work.unblock(b"s")
    assert bench.turn() == [] and not bench.work.waiting


# --- in a worker ------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn does one step."""
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)


def turns(node: World, count: int) -> None:
    for _ in range(count):
        for worker in node.workers:
            worker.turn()
    for peer in node.peers:
        peer.read()


@pytest.mark.usefixtures("one_a_turn")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_neighbour_is_served_in_the_midst_of_a_flood(tmp_path: Path, workers: int) -> None:
    """Also where both are connected to one worker and the streams are the other's."""
    with world(tmp_path, workers, affinity=False) as node:
        there = node.name(workers - 1)
        node.fill(there, [b"0"])
        noisy, neighbour = node.connect(), node.connect()
        assert node.ask(neighbour, "ack on") == ["ok ack on"]
        noisy.send("ack on", *(f"pub n{number} |x" for number in range(200)))
        for number in range(5):
            neighbour.send(f"pub {there} |x")
            turns(node, 4)
            assert neighbour.take() == [f"ok pub {there} {number + 1}"]
        made = sum(len(worker.owner.catalog.names) for worker in node.workers) - 1
        assert 0 < made < 100
        assert node.client_of(noisy).paused & Pause.WORK, "it is not read while it waits"
        node.settle()
        assert noisy.take() == ["ok ack on", *(f"ok pub n{number} 0" for number in range(200))]
        assert not node.client_of(noisy).paused and not any(len(worker.work) for worker in node.workers)
        assert all(not route.bytes_held for worker in node.workers for route in worker.routes.values())


@pytest.mark.usefixtures("one_a_turn")
@pytest.mark.parametrize("slot", [0, 1])
def test_commands_of_a_connection_keep_their_order(tmp_path: Path, slot: int) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        name, other = node.name(slot), node.name(slot, "t")
        peer = node.connect()
        lines = node.ask(
            peer,
            "ping",
            f"pub {name} |a",
            f"pub {other} |b",
            "ping",
            f"sub {name} new wait",
            f"pub {name} |c",
            "nonsense",
            "ping",
        )
        assert lines == ["ok pong", "ok pong", f"ok sub {name} 1", *lines[3:]]
        assert [line.split()[:2] for line in lines[3:]] == [["err", "command"], ["ok", "pong"], ["msg", name]]


@pytest.mark.usefixtures("one_a_turn")
def test_forwarded_streams_that_are_made_one_by_one_are_answered_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    pack = sibling.pack_partly

    def counted(number: int, rows: list[tuple[int, sibling.ForwardResult]]) -> bytes:
        told.append(len(rows))
        return pack(number, rows)

    monkeypatch.setattr("tailrace.broker.routing.worker_links.PARTLY_S", 60.0)
    monkeypatch.setattr(sibling, "pack_partly", counted)
    with world(tmp_path, 2, affinity=False) as node:
        names = [name for name in map("s{}".format, range(1_000)) if node.owner_of(name) == 1][: 2 * PARTLY_ROWS + 9]
        peer = node.connect(0)
        peer.send("ack on", *(f"pub {name} |x" for name in names))
        turns(node, len(names) + 9)
        assert peer.take()[1:] == [f"ok pub {name} 0" for name in names]
    assert told == [0, PARTLY_ROWS, PARTLY_ROWS], "that they wait; the rest is the answer"


def test_answers_to_forwarded_publishes_are_not_kept_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last stream waits for something else than its turn, the loop does not sleep over the others'."""
    with world(tmp_path, 2, affinity=False) as node:
        owner = node.workers[1]
        here, blocked = node.name(1), node.name(1, "blocked")
        owner.work.block(blocked.encode())
        peer = node.connect(0)
        peer.send("ack on", f"pub {here} |x", f"pub {blocked} |x")
        turns(node, 3)
        assert not owner.siblings.partly or owner._wait_s() <= PARTLY_S
        owner.work.unblock(blocked.encode())
        node.settle()
        assert peer.take()[1:] == [f"ok pub {here} 0", f"ok pub {blocked} 0"]


@pytest.mark.usefixtures("one_a_turn")
def test_a_refusal_keeps_its_place_among_the_answers(tmp_path: Path) -> None:
    with world(tmp_path, max_streams_connection=1) as node:
        peer = node.connect()
        lines = node.ask(peer, "pub a |x", "pub b |x", "ping")
        assert [line.split()[:2] for line in lines] == [["err", "streams"], ["ok", "pong"]]


@pytest.mark.usefixtures("one_a_turn")
def test_subscribing_and_unsubscribing_over_closed_streams(tmp_path: Path) -> None:
    with world(tmp_path, 2, affinity=False, max_open_streams=1) as node:
        names = [f"s{number}" for number in range(20)]
        for name in names:
            node.fill(name, [b"x"])
        noisy, neighbour = node.connect(), node.connect()
        here = node.name(0, "here")
        node.fill(here, [b"0"])
        noisy.send(*(line for name in names for line in (f"sub {name} 0 wait", f"unsub {name}")))
        neighbour.send(f"pub {here} |1", "ping")
        turns(node, 2)
        assert neighbour.take() == ["ok pong"] and len(noisy.lines) < 10
        node.settle()
        answers = [line for line in noisy.take() if line.startswith("ok")]
        assert answers == [line for name in names for line in (f"ok sub {name} 0", f"ok unsub {name}")]


@pytest.mark.usefixtures("one_a_turn")
def test_publishes_of_the_binary_protocol_wait_too(tmp_path: Path) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        peer = BinaryPeer(node)
        names = [f"s{number}" for number in range(10)]
        peer.open(*names)
        first = peer.publish(range(1, 11), b"x")
        second = peer.publish(range(1, 11), b"y")
        turns(node, 2)
        assert peer.take() == [] and node.binary_client_of(peer.peer).paused & Pause.WORK
        node.settle()
        assert peer.take() == [m.Published(first, ((0, 1, 0),) * 10), m.Published(second, ((1, 1, 0),) * 10)]
        assert not node.binary_client_of(peer.peer).paused


@pytest.mark.usefixtures("one_a_turn")
def test_another_node_is_read_on_for_longer(tmp_path: Path) -> None:
    """Others wait for its reports of the messages it holds."""
    with world(tmp_path) as node:
        client = node.binary_client_of(BinaryPeer(node, node_id="node-b").peer)
        for number in range(NODE_HELD_UP_MAX + 1):
            assert not client.paused & Pause.WORK
            node.workers[0].work.do(b"s%d" % number, (client,), lambda: None)
        assert client.paused & Pause.WORK
        turns(node, NODE_HELD_UP_MAX // 2 + 1)
        assert not client.paused and client.held_up == NODE_HELD_UP_MAX // 2


@pytest.mark.usefixtures("one_a_turn")
def test_a_retired_worker_gives_back_what_waits(tmp_path: Path) -> None:
    """Its own clients' publishes go on to its successor, and those of siblings go back to them, in their order."""
    with world(tmp_path, 2, affinity=False) as node:
        retired, asking = node.workers[1], node.workers[0]
        names = [f"s{number}" for number in range(40) if node.owner_of(f"s{number}") == 1]
        far, near = node.connect(0), node.connect(1)
        node.ask(far, "ack on"), node.ask(near, "ack on")
        for peer in (far, near):
            peer.send(*(f"pub {name} |x" for name in names))
        turns(node, 3)
        made = len(retired.owner.catalog.names)
        assert 0 < made < len(names)
        retired._retire()
        turns(node, 2)
        assert len(retired.owner.catalog.names) == made
        route = asking.routes[1]
        (waiting,) = route.waiting
        assert isinstance(waiting, ForwardedBatches)
        link = Mock()
        waiting.send(link)
        link.queue.assert_called_once()
        assert 0 < len(waiting._batches) < len(names), "some are answered"
        forwards = [request for request in retired.routes[1].waiting if isinstance(request, ForwardedBatches)]
        assert 0 < sum(len(request._batches) for request in forwards) < len(names)
        waiting.fail(Code.UNAVAILABLE, "the test ends")
