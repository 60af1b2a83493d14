"""Nodes that share streams in memory, between the workers of three worlds: each message once, at all doors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.policy import AccessPolicy
from tailrace.broker.process.settings import Durability, StreamPolicy
from tailrace.broker.sharing import sender, wants
from tailrace.broker.udp import door
from tailrace.broker.udp.door import UdpDoor
from tailrace.protocol.errors import Code
from tests.broker.sharing.nodes import PATIENCE_S, Nodes, nodes

OK = b"OK SUB %s 120\n"


@pytest.fixture(params=[1, 2])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path, workers=request.param) as made:
        made.start()
        yield made


def test_a_subscriber_gets_what_is_published_at_any_node(three: Nodes) -> None:
    first, second, other = three.client(0), three.client(1), three.client(2)
    assert three.ask(first, b"SUB weather/rome\n") == [OK % b"weather/rome"]
    assert three.ask(second, b"SUB weather/+\n") == [OK % b"weather/+"]
    three.wait(4)
    three.ask(other, b"PUB weather/rome\n1", b"PUB weather/oslo\n2", b"PUB sea/rome\n3")
    assert first.take() == [b"MSG weather/rome\n1"]
    assert second.take() == [b"MSG weather/rome\n1", b"MSG weather/oslo\n2"]
    assert three.count("shared_sent") == three.count("shared_received") == 3  # once to each node that wants it
    three.ask(first, b"PUB weather/rome\n4")
    assert first.take() == [] and second.take() == [b"MSG weather/rome\n4"]


def test_pull_shows_subscriptions_and_what_other_nodes_want(three: Nodes) -> None:
    first, second = three.client(0), three.client(0)
    telnet = three.at[0].connect()
    assert three.at[0].ask(telnet, "PULL") == ["ok pull end", "."]
    three.ask(first, b"SUB weather/rome\n", b"SUB .\n")
    three.ask(second, b"SUB weather/rome\n")
    three.ask(three.client(1), b"SUB weather/+\n", b"SUB weather/rome\n")
    three.ask(three.client(2), b"SUB weather/+\n")
    three.wait(6)
    own, others = blocks(three.at[0].ask(telnet, "pull"))
    names = [b"/%s:%d" % (b"127.0.0.1", sock.getsockname()[1]) for sock in (first.sock, second.sock)]
    assert own == {"%2E": {names[0].decode()}, "weather/rome": {each.decode() for each in names}}
    nodes_ = [f"/127.0.0.1:{three.ports[each]} udp" for each in (1, 2)]
    assert others == {"weather/+": set(nodes_), "weather/rome": {nodes_[0]}}
    three.kill(1)
    assert blocks(three.at[0].ask(telnet, "pull"))[1] == {"weather/+": {nodes_[1]}}


def test_pull_goes_on_where_an_answer_has_ended(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "SHOWN_A_PAGE", 2)
    three.ask(three.client(0), *(b"SUB %d\n" % number for number in range(5)))
    three.ask(three.client(1), *(b"SUB %d\n" % number for number in range(9)))
    three.wait(4)
    telnet, own, others, place = three.at[0].connect(), set[str](), set[str](), ""
    while place != "end":
        head, *lines = three.at[0].ask(telnet, f"pull {place}")
        place = head.removeprefix("ok pull ")
        page = blocks([head, *lines])
        assert all(len(each) <= 2 * len(three.at[0].workers) for each in page)
        own, others = own | page[0].keys(), others | page[1].keys()
    assert own == {str(each) for each in range(5)} and others == {str(each) for each in range(9)}


def blocks(answer: list[str]) -> list[dict[str, set[str]]]:
    """By topic the subscribers, and what other nodes have pushed."""
    assert answer[0].startswith("ok pull ") and answer[-1] == "."
    found: list[dict[str, set[str]]] = [{}, {}]
    for block in "\n".join(answer[1:-1]).split("\n\n"):
        topic, *clients = block.removeprefix("PUSH\n").split("\n")
        if clients:
            found[block.startswith("PUSH\n")].setdefault(topic, set()).update(filter(None, clients))
    return found


def test_other_doors_share_too(three: Nodes) -> None:
    telnet = three.at[0].connect()
    telnet.send("pub udp |it has to exist", "sub udp new topics sea/#")
    three.settle()
    three.wait(2)
    telnet.take()
    three.ask(three.client(1), b"PUB sea/rome\n1", b"PUB land/rome\n2")
    assert [payload for _stream, _seq, payload in telnet.messages()] == ["1"]
    other = three.at[2].connect()
    other.send("pub udp |whole")
    three.settle()
    assert len(telnet.messages()) == 1  # its topic is `udp`
    whole = three.at[0].connect()
    whole.send("sub udp new")
    three.settle()
    whole.take()
    other.send("pub udp |whole")
    three.settle()
    assert [payload for _stream, _seq, payload in whole.messages()] == ["whole"]


def test_a_node_that_is_killed_and_back_has_all_wants_at_once(three: Nodes) -> None:
    first, last = three.client(0), three.client(2)
    three.ask(first, b"SUB a/+\n")
    three.ask(last, b"SUB b\n")
    three.wait(4)
    three.kill(1)
    assert (three.filters(0), three.filters(2)) == ({b"b"}, {b"a/+"})
    three.ask(last, b"PUB a/1\n1")
    assert first.take() == [b"MSG a/1\n1"]
    began_s = time.monotonic()
    three.start(1)
    three.wait(4)
    publisher = three.client(1)
    three.ask(publisher, b"PUB a/2\n2", b"PUB b\n3", b"PUB c\n4")
    assert (first.take(), last.take()) == ([b"MSG a/2\n2"], [b"MSG b\n3"])
    assert time.monotonic() - began_s < PATIENCE_S


def test_wants_end_with_their_subscribers(three: Nodes) -> None:
    first, second = three.client(0), three.client(0)
    three.ask(first, b"SUB a\n", b"SUB b/+\n")
    three.ask(second, b"SUB a\n")
    three.wait(2)
    assert three.filters(1) == {b"a", b"b/+"}
    assert three.ask(first, b"UNSUB a\n") == [b"OK UNSUB a\n"]
    assert three.filters(1) == {b"a", b"b/+"}
    three.ask(second, b"UNSUB a\n")
    assert three.filters(1) == three.filters(2) == {b"b/+"}
    three.ask(first, b"UNSUB b/+\n")
    assert three.filters(1) == set()
    three.ask(three.client(1), b"PUB a\n1")
    assert three.count("shared_sent") == 0


def test_leases_that_end_take_their_wants_along(three: Nodes) -> None:
    client = three.client(0)
    three.ask(client, b"SUB a\n", b"SUB b/+\n")
    three.wait(2)
    for worker in three.at[0].workers:
        assert isinstance(worker.udp, UdpDoor)
        worker.udp.subscriptions.expire(1 << 31)
    three.settle()
    assert three.filters(1) == set()


def test_two_addresses_of_one_node_bring_nothing_twice(tmp_path: Path) -> None:
    with nodes(tmp_path, size=2) as two:
        addresses = tuple(f"{host}:{port}" for port in two.ports for host in ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
        two.settings["replication_peers"] = addresses
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "create_server", anywhere(socket.create_server))
            two.start()
        client = two.client(0)
        two.ask(client, b"SUB a\n")
        two.wait(1)
        two.ask(two.client(1), b"PUB a\n1")
        assert client.take() == [b"MSG a\n1"]


def anywhere(make: Any) -> Any:
    return lambda address: make(("", address[1]))


def test_messages_go_one_step(tmp_path: Path) -> None:
    """In a row of nodes nothing goes round, and nothing further than to the next one."""
    with nodes(tmp_path) as row:
        row.peers = {0: [1], 1: [0, 2], 2: [1]}
        row.start()
        clients = [row.client(number) for number in range(3)]
        for client in clients:
            row.ask(client, b"SUB a\n")
        row.wait(4)
        row.ask(clients[2], b"PUB a\n1")
        assert [client.take() for client in clients[:2]] == [[], [b"MSG a\n1"]]


def test_only_nodes_that_are_believed_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessPolicy, "is_node", lambda _self, _identity: False)
    with nodes(tmp_path, size=2) as two:
        two.start()
        two.ask(two.client(0), b"SUB a\n")
        two.settle()
        two.ask(two.client(1), b"PUB a\n1")
        assert two.count("shared_sent") == 0 and two.filters(1) == set()


def test_a_stream_that_is_not_in_memory_at_the_other_node_is_refused(tmp_path: Path) -> None:
    with nodes(tmp_path, size=2) as two:
        two.settings["streams"] = (StreamPolicy("udp"),)
        two.start(1)
        del two.settings["streams"]
        two.start(0)
        two.ask(two.client(0), b"SUB a\n")
        two.wait(1)
        two.ask(two.client(0), b"SUB b\n")
        (worker,) = two.at[1].workers
        assert worker.metrics.refused.counts[Code.UNSUPPORTED] == 1 and two.filters(1) == set()


def test_with_too_many_filters_everything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wants, "STREAM_FILTERS_MAX", 3)
    with nodes(tmp_path, size=2) as two:
        two.start()
        client = two.client(0)
        two.ask(client, *(b"SUB %d\n" % number for number in range(5)))
        two.wait(1)
        two.ask(two.client(1), b"PUB 4\n1", b"PUB x\n2")
        assert client.take() == [b"MSG 4\n1"] and two.count("shared_sent") == 2


def test_a_node_that_reads_slowly_loses_and_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "UNSENT_MAX_BYTES", -1)
    with nodes(tmp_path, size=2, streams=(StreamPolicy("udp", durability=Durability.MEMORY, max_bytes=65_536),)) as two:
        two.start()
        client, publisher = two.client(0), two.client(1)
        two.ask(client, b"SUB a\n")
        two.wait(1)
        for _ in range(20):
            two.ask(publisher, *[b"PUB a\n" + bytes(1_000)] * 10)
        assert client.take() == []
        monkeypatch.setattr(sender, "UNSENT_MAX_BYTES", 1 << 20)
        two.ask(publisher, b"PUB a\nlast")
        got = client.take()
        assert got[-1] == b"MSG a\nlast" and two.count("shared_dropped") == 201 - len(got) > 0


def test_a_worker_that_is_replaced_is_followed(tmp_path: Path) -> None:
    with nodes(tmp_path, size=2, workers=2) as two:
        two.start()
        client = two.client(0)
        two.ask(client, b"SUB a\n")
        two.wait(1)
        owner = two.at[0].owner_of("udp")
        telnet = two.at[0].connect(1 - owner)
        telnet.send("pub udp |it has to exist", "sub udp new topics b")
        two.settle()
        two.at[0].replace(owner, 7)
        two.wait(1)
        assert b"b" in two.filters(1)
        telnet.take()
        two.ask(two.client(1), b"PUB b\n1")
        assert [payload for _stream, _seq, payload in telnet.messages()] == ["1"]
