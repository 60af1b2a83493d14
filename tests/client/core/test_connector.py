"""The connections of a session against a broker in memory, on a fake clock."""

from __future__ import annotations

import pytest

from tailrace.core.connector import ConnectionPhase
from tailrace.errors import ConnectFailed, ConnectionLost, Denied
from tailrace.protocol import messages as m
from tests.client.model import Model
from tests.client.pair import Pair, error_of

# --- connecting -----------------------------------------------------------------------------------------------------


def test_a_greeting_tells_limits_and_node() -> None:
    pair = Pair(token="secret").ready()
    hello = pair.model.received[0]
    assert isinstance(hello, m.Hello)
    assert (hello.version, hello.token, hello.client.partition("/")[0]) == (1, "secret", "tailrace-py")
    assert pair.session.limits["max_envelope_bytes"] == 2 << 20
    assert pair.session.welcome is not None and pair.session.welcome.node == "node-of-model"


def test_addresses_are_tried_in_turn() -> None:
    pair = Pair(addresses=3)
    pair.unreachable = set(pair.addresses[:2])
    assert pair.ready().dialled == pair.addresses


def test_no_broker_anywhere_is_told_soon_with_every_reason() -> None:
    pair = Pair(addresses=2)
    pair.unreachable = set(pair.addresses)
    pair.wait(1.0)
    assert pair.session.phase is ConnectionPhase.CLOSED
    assert isinstance(pair.session.failure, ConnectFailed)
    assert str(pair.session.failure) == "cannot connect to model:1: refused; model:2: refused"
    assert len(pair.dialled) == 6


def test_a_wrong_token_is_told_at_once() -> None:
    model = Model()
    model.token = "right"
    pair = Pair(model, token="wrong").run()
    assert isinstance(pair.session.failure, Denied)
    assert len(pair.dialled) == 1


def test_a_broker_that_does_not_greet_is_left() -> None:
    model = Model()
    model.on_message = lambda _connection, _message: True
    pair = Pair(model, connect_timeout_s=2.0).run()
    assert pair.session.phase is ConnectionPhase.GREETING
    pair.wait(7.0)
    assert "no greeting within 2 s" in str(pair.session.failure)


def test_a_dial_that_takes_too_long() -> None:
    pair = Pair(connect_timeout_s=2.0)
    session = pair.session
    attempt = session.dial(pair.now_s)
    assert attempt is not None and attempt.address == pair.addresses[0]
    assert session.due_s == pair.now_s + 2.0
    pair.now_s += 2.0
    session.tick(pair.now_s)
    assert "no connection within 2 s" in str(session.failure)
    assert not session.dialled(attempt, pair.now_s)
    session.dial_failed(attempt, "late", pair.now_s)
    assert session.link is None


def test_what_is_no_broker() -> None:
    pair = Pair()
    attempt = pair.session.dial(pair.now_s)
    assert attempt is not None and pair.session.dialled(attempt, pair.now_s)
    pair.session.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", pair.now_s)
    assert pair.session.link is None
    pair.session.receive(b"more", pair.now_s)  # of a connection that was left
    assert pair.session.phase is ConnectionPhase.CLOSED, "it will not become one"
    assert "127.0.0.1" not in str(pair.session.failure) and "it answers in HTTP" in str(pair.session.failure)


def test_another_address_is_tried_beside_what_is_no_broker() -> None:
    pair = Pair(addresses=2)
    attempt = pair.session.dial(pair.now_s)
    assert attempt is not None and pair.session.dialled(attempt, pair.now_s)
    pair.session.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", pair.now_s)
    assert pair.session.phase is not ConnectionPhase.CLOSED
    second = pair.session.dial(pair.now_s)
    assert second is not None and second.address == pair.addresses[1]


def test_a_second_welcome_is_a_fault_and_only_of_that_connection() -> None:
    pair = Pair().ready()
    pair.peer.say(m.Welcome(1, (), "", "", 0, {}))
    pair.run()
    assert pair.session.phase is ConnectionPhase.WAITING
    assert pair.wait(1.0).session.phase is ConnectionPhase.READY


# --- losing and finding the connection --------------------------------------------------------------------------------


def test_a_good_connection_is_replaced_at_once() -> None:
    pair = Pair().ready().wait(5.0)
    pair.cut()
    assert pair.run().session.phase is ConnectionPhase.READY
    assert pair.session.connections == 2


