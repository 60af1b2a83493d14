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
