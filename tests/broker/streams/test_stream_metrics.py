"""Streams that are measured one by one: which they are, how many, and the figures of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.metrics import LABELS_SEPARATOR
from tailrace.broker.streams import stream_metrics
from tailrace.broker.streams.stream_metrics import StreamMetrics
from tailrace.shard.meta import Role, StreamMeta
from tests.broker.consumers.desks import Office, S
from tests.broker.owning import publish

TEXT = S.decode()


def office(path: Path, *patterns: str, **settings: Any) -> Office:
    made = Office(path, metrics_streams=patterns, **settings)
    made.publish(b"x" * 100, b"y" * 100, b"z" * 100)
    made.turn()
    return made


def measure(world: Office) -> None:
    """Ticks until a whole round has been made with the present state: for this clock a slice never ends."""
    stream_metrics = StreamMetrics(world.desk, lambda: 0.0)
    for _ in range(2):
        stream_metrics.tick()


def test_what_is_measured(tmp_path: Path) -> None:
    world = office(tmp_path, "other", TEXT)
    publish(world.owner, b"not.chosen", b"1")
    world.create()
    world.create(b"late", ("seq", 2))
    world.runs(most=2)
    world.clock.now_s += 5.0
    measure(world)
    metrics = world.owner.metrics
    [(name, stream)] = metrics.measured_streams.items()
    assert (name, stream.messages, stream.kept_messages) == (TEXT, 3, 3)
    assert stream.log_bytes == stream.kept_bytes == 3 * 132
    assert 0 < stream.first_s <= stream.last_s
    found = {key.partition(LABELS_SEPARATOR)[2]: each for key, each in metrics.measured_consumers.items()}
    assert set(found) == {"c", "late"} and all(key.startswith(f"{TEXT}\0") for key in metrics.measured_consumers)
    assert (found["c"].lag_messages, found["c"].in_flight, found["late"].lag_messages) == (3, 2, 1)
    assert found["late"].lag_s >= 5.0
    assert metrics.unmeasured == {"streams": 0, "consumers": 0}


def test_dropped_messages_count_and_are_not_kept(tmp_path: Path) -> None:
    world = office(tmp_path, TEXT)
    world.owner.trim(world.owner.stream(S), 2)
    measure(world)
    stream = world.owner.metrics.measured_streams[TEXT]
    assert (stream.messages, stream.kept_messages, stream.log_bytes, stream.kept_bytes) == (3, 1, 396, 132)
    world.owner.trim(world.owner.stream(S), 3)
    measure(world)
    stream = world.owner.metrics.measured_streams[TEXT]
    assert (stream.messages, stream.kept_messages, stream.kept_bytes, stream.first_s) == (3, 0, 0, 0.0)


def test_no_patterns_and_no_shards_cost_nothing(tmp_path: Path) -> None:
    world = office(tmp_path)
    measure(world)
    assert not world.owner.metrics.measured_streams
    world = office(tmp_path / "other", "*")
    world.owner.catalog.owning = False
    measure(world)
    assert not world.owner.metrics.measured_streams


def test_a_slave_measures_the_stream_and_not_its_consumers(tmp_path: Path) -> None:
    world = office(tmp_path, "*")
    world.create()
    world.owner.roles.set_meta(StreamMeta(TEXT, role=Role.DISABLED, epoch=1))
    measure(world)
    assert list(world.owner.metrics.measured_streams) == [TEXT] and not world.owner.metrics.measured_consumers


def test_more_than_are_measured_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_metrics, "MAX_STREAMS", 4)
    monkeypatch.setattr(stream_metrics, "MAX_CONSUMERS", 2)
    world = office(tmp_path, "*")
    for number in range(9):
        publish(world.owner, b"more%d" % number, b"1")
    for number in range(5):
        world.create(b"g%d" % number)
    measure(world)
    metrics = world.owner.metrics
    assert (len(metrics.measured_streams), len(metrics.measured_consumers)) == (4, 2)
    assert metrics.unmeasured == {"streams": 6, "consumers": 3}


def test_a_round_is_cut_into_slices_and_replaced_at_its_end(tmp_path: Path) -> None:
    world = office(tmp_path, "*")
    publish(world.owner, b"second", b"1")
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 1.0  # every step takes longer than a slice
        return now_s[0]

    measuring, metrics, ticks = StreamMetrics(world.desk, clock), world.owner.metrics, 0
    while not metrics.measured_streams:
        measuring.tick()
        ticks += 1
        assert ticks < 20
    assert ticks > 3 and set(metrics.measured_streams) == {TEXT, "second"}
    publish(world.owner, b"third", b"1")
    while "third" not in metrics.measured_streams:
        measuring.tick()
        ticks += 1
        assert ticks < 40 and len(metrics.measured_streams) >= 2


def test_a_damaged_stream_is_passed_over(tmp_path: Path) -> None:
    world = office(tmp_path, "*")
    publish(world.owner, b"sound", b"1")
    world.owner.close_logs()
    shard = world.owner.catalog.shard_path(b"sound")
    (content,) = shard.glob("sound.content")
    content.write_bytes(b"")
    for _ in range(2):
        measure(world)
    assert list(world.owner.metrics.measured_streams) == [TEXT]
