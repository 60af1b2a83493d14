"""Rows as messages, and tasks that are tried again, against a real broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

import tailrace
from tailrace.core.address import Address
from tailrace.errors import InvalidStreamName, MessageTooLarge
from tailrace.protocol.messages import Ack
from tailrace.spark import sink
from tailrace.spark.broker_connection import NO_LOGIN
from tailrace.spark.publisher import NumberedPublisher
from tailrace.spark.sink import RowsChanged, WrongRows, check_columns, split, write_rows
from tests.system.node import Node, running

HEADERS = pa.map_(pa.string(), pa.binary())


def rows(texts: list[str], stream: str = "orders") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"stream": [stream] * len(texts), "payload": texts})


@pytest.mark.parametrize(
    ("schema", "has_stream", "text"),
    [
        ([("stream", pa.string())], False, "no column payload"),
        ([("payload", pa.string())], False, "name the stream"),
        ([("payload", pa.string()), ("stream", pa.string())], True, "not by both"),
        ([("payload", pa.int64())], True, "payload is int64; it is binary"),
        ([("payload", pa.string()), ("seq", pa.int64())], True, "unknown column 'seq'"),
        ([("payload", pa.string()), ("headers", pa.map_(pa.string(), pa.int32()))], True, "a map of strings"),
        ([("payload", pa.string()), ("key", pa.int32())], True, "key is int32"),
    ],
)
def test_columns_that_cannot_be(schema: list[tuple[str, pa.DataType]], has_stream: bool, text: str) -> None:
    with pytest.raises(WrongRows, match=text):
        check_columns(pa.schema(schema), has_stream)


def test_rows_go_apart_by_stream_in_their_order() -> None:
    batch = pa.RecordBatch.from_pydict({"stream": ["b", "a", "b", "b"], "payload": ["1", "2", "3", "4"]})
    check_columns(batch.schema, False)
    assert {each.stream: each.payloads for each in split(batch)} == {"b": [b"1", b"3", b"4"], "a": [b"2"]}
    assert list(split(batch.slice(0, 0))) == []
    assert list(split(batch.select(["payload"]).slice(0, 0), "s")) == []


def test_rows_that_cannot_be() -> None:
    with pytest.raises(WrongRows, match="the column payload is null in 1 rows"):
        list(split(pa.RecordBatch.from_pydict({"payload": ["1", None]}), "s"))
    with pytest.raises(WrongRows, match="the column stream is null in 1 rows"):
        list(split(pa.RecordBatch.from_pydict({"payload": ["1"], "stream": pa.array([None], pa.string())})))
    with pytest.raises(InvalidStreamName):
        list(split(rows(["1"], "a b")))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("sink") / "data", workers=1) as found:
        yield found


def publisher(node: Node, producer: bytes) -> NumberedPublisher:
    return NumberedPublisher([Address("127.0.0.1", node.port)], NO_LOGIN, producer, Ack.APPENDED)


def read(node: Node, stream: str) -> list[tailrace.Message]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        return list(client.subscribe(stream, end=tailrace.NOW))


class Lost(Exception):
    """The end of a task."""


def failing(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise Lost


def attempt_that_fails(node: Node, producer: bytes, batches: list[pa.RecordBatch]) -> None:
    """Publishes these rows and ends."""
    with publisher(node, producer) as found:
        with pytest.raises(Lost):
            write_rows(found, failing(batches))
        found.flush()


@pytest.mark.system
def test_headers_and_keys_arrive(node: Node) -> None:
    headers = pa.array([[("a", b"1")], None, [("a", b"1")]], HEADERS)
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x", b"y", b"z"]), "headers": headers, "key": ["k"] * 3})
    check_columns(batch.schema, True)
    with publisher(node, b"headers") as found:
        assert write_rows(found, [batch], "headers") == 3
    keys = pa.array([[("key", b"k")]] * 3, HEADERS)  # read by a query, and written with the key beside them
    assert len(list(split(batch.set_column(1, "headers", keys), "headers"))) == 1
    wanted = [(b"x", {"a": b"1", "key": "k"}), (b"y", {"key": "k"}), (b"z", {"a": b"1", "key": "k"})]
    seen = [(each.payload, dict(each.headers)) for each in read(node, "headers")]
    assert [(payload, {k: v for k, v in found.items() if k in ("a", "key")}) for payload, found in seen] == wanted


@pytest.mark.system
@pytest.mark.parametrize("is_turned", [False, True])
def test_an_attempt_goes_on_where_another_one_failed(
    node: Node, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its rows come in another order. Some rows are the same, and other producers publish between."""
    monkeypatch.setattr(sink, "PIECE_MESSAGES", 7)
    stream, producer = f"again.{is_turned}", b"again %d" % is_turned
    texts = [f"row {i // 2}" for i in range(60)]
    for parts in (texts[:20], texts[:30]):
        attempt_that_fails(node, producer, [rows(parts[:10], stream), rows(parts[10:], stream)])
        attempt_that_fails(node, producer + b"other", [rows(["other"], stream)])
    with publisher(node, producer) as found:
        assert write_rows(found, [rows(texts[::-1] if is_turned else texts, stream)]) == 60
    seen = [each.payload.decode() for each in read(node, stream)]
    assert Counter(seen) == Counter([*texts, "other"])
    if not is_turned:
        assert [each for each in seen if each != "other"] == texts


@pytest.mark.system
def test_an_attempt_with_other_rows_fails(node: Node) -> None:
    attempt_that_fails(node, b"changed", [rows(["a", "b"], "changed")])
    with publisher(node, b"changed") as found, pytest.raises(RowsChanged, match="1 messages of an earlier attempt"):
        write_rows(found, [rows(["a", "c"], "changed")])


@pytest.mark.system
def test_attempts_beside_each_other_are_noticed(node: Node) -> None:
    attempt_that_fails(node, b"both", [rows(["a"], "both")])

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield rows(["b"], "both")
        attempt_that_fails(node, b"both", [rows(["a", "x", "y", "z"], "both")])
        yield rows(["a", "c"], "both")

    with publisher(node, b"both") as found, pytest.raises(RowsChanged, match="another attempt has published"):
        write_rows(found, meanwhile())


@pytest.mark.system
def test_a_message_that_is_too_large_names_its_stream(node: Node) -> None:
    with publisher(node, b"large") as found, pytest.raises(MessageTooLarge, match="the broker's limit"):
        write_rows(found, [rows(["x" * (found.max_message_bytes + 1)], "large")])
