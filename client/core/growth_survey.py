"""Asks which streams have grown, or are there, page by page. Pure: generators of requests that are sent their answers.

A node that knows which streams have grown since a mark names them; of another one all names are asked for. A mark is
for the next look, so it is taken before the first page of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tailrace.core.calls import PendingCall
from tailrace.core.listing import list_call
from tailrace.errors import TailraceError
from tailrace.protocol.listing import ENDS_MAX, FEATURE, EndRow, List, Listed, ListedKind

MARKS: Final = 2
"""Questions for a mark: a worker notes growth from the first one on, so all know it from the second one on."""

T = TypeVar("T")
Steps: TypeAlias = Generator[list[PendingCall], Sequence[Listed], T]
"""Yields calls to be made at one time, and is sent their answers."""
Take: TypeAlias = Callable[[Sequence[str]], Steps[None]]
"""What is done with the names of a page."""


class GrowthMark(NamedTuple):
    text: str
    node: object


@dataclass(frozen=True, slots=True)
class GrowthSurvey:
    """`prefix`: of all names; `node`: of the connection, another value for each node."""

    prefix: str
    timeout_s: float
    node: object

    def mark(self) -> Steps[GrowthMark]:
        """Returns a mark for growth from now on."""
        answer = Listed(0)
        for _ in range(MARKS):
            (answer,) = yield [self._list("grown", "")]
        return GrowthMark(answer.mark, self.node)

    def names(self, take: Take) -> Steps[GrowthMark]:
        """All that are there."""
        mark, after, has_more = (yield from self.mark()), "", True
        while has_more:
            (answer,) = yield [self._list("names", after)]
            yield from take(answer.names)
            after, has_more = answer.next, bool(answer.next)
        return mark

    def grown(self, mark: GrowthMark | None, take: Take) -> Steps[GrowthMark | None]:
        """Those that have grown since a mark; None if the node does not know all of them."""
        if mark is None or mark.node != self.node:
            return None
        following, after, has_more = GrowthMark("", self.node), "", True
        while has_more:
            (answer,) = yield [self._list("grown", after, mark.text)]
            if not answer.known:
                return None
            following = following if following.text else GrowthMark(answer.mark, self.node)
            yield from take(answer.names)
            after, has_more = answer.next, bool(answer.next)
        return following

    def ends(self, names: Sequence[str]) -> Steps[dict[str, EndRow]]:
        """The ends of these, as far as the node knows them without opening the streams."""
        pages = [tuple([each.encode() for each in names[at : at + ENDS_MAX]]) for at in range(0, len(names), ENDS_MAX)]
        answers = (yield [self._ends(page) for page in pages]) if pages else ()
        return {name: end for answer in answers for name, end in zip(answer.names, answer.ends, strict=False)}

    def _list(self, what: ListedKind, after: str, mark: str = "") -> PendingCall:
        call, prefix = list_call(what, self.prefix, after, self.timeout_s), self.prefix.encode()
        call.make = lambda number: List(number, what, prefix, after.encode(), mark)
        return call

    def _ends(self, names: tuple[bytes, ...]) -> PendingCall:
        make = lambda number: List(number, "ends", names=names)  # noqa: E731
        return PendingCall("the node", "the list of ends", make, timeout_s=self.timeout_s, feature=FEATURE)


class StepRunner:
    """Makes the calls of one generator after the other; a new one takes the place of one that is under way."""

    def __init__(
        self,
        make: Callable[[PendingCall, float], None],
        advanced: Callable[[float], None],
        failed: Callable[[TailraceError, float], None],
    ) -> None:
        """`make`: makes a call, whose `on_result` is set; `advanced`: after each step; `failed`: a call has failed, so
        the steps are over."""
        self._make = make
        self._advanced = advanced
        self._failed = failed
        self._steps: Steps[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    def stop(self) -> None:
        self._steps = None

    def run(self, steps: Steps[None], now_s: float) -> None:
        self._steps = steps
        self._go_on(steps, [], now_s)

    def _go_on(self, steps: Steps[None], answers: Sequence[Listed], now_s: float) -> None:
        try:
            calls = steps.send(answers) if answers else next(steps)
        except StopIteration:
            if self._steps is steps:
                self._steps = None
            return
        found: dict[PendingCall, Listed] = {}

        def answered(call: PendingCall, answer: Listed | None, now_s: float) -> None:
            if self._steps is not steps:
                return
            if answer is None:
                self._steps = None
                self._failed(call.error or TailraceError(f"no answer to {call.name}"), now_s)
                return
            found[call] = answer
            if len(found) == len(calls):
                self._go_on(steps, [found[each] for each in calls], now_s)
                self._advanced(now_s)

        for call in calls:
            call.on_result = answered
            self._make(call, now_s)
