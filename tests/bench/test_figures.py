from __future__ import annotations

import pytest

from bench import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0364, "0.036"), (1.234, "1.23"), (12.34, "12.3"), (99.96, "100"), (123.4, "123")],
)
def test_three_digits(value: float, text: str) -> None:
    assert figures.digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(950, "950"), (1_234, "1.23 k"), (12_345, "12.3 k"), (2_345_678, "2.35 M"), (3.2e9, "3.20 G")],
)
def test_counts(value: float, text: str) -> None:
    assert figures.count(value) == text


def test_units() -> None:
    assert figures.ratio(4.567) == "4.57×"
    assert figures.mebibytes(3 * 1048576) == "3 MiB"
    assert figures.microseconds(71.25) == "71.2 µs"
    assert figures.microseconds(3_600) == "3.60 ms"
