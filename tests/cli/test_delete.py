"""`tailrace delete`, against a broker in memory; `tests/system/test_delete.py` deletes real streams."""

from __future__ import annotations

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, USAGE
from tests.client.model_consumers import Groups
from tests.client.model_server import ModelServer


def test_it_is_asked_for(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    groups = Groups(server.model)
    assert main.run(["delete", "orders", "--yes", "--server", server.address]) == OK
    assert groups.dropped == [b"orders"] and capfd.readouterr().out == "orders is deleted\n"
    assert main.run(["delete", "orders", "--yes", "--json", "--server", server.address]) == OK
    assert capfd.readouterr().out == '{"stream": "orders", "deleted": true}\n'


def test_nobody_deletes_by_chance(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    groups = Groups(server.model)
    assert main.run(["delete", "orders", "--server", server.address]) == USAGE
    assert "add --yes" in capfd.readouterr().err and not groups.dropped
    assert main.run(["delete", "--yes", "--server", server.address]) == USAGE
