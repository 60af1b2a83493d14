"""`tailrace rollup` while streams are deleted and made again: exactly the messages that were planned are counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pytest

import tailrace
from tailrace.cli.ending import OK, REFUSED
from tailrace.spark.rollup.engine import ChooseEngine
from tests.spark.rollup import test_bad_streams
from tests.spark.rollup.tables import read_tables
from tests.system.node import Node, running

pytestmark = [pytest.mark.slow, pytest.mark.system]

COUNT = 50


def publish(node: Node, **counts: int) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        for name, count in counts.items():
            client.publish_many(name, [b"message %d" % number for number in range(count)])


def renew(node: Node, name: str, count: int) -> None:
    with node.client() as client:
        assert client.ask(f"delete {name}") == f"ok delete {name}"
    if count:
        publish(node, **{name: count})


@pytest.mark.parametrize("way", ["directory", "brokers"])
def test_streams_that_are_deleted_and_made_again(
    tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Those of which nothing can be read any more are reported, and the new ones are counted by the next run."""
    today = datetime.now(UTC).date()
    monkeypatch.setattr(test_bad_streams, "DAY", today)
    new = {"gone": 0, "fewer": COUNT - 7, "same": COUNT, "more": COUNT + 7}

    def renew_all() -> None:
        for name, count in new.items():
            renew(node, name, count)

    with running(tmp_path / "data", workers=1) as node:
        publish(node, kept=COUNT, **dict.fromkeys(new, COUNT))
        data = [str(node.data)] if way == "directory" else ["--brokers", f"127.0.0.1:{node.port}"]
        run: Callable[..., int] = partial(test_bad_streams.run_command, tmp_path, monkeypatch, local_engine, data=data)
        assert run(meanwhile=renew_all) == REFUSED
        assert counted(tmp_path / "out", today) == {"kept": COUNT}
        assert run() == OK
        left = {name: count for name, count in new.items() if count}
        assert counted(tmp_path / "out", today) == {"kept": COUNT, **left}


def counted(out: Path, day: date) -> dict[str, int]:
    return {stream: row["messages"] for (level, stream, _), row in read_tables(out, day).items() if level == "day"}
