from __future__ import annotations

import pytest

from tailrace.spark.patterns import is_exact, is_wanted, needs_listing, split_patterns


def test_patterns_are_parted_by_white_space_alone() -> None:
    assert split_patterns(" orders.*  a,b\tnews orders.* ") == ("orders.*", "a,b", "news")
    assert split_patterns("") == ()


@pytest.mark.parametrize(
    ("name", "patterns", "wanted"),
    [
        ("news", (), True),
        ("$sys", (), False),
        ("news", ("news",), True),
        ("newsy", ("news",), False),
        ("orders.7", ("news", "orders.*"), True),
        ("Orders.7", ("orders.*",), False),
        ("a/b/c", ("a*",), True),
        ("a[1]", ("a[1]",), True),  # a name that looks like a pattern is still a name
        ("a1", ("a[1]",), True),
        ("$sys", ("*",), False),
        ("$sys", ("$*",), True),
        ("sys", ("$*",), False),
    ],
)
def test_wanted(name: str, patterns: tuple[str, ...], wanted: bool) -> None:
    assert is_wanted(name, patterns) == wanted


def test_only_patterns_need_a_listing() -> None:
    assert needs_listing(())
    assert needs_listing(("news", "a*"))
    assert not needs_listing(("news", "a,b"))
    assert not is_exact("a?")