def test_a_broker_that_is_gone_is_sought_with_growing_pauses_until_enough() -> None:
    pair = Pair(reconnect_s=60.0).ready().wait(5.0)
    pair.unreachable = set(pair.addresses)
    lost = pair.publish(b"never", timeout_s=500.0)
    pair.cut()
    pair.wait(59.0)
    assert pair.session.phase is not ConnectionPhase.CLOSED
    assert 10 < len(pair.dialled) < 25
    pair.wait(10.0)
    assert isinstance(pair.session.failure, ConnectionLost)
    assert isinstance(error_of(lost), ConnectionLost)
    assert "did not come back within 60 s (model:1: refused)" in str(error_of(lost))
    with pytest.raises(ConnectionLost, match="given up"):
        pair.publish(b"later")


def test_a_broker_that_closes_sends_to_the_next_address() -> None:
    pair = Pair(addresses=2).ready().wait(5.0)
    pair.peer.end_with("closing")
    pair.run()
    assert pair.dialled == pair.addresses
    assert pair.session.phase is ConnectionPhase.READY


def test_connections_that_die_young_are_not_replaced_in_a_hurry() -> None:
    pair = Pair().ready()
    pauses_s = []
    for _ in range(5):
        pair.cut()
        assert pair.run().session.phase is ConnectionPhase.WAITING
        pauses_s.append(pair.session.due_s - pair.now_s)
        pair.run(pair.session.due_s)
    assert pauses_s == pytest.approx([0.0375, 0.075, 0.15, 0.3, 0.6])
    assert pair.session.connections == 6


def test_a_fatal_error_of_the_protocol_is_no_reason_to_hurry() -> None:
    """The cause of the broker's error may be sent again."""
    pair = Pair().ready()
    pair.publish(b"x")
    pair.run()
    pair.peer.end_with("protocol")
    assert pair.run().session.phase is ConnectionPhase.WAITING


def test_heartbeat_pings_a_silent_broker_and_leaves_a_dead_one() -> None:
    pair = Pair(heartbeat_s=10.0).ready()
    pair.wait(35.0)
    assert len(pair.model.said(m.Ping)) == 3  # each was answered
    pair.model.on_message = lambda _connection, message: isinstance(message, m.Ping)
    pair.wait(34.0)
    assert len(pair.model.said(m.Ping)) == 6
    assert pair.session.connections == 1
    pair.wait(1.0)
    assert pair.session.connections == 2


def muted(pair: Pair) -> Pair:
    """Nothing is answered by the node at the first address from now on; others greet, and answer."""
    connection = pair.peer
    pair.model.on_message = lambda each, _message: each is connection
    return pair


def test_a_publish_to_a_broker_that_has_vanished_goes_to_the_next_address_after_5_s() -> None:
    pair = muted(Pair(addresses=2).ready().wait(20.0))
    pair.silent = {pair.addresses[0]}
    publication = pair.publish(b"x")
    pair.wait(4.9)
    assert len(pair.model.said(m.Ping)) == 1 and pair.session.connections == 1
    pair.wait(0.3)
    assert publication.done and publication.receipts and pair.dialled == pair.addresses


def test_so_does_a_subscription_that_is_asked_for() -> None:
    pair = muted(Pair(addresses=2).ready())
    pair.subscribe()
    assert pair.wait(5.2).session.connections == 2


def test_while_nothing_is_asked_silence_is_normal() -> None:
    pair = muted(Pair(addresses=2).ready())
    assert pair.wait(100.0).session.connections == 1


def test_an_address_that_swallows_packets_costs_a_second() -> None:
    pair = Pair(addresses=3)
    pair.silent = set(pair.addresses[:2])
    pair.wait(2.1)
    assert pair.session.phase is ConnectionPhase.READY and pair.dialled == pair.addresses


def test_the_silence_is_a_setting() -> None:
    pair = muted(Pair(addresses=2, silence_s=20.0).ready())
    pair.publish(b"x", timeout_s=100.0)
    assert pair.wait(19.9).session.connections == 1
    assert pair.wait(0.3).session.connections == 2


def test_a_ping_is_answered() -> None:
    pair = Pair().ready()
    pair.peer.say(m.Ping())
    pair.run()
    assert pair.model.said(m.Pong) == [m.Pong()]
