"""When a client leaves a node for the next one: the rule alone, and what a session does by it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tailrace.core.address import Address
from tailrace.core.failover import DRAIN_S, PATIENCE_S, PAUSE_S, Failover
from tailrace.core.message import Receipt
from tailrace.errors import ConnectionLost, NotReplicated, PartlyPublished, StreamDisabled, StreamUnavailable
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack, AnyMessage
from tests.client.model import ModelConnection
from tests.client.pair import Pair

NOW_S = 100.0


def is_leaving(failover: Failover) -> bool:
    return failover.due_s(in_flight=False) < math.inf


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_a_node_that_logs_nothing_of_a_stream_is_left_at_once() -> None:
    failover = Failover(has_choice=True)
    failover.refused("s", "disabled", NOW_S)
    assert failover.is_due(NOW_S, in_flight=False) and failover.holds_back(NOW_S)
    assert not failover.is_due(NOW_S, in_flight=True) and failover.is_due(NOW_S + DRAIN_S, in_flight=True)
    assert failover.reason == "left for the next address: s is disabled here"


@pytest.mark.parametrize("code", ["unavailable", "unreplicated"])
def test_a_node_is_given_time_to_reach_others(code: str) -> None:
    failover = Failover(has_choice=True)
    failover.refused("s", code, NOW_S)
    failover.refused("t", code, NOW_S + PATIENCE_S)
    failover.refused("s", code, NOW_S + 0.9 * PATIENCE_S)
    assert not is_leaving(failover)
    failover.published(["s"])
    failover.refused("s", code, NOW_S + 1.5 * PATIENCE_S)
    assert not is_leaving(failover)
    failover.refused("s", code, NOW_S + 2.5 * PATIENCE_S)
    assert failover.is_due(NOW_S + 2.5 * PATIENCE_S, in_flight=False)


def test_what_says_nothing_of_masters_moves_nobody() -> None:
    failover = Failover(has_choice=True)
    for at_s in (NOW_S, NOW_S + 60):
        for code in ("full", "size", "overloaded", ""):
            failover.refused("s", code, at_s)
    assert not is_leaving(failover)


def test_there_is_nowhere_to_go_with_one_address() -> None:
    failover = Failover(has_choice=False)
    failover.refused("s", "disabled", NOW_S)
    assert not is_leaving(failover)


def test_there_is_a_pause_between_two_moves() -> None:
    failover = Failover(has_choice=True)
    failover.refused("s", "disabled", NOW_S)
    failover.moved(NOW_S)
    assert not is_leaving(failover)
    failover.connected()
    failover.refused("s", "disabled", NOW_S + 0.25)
    assert not failover.holds_back(NOW_S + 0.25)
    assert failover.due_s(in_flight=False) == NOW_S + PAUSE_S


# --- a session that goes by it ----------------------------------------------------------------------------------------


def refusing(
    pair: Pair, codes: dict[int, str], *, results: bool = False
) -> Callable[[ModelConnection, AnyMessage], bool]:
    """Each publish is refused with the code of the address that it came to, if that has one."""

    def refuse(connection: ModelConnection, message: AnyMessage) -> bool:
        code = codes.get(pair.dialled[-1].port, "")
        if not isinstance(message, m.Publish) or not code:
            return False
        rows = ((7, message.count, 0, code, "0 of 1 nodes hold it"),) if results else None
        connection.fail(code, "because of the test", op=m.Op.PUBLISH, id=message.request, results=rows)
        return True

    return refuse


def ports(pair: Pair) -> list[int]:
    return [address.port for address in pair.dialled]


def test_a_publish_finds_the_master_that_has_taken_over() -> None:
    pair = Pair(addresses=2).ready().wait(5.0)
    pair.model.on_message = refusing(pair, {1: "disabled"})
    publications = [pair.publish(b"%d" % number) for number in range(5)]
    pair.wait(1.0)
    assert [each.outcome()[0].seq for each in publications] == [0, 1, 2, 3, 4]
    assert pair.model.stream(b"s").payloads() == [b"0", b"1", b"2", b"3", b"4"]
    assert ports(pair) == [1, 2]


def test_a_master_that_is_promoted_later_is_found_too() -> None:
    pair = Pair(addresses=2).ready().wait(5.0)
    codes = {1: "disabled", 2: "disabled"}
    pair.model.on_message = refusing(pair, codes)
    publication = pair.publish(b"a")
    pair.wait(6.5)
    assert not publication.done
    assert len(ports(pair)) <= 2 + 6.5 / PAUSE_S, "it goes round no faster than once in a pause"
    del codes[2]
    pair.wait(6.0)
    assert publication.outcome() == (Receipt("s", 0, 1, 1),)
    assert ports(pair)[-1] == 2


def test_no_master_anywhere_is_told_in_the_end() -> None:
    pair = Pair(addresses=2).ready()
    pair.model.on_message = refusing(pair, {1: "disabled", 2: "disabled"})
    publication = pair.publish(b"a", timeout_s=5.0)
    pair.wait(5.0)
    assert isinstance(publication.error, StreamDisabled)


def test_one_address_is_refused_at_once() -> None:
    pair = Pair().ready()
    pair.model.on_message = refusing(pair, {1: "disabled"})
    publication = pair.publish(b"a")
    pair.run()
    assert isinstance(publication.error, StreamDisabled)
    assert ports(pair.wait(10.0)) == [1]


def test_whoever_does_not_want_it_sent_again_hears_at_once_and_goes_on_elsewhere() -> None:
    pair = Pair(addresses=2).ready()
    pair.model.on_message = refusing(pair, {1: "disabled"})
    first = pair.publish(b"a", retry=False)
    pair.run()
    assert isinstance(first.error, StreamDisabled)
    second = pair.wait(1.0).publish(b"b", retry=False)
    pair.run()
    assert second.outcome() == (Receipt("s", 0, 1, 1),)
    assert ports(pair) == [1, 2]


def test_a_slave_whose_master_is_gone_is_left_after_a_while() -> None:
    pair = Pair(addresses=2).ready()
    pair.model.on_message = refusing(pair, {1: "unavailable"})
    publication = pair.publish(b"a")
    pair.wait(PATIENCE_S / 2)
    assert ports(pair) == [1]
    pair.wait(5.0)
    assert publication.outcome() == (Receipt("s", 0, 1, 1),)
    assert ports(pair) == [1, 2]


def test_a_stream_that_fails_now_and_then_moves_nobody() -> None:
    pair = Pair(addresses=2).ready()
    for _ in range(3):
        pair.model.on_message = refusing(pair, {1: "unavailable"})
        refused = pair.publish(b"a", retry=False)
        pair.run()
        assert isinstance(refused.error, StreamUnavailable)
        pair.model.on_message = refusing(pair, {})
        pair.publish(b"b", retry=False)
        pair.wait(2 * PATIENCE_S)
    assert ports(pair) == [1]


@pytest.mark.parametrize("idempotent", [True, False])
def test_parts_of_a_publish_move_a_client_too(idempotent: bool) -> None:
    pair = Pair(addresses=2, idempotent=idempotent).ready()

    def refuse(connection: ModelConnection, message: AnyMessage) -> bool:
        if not isinstance(message, m.Publish) or ports(pair) != [1]:
            return False
        rows = ((0, 1, 0, "", ""), (0, 0, 0, "disabled", "no"))
        connection.fail("disabled", op=m.Op.PUBLISH, id=message.request, results=rows)
        return True

    pair.model.on_message = refuse
    publication = pair.publish(b"a", to=("s", "t"))
    pair.wait(1.0)
    assert ports(pair) == [1, 2]
    pair.wait(5.0)
    if idempotent:  # who took it then knows it again now
        assert [receipt.seq for receipt in publication.outcome()] == [0, 0]
    else:
        assert isinstance(publication.error, PartlyPublished)


def test_nothing_that_is_under_way_is_sent_twice_by_a_move() -> None:
    pair = Pair(addresses=2).ready().wait(5.0)
    unanswered: list[AnyMessage] = []

    def answer(connection: ModelConnection, message: AnyMessage) -> bool:
        if not isinstance(message, m.Publish) or len(pair.dialled) > 1:
            return False
        if connection.handles[message.handles[0]] == b"slow":
            unanswered.append(message)
            return True
        return refusing(pair, {1: "disabled"})(connection, message)

    pair.model.on_message = answer
    slow = pair.publish(b"x", to=("slow",))
    pair.run()
    gone = pair.publish(b"a")
    pair.wait(1.0)
    late = pair.publish(b"y", to=("other",))
    pair.wait(1.0)
    assert ports(pair) == [1] and not late.done, "nothing more is sent where it would have to be waited for"
    pair.peer.take(unanswered[0])
    pair.wait(1.0)
    assert [each.outcome()[0].seq for each in (slow, gone, late)] == [0, 0, 0]
    assert pair.model.stream(b"slow").payloads() == [b"x"]
    assert ports(pair) == [1, 2]


@pytest.mark.parametrize("retry", [True, False])
def test_an_answer_that_does_not_come_holds_up_a_move_for_so_long_only(retry: bool) -> None:
    pair = Pair(addresses=2).ready().wait(5.0)

    def answer(connection: ModelConnection, message: AnyMessage) -> bool:
        is_mute = isinstance(message, m.Publish) and connection.handles[message.handles[0]] == b"mute"
        return (is_mute and len(pair.dialled) == 1) or refusing(pair, {1: "disabled"})(connection, message)

    pair.model.on_message = answer
    mute = pair.publish(b"x", to=("mute",), retry=retry)
    pair.run()
    publication = pair.publish(b"a")
    pair.wait(DRAIN_S - 0.1)
    assert ports(pair) == [1]
    pair.wait(0.2)
    assert ports(pair) == [1, 2]
    assert publication.outcome() == (Receipt("s", 0, 1, 1),)
    assert mute.outcome() if retry else isinstance(mute.error, ConnectionLost)


def test_reading_goes_on_across_a_move() -> None:
    pair = Pair(addresses=2).ready().wait(5.0)
    pair.model.publish(b"s", b"0", b"1")
    subscription = pair.subscribe()
    pair.run()
    pair.model.on_message = refusing(pair, {1: "disabled"})
    pair.publish(b"2")
    pair.wait(1.0)
    assert [each.seq for each in pair.read(subscription)] == [0, 1, 2]
    assert ports(pair) == [1, 2]


def test_logged_but_not_replicated_is_never_sent_again() -> None:
    pair = Pair(addresses=2).ready()
    pair.model.on_message = refusing(pair, {1: "unreplicated"}, results=True)
    publication = pair.publish(b"a", b"b", ack=Ack.REPLICATED, replicas=2)
    pair.wait(20.0)
    error = publication.error
    assert isinstance(error, NotReplicated)
    assert error.receipt == Receipt("s", 7, 2, 0)
    assert str(error) == "unreplicated: s: messages 7 to 8: 0 of 1 nodes hold it"
    (said,) = pair.model.said(m.Publish)
    assert isinstance(said, m.Publish) and (said.ack, said.replicas) == (Ack.REPLICATED, 2)


def test_unavailable_with_one_address_stays_where_it_is() -> None:
    pair = Pair().ready()
    pair.model.on_message = refusing(pair, {1: "unavailable"})
    publication = pair.publish(b"a", timeout_s=5.0)
    pair.wait(10.0)
    assert isinstance(publication.error, StreamUnavailable)
    assert pair.dialled == [Address("model", 1)]
