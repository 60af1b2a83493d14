"""The synchronous consumer, against a broker in memory behind a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import tailrace
from tailrace import Client, Consumer
from tailrace.core import merged_consumer_state, stream_watch
from tailrace.protocol import consuming as c
from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.sync.merged_consumer import MergedConsumer
from tests.client.model import ModelConnection
from tests.client.model_consumers import Group, Groups
from tests.client.model_server import ModelServer

PATIENCE_S = 20.0
TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
def groups(server: ModelServer) -> Groups:
    server.publish(b"s", *TEN)
    return Groups(server.model)


@pytest.fixture
def client(server: ModelServer, groups: Groups) -> Iterator[Client]:
    with tailrace.connect(server.address) as client:
        yield client


def group_of(groups: Groups) -> Group:
    return groups.group(b"s", b"billing")


def wait_until_finished(groups: Groups, seqs: set[int]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while group_of(groups).finished != seqs:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_each_message_once_and_where_it_was_left(client: Client, groups: Groups) -> None:
    seen = []
    for stop_after in (3, 9):
        with client.consumer("s", "billing") as consumer:
            assert (consumer.stream, consumer.name) == ("s", "billing")
            for message in consumer:
                with message:
                    seen.append(message.payload)
                if message.seq == stop_after:
                    break
        assert not group_of(groups).flight, "what it had not finished is anybody's"
    assert seen == TEN
    assert group_of(groups).finished == set(range(10))
    assert len(group_of(groups).members) == 2


def test_what_the_consumer_is_made_of(client: Client, groups: Groups) -> None:
    client.consumer("s", "billing", start=tailrace.Seq(4), ack_wait_s=7.0, deliveries_max=3, member="me").close()
    group = group_of(groups)
    assert (group.first_seq, group.ack_wait_s, group.deliveries_max) == (4, 7.0, 3)
    with client.consumer("s", "billing", create=False, member="me") as consumer:
        assert next(consumer).seq == 4
        assert repr(consumer) == "<Consumer 'billing' of 's' member='me'>"
    assert group.members == {b"me"}


def test_a_block_that_fails(client: Client) -> None:
    consumer = client.consumer("s", "billing")
    with pytest.raises(ZeroDivisionError), next(consumer):
        raise ZeroDivisionError("of the test")
    message = next(consumer)
    assert (message.seq, message.deliveries) == (0, 2)


def test_batches(client: Client, groups: Groups) -> None:
    sizes, seqs = [], []
    with client.consumer("s", "billing") as consumer:
        for batch in consumer.batches():
            sizes.append(len(batch))
            for message in batch:
                message.ack()
                seqs.append(message.seq)
            if len(seqs) == 10:
                break
    assert (sizes, seqs) == ([1, 2, 4, 3], list(range(10)))
    assert group_of(groups).finished == set(range(10))


def test_no_message_in_time(client: Client, server: ModelServer) -> None:
    consumer = client.consumer("s", "billing", start=tailrace.NEW)
    with pytest.raises(tailrace.OperationTimeout, match="no message for billing in time"):
        consumer.receive(timeout_s=0.02)
    server.publish(b"s", b"new")
    message = consumer.receive(PATIENCE_S)
    assert message is not None and message.payload == b"new"


def test_the_keeper_tells_what_lingers(client: Client, groups: Groups) -> None:
    consumer = client.consumer("s", "billing", linger_s=0.01)
    next(consumer).ack()
    wait_until_finished(groups, {0})


def test_also_while_another_thread_waits(client: Client, groups: Groups, server: ModelServer) -> None:
    consumer = client.consumer("s", "billing", start=tailrace.Seq(9), linger_s=0.01)
    message, seen = next(consumer), []
    thread = threading.Thread(target=lambda: seen.append(consumer.receive(PATIENCE_S)))
    thread.start()
    while not groups.waiting:
        time.sleep(0.001)
    message.ack()
    wait_until_finished(groups, {9})
    server.publish(b"s", b"new")
    thread.join(PATIENCE_S)
    assert [each and each.payload for each in seen] == [b"new"]


def test_flush_waits_for_the_answer(client: Client, groups: Groups) -> None:
    consumer = client.consumer("s", "billing", linger_s=1_000.0)
    next(consumer).ack()
    consumer.flush()
    assert group_of(groups).finished == {0}


def test_flush_does_not_wait_for_ever(client: Client, groups: Groups) -> None:
    consumer = client.consumer("s", "billing")
    message = next(consumer)
    groups.model.on_message = lambda _connection, message: isinstance(message, c.Get)
    message.ack()
    with pytest.raises(tailrace.OperationTimeout, match="no answer to the acknowledgements of billing"):
        consumer.flush(timeout_s=0.02)
    groups.model.on_message = groups.take
    client.close(timeout_s=0.05)


def test_what_waits_ends_at_once_when_it_is_closed(client: Client, groups: Groups) -> None:
    consumer = client.consumer("s", "billing", start=tailrace.NEW)
    threads = [threading.Thread(target=lambda: list(consumer)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not groups.waiting:
        time.sleep(0.001)
    before_s = time.monotonic()
    consumer.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert time.monotonic() - before_s < PATIENCE_S / 4
    assert groups.waiting == []
    assert list(consumer) == []


def test_closing_the_client_tells_what_was_finished(server: ModelServer, groups: Groups) -> None:
    client = tailrace.connect(server.address)
    consumer = client.consumer("s", "billing", linger_s=1_000.0)
    next(consumer).ack()
    message = next(consumer)
    client.close()
    assert group_of(groups).finished == {0}
    with pytest.raises(tailrace.ClientClosed):
        message.ack()
    assert list(consumer) == []


def test_closing_the_client_ends_iteration(server: ModelServer, groups: Groups) -> None:
    for _ in range(10):
        client = tailrace.connect(server.address)
        consumer = client.consumer("s", "billing", start=tailrace.NEW)
        seen: list[object] = []
        threads = [threading.Thread(target=lambda: seen.append(list(consumer))) for _ in range(2)]  # noqa: B023
        for thread in threads:
            thread.start()
        while not groups.waiting:
            time.sleep(0.001)
        client.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert seen == [[], []]


@pytest.mark.parametrize("code", ["usage", "unavailable", None])
def test_a_leave_that_fails_is_no_error(client: Client, groups: Groups, code: str | None) -> None:
    """A broker that does not know it, one that cannot now, and one that does not answer."""

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if not isinstance(message, c.Consume) or message.do != "leave":
            return groups.take(connection, message)
        if code is not None:
            connection.fail(code, op=m.Op.CONSUME, id=message.id)
        return True

    consumer = client.consumer("s", "billing")
    next(consumer).ack()
    next(consumer)
    groups.model.on_message = on_message
    consumer.close(timeout_s=0.2)
    assert group_of(groups).finished == {0} and 1 in group_of(groups).flight
    consumer.close()
    assert not groups.leaves, "once is enough"


def test_stale_does_not_keep_it_from_leaving(client: Client, groups: Groups, server: ModelServer) -> None:
    consumer = client.consumer("s", "billing")
    next(consumer).ack()
    message = next(consumer)
    assert set(group_of(groups).flight) == {1, 2}
    server.call(lambda: group_of(groups).flight.update({1: b"other"}))
    message.ack()
    with pytest.raises(tailrace.StaleAck):
        consumer.close()
    assert group_of(groups).flight == {1: b"other"}


def test_stale_is_raised_and_it_goes_on(client: Client, groups: Groups, server: ModelServer) -> None:
    consumer = client.consumer("s", "billing")
    message = next(consumer)
    server.call(lambda: group_of(groups).flight.update({0: b"other"}))
    message.ack()
    with pytest.raises(tailrace.StaleAck):
        consumer.flush()
    assert next(consumer).seq == 1


def test_wherever_the_connection_is_cut_each_is_finished_once(server: ModelServer, groups: Groups) -> None:
    with tailrace.connect(server.address) as client:
        for cut_after in range(1, 700, 31):
            groups.groups.clear()
            server.cut_after(cut_after)
            seqs: list[int] = []
            with client.consumer("s", "billing", member="me") as consumer:
                while len(seqs) < 10:
                    with next(consumer) as message:
                        seqs.append(message.seq)
                        assert message.deliveries == 1
            assert seqs == list(range(10)), cut_after
            assert group_of(groups).finished == set(range(10))


def test_calls(client: Client, groups: Groups) -> None:
    assert client.create_consumer("s", "billing", tailrace.Seq(3), ack_wait_s=60.0) == 3
    assert client.create_consumer("s", "other", tailrace.NEW) == 10
    assert client.reset_consumer("s", "billing", tailrace.START) == 0
    [billing, other] = client.consumers("s")
    assert (billing.name, billing.next_seq, billing.lag_messages, billing.lag_s) == ("billing", 0, 10, 1.5)
    assert (other.name, other.next_seq, other.lag_messages, other.lag_s, other.idle_s) == ("other", 10, 0, None, 0.25)
    assert client.delete_consumer("s", "other")
    assert not client.delete_consumer("s", "other")
    with pytest.raises(tailrace.NoSuchConsumer):
        client.reset_consumer("s", "other", tailrace.START)
    with pytest.raises(tailrace.NoSuchConsumer):
        next(client.consumer("s", "other", create=False))


@pytest.mark.parametrize("code", ["unavailable", "overloaded"])
def test_a_call_is_asked_again(client: Client, groups: Groups, code: str) -> None:
    refused: list[int] = []

    def on_message(connection: object, message: m.AnyMessage) -> bool:
        if isinstance(message, c.Consume) and len(refused) < 2:
            refused.append(message.id)
            connection.fail(code, op=m.Op.CONSUME, id=message.id)  # type: ignore[attr-defined]
            return True
        return groups.take(connection, message)  # type: ignore[arg-type]

    groups.model.on_message = on_message
    assert client.create_consumer("s", "billing") == 0
    assert len(refused) == 2


def test_no_answer_to_a_call(client: Client, groups: Groups) -> None:
    groups.model.on_message = lambda _connection, message: isinstance(message, c.Consume)
    with pytest.raises(tailrace.OperationTimeout, match=r"no answer to delete of billing within 0\.02 s"):
        client.delete_consumer("s", "billing", timeout_s=0.02)


def test_a_publish_with_a_key(client: Client) -> None:
    client.publish("keyed", b"a", key="customer-7", headers={"shop": "1"})
    client.publish_many("keyed", [b"b"], key=b"\x07")
    client.publish_to(["keyed"], b"c", key="x")
    with client.batcher("keyed", headers={"shop": "2"}) as batch:
        batch.add(b"d", key="y")
        batch.add(b"e", {"shop": "3"}, key="z")
        batch.add(b"f")
    with client.consumer("keyed", "billing") as consumer:
        messages = [next(consumer) for _ in range(6)]
    assert [message.key for message in messages] == ["customer-7", b"\x07", "x", "y", "z", None]
    assert [message.headers.get("shop") for message in messages] == ["1", None, None, "2", "3", "2"]


def test_types(client: Client) -> None:
    assert isinstance(client.consumer("s", "billing"), Consumer)


@pytest.fixture
def two(server: ModelServer, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Two streams of one message."""
    monkeypatch.setattr(stream_watch, "POLL_S", 0.01)
    for name in (b"q.1", b"q.2"):
        server.publish(name, b"old")
    return groups


