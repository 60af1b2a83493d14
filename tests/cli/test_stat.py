"""`tailrace stat`, against a broker in memory."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main, stat
from tailrace.cli.ending import OK, REFUSED
from tailrace.core.listing import StreamInfo
from tests.client.model_server import ModelServer


def test_one_stream(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders", b"x", b"y")
    server.publish(b"orders.eu", b"x")
    assert main.run(["stat", "orders", "--server", server.address]) == OK
    lines = [line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()]
    shown = {name: value.strip() for name, value in lines}
    assert shown["stream"] == "orders" and shown["messages"] == "2, seq 0 to 1"
    assert shown["size"] == "66 B, 132 B on the disk" and shown["rate"] == "0.5 messages/s, 10 B/s"
    assert shown["first"] == "1970-01-01T00:00:01.000000Z"


def test_json_and_unknown_streams(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders", b"x")
    assert main.run(["stat", "orders", "--json", "--server", server.address]) == OK
    row = json.loads(capfd.readouterr().out)
    assert (row["name"], row["next_seq"], row["groups"]) == ("orders", 1, [])
    assert main.run(["stat", "order", "--server", server.address]) == REFUSED
    assert capfd.readouterr().err == "tailrace: unknown: there is no stream 'order' here\n"


def test_a_copy(capfd: pytest.CaptureFixture[str]) -> None:
    stat._show(StreamInfo("copy", "slave", 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7), [])
    assert ["copy", "lag", "7", "messages"] in [line.split() for line in capfd.readouterr().out.splitlines()]
