from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.matrix import main, markdown, matrix_lines
from bench.report import as_json
from bench.rows.base import Measurement
from bench.scale import QUICK
from bench.targets import COMPILED
from tests.bench.conftest import MakeResults


def _figure(value: float, cpu_us: float = 1.0, **extras: float) -> list[Measurement]:
    return [Measurement(value, cpu_us, 1, extras)]


def _table(make_results: MakeResults, measured: dict[tuple[str, str], list[Measurement]]) -> list[list[str]]:
    """The cells of each line of the table."""
    report = json.loads(json.dumps(as_json(make_results(measured), [], QUICK, {}, COMPILED, {})))
    return [line.strip("|\n").split("|") for line in markdown(matrix_lines(report)).splitlines()]


def test_what_is_lost_comes_first_and_batches_stand_apart(make_results: MakeResults) -> None:
    head, _, *lines = _table(
        make_results,
        {
            ("ingest-1", "tailrace-acks"): _figure(4e6, 0.25),
            ("ingest-1", "tailrace-single-acks"): _figure(2e5),
            ("ingest-1", "tailrace-binary-acks"): _figure(8e6),
            ("ingest-1", "tailrace"): _figure(9e6),
            ("ingest-1", "redis"): _figure(5e5, 2.0),
            ("ingest-1", "kafka"): _figure(2e6),
            ("ingest-1", "plain"): _figure(1e7),
            ("turns-of-10", "tailrace-acks"): _figure(3e4),
            ("turns-of-10", "mosquitto-qos1"): _figure(6e4),
            ("streams", "tailrace"): _figure(2e4),
        },
    )
    assert [cell.strip() for cell in head][2:5] == ["lines", "binary", "binary, one a request"]
    rows = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    assert list(rows) == [
        "`turns-of-10`, acknowledged: msg/s",
        "`ingest-1`, batches, acknowledged: msg/s",
        "`ingest-1`, acknowledged: msg/s",
        "`ingest-1`, silent: msg/s",
        "`streams`: msg/s",
    ]
    assert rows["`ingest-1`, batches, acknowledged: msg/s"][0] == "4.00"
    assert rows["`ingest-1`, acknowledged: msg/s"][0] == "8.00"  # the one of 200 k has the same load, in another way
    assert rows["`ingest-1`, acknowledged: msg/s"][1] == "4.00 M (0.250)"
    # A process other than a broker is nobody's rival, but may be the limit.
    assert rows["`ingest-1`, silent: msg/s"][:2] == ["", "9.00 M * (1.00)"]


def test_less_is_better_for_latencies_and_all_quantiles_are_told(make_results: MakeResults) -> None:
    measured = {
        ("latency-1000", "tailrace"): _figure(90, 5, p99_us=200.0, p99_9_us=1_000.0),
        ("latency-1000", "tailrace-binary"): _figure(60, 5, p99_us=300.0, p99_9_us=900.0),
        ("latency-1000", "nats"): _figure(75, 5, p99_us=100.0, p99_9_us=1_800.0),
    }
    _, _, *lines = _table(make_results, measured)
    assert [(line[0].strip(), line[1].strip()) for line in lines] == [
        ("`latency-1000`: p99 µs", "0.500"),
        ("`latency-1000`: median µs", "1.25"),
        ("`latency-1000`: p99.9 µs", "2.00"),
    ]


def test_the_command_reads_the_file_of_a_run(make_results: MakeResults, tmp_path: Path) -> None:
    results = make_results({("streams", "tailrace"): _figure(2e4), ("streams", "nats"): []})
    path = tmp_path / "part.json"
    path.write_text(json.dumps(as_json(results, [], QUICK, {}, COMPILED, {})))
    done = CliRunner().invoke(main, [str(path)])
    assert done.exit_code == 0 and "| `streams`: msg/s |  | 20.0 k (1.00) |" in done.output
