"""The lazy heartbeat, on a clock that the tests turn."""

from __future__ import annotations

import random

import pytest

from tailrace.broker.connection.heartbeat import TICKS_AN_INTERVAL, TOUCHES_A_TICK, Heartbeats, TimerWheel

INTERVAL_S = 30.0
TICK_S = INTERVAL_S / TICKS_AN_INTERVAL
STEP_S = 0.25  # how often the worker's loop turns when nothing happens
START_S = 1_000.0


class Peer:
    """A connection that notes when it was pinged and dropped."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.life_s = room.now_s
        self.pings = 0
        self.pinged_at: list[float] = []
        self.dropped_at: list[float] = []
        self.answers = False
        self.gone_at_ping = False

    def send_ping(self) -> None:
        self.pinged_at.append(self.room.now_s - START_S)
        if self.gone_at_ping:
            self.room.heartbeats.discard(self)

    def drop_silent(self) -> None:
        self.dropped_at.append(self.room.now_s - START_S)


class Room:
    """Heartbeats and their clock."""

    def __init__(self, interval_s: float = INTERVAL_S, unanswered_max: int = 3) -> None:
        self.now_s = START_S
        self.peers: list[Peer] = []
        self.touches: list[int] = []
        self.heartbeats = Heartbeats(interval_s, unanswered_max, lambda: self.now_s)

    def peer(self) -> Peer:
        peer = Peer(self)
        self.peers.append(peer)
        self.heartbeats.add(peer)
        return peer

    def pass_time(self, seconds: float, step_s: float = STEP_S) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            for peer in self.peers:
                if peer.answers and peer.pinged_at and peer.life_s < START_S + peer.pinged_at[-1]:
                    peer.life_s = self.now_s
            self.touches.append(self.heartbeats.tick(self.now_s))


@pytest.fixture
def room() -> Room:
    return Room()


def about(*seconds: float) -> list[object]:
    """These times, or up to a tick later each than the one before it allows; a tick is what a ping waits for more."""
    return [pytest.approx(second + TICK_S / 2, abs=(number + 1) * TICK_S) for number, second in enumerate(seconds)]


# --- one peer ---------------------------------------------------------------------------------------------------------


def test_a_silent_peer_is_pinged_three_times_and_dropped(room: Room) -> None:
    peer = room.peer()
    room.pass_time(300)
    times = [*peer.pinged_at, *peer.dropped_at]
    assert times == about(30, 60, 90, 120) and len(peer.pinged_at) == 3
    assert all(later - sooner >= INTERVAL_S for sooner, later in zip([0.0, *times], times, strict=False))
    assert len(room.heartbeats) == 0


def test_a_busy_peer_is_never_pinged_and_touched_once_an_interval(room: Room) -> None:
    peer = room.peer()
    while room.now_s < START_S + 1_000:
        room.pass_time(STEP_S)
        peer.life_s = room.now_s
    assert peer.pinged_at == peer.dropped_at == []
    assert sum(room.touches) <= 1_000 / INTERVAL_S + 1


def test_a_peer_that_says_something_just_before_each_ping_is_never_pinged(room: Room) -> None:
    peer = room.peer()
    for _ in range(20):
        room.pass_time(INTERVAL_S - 2 * STEP_S)
        peer.life_s = room.now_s
    assert peer.pinged_at == []


def test_who_answers_at_once_is_touched_once_an_interval(room: Room) -> None:
    peer = room.peer()
    peer.answers = True
    room.pass_time(1_000)
    assert len(peer.pinged_at) == sum(room.touches) == pytest.approx(1_000 / INTERVAL_S, abs=2)


def test_an_answer_begins_the_count_anew(room: Room) -> None:
    peer = room.peer()
    peer.answers = True
    room.pass_time(305)
    before = len(peer.pinged_at)
    assert before >= 9 and not peer.dropped_at and peer.pings <= 1
    peer.answers = False
    room.pass_time(160)
    assert len(peer.pinged_at) == before + 3 and len(peer.dropped_at) == 1


@pytest.mark.parametrize("unanswered", [1, 2, 3])
def test_life_at_any_time_before_the_drop_saves_a_peer(room: Room, unanswered: int) -> None:
    peer = room.peer()
    while len(peer.pinged_at) < unanswered:
        room.pass_time(STEP_S)
    room.pass_time(INTERVAL_S - 2 * STEP_S)
    peer.life_s = room.now_s
    room.pass_time(INTERVAL_S - 2 * STEP_S)
    assert len(peer.pinged_at) == unanswered, "it was heard, so it has its interval again"
    room.pass_time(3 * INTERVAL_S)
    assert len(peer.pinged_at) == unanswered + 3 and peer.dropped_at == []
    room.pass_time(INTERVAL_S + 5)
    assert len(peer.dropped_at) == 1


def test_who_was_discarded_is_left_alone(room: Room) -> None:
    peer, other = room.peer(), room.peer()
    room.pass_time(40)
    room.heartbeats.discard(peer)
    room.heartbeats.discard(peer)
    room.pass_time(200)
    assert len(peer.pinged_at) == 1 and not peer.dropped_at and other.dropped_at


def test_who_is_found_gone_by_its_ping_is_forgotten(room: Room) -> None:
    peer = room.peer()
    peer.gone_at_ping = True
    room.pass_time(200)
    assert len(peer.pinged_at) == 1 and not peer.dropped_at and len(room.heartbeats) == 0


def test_a_peer_that_comes_with_an_old_sign_of_life_is_pinged_at_once(room: Room) -> None:
    peer = Peer(room)
    peer.life_s = room.now_s - 500
    room.heartbeats.add(peer)
    room.pass_time(2 * TICK_S)
    assert len(peer.pinged_at) == 1


# --- the clock --------------------------------------------------------------------------------------------------------


def test_a_loop_that_stood_still_does_not_take_that_for_silence(room: Room) -> None:
    """It was pinged, answered, and the loop saw neither for ten minutes: one ping more, and no drop."""
    peer = room.peer()
    room.pass_time(100)
    assert peer.pings == 3
    peer.life_s = room.now_s
    room.now_s += 600
    room.heartbeats.tick(room.now_s)
    assert peer.pings == 1 and not peer.dropped_at
    room.pass_time(INTERVAL_S - 1)
    assert peer.pings == 1, "the next ping is an interval later, however late the wheel is"


def test_many_that_are_due_after_a_standstill_are_pinged_once_each(room: Room) -> None:
    peers = [room.peer() for _ in range(3 * TOUCHES_A_TICK)]
    room.now_s += 600
    room.pass_time(INTERVAL_S - 1)
    assert {len(peer.pinged_at) for peer in peers} == {1}


def test_short_intervals_hold_however_coarse_the_ticks_come() -> None:
    room = Room(interval_s=0.2, unanswered_max=2)
    peer = room.peer()
    room.pass_time(2.0, step_s=0.05)
    assert len(peer.pinged_at) == 2 and len(peer.dropped_at) == 1
    assert 0.6 <= peer.dropped_at[0] <= 0.9


# --- many -------------------------------------------------------------------------------------------------------------


def test_a_tick_costs_who_is_due_not_who_is_connected(room: Room) -> None:
    """16,000 that came over 30 s, all silent but answering: each is touched once an interval, in even shares."""
    count = 16_000
    for number in range(count):
        peer = Peer(room)
        peer.answers = True
        peer.life_s = START_S - INTERVAL_S + INTERVAL_S * number / count
        room.heartbeats.add(peer)
        room.peers.append(peer)
    room.peers = []  # the room need not look through them at each step
    for _ in range(3):
        room.touches.clear()
        room.pass_time(INTERVAL_S, step_s=TICK_S)
        assert sum(room.touches) == pytest.approx(count, rel=0.1)
        assert max(room.touches) <= 1.5 * count / TICKS_AN_INTERVAL
    assert len(room.heartbeats) == count


def test_a_crowd_that_came_at_once_is_seen_to_in_shares(room: Room) -> None:
    peers = [room.peer() for _ in range(4 * TOUCHES_A_TICK + 1)]
    room.pass_time(40)
    assert max(room.touches) == TOUCHES_A_TICK
    assert [len(peer.pinged_at) for peer in peers] == [1] * len(peers)


def test_ticks_with_nobody_due_touch_nobody(room: Room) -> None:
    for _ in range(10_000):
        room.peer()
    room.pass_time(INTERVAL_S - 1)
    assert sum(room.touches) == 0


def test_random_lives_against_a_plain_model() -> None:
    """Peers that live at random against a count of what their silences so far ask for, looked at every step."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    room = Room(interval_s=3.0, unanswered_max=2)
    peers = [room.peer() for _ in range(50)]
    pinged_before = [0] * len(peers)  # when it last lived
    late_s = 0.8  # three times up to two ticks, and a step
    for _ in range(2_000):
        room.pass_time(0.1, step_s=0.1)
        for number, peer in enumerate(peers):
            silence_s = room.now_s - peer.life_s
            pings = len(peer.pinged_at) - pinged_before[number]
            if not peer.dropped_at:
                assert silence_s < 3 * 3.0 + late_s, "it should be gone"
                assert (silence_s - late_s) // 3.0 <= pings <= silence_s // 3.0 + 0.01
                if chance.random() < 0.02:
                    peer.life_s, pinged_before[number] = room.now_s + 0.05, len(peer.pinged_at)
            elif peer.dropped_at[0] == room.now_s - START_S:
                assert pings == 2 and silence_s > 8.99
    assert any(peer.dropped_at for peer in peers) and any(len(peer.pinged_at) > 2 for peer in peers)


