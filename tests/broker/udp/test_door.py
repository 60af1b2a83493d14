"""The door, between a world's workers and real sockets: the seed's exchanges, other doors, leases, cookies, rights."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.delivery import watches
from tailrace.broker.process.settings import Settings, StreamPolicy
from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.broker.topics.rules import TopicRule
from tailrace.broker.udp import addresses, door, requests
from tailrace.protocol.errors import Code
from tailrace.shard.leaves import load
from tailrace.supervisor.listeners import open_udp_sockets
from tests.broker.world import World, world

RULES = (TopicRule("sensors/#", "sensors"), TopicRule("topic1", "udp"), TopicRule("topic3/#", "udp"))


class UdpPeer_:
    """A client: a socket and the datagrams that came."""

    def __init__(self, node: World) -> None:
        self.node = node
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.setblocking(False)
        self.address = node.udp_sockets[0].getsockname()

    def send(self, *data: bytes) -> None:
        for each in data:
            self.sock.sendto(each, self.address)

    def take(self) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(self.sock.recv(1 << 17))
            except BlockingIOError:
                return found

    def ask(self, *data: bytes) -> list[bytes]:
        self.send(*data)
        self.node.settle()
        return self.take()


class Node:
    """A world and the clients of its UDP door."""

    def __init__(self, node: World) -> None:
        self.world = node
        self.peers: list[UdpPeer_] = []

    def client(self) -> UdpPeer_:
        self.peers.append(UdpPeer_(self.world))
        return self.peers[-1]

    def clients(self) -> list[UdpPeer_]:
        """One of each worker."""
        found: dict[int, UdpPeer_] = {}
        while len(found) < len(self.world.workers):
            client = self.client()
            before = [worker.metrics.udp.bytes_in for worker in self.world.workers]
            client.ask(b"PING\n")
            after = [worker.metrics.udp.bytes_in for worker in self.world.workers]
            found.setdefault(next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b), client)
        return [found[slot] for slot in sorted(found)]

    def dropped(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for worker in self.world.workers:
            for reason, count in worker.metrics.udp_dropped.counts.items():
                found[reason] = found.get(reason, 0) + count
        return found


def serve(path: Path, **settings: Any) -> Iterator[Node]:
    with world(path, **{"workers": 2, "affinity": False, "udp": True, "topics": RULES, **settings}) as node:
        found = Node(node)
        yield found
        for peer in found.peers:
            peer.sock.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from serve(tmp_path)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of this machine count as any others."""
    monkeypatch.setattr(requests, "is_of_this_machine", lambda name: False)


def test_the_exchanges_of_the_seed(node: Node) -> None:
    subscriber, publisher = node.clients()
    assert subscriber.ask(b"SUB topic1\n\n") == [b"OK SUB topic1 120\n"]
    assert publisher.ask(b"PUB topic1\n41.8874314503 12.4886930452") == []
    assert subscriber.take() == [b"MSG topic1\n41.8874314503 12.4886930452"]
    assert subscriber.ask(b"UNSUB topic1\n") == [b"OK UNSUB topic1\n"]
    assert publisher.ask(b"PUB topic1\nmore") == [] and subscriber.take() == []


def test_the_verbs_beyond_the_seed(node: Node) -> None:
    client = node.client()
    assert client.ask(b"PING\n") == [b"PONG\n"]
    assert client.ask(b"PUB? topic1\na") == [b"OK topic1 0\n"]
    assert client.ask(b"PUB topic1\nb", b"PUB? topic1\nc") == [b"OK topic1 2\n"]
    assert client.ask(b"PUB? topic3/x\nd") == [b"OK topic3/x 3\n"]
    assert client.ask(b"UNSUB topic1\n") == [b"ERR unsubscribed this address has no such subscription\n"]
    assert client.ask(b"SUB a#\n")[0].startswith(b"ERR topic # must be a whole level")
    assert client.ask(b"PUB? $SYS/x\ny")[0].startswith(b"ERR reserved")
    assert client.ask(b"PUB a+\nx", b"junk", b"", b"\0" * 100, b"MSG a\nb") == []
    assert node.dropped() == {"refused": 1, "junk": 4}


def rows_of(node: Node, slot: int) -> list[tuple[bytes, bytes, int]]:
    """The subscriptions of a worker, with their leases."""
    return sorted(node.world.workers[slot].udp.subscriptions.shown(0, 10_000)[1])  # type: ignore[union-attr]


