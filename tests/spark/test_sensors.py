"""The example of the documents, in this process, which has a session already."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.node import running
from tests.tidy import tree

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def own_settings(session: Any) -> Iterator[None]:
    """Spark's, where the session of the tests has others; and those of the tests again, after an example has asked for
    a session and given the one there is its own."""
    own = {"adaptive.enabled": "true", "codegen.wholeStage": "true", "codegen.factoryMode": "FALLBACK"}
    names = [f"spark.sql.{name}" for name in (*own, "shuffle.partitions")]
    before = {name: session.conf.get(name) for name in names}
    for name, value in own.items():
        session.conf.set(f"spark.sql.{name}", value)
    yield
    for name, value in before.items():
        session.conf.set(name, value)


@pytest.mark.thorough
@pytest.mark.usefixtures("own_settings")
def test_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Three devices, 24 hours, six readings an hour; invalid readings are shown apart."""
    with running(tmp_path / "data", workers=1) as node:
        monkeypatch.setattr(sys, "argv", ["sensors.py", str(node.data), f"127.0.0.1:{node.port}"])
        runpy.run_path(str(tree.ROOT / "examples" / "sensors.py"))
    found = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in found]
    assert rows[:1] == [["device", "hour", "celsius", "readings"]]
    for coldest, device in enumerate(("garden", "attic", "cellar")):
        hours = [row for row in rows if row[0] == device]
        assert [(row[1], row[3]) for row in hours] == [(str(hour), "6") for hour in range(24)]
        means = [coldest * 5 + 0.6 * hour + 0.25 for hour in range(24)]
        assert [float(row[2]) for row in hours] == pytest.approx(means)
    assert sorted(row for row in rows if row[-1] == "battery low") == [
        [f"sensors.{device}", "144", "battery low"] for device in ("attic", "cellar", "garden")
    ]
