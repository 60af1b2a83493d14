from __future__ import annotations

import pytest

from bench.load.limits import LoadError
from bench.peers.base import Contestant
from bench.peers.plain import BareSendfile, Plain
from bench.peers.secure import BareTLS
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows import delivering
from bench.rows.base import FILL_MESSAGES, replay_messages
from bench.rows.delivering import connections_row, consume_row, fan_out_row, many_consumers_row, replay_row, topics_row
from bench.scale import FULL, Scale
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_deliveries_are_publishes_times_subscribers(measure_row: MeasureRow) -> None:
    measured = measure_row(fan_out_row(10), Plain(100))
    assert round(measured.value / measured.extras["published_per_s"]) == 10


OURS = [kind(interpreted=interpreted_wanted()) for kind in (Tailrace, TailraceBinary)]


def test_a_full_replay_is_about_a_gigabyte() -> None:
    messages = replay_messages(FULL)
    assert messages % FILL_MESSAGES == 0
    assert 0.99e9 < TailraceBinary().replay_bytes("b.000000", messages, FULL.payload_bytes) < 1.01e9
    assert replay_messages(FULL, 5) == pytest.approx(messages / 5, rel=0.01)
    assert replay_messages(Scale(replay_bytes=1)) == FILL_MESSAGES


def test_bare_sendfile_needs_no_filling(measure_row: MeasureRow) -> None:
    measure_row(replay_row(2), BareSendfile(3_000_000))


def test_the_least_program_under_tls_shows_its_share_of_the_rate_of_the_cipher(
    measure_row: MeasureRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "cipher_bytes_per_s", lambda: 1e9)
    measured = measure_row(replay_row(1), BareTLS(3_000_000))
    assert measured.extras["cipher_rate_percent"] == pytest.approx(measured.value / 10, rel=0.01)


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_what_was_filled_comes_back(measure_row: MeasureRow, peer: Contestant) -> None:
    measured = measure_row(replay_row(2), peer)
    assert measured.extras["messages_per_s"] > 0


def test_only_who_has_consumers_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no consumers"):
        measure_row(many_consumers_row(10), Plain(100))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.system
def test_all_of_it_is_finished(measure_row: MeasureRow) -> None:
    peer = TailraceBinary(acked=True, interpreted=interpreted_wanted())
    measure_row(consume_row(), peer)
    assert measure_row(many_consumers_row(10_000, 0.01), peer).extras["gets_per_s"] > 0


def test_the_name_is_that_of_a_full_run() -> None:
    assert connections_row(8_000, 0.1).name == "connections-8000"
    assert "800 quiet" in connections_row(8_000, 0.1).title


def test_a_measurement(measure_row: MeasureRow) -> None:
    extras = measure_row(connections_row(400, 0.1), Plain(100)).extras
    assert extras["joined_per_s"] > 0
    assert extras["slowest_ms"] > 0
    assert 0 <= extras["idle_cpu_percent"] < 50
    assert extras["quiet_after_s"] >= 0


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_the_broker_bears_a_crowd(measure_row: MeasureRow, peer: Contestant) -> None:
    extras = measure_row(connections_row(300), peer).extras
    assert 0 < extras["resident_bytes_per_connection"] < 100_000


@pytest.mark.slow
@pytest.mark.system
def test_each_topic_has_its_subscriber(measure_row: MeasureRow) -> None:
    row = topics_row(20)
    peer = row.suited(Tailrace(interpreted=interpreted_wanted()))
    assert measure_row(row, peer).value > 0
