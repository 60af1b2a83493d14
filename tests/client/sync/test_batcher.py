"""The synchronous batcher."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

import tailrace
from tailrace import Ack, BatchResult, Client
from tailrace.protocol import messages as m
from tailrace.sync.batcher import Batcher
from tests.client.interrupting import interrupted
from tests.client.model import ModelConnection
from tests.client.model_server import ModelServer

PATIENCE_S = 20.0


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with tailrace.connect(server.address) as client:
        yield client


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_everything_is_there_at_the_end(client: Client, server: ModelServer) -> None:
    with client.batcher("s", max_messages=7) as batch:
        for payload in numbers(100):
            batch.add(payload)
        batch.extend(numbers(100))
    assert (batch.added, batch.acknowledged) == (200, 200)
    assert server.payloads(b"s") == numbers(100) * 2
    assert len(server.model.said(m.Publish)) == 29


def test_by_bytes(client: Client, server: ModelServer) -> None:
    with client.batcher("s", max_bytes=1_000, linger_s=60.0) as batch:
        for _ in range(20):
            batch.add(bytes(300))
    assert server.payloads(b"s") == [bytes(300)] * 20
    assert len(server.model.said(m.Publish)) == 5


def test_an_interrupt_anywhere_in_adding_keeps_no_later_message_from_being_sent(
    client: Client, server: ModelServer
) -> None:
    for line_count in itertools.count(1):
        batch, payload = client.batcher("s", linger_s=0.002), b"%d" % line_count
        is_over = not interrupted(Batcher.add, line_count, lambda batch=batch: batch.add(b"interrupted"))  # type: ignore[misc]
        batch.add(payload)
        deadline_s = time.monotonic() + PATIENCE_S
        while payload not in server.payloads(b"s"):
            assert time.monotonic() < deadline_s, line_count
            time.sleep(0.001)
        if is_over:
            break
    assert line_count > 5


def test_headers_of_all_and_of_one(client: Client) -> None:
    with client.batcher("s", headers={"a": "1"}) as batch:
        batch.add(b"0")
        batch.add(b"1", headers={"b": "2"})
        batch.add(b"2", headers={})
    found = [message.headers for message in client.subscribe("s", end=tailrace.NOW)]
    assert found == [{"a": "1"}, {"b": "2"}, {}]


def test_what_lingers_is_sent_by_itself(client: Client, server: ModelServer) -> None:
    with client.batcher("s", linger_s=0.01) as batch:
        for payload in numbers(3):
            batch.add(payload)
            deadline_s = time.monotonic() + PATIENCE_S
            while payload not in server.payloads(b"s"):
                assert time.monotonic() < deadline_s


def test_more_than_may_be_under_way(server: ModelServer) -> None:
    with tailrace.connect(server.address, max_in_flight=2) as client, client.batcher("s", max_messages=1) as batch:
        batch.extend(numbers(100))
    assert server.payloads(b"s") == numbers(100)


def test_flush_waits(client: Client, server: ModelServer) -> None:
    batch = client.batcher("s", linger_s=60.0)
    batch.add(b"a")
    assert (batch.added, batch.acknowledged) == (1, 0)
    batch.flush()
    assert batch.acknowledged == 1
    assert server.payloads(b"s") == [b"a"]
    batch.flush()


def refuse_second(server: ModelServer) -> None:
    count = [0]

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            count[0] += 1
            if count[0] == 2:
                connection.fail("full", op=m.Op.PUBLISH, id=message.request)
                return True
        return False

    server.model.on_message = on_message


def test_a_batch_that_fails_is_raised(client: Client, server: ModelServer) -> None:
    refuse_second(server)
    with pytest.raises(tailrace.DiskFull), client.batcher("s", max_messages=2) as batch:
        batch.extend(numbers(6))
    assert batch.acknowledged == 4
    assert server.payloads(b"s") == [b"0", b"1", b"4", b"5"]


def test_a_batch_that_fails_is_told(client: Client, server: ModelServer) -> None:
    refuse_second(server)
    results: list[BatchResult] = []
    with client.batcher("s", max_messages=2, on_result=results.append) as batch:
        batch.extend(numbers(5))
    assert [(each.index, each.count, each.error is None) for each in results] == [
        (0, 2, True),
        (2, 2, False),
        (4, 1, True),
    ]


def test_an_error_of_the_program_goes_first(client: Client, server: ModelServer) -> None:
    refuse_second(server)
    with pytest.raises(ZeroDivisionError), client.batcher("s", max_messages=1) as batch:
        batch.extend(numbers(3))
        raise ZeroDivisionError
    assert server.payloads(b"s") == [b"0", b"2"]


def test_what_is_too_large_is_told_before_anything_is_added(client: Client) -> None:
    with client.batcher("s") as batch, pytest.raises(tailrace.MessageTooLarge, match="message 2 of 2"):
        batch.extend([b"a", bytes((1 << 20) + 1)])
    assert batch.added == 0


def test_through_a_lost_connection(client: Client, server: ModelServer) -> None:
    with client.batcher("s", max_messages=10) as batch:
        for number in range(1_000):
            if number % 300 == 299:
                server.cut()
            batch.add(b"%d" % number)
    assert batch.acknowledged == 1_000
    found = server.payloads(b"s")
    assert list(dict.fromkeys(found)) == numbers(1_000)


def test_without_acknowledgement(client: Client, server: ModelServer) -> None:
    with client.batcher("s", ack=Ack.NONE, max_messages=3) as batch:
        batch.extend(numbers(10))
    assert batch.acknowledged == 0
    client.close()
    assert server.payloads(b"s") == numbers(10)


def test_after_the_client_was_closed(client: Client) -> None:
    batch = client.batcher("s", max_messages=1)
    client.close()
    with pytest.raises(tailrace.ClientClosed):
        batch.add(b"a")
