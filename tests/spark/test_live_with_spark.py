"""Live queries in Spark itself across what a night may bring: crashes, streams made anew, another way of reading."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import tailrace
from tailrace.shard.directory import DataDirectory
from tests.spark.data import START_US, add_stream, append, make_directory, open_log, plain
from tests.system.node import Node, running
from tests.thorough import only_thorough

Seen = list[tuple[str, int | None, str | None, str | None]]
SCHEMA = "stream string, seq bigint, payload binary, _fault string"

pytestmark = pytest.mark.system


STARTS_MAX = 5


class SlowStart(Exception):
    """The machine had too much to do. Nothing was read."""


class Interrupted(Exception):
    """A query ends in the middle of a batch."""


class Query:
    """Reads the present messages, ends, and goes on from its checkpoint when it is asked again."""

    def __init__(self, session: Any, folder: Path) -> None:
        self._session, self._checkpoint = session, folder / "checkpoint"
        self.progress: list[Any] = []
        self.meanwhile: Callable[[], None] | None = None
        """Done once, when a batch is planned and nothing of it is read; then the query fails."""

    def __call__(self, **options: str) -> Seen:
        """Raises StreamingQueryException."""
        for _ in range(STARTS_MAX):
            with suppress(SlowStart):
                return self._run(options)
        raise AssertionError(f"Python did not start within Spark's ten seconds, {STARTS_MAX} times")

    def _run(self, options: dict[str, str]) -> Seen:
        found: Seen = []

        def take(batch: Any, _number: int) -> None:
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
                raise Interrupted
            for name, seq, payload, fault in batch.collect():
                found.append((name, seq, None if payload is None else bytes(payload).decode(), fault))

        stream = self._session.readStream.format("tailrace").schema(SCHEMA).options(**options).load()
        writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(self._checkpoint))
        query = writing.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        except StreamingQueryException as error:
            if "Python worker failed to connect back" in str(error):
                raise SlowStart from error
            raise
        finally:
            query.stop()
            self.progress = query.recentProgress
        return sorted(found, key=str)


def rows(stream: str, start: int, end: int, text: str = "message", first: int = 0) -> list[Any]:
    return sorted(((stream, seq, f"{text} {seq - first}", None) for seq in range(start, end)), key=str)


def grow(data: DataDirectory, name: str, count: int, start_us: int, text: str = "message") -> None:
    log = open_log(data, name)
    append(log, plain(count, start_us, text=text))
    log.close()


def lose(data: DataDirectory, synced: Path) -> None:
    """As a crash of the machine does with messages not synced; others get the same seqs, and just as many."""
    for path in synced.glob("shard-*/a.*"):
        shutil.copy(path, data.path / path.relative_to(synced))
    grow(data, "a", 4, START_US + 30_000_000, "another")


def test_across_a_crash_a_new_stream_and_a_stream_that_vanishes(session: Any, tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(10), "b": plain(3)})
    shutil.copytree(data.path, tmp_path / "synced")
    grow(data, "a", 4, START_US + 10_000_000, "lost")
    query, path = Query(session, tmp_path), str(data.path)
    first = query(path=path, maxRowsPerBatch="12")
    assert first == sorted([*rows("a", 0, 10), *rows("a", 10, 14, "lost", 10), *rows("b", 0, 3)], key=str)
    lags = [json.loads(each.sources[0].latestOffset)["$lag"] for each in query.progress]
    assert lags[0] == {"messages": 5, "streams": 1}
    assert lags[-1] == {"messages": 0, "streams": 0}
    lose(data, tmp_path / "synced")
    with pytest.raises(
        StreamingQueryException, match="stream 'a': its node has lost the end of it, and gives the seqs"
    ):
        query(path=path)
    assert query(path=path, failOnDataLoss="false") == rows("a", 10, 14, "another", 10)
    assert query(path=path) == []

    for file in data.path.glob("shard-*/a.*"):
        file.unlink()
    gone = "stream 'a' no longer exists; the query has read all messages it could"
    assert query(path=path) == [("a", None, None, gone)]
    assert "gone" in str(query.progress[-1].sources[0].endOffset)
    assert query(path=path) == []
    add_stream(data, "a", plain(20, text="new"))
    with pytest.raises(
        StreamingQueryException, match="stream 'a': it was made anew; the query has read it up to seq 14"
    ):
        query(path=path)
    assert query(path=path, failOnDataLoss="false") == rows("a", 0, 20, "new")
    grow(data, "b", 2, START_US + 40_000_000, "late")
    assert query(path=path) == rows("b", 3, 5, "late", 3)


@pytest.mark.thorough
def test_only_what_is_synced_and_from_a_path_to_a_broker_and_back(session: Any, tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(10)})
    log = open_log(data, "a")
    log.sync()
    append(log, plain(3, START_US + 10_000_000, text="late"))
    log.close()
    query, path = Query(session, tmp_path), str(data.path)
    assert query(path=path, onlySynced="true") == rows("a", 0, 10)
    with running(data.path) as node:
        brokers = f"127.0.0.1:{node.port}"
        assert query(brokers=brokers) == rows("a", 10, 13, "late", 10)
        with node.client() as client:
            client.ask("ack on")
            assert client.ask("pub a |more").startswith("ok pub")
        assert query(path=path) == [("a", 13, "more", None)]
        assert query(brokers=brokers) == []
    other = make_directory(tmp_path / "other", {"a": plain(30, START_US + 5_000, text="other")})
    with running(other.path) as node, pytest.raises(StreamingQueryException, match="or it is another node's"):
        query(brokers=f"127.0.0.1:{node.port}")


def published(node: Node, text: str, **counts: int) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        for name, count in counts.items():
            client.publish_many(name, [f"{text} {number}".encode() for number in range(count)])


@pytest.mark.thorough
@pytest.mark.parametrize("way", [*only_thorough("path"), "brokers"])
def test_a_stream_that_is_deleted_and_made_again_by_its_broker(session: Any, tmp_path: Path, way: str) -> None:
    """Between two runs, and when Spark has written a batch down and not read it: no message of the new stream is taken
    for one of the old, and all of them are read."""
    with running(tmp_path / "data") as node, node.client() as client:
        options = {"path": str(node.data)} if way == "path" else {"brokers": f"127.0.0.1:{node.port}"}
        query = Query(session, tmp_path)
        published(node, "message", a=10, b=3)
        assert query(**options) == [*rows("a", 0, 10), *rows("b", 0, 3)]
        assert client.ask("delete a") == "ok delete a"
        gone = "stream 'a' no longer exists; the query has read all messages it could"
        assert query(**options) == [("a", None, None, gone)]
        published(node, "new", a=12)
        with pytest.raises(StreamingQueryException, match="it was made anew"):
            query(**options)
        assert query(**options, failOnDataLoss="false") == rows("a", 0, 12, "new")

        def renew() -> None:
            assert client.ask("delete a") == "ok delete a"
            published(node, "newer", a=20)

        published(node, "late", a=2, b=2)
        query.meanwhile = renew
        with pytest.raises(StreamingQueryException, match="Interrupted"):
            query(**options)
        with pytest.raises(StreamingQueryException, match=r"made again|set aside"):
            query(**options)
        late = rows("b", 3, 5, "late", 3)
        assert query(**options, failOnDataLoss="false") == sorted([*late, *rows("a", 0, 20, "newer")], key=str)
        frame = session.read.format("tailrace").schema("stream string, seq bigint").options(**options).load()
        assert dict(frame.groupBy("stream").count().collect()) == {"a": 20, "b": 5}
