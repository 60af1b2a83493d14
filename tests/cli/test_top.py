"""`tailrace top`, against a broker in memory."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main, top
from tailrace.cli.ending import INTERRUPTED, NO_CONNECTION, OK
from tailrace.core.listing import StreamInfo
from tailrace.protocol import listing
from tests.client.model import ModelConnection
from tests.client.model_server import ModelServer, running_model


def info(name: str, next_seq: int, lag: int = 0) -> StreamInfo:
    return StreamInfo(name, "master", 1, 0, next_seq, 100 * next_seq, 0, 1, 2, 0, 0, int(lag > 0), lag, 0)


def test_once(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders", b"x")
    assert main.run(["top", "--once", "--interval", "0.1", "--server", server.address]) == OK
    shown = capfd.readouterr().out
    assert server.address in shown and "1 stream " in shown
    assert "busiest streams" in shown and "orders" in shown and "ready" in shown


def test_as_objects(server: ModelServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    server.publish(b"orders", b"x")
    assert main.run(["top", "--once", "--json", "--interval", "0.1", "--server", server.address]) == OK
    found = json.loads(capfd.readouterr().out)
    assert [(each["name"], each["next_seq"], each["messages_per_s"]) for each in found["streams"]] == [("orders", 1, 0)]
    assert found["server"] == server.address and found["node"] and found["workers"][0]["state"] == "ready"
    pauses = iter([None, None, KeyboardInterrupt])

    def sleep(_s: float) -> None:
        if (pause := next(pauses)) is not None:
            raise pause

    monkeypatch.setattr("tailrace.cli.top.time.sleep", sleep)
    assert main.run(["top", "--json", "--server", server.address]) == INTERRUPTED
    times = [json.loads(line)["time"] for line in capfd.readouterr().out.splitlines()]
    assert len(times) == 2 and times[0] < times[1]


def test_without_the_right_to_administer(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    def deny(connection: ModelConnection, message: object) -> bool:
        if isinstance(message, listing.List) and message.what == "workers":
            connection.fail("denied", op=36, id=message.id)
            return True
        return False

    server.model.on_message = deny
    server.publish(b"orders", b"x")
    assert main.run(["top", "--once", "--interval", "0.1", "--server", server.address]) == OK
    shown = capfd.readouterr().out
    assert "The workers are shown to administrators." in shown and "orders" in shown


def test_no_node(capfd: pytest.CaptureFixture[str]) -> None:
    with running_model() as gone:
        address = gone.address
    assert main.run(["top", "--server", address]) == NO_CONNECTION


def test_the_busiest_and_the_furthest_behind_come_first() -> None:
    before = top.NodeSample(10.0, {each.name: each for each in (info("a", 10), info("b", 10))}, None)
    streams = (info("a", 20), info("b", 110, 7), info("new", 60, 9))
    after = top.NodeSample(12.0, {each.name: each for each in streams}, None)
    found = [(each.info.name, each.messages_per_s, each.bytes_per_s) for each in top.activity(before, after)]
    assert found == [("b", 50.0, 5_000.0), ("new", 30.0, 3_000.0), ("a", 5.0, 500.0)]
    assert [each.name for each in top.laggards(after)] == ["new", "b"]
