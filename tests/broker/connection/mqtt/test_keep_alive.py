"""Keep alive."""

from __future__ import annotations

from tailrace.broker.connection.base import NOT_PAUSED, Pause
from tailrace.broker.connection.mqtt.keep_alive import TOUCHES_A_TICK, KeepAlives


class Peer:
    def __init__(self, keep_alive_s: int, packet_s: float = 0.0) -> None:
        self.keep_alive_s = keep_alive_s
        self.packet_s = packet_s
        self.paused = NOT_PAUSED
        self.drops: list[str] = []

    def drop_silent(self) -> None:
        self.drops.append("silent")

    def dropped(self) -> int:
        return len(self.drops)


def run(keep_alives: KeepAlives, until_s: float, begin_s: float = 0.0) -> None:
    now_s = begin_s
    while now_s < until_s:
        now_s += 0.25
        keep_alives.tick(now_s)


def test_one_and_a_half_times_the_keep_alive() -> None:
    """[MQTT-3.1.2-22]."""
    keep_alives, short, long = KeepAlives(lambda: 0.0), Peer(2), Peer(3_600)
    keep_alives.add(short)
    keep_alives.add(long)
    run(keep_alives, 2.75)
    assert not short.dropped()
    run(keep_alives, 3.5, 2.75)
    assert short.dropped() == 1
    run(keep_alives, 5_399, 3.5)
    assert not long.dropped() and len(keep_alives) == 1
    run(keep_alives, 5_400.5, 5_399)
    assert long.dropped() == 1 and len(keep_alives) == 0


def test_a_packet_prolongs_it() -> None:
    keep_alives, peer = KeepAlives(lambda: 0.0), Peer(2)
    keep_alives.add(peer)
    run(keep_alives, 2.0)
    peer.packet_s = 2.0
    run(keep_alives, 4.75, 2.0)
    assert not peer.dropped()
    run(keep_alives, 5.5, 4.75)
    assert peer.dropped() == 1


def test_without_a_keep_alive() -> None:
    keep_alives, peer = KeepAlives(lambda: 0.0), Peer(0)
    keep_alives.add(peer)
    assert len(keep_alives) == 0


def test_one_that_is_not_read_is_not_late() -> None:
    keep_alives, peer = KeepAlives(lambda: 0.0), Peer(2)
    peer.paused = Pause.LINK
    keep_alives.add(peer)
    run(keep_alives, 20.0)
    assert not peer.dropped()
    peer.paused = NOT_PAUSED
    run(keep_alives, 24.0, 20.0)
    assert peer.dropped() == 1


def test_a_tick_has_a_bound() -> None:
    keep_alives = KeepAlives(lambda: 0.0)
    peers = [Peer(2) for _ in range(TOUCHES_A_TICK + 10)]
    for peer in peers:
        keep_alives.add(peer)
    keep_alives.tick(10.0)
    assert sum(peer.dropped() for peer in peers) == TOUCHES_A_TICK
    keep_alives.tick(10.25)
    assert all(peer.dropped() for peer in peers)


def test_one_that_leaves_is_forgotten() -> None:
    keep_alives, peer = KeepAlives(lambda: 0.0), Peer(2)
    keep_alives.add(peer)
    keep_alives.discard(peer)
    run(keep_alives, 10.0)
    assert not peer.dropped()
