from __future__ import annotations

from bench.rows.base import Measurement
from bench.targets import COMPILED, INTERPRETED, TargetResult, evaluate
from tests.bench.conftest import MakeResults


def _outcome(outcomes: list[TargetResult], *words: str) -> TargetResult:
    found = [outcome for outcome in outcomes if all(word in outcome.target.text for word in words)]
    assert len(found) == 1
    return found[0]


def test_ratios_of_medians_decide(make_results: MakeResults) -> None:
    results = make_results(
        {
            ("ingest-1", "tailrace"): [Measurement(v, 1, 1) for v in (2_900_000, 100, 3_000_000)],
            ("ingest-1", "jetstream"): [Measurement(500_000, 1, 1)],
            ("ingest-1", "redis"): [Measurement(800_000, 1, 1)],
        }
    )
    outcomes = evaluate(results, COMPILED)
    met = _outcome(outcomes, "silent", "JetStream")
    assert met.measured == 5.8
    assert met.met is True
    assert _outcome(outcomes, "silent", "Redis").met is False
    assert _outcome(outcomes, "acknowledged:", "Redis").met is None


def test_less_is_better_where_it_is(make_results: MakeResults) -> None:
    results = make_results(
        {
            ("turns-1", "tailrace"): [Measurement(1, 2.0, 1)],
            ("turns-1", "nats"): [Measurement(1, 2.5, 1)],
            ("latency-1000", "tailrace"): [Measurement(90, 1, 1)],
            ("latency-1000", "nats"): [Measurement(80, 1, 1)],
            ("streams", "tailrace"): [Measurement(1, 1, 1, {"private_bytes_per_stream": 400, "ready_clean_s": 3.5})],
        }
    )
    outcomes = evaluate(results, COMPILED)
    assert _outcome(outcomes, "CPU", "1 stream").met is True
    assert _outcome(outcomes, "latency at 1,000", "tailrace,", "median: NATS").met is False
    assert _outcome(outcomes, "idle stream").met is True
    assert _outcome(outcomes, "clean stop: 3 s").met is False
    assert _outcome(outcomes, "unclean").met is None


def test_targets_of_the_binary_protocol(make_results: MakeResults) -> None:
    crowd = {"resident_bytes_per_connection": 5_900.0, "idle_cpu_percent": 1.2}
    results = make_results(
        {
            ("ingest-1", "tailrace-binary-acks"): [Measurement(5_500_000, 1, 1)],
            ("ingest-1", "jetstream"): [Measurement(500_000, 1, 1)],
            ("ingest-1", "nats"): [Measurement(6_000_000, 1, 1)],
            ("connections-16000", "tailrace-binary"): [Measurement(300, 1, 1, crowd)],
            ("connections-16000", "nats"): [Measurement(800, 1, 1)],
            ("streams-1000", "tailrace-binary"): [Measurement(2.5, 1, 1)],
            ("streams-1000", "tailrace"): [Measurement(3.5, 1, 1)],
            ("neighbour", "tailrace-binary"): [Measurement(7_000, 1, 1, {"p99_raised_us": 4_900.0})],
        }
    )
    outcomes = evaluate(results, COMPILED)
    assert _outcome(outcomes, "batches", "JetStream").met is True
    assert _outcome(outcomes, "batches", "NATS").met is False
    assert _outcome(outcomes, "16,000", "have a message").met is True
    assert _outcome(outcomes, "16,000", "resident").met is True
    assert _outcome(outcomes, "16,000", "1 %").met is False
    assert _outcome(outcomes, "in turn, batches").met is True
    assert _outcome(outcomes, "in turn, lines").met is False
    assert _outcome(outcomes, "neighbour, binary").measured == 4.9
    assert _outcome(outcomes, "neighbour, lines").met is None


def test_targets_of_replication(make_results: MakeResults) -> None:
    results = make_results(
        {
            ("replicated-2", "tailrace-slaves"): [Measurement(500_000, 1, 1)],
            ("replicated-2", "tailrace-slaves-held"): [Measurement(300_000, 1, 1)],
            ("replicated-2", "jetstream-r3"): [Measurement(100_000, 1, 1)],
            ("catch-up", "tailrace-slaves"): [Measurement(1_000, 1, 1)],
            ("catch-up", "sendfile"): [Measurement(2_500, 1, 1)],
            ("catch-up", "sendfile-read"): [Measurement(1_600, 1, 1)],
        }
    )
    outcomes = evaluate(results, COMPILED)
    assert _outcome(outcomes, "1 slave,", "appended").met is True
    assert _outcome(outcomes, "1 slave,", "replicated 1").met is False
    assert _outcome(outcomes, "chain", "appended").met is None
    assert _outcome(outcomes, "catch-up", "reads").measured == 0.625
    assert _outcome(outcomes, "catch-up", "throws away").measured == 0.4


def test_targets_of_what_a_cluster_costs(make_results: MakeResults) -> None:
    results = make_results(
        {
            ("forwarded", "tailrace-cluster"): [Measurement(90, 1, 1)],
            ("forwarded-replicated", "tailrace-cluster"): [Measurement(110, 1, 1)],
            ("lease-batches", "tailrace-binary-acks"): [Measurement(-0.1, 1, 1)],
            ("lease-turns", "tailrace-binary-acks"): [Measurement(1.5, 1, 1)],
            ("lease-replicated", "tailrace-slaves-held"): [Measurement(0.5, 1, 1)],
        }
    )
    outcomes = evaluate(results, COMPILED)
    assert _outcome(outcomes, "by way of another node", "appended").met is True
    assert _outcome(outcomes, "by way of another node", "replicated").met is False
    assert _outcome(outcomes, "lease", "batches").met is True
    assert _outcome(outcomes, "lease", "a stream").met is False
    assert _outcome(outcomes, "lease", "held by a slave").met is True
    assert _outcome(outcomes, "lease", "a request").met is None


def test_the_interpreted_build_has_targets_of_its_own(make_results: MakeResults) -> None:
    outcomes = evaluate(make_results({}), INTERPRETED)
    assert {outcome.target.bound for outcome in outcomes if outcome.target.row == "ingest-1"} == {1.0}
    assert not any("fan-out" in outcome.target.text for outcome in outcomes)