def test_a_worker_that_is_replaced_hands_its_subscriptions_to_its_successor(node: Node) -> None:
    first, second = node.clients()
    topics = [*(b"t/%d" % number for number in range(2 * door.HANDED_AT_ONCE)), b"sensors/+", b"t/7/#", b"topic1"]
    for topic in topics:
        first.send(b"SUB %s\n" % topic)
    assert len(first.ask(b"SUB a\n")) == len(topics) + 1
    assert second.ask(b"SUB t/7\n") == [b"OK SUB t/7 120\n"]
    rows = rows_of(node, 0)
    for generation in (5, 6):
        node.world.replace(0, generation)
        assert rows_of(node, 0) == rows
    second.ask(b"PUB t/7\n1", b"PUB sensors/8\n2", b"PUB topic1\n3", b"PUB b\n4")
    assert sorted(first.take()) == [b"MSG sensors/8\n2", *[b"MSG t/7\n1"] * 2, b"MSG topic1\n3"]
    assert first.ask(b"UNSUB t/7/#\n") == [b"OK UNSUB t/7/#\n"]


def test_a_successor_with_other_settings_takes_what_they_allow(node: Node) -> None:
    client, publisher = node.clients()
    client.ask(b"SUB a/1\n", b"SUB a/#\n", b"SUB b/1\n")
    node.world.settings = replace(
        node.world.settings, udp_peers=(UdpPeer(("127.0.0.0/8",), publish=("#",), subscribe=("a/+", "b/#")),)
    )
    node.world.replace(0, 5)
    assert [topic for topic, _name, _seen_s in rows_of(node, 0)] == [b"a/1", b"b/1"]
    publisher.ask(b"PUB a/1\nx")
    assert client.take() == [b"MSG a/1\nx"]


def test_a_late_handover_neither_brings_back_a_subscription_nor_an_older_lease(node: Node) -> None:
    client, _other = node.clients()
    client.ask(b"SUB a\n")
    [(_topic, name, seen_s)] = rows_of(node, 0)
    assert client.ask(b"UNSUB b\n")[0].startswith(b"ERR unsubscribed")
    rows = [(topic, name, seen_s - 50) for topic in (b"a", b"b", b"c")]
    udp = node.world.workers[0].udp
    udp.adopt(rows, True)
    assert rows_of(node, 0) == [(b"a", name, seen_s), (b"c", name, seen_s)]
    udp.adopt([], False)
    udp.adopt(rows, False)
    assert [topic for topic, _name, _seen_s in rows_of(node, 0)] == [b"a", b"b", b"c"]
    udp.stop()
    udp.adopt([(b"d", name, seen_s)], False)
    assert len(rows_of(node, 0)) == 3


