"""Which tests an ordinary run has."""

from __future__ import annotations

import pytest

from tests.thorough import kept, ordinary


@pytest.mark.parametrize(
    ("cases", "few", "places"),
    [(1, 1, {0}), (5, 1, {0}), (5, 2, {0, 4}), (5, 3, {0, 2, 4}), (3, 3, {0, 1, 2}), (2, 9, {0, 1})],
)
def test_cases_are_evenly_spread(cases: int, few: int, places: set[int]) -> None:
    assert kept(cases, few) == places


@pytest.mark.parametrize("cases", [1, 2, 3, 10, 59])
def test_there_are_as_many_as_asked_for(cases: int) -> None:
    assert [len(kept(cases, few)) for few in range(1, 60)] == [min(cases, few) for few in range(1, 60)]


def test_few_cases_are_left_of_those_that_are_not_thorough(request: pytest.FixtureRequest) -> None:
    def collected(name: str, number: int, *marks: str | pytest.MarkDecorator) -> pytest.Item:
        made = pytest.Function.from_parent(
            request.node.parent, name=f"{name}[{number}]", originalname=name, callobj=lambda: None
        )
        assert isinstance(made, pytest.Function)
        for mark in marks:
            made.add_marker(mark)
        return made

    few = pytest.mark.few(2)
    items = [collected("test_few", number, few, *(["thorough"] if number > 3 else [])) for number in range(6)]
    items += [collected("test_plain", 0), collected("test_thorough", 0, "thorough"), collected("test_one", 0, few)]
    assert [item.name for item in ordinary(items)] == ["test_few[0]", "test_few[3]", "test_plain[0]", "test_one[0]"]
