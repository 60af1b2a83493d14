"""The rollup's figures on /metrics, and what a bad file does not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tailrace.supervisor.textfile import TEXTFILE_BYTES_MAX, TextfileCollector

GOOD = """\
# HELP tailrace_rollup_messages Messages that the last rollup read.
# TYPE tailrace_rollup_messages gauge
tailrace_rollup_messages 40.0
tailrace_rollup_rows{table="days"} 3
tailrace_rollup_rows{table="hours"} 5
"""


def scrape(path: Path) -> str:
    registry = CollectorRegistry()
    registry.register(TextfileCollector(path))
    return generate_latest(registry).decode()


def test_the_figures_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text(GOOD)
    shown = scrape(path)
    assert "# HELP tailrace_rollup_messages Messages that the last rollup read.\n" in shown
    assert "tailrace_rollup_messages 40.0\n" in shown
    assert 'tailrace_rollup_rows{table="hours"} 5.0\n' in shown
    assert "tailrace_textfile_error 0.0\n" in shown


def test_no_file_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "tailrace_textfile_error 0.0\n" in scrape(tmp_path / "metrics.prom")
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"tailrace_rollup_messages forty\n", "it is no Prometheus text"),
        (b"tailrace_rollup_messages\n", "it is no Prometheus text"),
        (b'tailrace_rollup_messages{a="\n', "it is no Prometheus text"),
        (b"tailrace_rollup_x{\xff} 1\n", "it is no Prometheus text"),
        (b"\x00\x01\x02", "it is no Prometheus text"),
        (b"tailrace_worker_ready 1\n", "'tailrace_worker_ready'; all names begin with tailrace_rollup_"),
        (b"tailrace_rollup_a 1\ntailrace_rollup_a 2\n", "'tailrace_rollup_a' twice"),
        (b"#" * (TEXTFILE_BYTES_MAX + 1), "larger than the 65,536 bytes"),
    ],
)
def test_a_bad_file_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, cause: str
) -> None:
    path = tmp_path / "metrics.prom"
    path.write_bytes(content)
    shown = scrape(path)
    assert "tailrace_textfile_error 1.0\n" in shown
    assert "tailrace_rollup_" not in shown
    (record,) = caplog.records
    assert cause in record.getMessage()
    assert str(path) in record.getMessage()
    assert len(record.getMessage()) < 1_000


def test_a_bad_file_is_told_once_until_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text("nothing like it\n")
    collector = TextfileCollector(path)
    for _ in range(3):
        list(collector.collect())
    assert len(caplog.records) == 1
    path.write_text("nothing like it either\n")
    list(collector.collect())
    assert len(caplog.records) == 2
    path.write_text(GOOD)
    assert [family.name for family in collector.collect()][-1] == "tailrace_textfile_error"
    assert len(caplog.records) == 2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_something_that_is_no_file_does_not_hold_the_scrape(tmp_path: Path, make: object) -> None:
    path = tmp_path / "metrics.prom"
    make(path)  # type: ignore[operator]
    assert "tailrace_textfile_error" in scrape(path)
