"""Which streams have grown, and how far: what is asked, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.core.calls import PendingCall
from tailrace.core.growth_survey import GrowthMark, GrowthSurvey, StepRunner, Steps
from tailrace.errors import TailraceError, UnknownStream
from tailrace.protocol.listing import ENDS_MAX, EndRow, List, Listed

SURVEY = GrowthSurvey("s", 1.0, "here")


class Script:
    """Answers the calls of steps, one after the other."""

    def __init__(self, *answers: Listed | TailraceError) -> None:
        self.answers = list(answers)
        self.asked: list[List] = []
        self.failures: list[TailraceError] = []
        self.advanced = 0
        self.calls: list[PendingCall] = []
        self.runner = StepRunner(lambda call, _now_s: self.calls.append(call), self._advance, self._fail)

    def _advance(self, _now_s: float) -> None:
        self.advanced += 1

    def _fail(self, error: TailraceError, _now_s: float) -> None:
        self.failures.append(error)

    def run(self, steps: Steps[Any]) -> Any:
        found: list[Any] = []

        def whole() -> Steps[None]:
            found.append((yield from steps))

        self.runner.run(whole(), 0.0)
        while self.calls and self.answers:
            self.answer(self.calls.pop(0), self.answers.pop(0))
        return found[0] if found else None

    def answer(self, call: PendingCall, answer: Listed | TailraceError) -> None:
        self.asked.append(call.make(1))
        assert call.on_result is not None
        if isinstance(answer, TailraceError):
            call.error = answer
        call.on_result(call, None if isinstance(answer, TailraceError) else answer, 0.0)


class Pages(list[tuple[str, ...]]):
    def take(self, names: Sequence[str]) -> Steps[None]:
        self.append(tuple(names))
        yield from ()


def test_names_come_page_by_page_behind_a_mark_that_all_workers_know() -> None:
    pages = Pages()
    script = Script(Listed(1, mark="1"), Listed(1, mark="2"), Listed(1, ("a", "b"), next="b"), Listed(1, ("c",)))
    assert script.run(SURVEY.names(pages.take)) == GrowthMark("2", "here")
    assert pages == [("a", "b"), ("c",)]
    assert [(each.what, each.prefix, each.after) for each in script.asked] == [
        ("grown", b"s", b""),
        ("grown", b"s", b""),
        ("names", b"s", b""),
        ("names", b"s", b"b"),
    ]
    assert script.advanced == 4 and not script.runner.is_running


def test_of_what_has_grown_the_mark_of_the_first_page_is_the_next_one() -> None:
    pages = Pages()
    script = Script(Listed(1, ("a",), next="a", mark="8", known=True), Listed(1, ("b",), mark="9", known=True))
    assert script.run(SURVEY.grown(GrowthMark("7", "here"), pages.take)) == GrowthMark("8", "here")
    assert [(each.mark, each.after) for each in script.asked] == [("7", b""), ("7", b"a")]
    assert pages == [("a",), ("b",)]


def test_what_has_grown_is_not_known_without_a_mark_of_this_node() -> None:
    for mark in (None, GrowthMark("7", "elsewhere")):
        script = Script()
        assert script.run(SURVEY.grown(mark, Pages().take)) is None
        assert not script.asked
    script = Script(Listed(1, mark="9"))
    assert script.run(SURVEY.grown(GrowthMark("7", "here"), Pages().take)) is None


def test_ends_are_asked_for_several_pages_at_a_time() -> None:
    names, end = [f"s{number}" for number in range(ENDS_MAX + 1)], EndRow(0, 1, 2, 3)
    script = Script(Listed(1, tuple(names[:1]), ends=(end,)), Listed(1, tuple(names[-1:]), ends=(end,)))
    assert script.run(SURVEY.ends(names)) == {names[0]: end, names[-1]: end}
    assert [len(each.names) for each in script.asked] == [ENDS_MAX, 1]
    assert Script().run(SURVEY.ends([])) == {}


def test_a_question_that_fails_ends_the_steps_and_new_ones_take_their_place() -> None:
    script = Script(UnknownStream("why"))
    assert script.run(SURVEY.mark()) is None
    assert [str(each) for each in script.failures] == ["unknown: why"] and not script.runner.is_running
    script.run(SURVEY.mark())
    (former,) = script.calls
    script.calls.clear()
    script.answers = [Listed(1, mark="1"), Listed(1, mark="2")]
    assert script.run(SURVEY.mark()) == GrowthMark("2", "here")
    script.answer(former, Listed(1, mark="3"))
    assert not script.calls, "the answer to the former ones is of no use"
