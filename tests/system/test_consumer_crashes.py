"""Any party dies, at any point of any call: a message that was put is processed once by each consumer.

Every cell of {who dies} x {when} x {during which call} is a test. All cells of one victim are played together, on a
stream of their own each: one fall comes over them all. TAILRACE_CRASH_ROUNDS=20 plays as many rounds at random points
and parts of requests; TAILRACE_TEST_SEED repeats them.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.protocol.messages import Op
from tests.system.consumer_cells import Cell, Victim, at_random, matrix
from tests.system.consumer_ground import CALL_S, Ground, alone, pair
from tests.system.consumer_ledger import Effect, read
from tests.system.consumer_party import Died, Party, Spec
from tests.system.consumer_play import play
from tests.system.consumer_proxy import CrashProxy, Line
from tests.system.consumer_scene import BILLING, HEARTBEAT_S, SLACK_S, Scene
from tests.system.fault_schedule import chosen_seed
from tests.system.node import wait_for
from tests.system.proxy import Cut, Way
from tests.system.tree_check import read_log
from tests.system.tree_ledger import name_in
from tests.thorough import only_thorough

pytestmark = [pytest.mark.system, pytest.mark.slow]

ALWAYS = {Victim.NODE, Victim.CUT}
"""Who falls in an ordinary run, too."""
ROUNDS_VARIABLE = "TAILRACE_CRASH_ROUNDS"
CELLS_OF_ROUND = 12
SHORT_S = 1.0  # the time-out of calls that nobody answers


class Stage:
    """Grounds that are made when they are needed, and plays that are played once, when the first test asks."""

    def __init__(self, folder: Path, closing: contextlib.ExitStack) -> None:
        self._folder = folder
        self._closing = closing
        self._grounds: dict[str, Ground] = {}
        self._played: dict[Victim, dict[Cell, Scene]] = {}

    def ground_of(self, victim: Victim) -> Ground:
        kind = pair if victim is Victim.MASTER else alone
        if kind.__name__ not in self._grounds:
            self._grounds[kind.__name__] = self._closing.enter_context(kind(self._folder))
        return self._grounds[kind.__name__]

    def folder(self, name: str) -> Path:
        made = self._folder / name
        made.mkdir()
        return made

    def scene(self, cell: Cell) -> Scene:
        """The result of a cell of the matrix."""
        victim = cell.victim
        if victim not in self._played:
            scenes = play(self.ground_of(victim), matrix([victim]), self.folder(victim.name.lower()))
            self._played[victim] = {scene.cell: scene for scene in scenes}
        return self._played[victim][cell]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with contextlib.ExitStack() as closing:
        yield Stage(tmp_path_factory.mktemp("crashes"), closing)


@pytest.mark.few(5)
@pytest.mark.parametrize("cell", [*matrix(ALWAYS), *only_thorough(*matrix(set(Victim) - ALWAYS))], ids=str)
def test_crash(stage: Stage, cell: Cell) -> None:
    faults = stage.scene(cell).faults
    assert not faults, "\n".join(faults)


@pytest.mark.thorough
def test_crashes_at_random_points(stage: Stage) -> None:
    dice = random.Random(chosen_seed())
    victims: list[Victim] = []
    for number in range(int(os.environ.get(ROUNDS_VARIABLE) or 1)):
        victims = victims or dice.sample(list(Victim), len(Victim))
        victim = victims.pop()
        cells = at_random(dice, victim, CELLS_OF_ROUND)
        scenes = play(stage.ground_of(victim), cells, stage.folder(f"round-{number}"), at_random=True)
        faults = [f"round {number}, {scene.cell!r}: {fault}" for scene in scenes for fault in scene.faults]
        assert not faults, "\n".join(faults)


# --- the four cases that the first design of this kind had to answer --------------------------------------------------


class Case:
    """A client that puts and gets, through a line of its own, to a stream with one durable consumer."""

    def __init__(self, ground: Ground, proxy: CrashProxy, folder: Path, stream: str) -> None:
        self.ground = ground
        self.stream = stream
        self.line = proxy.line(ground.ports[0])
        self._books = folder / "books.db"
        self._clients: list[Party] = []
        with ground.master.client() as admin:
            assert admin.ask(f"master {stream}").startswith("ok ")
        ground.client.create_consumer(stream, BILLING)
        self.client = self.start()

    def start(self, timeout_s: float = CALL_S) -> Party:
        """The client, or a new one in its place."""
        spec = Spec((self.line.address,), self.stream, self._books, "client", timeout_s, HEARTBEAT_S)
        self.client = Party(spec)
        self._clients.append(self.client)
        return self.client

    def put(self, name: str) -> None:
        """By somebody else."""
        self.ground.client.publish(self.stream, f"{name}|".encode())

    def log(self) -> list[str]:
        return [name_in(message.payload) for message in read_log(self.ground.master.data, self.stream)]

    def done(self) -> list[Effect]:
        return read(self._books, self.stream, BILLING)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def case(stage: Stage, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    with CrashProxy() as proxy:
        made = Case(stage.ground_of(Victim.NODE), proxy, tmp_path, request.node.name)
        try:
            yield made
        finally:
            made.close()


def test_client_crashes_after_sending_and_before_the_reply(case: Case) -> None:
    """The message is there once. The reply to a get that nobody received is lost without harm; giving the message to a
    program that has ended counts as a delivery, whether it received it or not.
    """
    for call, words, request in (("put", (b"one|",), Op.PUBLISH), ("get", (BILLING,), Op.GET)):
        trap = case.line.arm(request, Way.TO_CLIENT)
        case.client.ask(call, *words)
        wait_for(trap.reached.is_set, "the reply is under way")
        case.client.kill()
        trap.let()
        with pytest.raises(Died):
            case.client.hear()
        case.start()
    case.client.do("drain", BILLING, 0)
    assert case.log() == ["one"]
    assert case.done() == [Effect(0, "one", "client", 2)]


def test_client_crashes_while_blocked_in_get_and_is_restarted_before_any_put(case: Case) -> None:
    trap = case.line.arm(Op.GET, Way.TO_BROKER)
    case.client.ask("get", BILLING)
    wait_for(trap.reached.is_set, "it asks")
    trap.let()
    wait_for(lambda: case.ground.client.consumers(case.stream)[0].members == 1, "the broker knows who waits")
    case.client.kill()
    case.start().ask("drain", BILLING, 0)
    case.put("one")
    assert not case.client.hear().error
    assert case.done() == [Effect(0, "one", "client", 1)]


def test_server_crashes_before_the_client_sends_a_request(case: Case) -> None:
    """A put and a get that are made while the server is down are done when it is up, and are not done twice."""
    node = case.ground.master
    for name in ("one", "two"):
        node.kill()
        case.client.ask("put", f"{name}|".encode())
        node.start()
        assert not case.client.hear().error
    node.kill()
    case.client.ask("drain", BILLING, 1)
    node.start()
    assert not case.client.hear().error
    assert case.log() == ["one", "two"]
    assert [effect.name for effect in case.done()] == ["one", "two"]


FAILURES: dict[str, Callable[[Line], None]] = {
    "reset": lambda line: line.cut(Cut.RESET),
    "closed": lambda line: line.cut(Cut.END),
    "silent": Line.silence,
}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_communication_channel_fails(case: Case, fail: Callable[[Line], None]) -> None:
    """While a put is under way, while a get waits, and between."""
    trap = case.line.arm(Op.PUBLISH, Way.TO_CLIENT)
    case.client.ask("put", b"one|")
    wait_for(trap.reached.is_set, "it is logged")
    fail(case.line)
    trap.let()
    assert not case.client.hear().error
    fail(case.line)
    case.client.do("drain", BILLING, 0)
    case.client.ask("drain", BILLING, 1)
    fail(case.line)
    case.put("two")
    assert not case.client.hear().error
    assert case.log() == ["one", "two"]
    assert [effect.name for effect in case.done()] == ["one", "two"]


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_no_call_hangs_past_its_time_out(case: Case, how: str) -> None:
    """If the server dies and stays dead, every call reports that in time."""
    case.put("one")
    calls = [("put", b"two|"), ("get", BILLING), ("ack", BILLING), ("create", "other"), ("delete", BILLING)]
    client = case.start(timeout_s=SHORT_S)
    client.do("get", BILLING)
    client.do("effect", BILLING)
    if how == "killed":
        case.ground.master.kill()
    else:
        case.line.silence(for_good=True)
    for call, *words in calls:
        client.ask(call, *words)
        told = client.hear()
        print(f"{told.call}: {told.error} after {told.seconds:.2f} s")
        assert told.error and told.seconds < SHORT_S + SLACK_S
    if how == "killed":
        case.ground.master.start()
    case.line.cut(Cut.RESET)


def test_one_that_was_taken_for_dead_comes_back(case: Case) -> None:
    """It holds a message that its successor of the same name was given as well, and has done: it finds that in its
    books.
    """
    case.put("one")
    case.put("two")
    taken_for_dead = case.client
    taken_for_dead.do("get", BILLING)
    taken_for_dead.pause()
    case.start().do("drain", BILLING, 0)
    taken_for_dead.resume()
    taken_for_dead.do("effect", BILLING)
    taken_for_dead.do("ack", BILLING)
    case.client.do("drain", BILLING, 1)
    assert [effect.name for effect in case.done()] == ["one", "two"]