def test_subscriptions_in_one_turn_are_all_made_and_answered(node: Node, anywhere: None) -> None:
    """Those of a known address are done as a run, which others are in the middle of."""
    client, stranger, publisher = node.client(), node.client(), node.client()
    assert client.ask(b"SUB first\n" + b" " * 30)[0].startswith(b"COOKIE ")
    cookie = client.ask(b"SUB first\n" + b" " * 30)[0].split()[1]
    assert client.ask(b"SUB first\n" + cookie) == [b"OK SUB first 120\n"]
    asked = [*(b"SUB t/%d\n" % n for n in range(50)), b"SUB t/+\n", b"SUB sensors/1\n", b"PING\n", b"UNSUB t/7\n"]
    asked += [b"SUB sensors/1\n", b"SUB sensors/2\n"]
    answers = [b"OK SUB %s 120\n" % each.split()[1] for each in asked if each.startswith(b"SUB")]
    assert sorted(client.ask(*asked)) == sorted([*answers, b"PONG\n", b"OK UNSUB t/7\n"])
    assert stranger.ask(b"SUB t/9\n" + b" " * 30)[0].startswith(b"COOKIE ")  # not as part of a run
    publisher.ask(b"PUB t/7\n1", b"PUB t/8\n2", b"PUB sensors/2\n3", b"PUB t\n4")
    assert sorted(client.take()) == [b"MSG sensors/2\n3", b"MSG t/7\n1", b"MSG t/8\n2", b"MSG t/8\n2"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_is_found_anew_behind_an_end_in_the_middle_of_a_batch(tmp_path: Path, count: int) -> None:
    """An UNSUB frees the number of a stream that nobody wants any more, and the SUB behind it gets another one."""
    for node in serve(tmp_path, udp_cookies=False):
        client, publisher = node.client(), node.client()
        assert client.ask(b"SUB a0\n") == [b"OK SUB a0 120\n"]
        batch = [b"SUB a%d\n" % number for number in range(count)]
        answers = client.ask(*batch, *(each.replace(b"SUB", b"UNSUB") for each in batch), b"SUB b\n")
        assert answers[-1] == b"OK SUB b 120\n"
        publisher.ask(b"PUB b\nx")
        assert client.take() == [b"MSG b\nx"]
        assert client.ask(b"UNSUB b\n") == [b"OK UNSUB b\n"]
        assert sorted(client.ask(b"SUB b\n", b"PING\n")) == [b"OK SUB b 120\n", b"PONG\n"]


@pytest.mark.parametrize("name", [b"topic1/$dead", b"reply-to/x"])
def test_streams_of_dead_letters_and_replies_are_no_topics(node: Node, name: bytes) -> None:
    client = node.clients()[0]
    client.ask(b"SUB #\n")
    refusal = b"ERR reserved '%s' names a stream of replies or dead letters, which is no topic\n" % name
    assert client.ask(b"PUB? " + name + b"\nx") == [refusal]
    assert client.ask(b"SUB " + name + b"\n" + b" " * 200) == [refusal]
    assert client.ask(b"PUB " + name + b"\nx", b"PUB topic1/y\nlast") == [b"MSG topic1/y\nlast"]
    assert not list(node.world.directory.path.rglob("reply-to*"))


def test_messages_of_a_stream_have_their_order_and_each_comes_once(node: Node) -> None:
    clients = node.clients()
    for client in clients:
        client.ask(b"SUB topic1\n", b"SUB topic1\n", b"SUB topic3/#\n")
    publisher = node.client()
    publisher.ask(*(b"PUB topic%d%s\n%d" % (3 if n % 3 else 1, b"/x" if n % 3 else b"", n) for n in range(300)))
    for client in clients:
        assert [int(each.split(b"\n")[1]) for each in client.take()] == list(range(300))


def test_other_doors_publish_to_and_read_from_topics_of_datagrams(node: Node) -> None:
    telnet = node.world.connect(0)
    assert node.world.ask(telnet, "sub topic1 new wait")[0].startswith("ok sub topic1")
    subscriber, publisher = node.clients()
    subscriber.ask(b"SUB topic1\n", b"SUB sensors/+/temp\n")
    publisher.ask(b"PUB topic1\nby datagram", b"PUB sensors/7/temp\n21.5", b"PUB elsewhere\nx")
    node.world.settle()
    assert [line.partition("|")[2] for line in telnet.take()] == ["by datagram"]
    node.world.ask(telnet, "pub topic1 |by telnet", "pub sensors/8/temp |22")
    assert subscriber.take() == [
        b"MSG topic1\nby datagram",
        b"MSG sensors/7/temp\n21.5",
        b"MSG topic1\nby telnet",
        b"MSG sensors/8/temp\n22",
    ]
    assert [line.split("|")[1] for line in node.world.ask(telnet, "sub sensors/#  0") if line.startswith("msg")] == [
        "21.5",
        "22",
    ]


def test_topics_without_a_rule_are_in_memory_and_leave_no_file(node: Node) -> None:
    node.client().ask(b"PUB one\n1", b"PUB two/three\n2", b"PUB sensors/1\n3")
    names = {path.name.partition(".")[0] for path in node.world.directory.path.rglob("*.content")}
    assert names == {"sensors"}
    assert {path.name.partition(".")[0] for path in node.world.memory_path.rglob("*.content")} == {"udp"}


def test_a_node_of_a_cluster_that_does_not_lead_serves_topics_in_memory(node: Node) -> None:
    """All doors: a stream in memory is each node's own, so it waits for no lease."""
    client, telnet = node.client(), node.world.connect(0)
    assert node.world.ask(telnet, "lease * 2 0", "ack on") == ["ok lease * 2 0", "ok ack on"]
    client.ask(b"SUB topic1\n")
    assert client.ask(b"PUB? topic1\na") == [b"OK topic1 0\n", b"MSG topic1\na"]
    assert node.world.ask(telnet, "pub topic1 |b", "pub udp |c") == ["ok pub udp 1", "ok pub udp 2"]
    assert client.take() == [b"MSG topic1\nb"]
    assert client.ask(b"PUB? sensors/1\nc")[0].startswith(b"ERR unavailable this node has no lease")
    assert [line[:15] for line in node.world.ask(telnet, "pub sensors/1 |d")] == ["err unavailable"]


def test_a_section_of_its_very_name_keeps_the_stream(tmp_path: Path) -> None:
    for node in serve(tmp_path, streams=(StreamPolicy("udp"),)):
        node.client().ask(b"PUB one\n1")
        assert [path.name for path in node.world.directory.path.rglob("*.content")] == ["udp.content"]
    assert Settings(udp=True, streams=(StreamPolicy("*"),)).policy("udp").durability == "memory"


def test_a_filter_that_may_lie_anywhere_is_refused(tmp_path: Path) -> None:
    for node in serve(tmp_path, topics=(TopicRule("+/deep/#", "{1}"),)):
        client = node.client()
        assert client.ask(b"SUB #\n")[0].startswith(
            b"ERR topic what this filter matches may lie in streams of any name"
        )
        assert client.ask(b"SUB a/deep/#\n") == [b"OK SUB a/deep/# 120\n"]
        assert client.ask(b"PUB a/deep/x\n1") == [b"MSG a/deep/x\n1"]


def test_more_subscribers_than_a_turn_may_send_to(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "SENT_A_TURN", 3)
    for worker in node.world.workers:
        assert isinstance(worker.udp, door.UdpDoor)
        worker.udp._outbox.buffers = bytearray(2 * 40), bytearray(2 * 16), bytearray(70_000)
    clients = [node.client() for _ in range(25)]
    for client in clients:
        client.ask(b"SUB topic1\n", b"SUB #\n")
    node.client().ask(*(b"PUB topic1\n%d" % number for number in range(10)))
    for client in clients:
        assert [each.split(b"\n")[1] for each in client.take()] == [b"%d" % (number // 2) for number in range(20)]


def test_requests_in_a_turn_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUESTS_A_TURN", 4)
    client, worker = node.clients()[0], node.world.workers[0]
    client.send(*[b"PING\n"] * 200)
    took: list[int] = []
    while sum(took) < 200:
        worker.turn()
        took.append(len(client.take()))
    assert took == [4] * 50


def test_after_many_refused_requests_the_others_wait_a_moment(node: Node) -> None:
    """And what is taken is not held up."""
    client, worker = node.clients()[0], node.world.workers[0]
    client.send(*[b"PING\n"] * 50)
    worker.turn()
    assert not worker.udp.rest_s and len(client.take()) == door.REQUESTS_A_TURN
    client.send(*[b"UNSUB never\n"] * 50)
    answers, rests, until_s = 0, 0, time.monotonic() + 60
    while answers < 92 and time.monotonic() < until_s:
        worker.turn()
        came = len(client.take())
        rests += bool(worker.udp.rest_s)
        assert came <= door.REQUESTS_A_TURN and not (came and rests and worker.udp.has_input)
        answers += came
    assert answers == 92 and rests >= 5


def test_a_flood_of_refused_requests_delays_only_its_sender(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses.RefusedAddresses, "tick", lambda _self, _now_s: None)  # all in one second
    flooder, worker = node.clients()[0], node.world.workers[0]
    neighbour = node.clients()[0]
    flooder.ask(*[b"UNSUB never\n"] * 5)
    assert neighbour.ask(b"PING\n") == flooder.ask(b"PING\n") == [b"PONG\n"]
    flooder.send(*[b"UNSUB never\n"] * 100)
    answered, until_s = 0, time.monotonic() + 60
    while (worker.udp.rest_s or answered < addresses.REFUSED_A_SECOND - 4) and time.monotonic() < until_s:
        worker.turn()
        answered += len(flooder.take())
    assert answered == addresses.REFUSED_A_SECOND - 4
    flooder.send(*[b"PUB $x\ny"] * 200, b"PUB topic1\nplain")
    neighbour.send(b"PING\n")
    for _ in range(2):
        worker.turn()
    assert neighbour.take() == [b"PONG\n"] and not worker.udp.rest_s
    node.world.settle()
    assert node.dropped() == {"ignored": 105 - addresses.REFUSED_A_SECOND - 1 + 200}
    assert neighbour.ask(b"PUB? topic1\nlast") == [b"OK topic1 1\n"]
    monkeypatch.setattr(door, "FLOOD_A_SECOND", 300)
    flooder.send(*[b"PUB $x\ny"] * (door.IGNORED_A_TURN + door.FLOOD_A_TURN))
    worker.turn()
    assert worker.udp.rest_s == door.FLOOD_REST_S
    rests, until_s = [True], time.monotonic() + 60
    while rests[-1] or ((rests.count(True) < 2 or worker.udp.has_input) and time.monotonic() < until_s):
        worker.turn()
        rests += [bool(worker.udp.rest_s)] if bool(worker.udp.rest_s) != rests[-1] else []
    assert rests == [True, False, True, False], "a turn that is full again is not the end of it"
    assert neighbour.ask(b"PING\n") == [b"PONG\n"] and not worker.udp.rest_s, "the flood is over"


def test_a_publish_that_the_stream_refuses_is_no_fault_of_its_sender(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, worker = node.clients()[0], node.world.workers[0]
    assert isinstance(worker.udp, door.UdpDoor)
    answer = worker.udp._requests.answer_publish
    full = Code.FULL, "no room"
    monkeypatch.setattr(worker.udp._requests, "answer_publish", lambda asked, seq, _refusal: answer(asked, seq, full))
    for _ in range(addresses.REFUSED_A_SECOND + 10):
        assert client.ask(b"PUB? topic1\nx") == [b"ERR full no room\n"]


def test_what_is_left_of_a_turn_is_handled_though_no_more_comes(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUESTS_A_TURN", 1)
    client, worker = node.clients()[0], node.world.workers[0]
    client.ask(b"SUB topic1\n")
    client.send(b"PING\n", b"PUB topic1\n1", b"PING\n", b"PUB topic1\n2", b"PUB topic1\n3")
    worker.turn()
    assert worker.udp.is_busy and client.take() == [b"PONG\n"]
    node.world.settle()
    assert client.take() == [b"PONG\n", *(b"MSG topic1\n%d" % number for number in (1, 2, 3))]
    assert not worker.udp.is_busy


def test_what_is_left_when_the_door_closes_is_handled(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUESTS_A_TURN", 1)
    client, worker = node.clients()[0], node.world.workers[0]
    telnet = node.world.connect(0)
    client.send(b"PING\n", b"PING\n", b"PUB topic1\n1")
    worker.turn()
    worker.udp.stop()
    node.world.settle()
    assert [line.split()[-1] for line in node.world.ask(telnet, "sub udp 0") if line.startswith("msg")] == ["|1"]


def test_what_is_left_behind_ignored_ones_when_the_door_closes_is_handled(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "IGNORED_A_TURN", 1)
    monkeypatch.setattr(addresses.RefusedAddresses, "ignores", lambda senders, _name: senders.refused > 0)
    client, worker = node.clients()[0], node.world.workers[0]
    telnet = node.world.connect(0)
    client.send(b"UNSUB never\n", b"PING\n", b"PING\n", b"PUB topic1\n1")
    worker.turn()
    worker.udp.stop()
    node.world.settle()
    assert [line.split()[-1] for line in node.world.ask(telnet, "sub udp 0") if line.startswith("msg")] == ["|1"]


@pytest.mark.skipif(not door._packets.is_compiled(), reason="the interpreted leaf takes datagrams one by one")
def test_datagrams_that_the_kernel_has_joined_are_each_a_message(node: Node) -> None:
    client, joined = node.client(), node.client()
    client.ask(b"SUB topic1\n", b"SUB +\n")
    joined.sock.setsockopt(socket.IPPROTO_UDP, 103, len(b"PUB topic1\n1"))  # UDP_SEGMENT
    joined.send(b"".join(b"PUB topic1\n%d" % number for number in range(10)) + b"PING")
    node.world.settle()
    assert joined.take() == [b"PONG\n"]
    assert client.take() == [b"MSG topic1\n%d" % (number // 2) for number in range(20)]


def test_publishers_stay_at_their_worker(tmp_path: Path) -> None:
    for node in serve(tmp_path, affinity=True):
        for client in node.clients():
            client.ask(*(b"PUB topic1\n%d" % number for number in range(200)))
        telnet = node.world.connect(0)
        assert len([line for line in node.world.ask(telnet, "sub udp 0") if line.startswith("msg")]) == 400


def test_large_bodies_and_those_that_fit_no_datagram(node: Node) -> None:
    client, telnet = node.client(), node.world.connect(0)
    client.ask(b"SUB topic1\n")
    body = bytes(65_507 - len(b"PUB topic1\n"))
    assert client.ask(b"PUB topic1\n" + body) == [b"MSG topic1\n" + body]
    node.world.ask(telnet, "pub topic1 |" + "x" * 70_000, "pub topic1 |y")
    assert client.take() == [b"MSG topic1\ny"]
    assert node.dropped() == {"unsendable": 1}


def test_leases_end_and_any_datagram_renews_them(node: Node) -> None:
    kept, left = node.client(), node.client()
    for client in (kept, left):
        client.ask(b"SUB topic1\n")
    later_s = 100
    for worker in node.world.workers:
        assert isinstance(worker.udp, door.UdpDoor)
        worker.udp.subscriptions.expire(0)
    _move_clocks(node, later_s)
    assert kept.ask(b"PING\n") == [b"PONG\n"]
    _move_clocks(node, 50)
    node.client().ask(b"PUB topic1\nx")
    assert (kept.take(), left.take()) == ([b"MSG topic1\nx"], [])
    for worker in node.world.workers:
        assert isinstance(worker.udp, door.UdpDoor)
        worker.udp.end_leases()
        worker.udp.tick()
    assert sum(worker.metrics.udp_expired for worker in node.world.workers) == 1
    assert sum(worker.metrics.udp_subscriptions for worker in node.world.workers) == 1


def _move_clocks(node: Node, seconds: int) -> None:
    """Make every address silent for that much longer."""
    leaf = load("tailrace.broker.udp.table_cy")
    for worker in node.world.workers:
        assert isinstance(worker.udp, door.UdpDoor)
        words = memoryview(worker.udp.subscriptions.table).cast("B").cast("I")
        first = words[9]
        for number in range(64):
            seen = first + 12 * number + 8
            words[seen] = max(words[seen] - seconds, 0)
    assert leaf.HEADER_WORDS == 128


@pytest.mark.usefixtures("anywhere")
def test_a_first_subscription_needs_a_cookie(node: Node) -> None:
    client = node.client()
    assert client.ask(b"SUB topic1\n") == []  # no answer fits
    padded = b"SUB topic1\n" + b" " * 23
    (answer,) = client.ask(padded)
    assert answer.startswith(b"COOKIE ") and len(answer) <= len(padded)
    cookie = answer.split()[1]
    assert node.client().ask(b"SUB topic1\n" + cookie + b" " * 9)[0].startswith(b"COOKIE ")  # that of another address
    assert client.ask(b"SUB topic1\n" + cookie) == [b"OK SUB topic1 120\n"]
    assert client.ask(b"SUB topic3/a\n") == [b"OK SUB topic3/a 120\n"]


@pytest.mark.usefixtures("anywhere")
def test_nothing_larger_goes_to_an_address_that_may_be_forged(node: Node) -> None:
    client = node.client()
    for data in (
        b"PING",
        b"PING\n",
        b"PUB? t\n",
        b"PUB? t\nsome body",
        b"SUB a\n",
        b"SUB a#\n",
        b"UNSUB a\n",
        b"x" * 50,
    ):
        for answer in client.ask(data):
            assert len(answer) <= len(data), data
    assert node.dropped()["unanswered"] > 0


@pytest.mark.usefixtures("anywhere")
def test_without_cookies_a_client_of_the_seed_can_subscribe(tmp_path: Path) -> None:
    for node in serve(tmp_path, udp_cookies=False):
        assert node.client().ask(b"SUB topic1\n\n") == [b"OK SUB topic1 120\n"]


def test_addresses_of_ipv6_are_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.broker.world.open_udp_sockets", lambda _host, *rest: open_udp_sockets("::1", *rest))
    for node in serve(tmp_path, udp_peers=(UdpPeer(("::1/128",), publish=("#",), subscribe=("topic1",)),)):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.connect(node.world.udp_sockets[0].getsockname())
            sock.setblocking(False)
            for data in (b"SUB topic1\n", b"SUB topic2\n", b"PUB topic1\nx"):
                sock.send(data)
                node.world.settle()
            assert sock.recv(100) == b"OK SUB topic1 120\n"
            assert sock.recv(100).startswith(b"ERR denied ")
            assert sock.recv(100) == b"MSG topic1\nx"


def test_rights_by_address(tmp_path: Path) -> None:
    here = UdpPeer(("127.0.0.0/8",), publish=("sensors/#", "topic1"), subscribe=("sensors/+/temp",))
    for node in serve(
        tmp_path, udp_peers=(UdpPeer(("10.0.0.0/8", "fe80::/10")), here, UdpPeer(("0.0.0.0/0",), ("#",)))
    ):
        client, denied = node.client(), b"ERR denied this address does not have the right to that"
        assert client.ask(b"PUB? sensors/1/temp\nx") == [b"OK sensors/1/temp 0\n"]
        assert client.ask(b"PUB? other\nx")[0].startswith(denied)
        assert client.ask(b"SUB sensors/1/temp\n") == [b"OK SUB sensors/1/temp 120\n"]
        assert client.ask(b"SUB sensors/#\n")[0].startswith(denied)
        assert client.ask(b"PUB other\nx") == [] and node.dropped() == {"refused": 1}


def test_with_users_nobody_has_rights_without_a_section(tmp_path: Path) -> None:
    for node in serve(tmp_path, users=()):
        assert node.client().ask(b"PUB? topic1\nx")[0].startswith(b"ERR denied")


def test_a_full_table_refuses(tmp_path: Path) -> None:
    for node in serve(tmp_path, workers=1, max_udp_subscriptions=16):
        client = node.client()
        for number in range(16):
            assert client.ask(b"SUB t%d\n" % number)[0].startswith(b"OK")
        assert client.ask(b"SUB more\n")[0].startswith(b"ERR subscriptions")
        assert client.ask(b"SUB a/+\n")[0].startswith(b"ERR subscriptions")
        client.ask(b"UNSUB t3\n")
        assert client.ask(b"SUB a/+\n")[0].startswith(b"OK")


def test_only_a_further_stream_is_refused_when_a_worker_reads_as_many_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "STREAMS_MAX", 2)
    for node in serve(tmp_path, topics=(TopicRule("d/+/x", "d-{2}"), *RULES)):
        client = node.client()
        found = [
            client.ask(b"SUB %s\n" % topic)[0].split()[0] for topic in (b"d/1/x", b"topic1", b"d/2/x", b"sensors/+")
        ]
        assert found == [b"OK", b"OK", b"ERR", b"ERR"]
        assert client.ask(b"SUB d/1/x\n") == [b"OK SUB d/1/x 120\n"]
        assert client.ask(b"SUB topic3/+\n") == [b"OK SUB topic3/+ 120\n"]
        assert client.ask(b"UNSUB d/1/x\n", b"SUB d/2/x\n") == [b"OK UNSUB d/1/x\n", b"OK SUB d/2/x 120\n"]


def test_a_stream_that_is_deleted_is_watched_again_at_once(node: Node) -> None:
    client, telnet = node.client(), node.world.connect(0)
    client.ask(b"SUB sensors/1\n")
    assert client.ask(b"PUB sensors/1\na") == [b"MSG sensors/1\na"]
    answers = node.world.ask(telnet, "delete sensors")
    for _ in range(10_000):  # a helper thread has its part in it
        if answers:
            break
        node.world.settle()
        answers = telnet.take()
    assert answers[0].startswith("ok delete")
    assert client.ask(b"PUB sensors/1\nb") == [b"MSG sensors/1\nb"]


def test_streams_that_nobody_wants_are_watched_no_more(node: Node) -> None:
    client = node.client()
    client.ask(b"SUB sensors/1\n", b"SUB sensors/+\n", b"SUB topic1\n")
    feeds = [worker.fanout.feeds for worker in node.world.workers]
    assert sum(b"sensors" in each for each in feeds) == 1
    client.ask(b"UNSUB sensors/1\n", b"UNSUB sensors/+\n")
    assert sum(b"sensors" in each for each in feeds) == 0
    assert sum(b"udp" in each for each in feeds) == 1


def test_the_bounds_have_names() -> None:
    assert watches.STREAMS_MAX and watches.WAITING_MAX and requests.ASKED_MAX and door.ANSWERS_MAX


def test_answers_that_come_after_the_door_was_shut_are_sent(node: Node) -> None:
    """A worker that drains still has publishes with their owners."""
    clients = node.clients()
    for client, worker in zip(clients, node.world.workers, strict=True):
        client.send(b"PUB? topic1\nx")
        worker.udp.read()
        worker.udp.stop()
    node.world.settle()
    assert [client.take() for client in clients] == [[b"OK topic1 0\n"], [b"OK topic1 1\n"]]
    for client in clients:
        assert client.ask(b"PUB? topic1\ny") == []
