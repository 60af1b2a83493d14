"""The state of a session as bytes."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from tailrace.broker.connection.mqtt.in_flight import InFlight
from tailrace.broker.connection.mqtt.session_state import StateParts, pack_state, unpack_state
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5


def test_subscriptions_with_their_options_and_places(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        peer.ask(wire.publish(V5, "s", b"x", 1), wire.publish(V5, "s", b"y", 2, 9), wire.publish(V5, "w/a", b"x", 1))
        peer.subscribe(("s", 1 | 4 | 8), ("w/#", 2), raw=b"\x0b\x07")
        kept = unpack_state(pack_state(peer.client, InFlight(), lambda _stream, seq: seq and 3))
        assert [each[:6] for each in kept.subscriptions] == [
            (b"s", 1, 7, 1, True, False),
            (b"w/#", 2, 7, 0, False, True),
        ]
        assert kept.subscriptions[0].places == [(b"s", 2, 3)]
        assert (b"w/a", 1, 3) in kept.subscriptions[1].places
        assert kept.unreleased == [9] and len(kept.mark) == 6


@pytest.mark.parametrize("is_stepwise", [False, True])
def test_parts_of_the_last_time_change_nothing(tmp_path: Path, is_stepwise: bool) -> None:
    """After changes of all kinds, and also beyond the number of parts that are kept."""
    with world(tmp_path) as node:
        peer, parts, term = MqttPeer(node), StateParts(), 3

        def packed(known: StateParts | None) -> bytes:
            return pack_state(peer.client, InFlight(), lambda _stream, _seq: term, known, is_stepwise=is_stepwise)

        def agree() -> int:
            again = packed(parts)
            assert again == packed(parts) == packed(None)
            return len(unpack_state(again).subscriptions)

        peer.subscribe(*((f"s{number % 2}/{number}", 1) for number in range(20)), ("#", 0))
        assert agree() == 21
        peer.ask(wire.publish(V5, "s0/2", b"x", 1), wire.publish(V5, "s1/3", b"x", 2, 9))
        peer.take()
        assert agree() == 21
        peer.subscribe(("s0/2", 2 | 8), raw=b"\x0b\x07")
        assert agree() == 21 and b"\x07" in packed(parts)
        peer.ask(wire.unsubscribe(V5, 1, *(f"s{number % 2}/{number}" for number in range(20))))
        assert agree() == 1
        for first in range(0, 300, 100):
            filters = [f"t{number}/x" for number in range(first, first + 100)]
            peer.subscribe(*((each, 1) for each in filters))
            assert agree() == 101
            peer.ask(wire.unsubscribe(V5, 1, *filters))
        assert agree() == 1


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 9"):
        unpack_state(msgpack.packb([9, b"", [], [], [], []]))
