"""The client's heartbeat."""

from __future__ import annotations

from tailrace.heartbeat import Beat, Heartbeat


def test_a_broker_that_speaks_is_never_pinged() -> None:
    heartbeat = Heartbeat(10.0, 0.0)
    for now_s in range(0, 100, 9):
        assert heartbeat.beat(now_s) is Beat.NOTHING
        heartbeat.heard(now_s)


def test_a_silent_one_is_pinged_three_times_and_then_dead() -> None:
    heartbeat = Heartbeat(10.0, 0.0)
    beats = [(now_s, beat) for now_s in range(50) if (beat := heartbeat.beat(now_s)) is not Beat.NOTHING]
    pings = [(10, Beat.PING), (20, Beat.PING), (30, Beat.PING)]
    assert beats[:3] == pings
    assert beats[3] == (40, Beat.DEAD)


def test_any_sign_of_life_counts() -> None:
    heartbeat = Heartbeat(10.0, 0.0)
    assert heartbeat.beat(10.0) is Beat.PING
    assert heartbeat.due_s == 20.0
    heartbeat.heard(12.0)
    assert heartbeat.due_s == 22.0
    assert heartbeat.beat(21.9) is Beat.NOTHING
