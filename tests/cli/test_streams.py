"""`tailrace streams`, against a broker in memory."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main, streams
from tailrace.cli.ending import OK
from tailrace.cli.tables import show
from tailrace.core.listing import StreamInfo
from tests.client.model_server import ModelServer


def test_each_is_a_line(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"orders.[red]eu", *[b"x" * 68] * 1_000)
    server.publish(b"orders.us", b"x")
    server.publish(b"returns", b"x")
    assert main.run(["streams", "orders.*", "--server", server.address]) == OK
    header, *lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert header == "stream role messages next size disk rate/s age consumers lag copy lag"
    assert lines[0].startswith("orders.[red]eu master 1 1,000 1000 97.7 KiB 195.3 KiB 0.5 ")
    assert [line.split()[0] for line in lines] == ["orders.[red]eu", "orders.us"]


def test_json(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.publish(b"s", b"x")
    assert main.run(["streams", "--json", "--server", server.address]) == OK
    [row] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (row["name"], row["next_seq"], row["content_bytes"], row["rate_per_s"]) == ("s", 1, 33, 0.5)


def test_none(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["streams", "a", "--server", server.address]) == OK
    assert capfd.readouterr() == ("", "tailrace: no streams of a\n")


def test_roles_and_lags(capfd: pytest.CaptureFixture[str]) -> None:
    copy = StreamInfo("copy", "slave", 2, 0, 5, 500, 9_000, 1, 2, 0, 0, 1, 3, 4)
    torn = StreamInfo("torn", "damaged", 1, *[0] * 11)
    show(streams.table_of([copy, torn], 1_000_002))
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()[1:]]
    assert lines == ["copy slave 2 5 5 500 B 8.8 KiB 0 1.0 s 1 3 4", "torn damaged 0 0 0 B 0 B 0 - 0 - -"]
