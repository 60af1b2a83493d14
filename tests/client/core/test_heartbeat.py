"""The client's heartbeat."""

from __future__ import annotations

import math

from tailrace.core.heartbeat import RECHECK_S, Beat, Heartbeat, Transit


def beats(heartbeat: Heartbeat, until_s: float) -> list[tuple[float, Beat]]:
    """What becomes due, and when, if nothing comes."""
    found: list[tuple[float, Beat]] = []
    while (now_s := heartbeat.due_s) <= until_s and (not found or found[-1][1] is not Beat.DEAD):
        beat = heartbeat.beat(now_s)
        if beat is not Beat.NOTHING:
            found.append((round(now_s, 6), beat))
    return found


def test_a_broker_that_speaks_is_never_pinged() -> None:
    heartbeat = Heartbeat(10.0, 5.0, 0.0)
    for now_s in range(0, 100, 9):
        assert heartbeat.beat(now_s) is Beat.NOTHING
        heartbeat.received(now_s)


def test_a_silent_one_is_pinged_three_times_and_then_dead() -> None:
    heartbeat = Heartbeat(10.0, 5.0, 0.0)
    assert beats(heartbeat, 50.0) == [(10.0, Beat.PING), (20.0, Beat.PING), (30.0, Beat.PING), (40.0, Beat.DEAD)]


def test_any_sign_of_life_counts() -> None:
    heartbeat = Heartbeat(10.0, 5.0, 0.0)
    assert heartbeat.beat(10.0) is Beat.PING
    assert heartbeat.due_s == 20.0
    heartbeat.received(12.0)
    assert heartbeat.due_s == 22.0
    assert heartbeat.beat(21.9) is Beat.NOTHING


def test_silence_while_an_answer_is_owed_is_pinged_after_2_s_and_dead_after_5() -> None:
    heartbeat = Heartbeat(30.0, 5.0, 0.0)
    heartbeat.owe(True, 7.0)
    assert beats(heartbeat, 50.0) == [(9.0, Beat.PING), (12.0 + RECHECK_S, Beat.DEAD)]


def test_that_more_is_asked_does_not_put_it_off() -> None:
    heartbeat = Heartbeat(30.0, 5.0, 0.0)
    for now_s in range(7, 12):
        heartbeat.owe(True, now_s)
    assert beats(heartbeat, 50.0)[-1] == (12.0 + RECHECK_S, Beat.DEAD)


def test_an_answer_ends_it_and_the_next_question_begins_anew() -> None:
    heartbeat = Heartbeat(30.0, 5.0, 0.0)
    heartbeat.owe(True, 1.0)
    assert heartbeat.beat(3.0) is Beat.PING
    heartbeat.received(3.5)
    assert heartbeat.due_s == 5.5
    heartbeat.owe(False, 3.5)
    assert heartbeat.due_s == 33.5
    heartbeat.owe(True, 10.0)
    assert beats(heartbeat, 20.0) == [(12.0, Beat.PING), (15.0 + RECHECK_S, Beat.DEAD)]


def test_a_client_that_did_not_run_for_a_while_gives_the_broker_its_time() -> None:
    """Stopped before it pinged, it cannot have an answer. Stopped after that, it reads the answer first."""
    heartbeat = Heartbeat(30.0, 5.0, 0.0)
    heartbeat.owe(True, 0.0)
    assert heartbeat.beat(20.0) is Beat.PING
    assert heartbeat.due_s == 23.0
    assert heartbeat.beat(100.0) is Beat.NOTHING, "the first look"
    heartbeat.received(100.0)
    assert heartbeat.due_s == 102.0
    assert heartbeat.beat(110.0) is Beat.PING


def test_bytes_that_are_acknowledged_one_after_the_other_are_a_sign_of_life() -> None:
    """A request that takes longer than that to get out: the PING is behind it."""
    heartbeat = Heartbeat(30.0, 5.0, 0.0)
    heartbeat.owe(True, 0.0)
    assert heartbeat.beat(2.0, Transit(1_000, 9_000)) is Beat.PING
    for now_s, acknowledged in ((5.0, 4_000), (10.0, 8_000)):
        assert heartbeat.beat(now_s, Transit(acknowledged, 10_000 - acknowledged)) is Beat.NOTHING
        assert heartbeat.due_s == now_s + 2.0
        assert heartbeat.beat(now_s + 2.0, Transit(acknowledged + 1, 9_999 - acknowledged)) is Beat.PING
    assert heartbeat.beat(15.0, Transit(10_000, 0)) is Beat.NOTHING, "all of it has come, and no answer: a first look"
    assert heartbeat.beat(15.0 + RECHECK_S, Transit(10_000, 0)) is Beat.DEAD


def test_bytes_that_are_not_acknowledged_are_none() -> None:
    heartbeat = Heartbeat(30.0, 5.0, 0.0)
    heartbeat.owe(True, 0.0)
    assert heartbeat.beat(2.0, Transit(1_000, 9_000)) is Beat.PING
    assert heartbeat.beat(5.0, Transit(1_000, 9_000)) is Beat.NOTHING
    assert heartbeat.beat(6.0, Transit(1_000, 12_000)) is Beat.DEAD


def test_times_without_end() -> None:
    heartbeat = Heartbeat(math.inf, math.inf, 0.0)
    heartbeat.owe(True, 0.0)
    assert heartbeat.due_s == math.inf and heartbeat.beat(1e9) is Beat.NOTHING
