"""`tailrace consumers`, against a broker in memory."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tailrace import ConsumerInfo
from tailrace.cli import consumers, main
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, USAGE
from tailrace.cli.tables import show
from tests.client.model_consumers import Group, Groups
from tests.client.model_server import ModelServer, running_model


def test_each_is_a_line(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    groups = Groups(server.model)
    server.publish(b"orders", *[b"x"] * 1_234)
    group = groups.groups[b"orders", b"[red]billing"] = Group(4, flight={4: b"a", 5: b"b"}, before={4: 2}, dead=7)
    group.members.update({b"a", b"b"})
    groups.groups[b"orders", b"shipping"] = Group(1_234)
    groups.groups[b"other", b"else"] = Group(0)
    assert main.run(["consumers", "orders", "--server", server.address]) == OK
    out, err = capfd.readouterr()
    header, *lines = [" ".join(line.split()) for line in out.splitlines()]
    assert header == "consumer next lag lag time in flight members redelivered dead idle topics"
    assert lines == [
        "[red]billing 4 1,230 1.5 s 2 2 2 7 0.2 s",
        "shipping 1234 0 - 0 0 0 0 0.2 s",
    ]
    assert err == ""


def test_a_filter_and_a_lag_that_is_not_counted_yet_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    counted = ConsumerInfo("g", 3, 1_234, None, 0, 0, 0, 0, 1.0, 30.0, 5, topics="a/+")
    show(consumers.table_of([counted, dataclasses.replace(counted, name="h", lag_at_most=True)]))
    rows = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert rows[1:] == ["g 3 1,234 - 0 0 0 0 1.0 s a/+", "h 3 <= 1,234 - 0 0 0 0 1.0 s a/+"]


def test_none(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    Groups(server.model)
    assert main.run(["consumers", "orders", "--server", server.address]) == OK
    assert capfd.readouterr() == ("", "tailrace: orders has no durable consumers\n")


def test_what_goes_wrong(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["consumers", "orders", "--server", server.address]) == REFUSED
    assert capfd.readouterr().err.endswith("the present broker has no durable consumers\n")
    assert main.run(["consumers", "a b"]) == USAGE
    with running_model() as gone:
        address = gone.address
    assert main.run(["consumers", "orders", "--server", address]) == NO_CONNECTION


def test_json(groups: Groups, server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["consumers", "ls", "ls", "--json", "--server", server.address]) == REFUSED  # it has no consumers
    known = Groups(server.model)
    server.publish(b"ls", *[b"x"] * 4)
    known.groups[b"ls", b"g"] = Group(1)
    capfd.readouterr()
    assert main.run(["consumers", "ls", "ls", "--json", "--server", server.address]) == OK
    [row] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (row["name"], row["next_seq"], row["lag_messages"], row["lag_s"]) == ("g", 1, 3, 1.5)


def test_create_reset_and_rm(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    known = Groups(server.model)
    server.publish(b"orders", *[b"x"] * 4)
    words = ["orders", "billing", "--server", server.address]
    assert main.run(["consumers", "create", *words, "--from", "#1", "--ack-wait", "5", "--deliveries", "3"]) == OK
    group = known.group(b"orders", b"billing")
    assert (group.first_seq, group.ack_wait_s, group.deliveries_max) == (1, 5.0, 3)
    assert main.run(["consumers", "reset", *words]) == USAGE
    assert main.run(["consumers", "reset", *words, "--from", "#3", "--json"]) == OK
    assert known.group(b"orders", b"billing").first_seq == 3
    assert main.run(["consumers", "rm", *words]) == OK
    assert not known.groups
    assert main.run(["consumers", "rm", *words]) == REFUSED
    out, err = capfd.readouterr()
    assert out.splitlines() == [
        "consumer billing of orders: seq 1 is next",
        '{"stream": "orders", "consumer": "billing", "next_seq": 3}',
        "consumer billing of orders is deleted",
    ]
    assert err.endswith("tailrace: orders has no durable consumer billing\n")
    assert "--from FROM is needed" in err
    assert main.run(["consumers", "rm", *words, "--json"]) == REFUSED
    assert capfd.readouterr().out == '{"stream": "orders", "consumer": "billing", "deleted": false}\n'


def test_without_a_stream(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["consumers"]) == USAGE
    assert "Missing argument 'STREAM'" in capfd.readouterr().err
