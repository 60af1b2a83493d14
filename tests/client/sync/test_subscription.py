"""Synchronous iteration over a subscription."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import tailrace
from tailrace import Client
from tailrace.protocol import messages as m
from tests.client.model_server import ModelServer

PATIENCE_S = 20.0
TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    server.publish(b"s", *TEN)
    with tailrace.connect(server.address) as client:
        yield client


def test_to_the_end_as_it_is(client: Client) -> None:
    subscription = client.subscribe("s", end=tailrace.NOW)
    assert (subscription.stream, subscription.start_seq, subscription.end_seq) == ("s", 0, 10)
    assert [message.payload for message in subscription] == TEN
    assert list(subscription) == []
    assert subscription.receive() is None
    assert repr(subscription) == "<Subscription 's' next_seq=10 OVER>"


def test_what_is_published_meanwhile_follows(client: Client, server: ModelServer) -> None:
    subscription = client.subscribe("s", tailrace.NEW)
    assert subscription.start_seq == 10
    server.publish(b"s", b"new", b"er")
    assert [next(subscription).payload, next(subscription).payload] == [b"new", b"er"]


def test_it_may_be_left_and_entered_again(client: Client) -> None:
    subscription = client.subscribe("s", end=tailrace.NOW)
    seqs = [next(subscription).seq]
    for message in subscription:
        seqs.append(message.seq)
        if message.seq == 4:
            break
    first = subscription.receive()
    assert first is not None
    seqs.append(first.seq)
    seqs += [message.seq for batch in subscription.batches() for message in batch]
    assert seqs == list(range(10))
    with pytest.raises(StopIteration):
        next(subscription)


def test_batches_begin_with_what_is_left(client: Client, server: ModelServer) -> None:
    subscription = client.subscribe("s", end=tailrace.NOW)
    next(subscription)
    assert [each.seq for each in next(subscription.batches())] == [1, 2]


def test_no_message_in_time(client: Client) -> None:
    subscription = client.subscribe("s", tailrace.NEW)
    with pytest.raises(tailrace.OperationTimeout, match="seq 10 is next"):
        subscription.receive(timeout_s=0.02)


def test_several_at_once_share_the_connection(client: Client, server: ModelServer) -> None:
    server.publish(b"t", *TEN)
    one, other = client.subscribe("s", end=tailrace.NOW), client.subscribe("t", end=tailrace.NOW)
    pairs = [(a.seq, b.seq) for a, b in zip(one, other, strict=True)]
    assert pairs == [(number, number) for number in range(10)]
    assert client.connections == 1


@pytest.mark.parametrize("credit_bytes", [1, 100])
def test_little_credit(client: Client, credit_bytes: int) -> None:
    subscription = client.subscribe("s", end=tailrace.NOW, credit_bytes=credit_bytes)
    assert [message.payload for message in subscription] == TEN


def test_errors_are_raised_where_it_is_made(client: Client, server: ModelServer) -> None:
    def on_message(connection: object, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Subscribe):
            connection.fail("unknown", op=m.Op.SUBSCRIBE, id=message.id)  # type: ignore[attr-defined]
        return isinstance(message, m.Subscribe)

    server.model.on_message = on_message
    with pytest.raises(tailrace.UnknownStream):
        client.subscribe("s")


def test_trimmed_is_raised_in_its_place_and_reading_goes_on(client: Client, server: ModelServer) -> None:
    server.call(lambda: server.model.trim(b"s", 4))
    subscription = client.subscribe("s", tailrace.Seq(1), tailrace.NOW)
    with pytest.raises(tailrace.Trimmed) as caught:
        next(subscription)
    assert (caught.value.first_seq, caught.value.last_seq) == (1, 3)
    assert [message.seq for message in subscription] == [4, 5, 6, 7, 8, 9]
    skipping = client.subscribe("s", tailrace.Seq(1), tailrace.NOW, on_trimmed="skip")
    assert [message.seq for message in skipping] == [4, 5, 6, 7, 8, 9]


def test_cancelled_by_another_thread(client: Client) -> None:
    subscription = client.subscribe("s")
    seen: list[int] = []

    def read() -> None:
        seen.extend(message.seq for message in subscription)

    thread = threading.Thread(target=read)
    thread.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while len(seen) < 10 and time.monotonic() < deadline_s:
        if subscription._state.next_seq == 10 and not subscription._state._arrived:
            break
        time.sleep(0.002)
    subscription.cancel()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert seen == list(range(10))


def test_cancelling_needs_no_answer(client: Client, server: ModelServer) -> None:
    subscription = client.subscribe("s", tailrace.NEW)
    server.model.on_message = lambda _connection, _message: True
    threads = [threading.Thread(target=lambda: list(subscription.batches())) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not client._driver._turning:
        time.sleep(0.001)
    subscription.cancel()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    client.close(timeout_s=0.01)


def test_a_context_ends_it(client: Client, server: ModelServer) -> None:
    with client.subscribe("s") as subscription:
        next(subscription)
    assert list(subscription) == []
    client.publish("t", b"a")  # behind the UNSUBSCRIBE
    assert len(server.model.said(m.Unsubscribe)) == 1


def test_one_that_nobody_holds_is_ended(client: Client, server: ModelServer) -> None:
    for _message in client.subscribe("s"):
        break
    gc.collect()
    client.publish("t", b"a")
    deadline_s = time.monotonic() + PATIENCE_S
    while not server.model.said(m.Unsubscribe):
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_closing_the_client_ends_it(server: ModelServer) -> None:
    client = tailrace.connect(server.address)
    subscription = client.subscribe("s")
    thread = threading.Timer(0.02, client.close)
    thread.start()
    assert list(subscription) == []
    thread.join(PATIENCE_S)


def test_control_c(client: Client) -> None:
    """A signal's handler runs while the iterator waits; its exception propagates from the iterator."""
    subscription = client.subscribe("s", tailrace.NEW)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(subscription)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    client.publish("s", b"10")
    assert next(subscription).payload == b"10"
    assert client.connections == 1  # nothing was left in its middle


def test_no_gap_and_no_duplicate_wherever_the_connection_is_cut(server: ModelServer) -> None:
    server.publish(b"s", *TEN)
    with tailrace.connect(server.address) as client:
        for cut_after in range(1, 900, 41):
            server.cut_after(cut_after)
            subscription = client.subscribe("s", end=tailrace.NOW)
            assert [message.seq for message in subscription] == list(range(10)), cut_after
