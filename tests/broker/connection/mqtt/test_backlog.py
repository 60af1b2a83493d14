"""Packets that stand behind something that waits."""

from __future__ import annotations

import pytest

from tailrace.broker.connection.mqtt.backlog import Backlog
from tailrace.protocol.mqtt.codec import AnyPacket
from tailrace.protocol.mqtt.packets import PingPacket, PublishPacket
from tailrace.protocol.mqtt.properties import NO_PROPERTIES

PING = PingPacket()


def publish(number: int) -> PublishPacket:
    return PublishPacket(b"t", b"%d" % number, 0, False, False, 0, NO_PROPERTIES)


def test_runs_of_publish_are_taken_whole_and_others_one_by_one() -> None:
    packets: list[AnyPacket] = [PING, publish(0), publish(1), PING, PING, publish(2)]
    backlog = Backlog()
    assert not backlog
    backlog.extend(packets[:2])
    backlog.extend(packets[2:])
    assert len(backlog) == 6
    taken = []
    while backlog:
        taken.append(backlog.take())
    assert taken == [packets[:1], packets[1:3], packets[3:4], packets[4:5], packets[5:]]
    with pytest.raises(IndexError):
        backlog.take()


def test_it_can_be_dropped() -> None:
    backlog = Backlog()
    backlog.clear()
    backlog.extend([PING])
    backlog.clear()
    assert not backlog
    with pytest.raises(IndexError):
        backlog.take()
