"""Numbered publishes over connections that break, at brokers that cannot take them at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace.core.address import Address
from tailrace.errors import StreamDisabled, Unsupported
from tailrace.protocol import messages as m
from tailrace.protocol.opcodes import Op
from tailrace.shard.frame import pack_frame
from tailrace.spark import publisher as module
from tailrace.spark.broker_connection import NO_LOGIN
from tailrace.spark.publisher import NumberedPublisher
from tailrace.spark.sink import write_rows
from tests.spark.test_broker_connection import FakeBroker, serve
from tests.system.node import Node, running

WELCOME = m.Welcome(1, (m.PRODUCERS_FEATURE,), "test/1", "n", 0, {})


def make(*addresses: Address, producer: bytes = b"p") -> NumberedPublisher:
    return NumberedPublisher(addresses, NO_LOGIN, producer, m.Ack.APPENDED)


def answering(request: pytest.FixtureRequest, answer: m.Response) -> FakeBroker:
    """A broker that answers each publish so."""

    def script(said: m.Request) -> list[m.Response]:
        return [WELCOME] if isinstance(said, m.Hello) else [answer] if isinstance(said, m.Publish) else []

    return serve(script, request)


def test_a_broker_without_producers(request: pytest.FixtureRequest) -> None:
    broker = serve(lambda _said: [m.Welcome(1, (), "old/1", "n", 0, {})], request)
    with pytest.raises(Unsupported, match="old/1"):
        make(broker.address)


@pytest.mark.parametrize("code", ["unavailable", "disabled"])
def test_what_was_refused_for_a_moment_goes_to_the_next_address(request: pytest.FixtureRequest, code: str) -> None:
    first = answering(request, m.Failed(code, "later", False, Op.PUBLISH, 1))
    second = answering(request, m.Published(1, ((5, 1, 0),)))
    with make(first.address, second.address) as found:
        found.publish("s", pack_frame(b"x"), b"", 0)
        found.flush()
    sent = [[each for each in broker.heard if isinstance(each, m.Publish)] for broker in (first, second)]
    assert [each.request for each in sent[0]] == [each.request for each in sent[1]] == [1]


def test_a_refusal_that_will_stay(request: pytest.FixtureRequest) -> None:
    broker = answering(request, m.Failed("disabled", "no master", False, Op.PUBLISH, 1))
    with make(broker.address) as found, pytest.raises(StreamDisabled, match="no master"):
        found.publish("s", pack_frame(b"x"), b"", 0)
        found.flush()


def test_it_gives_up_after_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.3)
    broker = answering(request, m.Failed("unavailable", "a worker is down", False, Op.PUBLISH, 1))
    with make(broker.address) as found:
        broker.close()
        with pytest.raises(Exception, match=r"a worker is down|cannot connect"):
            found.publish("s", pack_frame(b"x"), b"", 0)
            found.flush()


@pytest.mark.system
def test_questions_append_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1, config="[limits]\nmax_handles = 2\n") as node:
        address = Address("127.0.0.1", node.port)
        with make(address) as found:
            found.publish("b", pack_frame(b"x"), b"", 0)
            assert found.find_begun("abc") == ["b"]  # more streams than a connection may have
            assert found.first_seq("b") == 0
        with make(address, producer=b"q") as other:
            assert other.find_begun("abc") == []
        assert read(node, "b") == ["x"]


@pytest.mark.system
@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """With publishes under way."""
    with running(tmp_path / "data", workers=1) as node, make(Address("127.0.0.1", node.port)) as found:

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(6):
                yield pa.RecordBatch.from_pydict({"payload": [f"{number} {i}" for i in range(500)]})
                if number in (1, 3):
                    node.kill()
                    node.start()

        assert write_rows(found, batches(), "orders") == 3_000
        assert read(node, "orders") == [f"{number} {i}" for number in range(6) for i in range(500)]


def read(node: Node, stream: str) -> list[str]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        return [each.payload.decode() for each in client.subscribe(stream, end=tailrace.NOW)]
