"""`df.write` with Spark itself: tasks that fail once. test_live_kill.py kills drivers with `df.writeStream`."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tests.system.node import Node, running
from tests.tidy import tree

pytestmark = [pytest.mark.system, pytest.mark.slow]

COUNT = 1_200


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("writer") / "data", workers=2) as found:
        yield found


def read(node: Node, stream: str) -> list[str]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        return [each.payload.decode() for each in client.subscribe(stream, end=tailrace.NOW)]


def fail_once(marker: Path, value: str) -> Any:
    """A function of Spark that fails at this value, the first time."""
    from pyspark.sql.functions import udf

    def run(text: str) -> str:
        if text == value and not marker.exists():
            marker.touch()
            raise RuntimeError("for the first time")
        return text

    return udf(run, "string", useArrow=False)


@pytest.fixture
def small_batches(session: Any) -> Iterator[None]:
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    yield
    session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.thorough
@pytest.mark.usefixtures("small_batches")
def test_a_task_that_fails_once(session: Any, node: Node, tmp_path: Path) -> None:
    """Its first attempt has published some of its rows by then."""
    numbers = session.range(0, COUNT, 1, 3).selectExpr("cast(id as string) payload", "'k' key")
    failing = numbers.withColumn("payload", fail_once(tmp_path / "failed", "777")("payload"))
    writing = failing.write.format("tailrace").option("brokers", f"127.0.0.1:{node.port}").option("stream", "once")
    writing.mode("append").save()
    assert (tmp_path / "failed").exists()
    seen = read(node, "once")
    assert Counter(seen) == Counter(map(str, range(COUNT)))
    second = [int(each) for each in seen if 400 <= int(each) < 800]
    assert second == sorted(second)  # the rows of a task are in their order


def test_the_same_write_again_by_its_name(session: Any, node: Node) -> None:
    rows = session.range(0, 100, 1, 2).selectExpr("cast(id as string) payload", "'named' stream")
    for producer in ("night 1", "night 1", "night 2"):
        writing = rows.write.format("tailrace").option("brokers", f"127.0.0.1:{node.port}").mode("append")
        writing.option("producer", producer).save()
    assert Counter(read(node, "named")) == Counter({str(number): 2 for number in range(100)})


def test_what_cannot_be_written(session: Any, node: Node) -> None:
    rows = session.range(1).selectExpr("cast(id as string) payload")
    for mode, options, text in [
        ("overwrite", {"stream": "s"}, "cannot be overwritten"),
        ("append", {}, "name the stream"),
        ("append", {"stream": "s", "acks": "all"}, "unknown option"),
    ]:
        writing = rows.write.format("tailrace").options(**options).option("brokers", f"127.0.0.1:{node.port}")
        with pytest.raises(Exception, match=text):
            writing.mode(mode).save()


@pytest.mark.usefixtures("session")
def test_the_example(node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has a session already."""
    broker = f"127.0.0.1:{node.port}"
    monkeypatch.setattr(sys, "argv", ["copy_to_stream.py", str(node.data), broker])
    for count in (50, 100):
        runpy.run_path(str(tree.ROOT / "examples" / "copy_to_stream.py"))
        assert f"{count} large orders" in capsys.readouterr().out
    with tailrace.connect(broker) as client:
        last = list(client.subscribe("orders.large", end=tailrace.NOW))[-1]
    assert (last.payload, last.headers) == (b'{"customer":"c3","euro":199}', {"key": "c3"})
