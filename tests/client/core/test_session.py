"""The session against a broker in memory, on a fake clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailrace.core.connector import ConnectionPhase
from tailrace.core.message import Receipt
from tailrace.core.places import NOW, Seq
from tailrace.errors import (
    ClientClosed,
    ConnectionLost,
    DiskFull,
    MessageTooLarge,
    OperationTimeout,
    Overloaded,
    ProducerUnknown,
    StreamDeleted,
    StreamDisabled,
    StreamUnavailable,
    TooManyHandles,
    UnknownStream,
    Unsupported,
)
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import RUN_METADATA_BYTES, unpack_header
from tailrace.shard.numbering import read_numbering
from tests.client.model import Model, ModelConnection
from tests.client.pair import Pair, error_of

# --- publishing -------------------------------------------------------------------------------------------------------


def test_a_receipt() -> None:
    pair = Pair().ready()
    pair.model.publish(b"s", b"before")
    one, two = pair.publish(b"a", b"b"), pair.publish(b"c", ack=Ack.SYNCED)
    pair.run()
    assert one.outcome() == (Receipt("s", 1, 2, 1),)
    assert two.outcome() == (Receipt("s", 3, 1, 1),)
    assert pair.model.stream(b"s").payloads() == [b"before", b"a", b"b", b"c"]
    assert len(pair.model.said(m.Open)) == 1
    assert not pair.session.publications
    assert pair.session.publications.nbytes == 0


def test_to_several_streams() -> None:
    pair = Pair().ready()
    publication = pair.publish(b"a", to=("x", "y"))
    pair.run()
    assert publication.outcome() == (Receipt("x", 0, 1, 1), Receipt("y", 0, 1, 1))


def test_without_acknowledgement_errors_are_counted() -> None:
    pair = Pair().ready()
    publication = pair.publish(b"a", ack=Ack.NONE)
    assert publication.done
    assert publication.outcome() == (Receipt("s", -1, 1, 0),)
    pair.run()
    pair.peer.fail("disabled", op=m.Op.PUBLISH, id=publication.request)
    pair.run()
    assert pair.session.publications.refused == 1
    assert isinstance(pair.session.publications.last_refusal, StreamDisabled)


def test_a_refusal_is_typed() -> None:
    pair = Pair().ready()
    pair.model.on_message = refuse_publishes("disabled")
    publication = pair.publish(b"a")
    pair.run()
    assert isinstance(error_of(publication), StreamDisabled)
    assert error_of(publication).stream == "s"  # type: ignore[attr-defined]


def refuse_publishes(code: str, times: int = 1_000, handle: int = 1) -> Callable[[ModelConnection, m.AnyMessage], bool]:
    left = [times]

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if not isinstance(message, m.Publish) or message.handles != (handle,) or not left[0]:
            return False
        left[0] -= 1
        connection.fail(code, op=m.Op.PUBLISH, id=message.request)
        return True

    return on_message


def test_what_was_in_flight_is_sent_again_in_order() -> None:
    pair = Pair().ready()
    pair.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
    first = [pair.publish(b"%d" % number) for number in range(3)]
    pair.run()
    pair.cut()
    later = pair.publish(b"3")
    pair.model.on_message = lambda _connection, _message: False
    pair.wait(1.0)
    assert [each.outcome()[0].seq for each in (*first, later)] == [0, 1, 2, 3]
    assert pair.model.stream(b"s").payloads() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_was_logged_but_not_acknowledged_is_there_once_or_twice(idempotent: bool) -> None:
    pair = Pair(idempotent=idempotent).ready()
    pair.cut_after = 1  # of the answer
    publication = pair.publish(b"a")
    pair.wait(1.0)
    assert publication.outcome() == (Receipt("s", 0 if idempotent else 1, 1, 1),)
    assert pair.model.stream(b"s").payloads() == [b"a"] * (1 if idempotent else 2)


def test_a_broker_that_knows_no_producers_is_sent_no_numbers() -> None:
    pair = Pair()
    pair.model.features.clear()
    pair.ready()
    pair.cut_after = 1
    publication = pair.publish(b"a")
    pair.wait(1.0)
    assert publication.outcome() == (Receipt("s", 1, 1, 1),)
    pair.model.features.add(m.PRODUCERS_FEATURE)
    pair.cut()
    pair.ready()
    pair.cut_after = 1
    publication = pair.publish(b"b")
    pair.model.features.clear()
    pair.wait(1.0)
    assert isinstance(error_of(publication), Unsupported)


def numbers(pair: Pair) -> list[tuple[int, int]]:
    """For each PUBLISH: its producer, counted in order of arrival, and its number."""
    ids: list[bytes] = []
    found = []
    for said in pair.model.said(m.Publish):
        assert isinstance(said, m.Publish)
        header = unpack_header(said.frames)
        producer_id, number = read_numbering(said.frames[32 : 32 + header.metadata_bytes])
        ids += [producer_id] if producer_id not in ids else []
        found.append((ids.index(producer_id), number))
    return found


def test_those_behind_one_that_is_sent_again_follow_it_in_order() -> None:
    """The broker refuses the later ones for the gap; the client knows that nothing is wrong with them."""
    pair = Pair().ready()
    pair.model.on_message = refuse_publishes("unavailable", 1)
    found = [pair.publish(b"%d" % number) for number in range(4)]
    pair.wait(5.0)
    assert [each.outcome()[0].seq for each in found] == [0, 1, 2, 3]
    assert numbers(pair)[:4] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert len({line for line, _ in numbers(pair)}) == 1


def test_those_behind_one_that_failed_are_numbered_anew() -> None:
    pair = Pair().ready()
    pair.model.on_message = refuse_publishes("full", 1)
    failed, *others = [pair.publish(b"%d" % number) for number in range(4)]
    pair.run()
    assert isinstance(error_of(failed), DiskFull)
    assert [each.outcome()[0].seq for each in others] == [0, 1, 2]
    later = pair.publish(b"4")
    pair.run()
    assert later.outcome()[0].seq == 3
    assert numbers(pair)[4:] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_broker_that_has_lost_messages_is_told_of_new_ones_anew() -> None:
    pair = Pair().ready()
    pair.publish(b"a")
    pair.run()
    pair.model.streams.clear()
    again = pair.publish(b"b")
    pair.run()
    assert again.outcome()[0].seq == 0
    assert numbers(pair) == [(0, 0), (0, 1), (1, 0)]


def test_what_may_be_logged_and_cannot_be_told_raises() -> None:
    """Its answer was lost, and then the broker lost its state."""
    pair = Pair().ready()
    pair.publish(b"a")
    pair.run()
    pair.cut_after = 1
    lost, later = pair.publish(b"b"), pair.publish(b"c")
    pair.unreachable.update(pair.addresses)
    pair.run()
    pair.model.streams.clear()
    pair.unreachable.clear()
    pair.wait(5.0)
    assert isinstance(error_of(lost), ProducerUnknown)
    assert isinstance(error_of(later), ProducerUnknown)
    assert pair.publish(b"d").error is None
    pair.run()
    assert pair.model.stream(b"s").payloads() == [b"d"]


def test_nothing_is_sent_again_that_must_not_be() -> None:
    pair = Pair().ready()
    pair.cut_after = 1
    publication = pair.publish(b"a", retry=False)
    pair.wait(1.0)
    assert isinstance(error_of(publication), ConnectionLost)
    assert "may or may not be logged" in str(error_of(publication))
    assert pair.model.stream(b"s").payloads() == [b"a"]


def test_what_fails_for_a_moment_is_tried_again_and_keeps_its_stream_in_order() -> None:
    pair = Pair().ready()
    pair.model.on_message = refuse_publishes("unavailable", times=2, handle=1)
    first = pair.publish(b"0")
    pair.run()
    others = [pair.publish(b"1"), pair.publish(b"x", to=("other",))]
    pair.run()
    assert [each.done for each in (first, *others)] == [False, False, True]
    pair.wait(1.0)
    assert pair.model.stream(b"s").payloads() == [b"0", b"1"]


def test_what_fails_for_ever_is_told_in_the_end() -> None:
    pair = Pair().ready()
    pair.model.on_message = refuse_publishes("overloaded")
    publication = pair.publish(b"0", timeout_s=5.0)
    pair.wait(5.0)
    assert isinstance(error_of(publication), Overloaded)
    refused = pair.publish(b"1", retry=False)
    pair.run()
    assert isinstance(error_of(refused), Overloaded)


def test_time_runs_out() -> None:
    pair = Pair().ready()
    pair.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
    short, long = pair.publish(b"0", timeout_s=1.0), pair.publish(b"1", timeout_s=9.0)
    pair.wait(2.0)
    assert isinstance(error_of(short), OperationTimeout)
    assert not long.done
    pair.peer.say(m.Published(short.request, ((0, 1, 1),)))  # too late: nobody waits
    pair.peer.say(m.Published(long.request, ((1, 1, 1),)))
    pair.run()
    assert long.outcome() == (Receipt("s", 1, 1, 1),)


def test_the_window() -> None:
    pair = Pair(max_in_flight=2).ready()
    pair.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
    pair.publish(b"a")
    opens = [pair.session.is_open]
    pair.publish(b"b")
    opens.append(pair.session.is_open)
    pair.wait(31.0)
    assert [*opens, pair.session.is_open] == [True, False, True]


def test_the_window_counts_bytes_also_of_what_nobody_acknowledges() -> None:
    pair = Pair(max_in_flight_bytes=1_000).ready()
    pair.publish(bytes(999), ack=Ack.NONE)
    before = pair.session.is_open
    pair.run()
    assert (before, pair.session.is_open) == (False, True)


def test_more_than_one_request_may_have_is_refused_here() -> None:
    pair = Pair().ready()
    with pytest.raises(MessageTooLarge, match="in several"):
        pair.publish(*[bytes(1 << 20)] * 2)
    assert not pair.session.publications


@pytest.mark.parametrize("streams", [1, 300])
def test_a_request_may_be_as_large_as_the_broker_takes(streams: int) -> None:
    """To the byte: one more, and a broker would end the connection."""
    pair = Pair(idempotent=False).ready()
    pair.session.limits["max_envelope_bytes"] = 10_000
    room = 10_000 - 5 - 8 - 4 * streams - 32
    names = tuple(f"s{number}" for number in range(streams))
    publication = pair.publish(bytes(room), to=names)
    pair.run()
    assert len(publication.outcome()) == streams
    said = pair.model.said(m.Publish)[-1]
    assert len(m.pack(said)) == 10_000
    with pytest.raises(MessageTooLarge):
        pair.publish(bytes(room + 1), to=names)


def test_numbers_have_their_place_in_a_request() -> None:
    pair = Pair().ready()
    pair.session.limits["max_envelope_bytes"] = 10_000
    room = 10_000 - 5 - 8 - 4 - 32 - RUN_METADATA_BYTES
    pair.publish(bytes(room))
    pair.run()
    assert room < len(m.pack(pair.model.said(m.Publish)[-1])) <= 10_000
    with pytest.raises(MessageTooLarge):
        pair.publish(bytes(room + 1))


def test_what_a_new_broker_would_not_take_is_refused_here() -> None:
    pair = Pair().ready()
    pair.cut()
    waiting = pair.publish(bytes(1 << 20))
    pair.model.limits = {"max_message_bytes": 1 << 16, "max_envelope_bytes": 1 << 17}
    pair.wait(1.0)
    assert isinstance(error_of(waiting), MessageTooLarge)


def test_a_handle_that_is_refused_is_the_reason() -> None:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Open):
            connection.fail("handles", op=m.Op.OPEN, id=message.id)
            return True
        if isinstance(message, m.Publish):
            connection.fail("usage", op=m.Op.PUBLISH, id=message.request)
            return True
        return False

    pair = Pair().ready()
    pair.model.on_message = on_message
    publication = pair.publish(b"a")
    pair.run()
    assert isinstance(error_of(publication), TooManyHandles)
    pair.model.on_message = lambda _connection, _message: False
    pair.cut()
    again = pair.publish(b"a")
    pair.wait(1.0)
    assert again.receipts


# --- ending -----------------------------------------------------------------------------------------------------------


def test_closing_lets_the_broker_answer() -> None:
    pair = Pair().ready()
    publication, subscription = pair.publish(b"a"), pair.subscribe()
    pair.session.close(pair.now_s, 5.0)
    with pytest.raises(ClientClosed):
        pair.publish(b"b")
    with pytest.raises(ClientClosed):
        pair.subscribe()
    pair.run()
    assert pair.session.phase is ConnectionPhase.CLOSED
    assert publication.outcome() == (Receipt("s", 0, 1, 1),)
    assert subscription.has_news and pair.read(subscription) == []
    assert pair.session.failure is None


def test_closing_does_not_wait_for_ever() -> None:
    pair = Pair().ready()
    pair.model.on_message = lambda _connection, _message: True
    publication = pair.publish(b"a")
    pair.session.close(pair.now_s, 5.0)
    pair.wait(5.0)
    assert pair.session.phase is ConnectionPhase.CLOSED
    assert isinstance(error_of(publication), ClientClosed)


def test_closing_without_a_connection() -> None:
    pair = Pair()
    pair.session.close(pair.now_s, 5.0)
    assert pair.session.phase is ConnectionPhase.CLOSED
    pair.session.close(pair.now_s, 5.0)
    pair.session.abort()
    assert pair.session.dial(pair.now_s) is None


# --- subscribing over connections -------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_reading_goes_on_wherever_the_connection_is_cut(piece_bytes: int) -> None:
    model = Model()
    payloads = [b"%d" % number * number for number in range(8)]
    model.publish(b"s", *payloads)
    whole = Pair(model)
    subscription = whole.subscribe(Seq(0), NOW)
    sent_bytes = count_bytes(whole, lambda: whole.read(subscription))
    assert sent_bytes > 500
    for cut_after in range(1, sent_bytes + 1, 1 if piece_bytes == 1 << 20 else 13):
        pair = Pair(model, piece_bytes=piece_bytes)
        pair.cut_after = cut_after
        subscription = pair.subscribe(Seq(0), NOW)
        pair.wait(1.0)
        assert pair.payloads(subscription) == payloads, cut_after


@pytest.mark.parametrize("credit_bytes", [1, 39, 40, 41, 100, 1_000])
def test_messages_read_before_the_answer_on_a_new_connection_are_credited(credit_bytes: int) -> None:
    model = Model()
    held_back: list[tuple[ModelConnection, m.AnyMessage]] = []
    model.publish(b"s", *(bytes(8) for _ in range(10)))
    pair = Pair(model)
    subscription = pair.subscribe(Seq(0), credit_bytes=credit_bytes)
    pair.run()
    arrived = pair.session.next_arrived(subscription, None)
    assert arrived is not None

    def hold_back(connection: ModelConnection, message: m.AnyMessage) -> bool:
        held_back.extend([(connection, message)] if isinstance(message, m.Subscribe) else [])
        return isinstance(message, m.Subscribe)

    model.on_message = hold_back
    pair.cut()
    pair.wait(1.0)
    count = len(arrived.messages)
    while (arrived := pair.session.next_arrived(subscription, arrived)) is not None:
        count += len(arrived.messages)
    ((connection, message),) = held_back
    model.on_message = lambda _connection, _message: False
    connection.take(message)
    model.driver()
    pair.run()
    while messages := pair.read(subscription):
        count += len(messages)
        pair.run()
    assert count == 10


@pytest.mark.parametrize("is_read", [True, False])
def test_a_stream_that_is_unknown_after_a_reconnection_was_deleted(is_read: bool) -> None:
    model = Model()
    model.publish(b"s", b"one", b"two")
    pair = Pair(model)
    subscription = pair.subscribe(Seq(0))
    pair.run()
    read = pair.payloads(subscription) if is_read else []
    pair.cut()
    model.delete(b"s")
    pair.wait(1.0)
    assert isinstance(subscription.error, StreamDeleted)
    if not is_read:
        read = [message.payload for message in pair.session.next_arrived(subscription, None).messages]  # type: ignore[union-attr]
    assert read == [b"one", b"two"]


def test_a_stream_that_was_never_there_is_unknown() -> None:
    pair = Pair()
    pair.model.deleted.add(b"s")
    subscription = pair.subscribe(Seq(0))
    pair.run()
    assert type(subscription.error) is UnknownStream


def count_bytes(pair: Pair, then: Callable[[], object]) -> int:
    """What the broker sends until the reading is over."""
    pair.cut_after = 1 << 30
    pair.run()
    then()
    return (1 << 30) - pair.cut_after


def test_a_subscription_that_fails_for_a_moment_is_asked_for_again() -> None:
    refusals = ["unavailable", "overloaded"]

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Subscribe) and refusals:
            connection.fail(refusals.pop(), op=m.Op.SUBSCRIBE, id=message.id)
            return True
        return False

    pair = Pair().ready()
    pair.model.publish(b"s", b"a")
    pair.model.on_message = on_message
    subscription = pair.subscribe()
    pair.run()
    assert not subscription.ready
    pair.wait(1.0)
    assert pair.payloads(subscription) == [b"a"]


def test_a_subscription_that_never_comes_times_out() -> None:
    pair = Pair().ready()
    pair.model.on_message = lambda _connection, message: isinstance(message, m.Subscribe)
    subscription = pair.subscribe(timeout_s=3.0)
    pair.wait(3.0)
    with pytest.raises(OperationTimeout, match="within 3 s"):
        pair.read(subscription)


def test_a_stream_that_stays_away_is_given_up() -> None:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Subscribe):
            connection.fail("unavailable", op=m.Op.SUBSCRIBE, id=message.id)
        return isinstance(message, m.Subscribe)

    pair = Pair(reconnect_s=20.0).ready()
    subscription = pair.subscribe()
    pair.run()
    pair.model.on_message = on_message
    pair.cut()
    pair.wait(19.0)
    assert not subscription.has_news
    pair.wait(3.0)
    with pytest.raises(StreamUnavailable):
        pair.read(subscription)


def test_cancelling_tells_the_broker_and_what_still_comes_is_nobodys() -> None:
    pair = Pair().ready()
    subscription = pair.subscribe()
    pair.run()
    pair.session.cancel(subscription)
    pair.model.publish(b"s", b"late")
    pair.run()
    assert pair.model.said(m.Unsubscribe) == [m.Unsubscribe(subscription.id)]
    assert pair.read(subscription) == []
    pair.session.cancel(subscription)
    pair.peer.fail("unsubscribed", op=m.Op.UNSUBSCRIBE, id=subscription.id)
    pair.peer.fail("unknown", op=m.Op.SUBSCRIBE, id=subscription.id)
    pair.run()
    assert not pair.session.subscriptions


def test_nobody_is_asked_again_for_what_is_complete() -> None:
    pair = Pair().ready()
    pair.model.publish(b"s", b"a")
    subscription = pair.subscribe(end=NOW)
    pair.model.on_message = lambda _connection, _message: False
    pair.run()
    pair.cut()
    pair.wait(1.0)
    assert pair.payloads(subscription) == [b"a"]
    assert len(pair.model.said(m.Subscribe)) == 1


def test_readings_end_with_the_client() -> None:
    pair = Pair(reconnect_s=1.0).ready()
    subscription = pair.subscribe()
    pair.run()
    pair.unreachable = set(pair.addresses)
    pair.cut()
    pair.wait(10.0)
    with pytest.raises(ConnectionLost):
        pair.read(subscription)
