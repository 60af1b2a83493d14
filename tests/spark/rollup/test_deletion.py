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
from tests.spark.data import add_stream, make_directory, plain
from tests.spark.rollup import test_bad_streams
from tests.spark.rollup.directories import DAY_START_US, HOUR_US
from tests.spark.rollup.tables import read_tables
from tests.spark.rollup.test_bad_streams import Captured, remove, rows_of, spoil
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


def test_over_a_connection_rows_of_a_former_stream_stay(
    tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """No id tells that the stream is another one: the time of the first message does. Once its rows were silently
    removed from old days."""
    run: Callable[..., int] = partial(test_bad_streams.run_command, tmp_path, monkeypatch, local_engine)
    data = make_directory(tmp_path / "data", dict.fromkeys("abc", plain(COUNT, DAY_START_US)))
    assert run("--stream", "b") == OK

    def over(*options: str, ending: int = OK) -> str:
        with running(tmp_path / "data", workers=1) as node:
            capsys.readouterr()
            assert run(*options, data=["--brokers", f"127.0.0.1:{node.port}"]) == ending
        return capsys.readouterr().out

    assert "kept" not in over()
    whole = [(data.node_id, name, COUNT) for name in "abc"]
    assert rows_of(tmp_path / "out", "days") == whole
    spoil(data, a=remove, b=remove)
    add_stream(data, "a", plain(7, DAY_START_US + HOUR_US))
    add_stream(data, "b", plain(5, DAY_START_US + 30 * HOUR_US))
    for _ in range(2):
        assert "(--replace removes them): a, b\n" in over()
        assert rows_of(tmp_path / "out", "days") == [(data.node_id, "a", 7), *whole]
    assert "--replace" not in over("--replace")
    assert rows_of(tmp_path / "out", "days") == [(data.node_id, "a", 7), whole[2]]


@pytest.mark.parametrize("first", ["directory", "brokers"])
def test_rows_with_and_without_ids_of_streams_of_one_name(
    tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever run had no ids, the former stream has rows of its own, and the present one counts once."""
    run: Callable[..., int] = partial(test_bad_streams.run_command, tmp_path, monkeypatch, local_engine)
    data = make_directory(tmp_path / "data", {"a": plain(COUNT, DAY_START_US)})

    def roll_up(way: str) -> None:
        with running(tmp_path / "data", workers=1) as node:
            assert run(data=["--brokers", f"127.0.0.1:{node.port}"] if way == "brokers" else ()) == OK

    roll_up(first)
    spoil(data, a=remove)
    add_stream(data, "a", plain(7, DAY_START_US + HOUR_US))
    for way in ("brokers", "directory") if first == "directory" else ("directory", "brokers", "directory"):
        roll_up(way)
        assert sorted(rows_of(tmp_path / "out", "days")) == [(data.node_id, "a", 7), (data.node_id, "a", COUNT)]


def counted(out: Path, day: date) -> dict[str, int]:
    return {stream: row["messages"] for (level, stream, _), row in read_tables(out, day).items() if level == "day"}
