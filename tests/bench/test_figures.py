from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import figures
from bench.figures import median, quantile, spread


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0004, "0.000400"),
        (0.0364, "0.0364"),
        (0.9996, "1.00"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (99.96, "100"),
        (123.4, "123"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert figures.digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (950, "950"),
        (1_234, "1.23 k"),
        (12_345, "12.3 k"),
        (999.6, "1.00 k"),
        (999_999, "1.00 M"),
        (2_345_678, "2.35 M"),
        (3.2e9, "3.20 G"),
    ],
)
def test_counts(value: float, text: str) -> None:
    assert figures.count(value) == text


def test_units() -> None:
    assert figures.ratio(4.567) == "4.57×"
    assert figures.mebibytes(3 * 1048576) == "3 MiB"
    assert figures.microseconds(71.25) == "71.2 µs"
    assert figures.microseconds(999.7) == "1.00 ms"
    assert figures.microseconds(3_600) == "3.60 ms"


FINITE = st.floats(-1e9, 1e9)


def test_median_of_odd_and_even_counts() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert median([7]) == 7


def test_quantile_is_one_of_the_values() -> None:
    values = list(range(1, 101))
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile(values, 0.999) == 100
    assert quantile(values, 1) == 100
    assert quantile([5], 0.001) == 5


@given(st.lists(FINITE, min_size=1), st.floats(0.001, 1))
def test_quantile_bounds_its_share(values: list[float], share: float) -> None:
    bound = quantile(values, share)
    assert sum(value <= bound for value in values) >= share * len(values)
    assert sum(value < bound for value in values) < share * len(values)


def test_spread_is_relative_to_the_median() -> None:
    assert spread([90, 100, 120]) == pytest.approx(0.3)
    assert spread([0, 0]) == 0
    assert spread([5]) == 0


@pytest.mark.parametrize("values", [[], ()])
def test_no_values_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="no values"):
        median(values)
    with pytest.raises(ValueError, match="0 values"):
        quantile(values, 0.5)