def finish(consumer: Consumer, count: int) -> list[tuple[str, bytes]]:
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_S)
        assert message is not None
        message.ack()
        found.append((message.stream, message.payload))
    return sorted(found)


def test_a_stream_that_is_deleted_leaves_a_pattern(client: Client, server: ModelServer, two: Groups) -> None:
    with client.consumer("q.*", "billing") as consumer:
        assert isinstance(consumer, MergedConsumer)
        assert finish(consumer, 2) == [("q.1", b"old"), ("q.2", b"old")]
        with pytest.raises(tailrace.OperationTimeout):
            consumer.receive(0.1)
        server.call(lambda: two.delete(b"q.1"))
        server.publish(b"q.2", b"after it")
        assert finish(consumer, 1) == [("q.2", b"after it")]
        with pytest.raises(tailrace.OperationTimeout):
            consumer.receive(0.1)
        assert consumer.streams == {"q.2"}
        server.publish(b"q.1", b"new")
        assert finish(consumer, 1) == [("q.1", b"new")]
        consumer.flush()


def test_a_member_of_a_pattern_joins_a_stream_that_is_made_again(
    client: Client, server: ModelServer, two: Groups
) -> None:
    with client.consumer("q.*", "billing") as consumer:
        old = [consumer.receive(PATIENCE_S) for _ in range(2)]
        server.call(lambda: two.delete(b"q.1"))
        server.publish(b"q.1", b"new")
        for message in old:
            assert message is not None
            message.ack()
        assert finish(consumer, 1) == [("q.1", b"new")]
        consumer.flush()
        del two.groups[b"q.1", b"billing"]
        with pytest.raises(tailrace.NoSuchConsumer):
            consumer.receive(PATIENCE_S)
        with pytest.raises(tailrace.OperationTimeout):
            consumer.receive(0.1)


