"""Runs of messages under way against a table of them."""

from __future__ import annotations

import random
from array import array

import pytest

from tailrace.broker.connection.mqtt.in_flight import InFlight, SentRun, sent_again
from tailrace.broker.connection.mqtt.window import IDS, SendWindow
from tailrace.protocol.mqtt.publishes import PublishForm

FORM = PublishForm(5, 1, 0, b"", 1 << 32)


def test_one_after_the_other_is_one_run() -> None:
    """A subscription of which nothing is filtered costs the same however much is under way."""
    held = InFlight()
    for number in range(100):
        held.add(1 + 10 * number, b"s", FORM, array("Q", range(10 * number, 10 * number + 10)))
    assert len(held.runs) == 1 and held.runs[0].seqs == range(1_000)
    held.forget_before(1_000)
    assert len(held.runs) == 1
    held.forget_before(1_001)
    assert not held.runs


def test_many_runs_of_acknowledged_messages_are_forgotten() -> None:
    """Behind one that is not acknowledged: they would make the record of a session larger than it may be."""
    held, window = InFlight(), SendWindow(1_000)
    for number in range(3_000):
        held.add(window.next_id, (b"s", b"t")[number % 2], FORM, array("Q", [number]))
        window.add(1)
        if number % 1_000:
            window.acknowledge(number + 1)
    held.forget_acknowledged(window.holds)
    assert [run.first_id for run in held.runs] == [1, 1_001, 2_001]


@pytest.mark.parametrize("seed", range(6))
def test_they_give_back_what_a_table_has(seed: int) -> None:
    print(f"seed {seed}")
    rng, held, window = random.Random(seed), InFlight(), SendWindow(1_000)
    table: dict[int, tuple[bytes, int, int]] = {}
    ends = {b"s": 0, b"t": 5}
    window.restore_state([1_000, rng.randrange(1, IDS + 1), 0, []])
    for _ in range(200):
        if rng.random() < 0.5 and window.room > 50:
            stream, qos, count = rng.choice((b"s", b"t")), rng.choice((1, 2)), rng.randrange(1, 20)
            step = rng.choice((1, 1, 7))
            seqs = array("Q", range(ends[stream], ends[stream] + step * count, step))
            ends[stream] = seqs[-1] + 1
            held.add(window.next_id, stream, FORM._replace(qos=qos), seqs)
            for place, seq in enumerate(seqs):
                table[(window.next_id + place - 1) % IDS + 1] = stream, qos, seq
            window.add(count)
        elif table:
            for packet_id in rng.sample(list(table), min(len(table), rng.randrange(1, 20))):
                assert window.acknowledge(packet_id)
                del table[packet_id]
            held.forget_before(window.first_id)
        copied = InFlight()
        copied.restore_state(held.export_state())
        found = {
            run.id_at(place): (run.stream, run.qos, seq)
            for run in copied.runs
            for place, seq in enumerate(run.seqs)
            if window.holds(run.id_at(place))
        }
        assert found == table


def test_what_is_sent_again_ends_at_a_parting() -> None:
    def run(stream: bytes, qos: int, *seqs: int) -> SentRun:
        return SentRun(1, stream, qos, 0, 0, seqs)

    runs = [run(b"a", 2, 3, 9), run(b"a", 2, 10, 12, 20), run(b"a", 1, 30), run(b"b", 2, 5)]
    assert sent_again(runs, {}) == {b"a": 21, b"b": 6}
    assert sent_again(runs, {b"a": 18}) == {b"a": 18, b"b": 6}, "those before it are, also of the run that it is in"
    assert sent_again(runs, {b"a": 3, b"b": 5}) == {}
