"""Preferences: the order by scores, which one large integer and a part of the nodes must give too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster import preferences
from tailrace.cluster.preferences import Preferences, score

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=60, unique=True)


def sorted_one_by_one(group: int, weights: list[tuple[str, float]]) -> list[str]:
    return [name for name, _ in sorted(weights, key=lambda each: score(group, *each))]


@given(NAMES, st.integers(0, 1 << 20), st.data())
def test_the_order_is_that_of_the_scores(names: list[str], group: int, data: st.DataObject) -> None:
    several = data.draw(st.sampled_from([[1.0], [0.5, 1.0, 3.0]]))
    weights = [(name, data.draw(st.sampled_from(several))) for name in names]
    order = sorted_one_by_one(group, weights)
    found = Preferences(weights)
    assert list(found.order(group)) == order
    assert found.first(group) == tuple(order[: preferences.FIRST])


@pytest.mark.parametrize("first", [1, 3])
def test_few_of_many_nodes(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some groups have too few hashes as large as those of the first ones usually are."""
    monkeypatch.setattr(preferences, "FIRST", first)
    weights = [(f"n{each}", 1.0) for each in range(100)]
    found = Preferences(weights)
    for group in range(200):
        assert found.first(group) == tuple(sorted_one_by_one(group, weights)[:first])


def test_nobody_to_prefer() -> None:
    assert list(Preferences([]).order(1)) == []
