"""The window of messages that a client has not acknowledged."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tailrace.broker.connection.mqtt.window import IDS, LEAP_US, SPAN_MAX, SendWindow, leap_place


def test_in_order() -> None:
    window = SendWindow(10)
    window.add(10)
    assert window.room == 0 and window.next_id == 11
    assert [window.acknowledge(number) for number in (1, 2, 3, 3, 11, 4)] == [True, True, True, False, False, True]
    assert window.room == 4


@pytest.mark.parametrize("seed", range(5))
def test_as_a_set_of_identifiers(seed: int) -> None:
    rng, window, under_way = random.Random(seed), SendWindow(50), set[int]()
    next_id = 1
    for _ in range(20_000):
        assert window.room == 50 - len(under_way) and window.next_id == next_id
        if rng.random() < 0.5 and window.room:
            for _ in range(count := rng.randint(1, window.room)):
                under_way.add(next_id)
                next_id = next_id % IDS + 1
            window.add(count)
        elif under_way:
            number = rng.choice([min(under_way), rng.choice(list(under_way)), rng.randint(1, IDS)])
            assert window.holds(number) == (number in under_way) == window.acknowledge(number)
            under_way.discard(number)
        if rng.random() < 0.01:
            state, window = window.export_state(), SendWindow(1)
            window.restore_state(state)


@pytest.mark.parametrize("seed", range(5))
def test_a_run_of_acknowledgements_is_each_of_them(seed: int) -> None:
    rng, window, other = random.Random(seed), SendWindow(50), SendWindow(50)
    for _ in range(5_000):
        if rng.random() < 0.6 and window.room:
            count = rng.randint(1, window.room)
            window.add(count)
            other.add(count)
        first = (window.next_id - 1 - rng.choice((50, 20, 5, 1, -2))) % IDS + 1
        if rng.random() < 0.5:
            first = window.export_state()[1]
        count = rng.randint(1, 30)
        window.acknowledge_run(first, count)
        for number in range(count):
            other.acknowledge((first + number - 1) % IDS + 1)
        state, expected = window.export_state(), other.export_state()
        assert [*state[:3], sorted(state[3])] == [*expected[:3], sorted(expected[3])]


def test_identifiers_begin_again_behind_the_last() -> None:
    window = SendWindow(10)
    for number in range(1, IDS + SPAN_MAX + 20):
        packet_id = (number - 1) % IDS + 1
        assert window.next_id == packet_id
        window.add(1)
        assert window.acknowledge(packet_id) and window.room == 10


def test_crashes_of_a_minute_lead_to_identifiers_far_from_each_other() -> None:
    """A client keeps those of QoS 2 messages that were not released, and would take other messages for repeats. What a
    crash leaves need not be stored when the next one comes."""
    begin = random.Random(1).randrange(1 << 50)
    places = [leap_place(begin + number * LEAP_US) for number in range(600)]
    assert all(0 < place <= IDS for place in places)
    gaps = (after - before for before, after in pairwise(sorted(places)))
    assert min(gaps) >= 40 and min(places) + IDS - max(places) >= 40


def test_the_leap_comes_when_all_is_acknowledged_over_connections() -> None:
    window = SendWindow(10)
    window.add(3)
    window.resume(10, 500)
    assert window.room == 0 and window.next_id == 4
    again = SendWindow(10)
    again.restore_state(window.export_state())
    again.resume(10, 0)
    again.acknowledge_run(1, 2)
    assert again.room == 0
    again.acknowledge(3)
    assert again.room == 10 and again.next_id == 500


def test_one_that_is_never_acknowledged_stops_the_others_in_the_end() -> None:
    window = SendWindow(100)
    sent = 0
    while window.room:
        window.add(1)
        sent += 1
        if sent > 1:
            assert window.acknowledge(sent)
    assert sent == SPAN_MAX


def test_a_smaller_window_than_what_is_under_way() -> None:
    window = SendWindow(10)
    window.add(10)
    window.size = 5
    assert window.room == 0