def test_a_slave_may_have_the_former_stream_for_a_moment(
    client: Client, server: ModelServer, two: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_consumer_state, "LOOK_S", 0.01)
    looks: list[object] = []

    def late(connection: ModelConnection, message: object) -> bool:
        if isinstance(message, listing.List) and message.what == "ends":
            looks.append(message)
            if len(looks) == merged_consumer_state.LOOKS:
                two.delete(b"q.1")
                server.model.publish(b"q.1", b"new")
        return two.take(connection, message)

    with client.consumer("q.*", "billing") as consumer:
        assert finish(consumer, 2) == [("q.1", b"old"), ("q.2", b"old")]
        consumer.flush()
        del two.groups[b"q.1", b"billing"]
        server.model.on_message = late
        assert finish(consumer, 1) == [("q.1", b"new")]
        assert len(looks) > merged_consumer_state.LOOKS, "the end of the new one is asked for, too"


def test_a_list_says_once_that_a_stream_is_gone(client: Client, server: ModelServer, two: Groups) -> None:
    with client.consumer(["q.1", "q.2"], "billing") as consumer:
        finish(consumer, 2)
        with pytest.raises(tailrace.OperationTimeout):
            consumer.receive(0.1)
        server.call(lambda: two.delete(b"q.1"))
        with pytest.raises(tailrace.UnknownStream):
            consumer.receive(PATIENCE_S)
        server.publish(b"q.2", b"after it")
        assert finish(consumer, 1) == [("q.2", b"after it")]
