"""`tailrace rollup` while streams are deleted and made again: exactly the messages that were planned are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import tailrace
from tailrace.cli.ending import OK, REFUSED
from tailrace.spark.broker_connection import BrokerConnection, ListedEnd
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.slices import NO_IDENTITY
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


@pytest.mark.thorough
@pytest.mark.few(1)
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


def leave_out_ids(patch: pytest.MonkeyPatch) -> None:
    """Nodes send no ids of streams, as those of earlier versions."""
    listed_ends = BrokerConnection.listed_ends

    def without_ids(connection: BrokerConnection, streams: Sequence[str]) -> dict[str, ListedEnd]:
        return {name: each._replace(files=NO_IDENTITY) for name, each in listed_ends(connection, streams).items()}

    patch.setattr(BrokerConnection, "listed_ends", without_ids)


@pytest.fixture
def no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_ids(monkeypatch)


def ids_of(out: Path) -> dict[str, str | None]:
    rows = ds.dataset(out / "days", format="parquet").to_table().to_pylist()
    return {row["stream"]: row["stream_id"] for row in rows}


def test_over_a_connection_streams_have_the_ids_of_their_files(
    tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """So a stream that was made anew, in the same minute and from the same seq, has rows beside the former ones, which
    it once replaced."""
    run: Callable[..., int] = partial(test_bad_streams.run_command, tmp_path, monkeypatch, local_engine)
    data = make_directory(tmp_path / "data", dict.fromkeys("abc", plain(COUNT, DAY_START_US)))
    assert run() == OK
    ids = ids_of(tmp_path / "out")
    assert None not in ids.values()
    (tmp_path / "out").rename(tmp_path / "by-path")
    with running(tmp_path / "data", workers=1) as node:
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            client.publish("a", b"today")  # one that is open
        assert run(data=["--brokers", f"127.0.0.1:{node.port}"]) == OK
    assert ids_of(tmp_path / "out") == ids
    spoil(data, a=remove)
    add_stream(data, "a", plain(7, DAY_START_US))
    capsys.readouterr()
    with running(tmp_path / "data", workers=1) as node:
        for _ in range(2):
            assert run(data=["--brokers", f"127.0.0.1:{node.port}"]) == OK
            assert "(--replace removes them): a\n" in capsys.readouterr().out
            found = sorted(rows_of(tmp_path / "out", "days"))
            assert found == [(data.node_id, "a", 7), *((data.node_id, name, COUNT) for name in "abc")]


@pytest.mark.usefixtures("no_ids")
@pytest.mark.thorough
def test_over_a_connection_rows_of_a_former_stream_stay(
    tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Without an id the time of the first message tells that the stream is another one. Once its rows were silently
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


@pytest.mark.usefixtures("no_ids")
@pytest.mark.few(1)
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


def test_rows_without_ids_get_those_that_a_node_sends(tmp_path: Path, local_engine: ChooseEngine) -> None:
    """The node is of a later version than when the first rows were made."""
    data = make_directory(tmp_path / "data", {"a": plain(COUNT, DAY_START_US)})

    def roll_up() -> list[Any]:
        with running(tmp_path / "data", workers=1) as node, pytest.MonkeyPatch.context() as patch:
            place = ["--brokers", f"127.0.0.1:{node.port}"]
            assert test_bad_streams.run_command(tmp_path, patch, local_engine, data=place) == OK
        return sorted(rows_of(tmp_path / "out", "days"))

    with pytest.MonkeyPatch.context() as patch:
        leave_out_ids(patch)
        assert roll_up() == [(data.node_id, "a", COUNT)]
        assert ids_of(tmp_path / "out") == {"a": None}
    assert roll_up() == [(data.node_id, "a", COUNT)]
    assert ids_of(tmp_path / "out") != {"a": None}
    with pytest.MonkeyPatch.context() as patch:
        leave_out_ids(patch)
        assert roll_up() == [(data.node_id, "a", COUNT)]
        spoil(data, a=remove)
        add_stream(data, "a", plain(7, DAY_START_US + HOUR_US))
        both = [(data.node_id, "a", 7), (data.node_id, "a", COUNT)]
        assert roll_up() == both
    assert roll_up() == both


def counted(out: Path, day: date) -> dict[str, int]:
    return {stream: row["messages"] for (level, stream, _), row in read_tables(out, day).items() if level == "day"}
