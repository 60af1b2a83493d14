"""The turns of searches, without any search."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.broker.connection.search_turns import SearchTurns

Call = Callable[[], None]


class Searches:
    def __init__(self, *at_once: str) -> None:
        self.begun: list[str] = []
        self.calls: dict[str, tuple[Call, Call]] = {}
        self.at_once = at_once
        self.turns = SearchTurns(self.search)

    def search(self, key: str, pauses: Call, ended: Call) -> None:
        self.begun.append(key)
        self.calls[key] = pauses, ended
        if key in self.at_once:
            ended()

    def pause(self, key: str) -> None:
        self.calls[key][0]()

    def end(self, key: str) -> None:
        self.calls[key][1]()


def test_one_after_the_other() -> None:
    searches = Searches("a", "c")
    searches.turns.begin("abcd")
    assert searches.begun == ["a", "b"] and not searches.turns.is_idle
    searches.end("b")
    assert searches.begun == list("abcd")
    searches.end("d")
    assert searches.turns.is_idle


def test_one_that_pauses_lets_the_others_begin() -> None:
    searches = Searches("b")
    searches.turns.begin("abc")
    searches.pause("a")
    assert searches.begun == list("abc")
    searches.pause("a")
    searches.end("a")
    assert [searches.turns.is_idle] == [False], "c is under way still"
    searches.end("c")
    assert [searches.turns.is_idle, searches.turns.take_passed_over()] == [True, False]


def test_a_key_that_is_due_while_its_search_is_under_way_is_searched_again() -> None:
    searches = Searches("b")
    searches.turns.begin("a")
    searches.pause("a")
    searches.turns.begin("ab")
    assert searches.begun == ["a", "b"]
    assert [searches.turns.is_idle, searches.turns.take_passed_over()] == [True, False]
    searches.end("a")
    assert [searches.turns.take_passed_over() for _ in range(2)] == [True, False]
