"""The state of a session as bytes."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from tailrace.broker.connection.mqtt.in_flight import InFlight
from tailrace.broker.connection.mqtt.session_state import pack_state, unpack_state
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


def test_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 9"):
        unpack_state(msgpack.packb([9, b"", [], [], [], []]))