# --- the wheel --------------------------------------------------------------------------------------------------------


def test_the_wheel_brings_up_whom_it_should_when_it_should() -> None:
    room = Room()
    wheel: TimerWheel[Peer] = TimerWheel(1.0, 8, 0.0)
    first, second, far = Peer(room), Peer(room), Peer(room)
    wheel.place(first, 1.5)
    wheel.place(second, 3.0)
    wheel.place(far, 100.0)
    assert list(wheel.come_up(1.9)) == []
    assert list(wheel.come_up(2.0)) == [(first, 1.5)]
    assert list(wheel.come_up(3.0)) == [(second, 3.0)]
    assert list(wheel.come_up(6.9)) == []
    assert list(wheel.come_up(7.0)) == [(far, 100.0)], "early, as it is further than a round"
    wheel.place(far, 6.0)
    assert list(wheel.come_up(7.5)) == [] and list(wheel.come_up(8.0)) == [(far, 6.0)]
    assert len(wheel) == 0


def test_a_peer_placed_twice_stands_once() -> None:
    room = Room()
    wheel: TimerWheel[Peer] = TimerWheel(1.0, 8, 0.0)
    peer = Peer(room)
    wheel.place(peer, 2.0)
    wheel.place(peer, 4.0)
    assert list(wheel.come_up(8.0)) == [(peer, 4.0)]


def test_settings_that_make_no_sense_are_refused() -> None:
    for tick_s, slots in ((0, 8), (1, 1)):
        with pytest.raises(ValueError, match="wheel"):
            TimerWheel(tick_s, slots, 0.0)
    for interval_s, unanswered_max in ((0, 3), (30, 0)):
        with pytest.raises(ValueError, match="heartbeat"):
            Heartbeats(interval_s, unanswered_max, lambda: 0.0)
