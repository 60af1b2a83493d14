from __future__ import annotations

import pytest

from bench.load.limits import LoadError
from bench.peers.base import Contestant
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.publishing import (
    client_row,
    idempotence_row,
    ingest_row,
    ingest_topics_row,
    round_robin_row,
    streams_row,
    topics_turns_row,
    turns_row,
)
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_one_stream_and_many(measure_row: MeasureRow) -> None:
    assert ingest_row(1).name == "ingest-1"
    measure_row(ingest_row(1), Plain(100))
    measure_row(ingest_row(50), Plain(100, acked=True))


def test_the_names_are_those_of_a_full_run() -> None:
    assert "a stream each" in turns_row("turns", 20, 20).title and turns_row("turns", 20, 1).title.endswith("1 stream")
    assert "20 connections" in turns_row("turns", 20, 1).title


def test_a_measurement(measure_row: MeasureRow) -> None:
    measure_row(turns_row("turns", 20, 20), Plain(100))


OURS = [
    Tailrace(interpreted=interpreted_wanted()),
    *(TailraceBinary(acked=acked, interpreted=interpreted_wanted()) for acked in (False, True)),
]


def test_it_is_as_much_slower_as_its_rates_say(measure_row: MeasureRow) -> None:
    measured = measure_row(round_robin_row(50), Plain(100))
    assert measured.value == measured.extras["one_per_s"] / measured.extras["many_per_s"]


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_the_broker_holds_all_of_it(measure_row: MeasureRow, peer: Contestant) -> None:
    measure_row(round_robin_row(50), peer)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("kind", [Tailrace, TailraceBinary], ids=["lines", "binary"])
def test_topics_lie_in_one_stream(measure_row: MeasureRow, kind: type[Tailrace]) -> None:
    single = TailraceBinary(interpreted=interpreted_wanted(), single=True)
    peer = single if kind is TailraceBinary else kind(interpreted=interpreted_wanted())
    row = ingest_topics_row(1_500)
    assert row.kind in peer.kinds
    measure_row(row, row.suited(peer))
    row = topics_turns_row(20)
    assert measure_row(row, row.suited(kind(interpreted=interpreted_wanted()))).extras["times_one_stream"] > 0


def test_only_who_numbers_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no numbers"):
        measure_row(idempotence_row(1), Plain(100))


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("how", ["wait", "tasks", "silent"])
def test_the_broker_holds_all_that_its_client_publishes(measure_row: MeasureRow, how: str) -> None:
    peer = TailraceBinary(acked=how != "silent", interpreted=interpreted_wanted())
    assert client_row(how).kind in peer.kinds
    assert measure_row(client_row(how), peer).extras["client_cpu_us"] > 0


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("messages", [1, 100])
def test_the_broker_holds_all_that_is_numbered(measure_row: MeasureRow, messages: int) -> None:
    measured = measure_row(idempotence_row(messages), TailraceBinary(acked=True, interpreted=interpreted_wanted()))
    assert measured.value == measured.extras["plain_per_s"] / measured.extras["numbered_per_s"]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.system
def test_the_broker_comes_back_after_both_ways_to_stop(measure_row: MeasureRow) -> None:
    extras = measure_row(streams_row(200), Tailrace(interpreted=interpreted_wanted())).extras
    assert 0 < extras["ready_clean_s"] < 30
    assert 0 < extras["ready_unclean_s"] < 30
    assert extras["open_files_max"] > 10
    assert extras["created_per_s"] > 0
