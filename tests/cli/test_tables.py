"""Tables and numbers for people."""

from __future__ import annotations

import pytest

from tailrace.cli import tables


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.04, "0.0 s"), (59.0, "59.0 s"), (90.0, "1.5 min"), (7_200.0, "2.0 h"), (1e6, "11.6 d")],
)
def test_times(seconds: float | None, shown: str) -> None:
    assert tables.ago(seconds) == shown


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5,120.0 TiB")],
)
def test_sizes(nbytes: int, shown: str) -> None:
    assert tables.size(nbytes) == shown


@pytest.mark.parametrize(("per_s", "shown"), [(0, "0"), (0.25, "0.25"), (9.96, "10"), (1_250.4, "1,250")])
def test_rates(per_s: float, shown: str) -> None:
    assert tables.rate(per_s) == shown


def test_counted() -> None:
    assert [tables.counted(each, "byte") for each in (0, 1, 1_000)] == ["0 bytes", "1 byte", "1,000 bytes"]


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(tables.columns([("[red]field", "[bold]value")]))
    assert capsys.readouterr().out.split() == ["[red]field", "[bold]value"]
