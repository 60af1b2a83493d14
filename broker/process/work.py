"""The expensive steps of a turn: making and opening streams, changing roles. A turn does about TURN_WORK_S of them, and
goes on to TURN_WORK_MAX_S while nobody else wants anything.

The others wait for the next turns, in which everybody else has been served first. A step belongs to a stream, whose
steps keep their order, and to those who asked for it. Askers take turns, so that one who asks for thousands of streams
delays nobody else's first one, and they are held up while a step of theirs waits: their connections are not read. That
bounds the queue, by one read of each connection.

A stream can be blocked, while its role is written to the disk: its steps then wait until it is unblocked.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

_Value = TypeVar("_Value")

TURN_WORK_S: Final = 0.001
"""Of one turn. A single step may take longer, and is not interrupted; making a stream takes some half a millisecond."""
TURN_WORK_MAX_S: Final = 0.02
"""Of one turn in which nobody else wants anything; this is looked at after each step past TURN_WORK_S."""

NESTED_MAX: Final = 8
"""Steps within steps that are done at once. Most calls to this worker are answered before they return, and what takes
the answer may ask for the next page, or for the next of very many patterns."""


class Asker(Protocol):
    """Somebody whose steps may have to wait."""

    def hold_up(self) -> None:
        """One more step of theirs waits."""

    def go_on(self) -> None:
        """One of those that waited is done."""


class Nobody:
    """The asker of what no connection asked for."""

    __slots__ = ()

    def hold_up(self) -> None:
        """Nothing is read from it."""

    def go_on(self) -> None:
        """Nothing is read from it."""


NOBODY: Final = Nobody()


class Step(NamedTuple):
    """`give_back`: what to do instead when this worker gives up its shards before the step was done."""

    name: bytes
    askers: Sequence[Asker]
    do: Callable[[], object]
    give_back: Callable[[], object]


class WorkQueue:
    """The budget of the present turn and the queue of steps. `waiting`: the streams whose steps wait, for reading."""

    __slots__ = ("_blocked", "_clock", "_is_wanted", "_nested", "_steps", "spent_s", "stirred", "turns", "waiting")

    def __init__(self, clock: Callable[[], float], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """`is_wanted`: whether this worker has anything else to do now."""
        self._clock = clock
        self._is_wanted = is_wanted
        self.waiting: dict[bytes, deque[Step]] = {}
        self.turns: OrderedDict[Asker, deque[bytes]] = OrderedDict()  # an entry for each step that is not blocked
        self._blocked: dict[bytes, int] = {}
        self.spent_s = 0.0
        self._nested = 0
        self._steps = 0
        self.stirred = False  # steps were done after this turn's answers went out: the next turn must not sleep

    def __len__(self) -> int:
        """How many steps wait."""
        return self._steps

    @property
    def exhausted(self) -> bool:
        """Whether this turn has done as much as it may."""
        return self.spent_s >= TURN_WORK_S

    def begin_turn(self) -> None:
        self.spent_s = 0.0
        self.stirred = False

    def may_begin(self, name: bytes) -> bool:
        """Whether a step of this stream may be done now: nothing waits before it, and the turn has time for it."""
        has_time = self.spent_s < TURN_WORK_S and self._nested < NESTED_MAX
        return has_time and not self.turns and name not in self.waiting

    def do(
        self,
        name: bytes,
        askers: Sequence[Asker],
        step: Callable[[], object],
        give_back: Callable[[], object] | None = None,
    ) -> None:
        """Do the step now if it may begin, else when its turn comes. `give_back` is the step itself by default."""
        if self.may_begin(name):
            self.timed(step)
        else:
            self.later(name, askers, step, give_back)

    def later(
        self,
        name: bytes,
        askers: Sequence[Asker],
        step: Callable[[], object],
        give_back: Callable[[], object] | None = None,
        *,
        first: bool = False,
    ) -> None:
        """Do the step when its turn comes; with `first` before the other steps of this stream."""
        steps = self.waiting.setdefault(name, deque())
        (steps.appendleft if first else steps.append)(Step(name, askers, step, give_back or step))
        self._steps += 1
        for asker in askers:
            asker.hold_up()
        if name not in self._blocked:
            self._give_turns(name, askers)

    def timed(self, step: Callable[[], _Value]) -> _Value:
        """Do something that counts as work of this turn. Gives its value."""
        spent_s, began_s = self.spent_s, self._clock()
        self._nested += 1
        try:
            value = step()
        finally:
            self._nested -= 1
        self.spent_s = spent_s + self._clock() - began_s  # with what steps within this one took
        return value

    def run(self) -> None:
        """Do steps, those of each asker in turn, while this turn has time for them, and one of the turn at least."""
        while self.turns and self._has_time():
            self.stirred = True
            asker = next(iter(self.turns))
            names = self.turns[asker]
            name = names.popleft()
            if names:
                self.turns.move_to_end(asker)
            else:
                del self.turns[asker]
            self._run_to(asker, name)

    def finish(self, pause: Callable[[], None]) -> None:
        """Do all steps that are not blocked, however long it takes; `pause` is called between them."""
        while self.turns:
            self.begin_turn()
            self.run()
            pause()

    def block(self, name: bytes) -> None:
        """Let the steps of a stream wait from now on. Each `block` needs an `unblock`."""
        self._blocked[name] = self._blocked.get(name, 0) + 1
        self.waiting.setdefault(name, deque())

    def unblock(self, name: bytes) -> None:
        count = self._blocked.pop(name) - 1
        if count:
            self._blocked[name] = count
            return
        steps = self.waiting[name]
        if not steps:
            del self.waiting[name]
        for step in steps:
            self._give_turns(name, step.askers)

    def take_all(self) -> list[Step]:
        """All that wait, which are forgotten here. Those of one stream are in order."""
        found = [step for steps in self.waiting.values() for step in steps]
        self.waiting = {name: deque() for name in self._blocked}
        self.turns.clear()
        self._steps = 0
        for step in found:
            self._let_go(step.askers)
        return found

    def _has_time(self) -> bool:
        """Whether this turn may do a step that waits."""
        if not self.spent_s or not self.exhausted:
            return True
        return self.spent_s < TURN_WORK_MAX_S and not self._is_wanted()

    def _give_turns(self, name: bytes, askers: Iterable[Asker]) -> None:
        for asker in askers:
            self.turns.setdefault(asker, deque()).append(name)

    def _run_to(self, asker: Asker, name: bytes) -> None:
        """Do the steps of a stream up to the first of this asker, if it is not done already."""
        steps = self.waiting.get(name)
        while steps and name not in self._blocked:
            step = steps.popleft()
            self._steps -= 1
            self.timed(step.do)
            self.timed(lambda askers=step.askers: self._let_go(askers))  # type: ignore[misc]
            if any(each is asker for each in step.askers):
                break
            if self.exhausted:
                self.turns.setdefault(asker, deque()).appendleft(name)
                break
        if not steps and name not in self._blocked and self.waiting.get(name) is steps:
            self.waiting.pop(name, None)

    def _let_go(self, askers: Sequence[Asker]) -> None:
        for asker in askers:
            asker.go_on()
