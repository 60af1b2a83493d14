"""`tailrace consumers`, against a broker in memory."""

from __future__ import annotations

import pytest

from tailrace.cli import main
from tailrace.cli.consumers import _ago
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, USAGE
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
    assert header == "consumer next lag lag time in flight members redelivered dead idle"
    assert lines == [
        "[red]billing 4 1,230 1.5 s 2 2 2 7 0.2 s",
        "shipping 1234 0 - 0 0 0 0 0.2 s",
    ]
    assert err == ""


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


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.04, "0.0 s"), (59.0, "59.0 s"), (90.0, "1.5 min"), (7_200.0, "2.0 h"), (1e6, "11.6 d")],
)
def test_times(seconds: float | None, shown: str) -> None:
    assert _ago(seconds) == shown
