"""Several streams as one iterator, against a broker in memory."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import NEW, NOW, OperationTimeout
from tailrace.core import stream_watch
from tailrace.sync.merged_subscription import MergedSubscription
from tests.client.model_server import ModelServer


@pytest.fixture(autouse=True)
def streams(server: ModelServer) -> None:
    for name in (b"a.1", b"a.2", b"a.3", b"b"):
        server.publish(name, *[name + b"/%d" % number for number in range(4)])


def test_a_list_of_streams_to_their_ends(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client:
        found = [(each.stream, each.seq) for each in client.subscribe(["b", "a.1"], end=NOW)]
    assert sorted(found) == [(name, seq) for name in ("a.1", "b") for seq in range(4)]
    for name in ("a.1", "b"):
        assert [seq for stream, seq in found if stream == name] == [0, 1, 2, 3], "each stream is in order"


def test_a_pattern_to_its_end(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client, client.subscribe("a.*", end=NOW) as found:
        assert isinstance(found, MergedSubscription) and found.streams == {"a.1", "a.2", "a.3"}
        assert sum(map(len, found.batches())) == 12
        assert found.receive() is None
        assert repr(found).startswith("<MergedSubscription 'a.*'")


def test_streams_that_are_made_later_are_read_whole(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_watch, "POLL_S", 0.01)
    with tailrace.connect(server.address) as client, client.subscribe("a.*", NEW) as found:
        with pytest.raises(OperationTimeout, match=r"a\.\*: no message came in time"):
            found.receive(0.05)
        server.publish(b"a.2", b"new")
        first = found.receive(60.0)
        assert first is not None and (first.stream, first.seq, first.payload) == ("a.2", 4, b"new")
        server.publish(b"a.4", b"one", b"two")
        server.publish(b"c", b"of another name")
        later = [found.receive(60.0), found.receive(60.0)]
        assert [(each.stream, each.payload) for each in later if each] == [("a.4", b"one"), ("a.4", b"two")]


def test_they_go_on_over_a_lost_connection(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client, client.subscribe(["a.1", "a.2"], NEW) as found:
        server.cut()
        server.publish(b"a.1", b"x")
        server.publish(b"a.2", b"y")
        assert {found.receive(60.0).payload, found.receive(60.0).payload} == {b"x", b"y"}  # type: ignore[union-attr]


def test_cancelling_ends_it(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client:
        found = client.subscribe("a.*")
        assert found.receive() is not None
        found.cancel()
        assert found.receive() is None and list(found) == []


def test_the_streams_and_workers_of_the_node(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client:
        assert [each.name for each in client.streams()] == ["a.1", "a.2", "a.3", "b"]
        assert [(each.name, each.messages) for each in client.streams("a.2")] == [("a.2", 4)]
        assert [each.name for each in client.streams("*.2")] == ["a.2"]
        assert [each.state for each in client.workers()] == ["ready"]


def test_a_broker_that_lists_nothing(server: ModelServer) -> None:
    server.model.features.discard("listing")
    with tailrace.connect(server.address) as client, pytest.raises(tailrace.Unsupported, match="does not list"):
        client.streams()


def next_payloads(found: tailrace.Subscription, count: int) -> list[tuple[str, bytes]]:
    messages = [found.receive(60.0) for _ in range(count)]
    return sorted((each.stream, each.payload) for each in messages if each)


def test_a_pattern_loses_a_stream_that_is_deleted_and_reads_the_next_of_its_name_whole(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tailrace.streams")
    monkeypatch.setattr(stream_watch, "POLL_S", 0.01)
    with tailrace.connect(server.address) as client, client.subscribe("a.*") as found:
        assert len(next_payloads(found, 12)) == 12
        server.call(lambda: server.model.delete(b"a.1"))
        server.publish(b"a.2", b"after it")
        assert next_payloads(found, 1) == [("a.2", b"after it")]
        with pytest.raises(OperationTimeout):
            found.receive(0.2)
        assert isinstance(found, MergedSubscription) and found.streams == {"a.2", "a.3"}
        assert "a.1 was deleted" in caplog.text
        server.publish(b"a.1", b"one", b"two")
        assert next_payloads(found, 2) == [("a.1", b"one"), ("a.1", b"two")]


def test_a_pattern_does_not_miss_a_stream_that_is_made_again_at_once(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_watch, "POLL_S", 0.01)
    with tailrace.connect(server.address) as client, client.subscribe("a.*", NEW) as found:
        with pytest.raises(OperationTimeout):
            found.receive(0.1)

        def make_again() -> None:
            server.model.delete(b"a.1")
            server.model.publish(b"a.1", b"new")

        server.call(make_again)
        assert next_payloads(found, 1) == [("a.1", b"new")]


def test_a_list_says_once_that_a_stream_was_deleted_and_goes_on(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client, client.subscribe(["a.1", "a.2"], NEW) as found:
        server.call(lambda: server.model.delete(b"a.1"))
        with pytest.raises(tailrace.StreamDeleted) as failure:
            found.receive(60.0)
        assert failure.value.stream == "a.1"
        server.publish(b"a.2", b"after it")
        assert next_payloads(found, 1) == [("a.2", b"after it")]
        server.call(lambda: server.model.delete(b"a.2"))
        with pytest.raises(tailrace.StreamDeleted):
            found.receive(60.0)
        assert found.receive(60.0) is None


def test_what_was_read_of_a_deleted_stream_does_not_raise_again(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client, client.subscribe(["a.1", "b"], NEW) as found:
        server.publish(b"a.1", b"last")
        assert next_payloads(found, 1) == [("a.1", b"last")]
        server.call(lambda: server.model.delete(b"a.1"))
        with pytest.raises(tailrace.StreamDeleted):
            found.receive(60.0)
        server.publish(b"b", b"more")
        assert next_payloads(found, 1) == [("b", b"more")]
