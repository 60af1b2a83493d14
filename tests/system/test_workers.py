"""Four workers on one node: every stream through every worker, connections spread and moved, nobody notices."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.streams import lives, name_of, names_of

pytestmark = pytest.mark.system

WORKERS = 4
STAY = "[node]\naffinity = false\n"  # connections stay with the worker that took them


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("workers") / "data", workers=WORKERS, config=STAY) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def clients(node: Node) -> Iterator[list[LineClient]]:
    """One connection to each worker."""
    clients = [node.client_of(slot) for slot in range(WORKERS)]
    yield clients
    for client in clients:
        client.send("close")  # without it the subscriptions would stay for a while: a half-close looks the same
        client.close()


@pytest.mark.parametrize("owner", range(WORKERS))
def test_a_stream_is_published_to_and_read_through_every_worker(
    node: Node, clients: list[LineClient], owner: int
) -> None:
    name = name_of(owner, WORKERS, "all")
    for client in clients:
        client.send(f"sub {name} 0 wait", "ack on")
    for client in clients:
        client.read_until(lambda client=client: len(client.answers) == 2)  # type: ignore[misc]
        assert client.answers == [f"ok sub {name} 0", "ok ack on"]
    for number in range(50):
        for slot, client in enumerate(clients):
            client.send(f"pub {name} |{slot} {number}")
    for client in clients:
        client.read_messages(50 * WORKERS)
        client.read_until(lambda client=client: len(client.answers) == 52)  # type: ignore[misc]
    seen = clients[0].messages
    assert [message.seq for message in seen] == list(range(50 * WORKERS))
    assert [message.timestamp_us for message in seen] == sorted(message.timestamp_us for message in seen)
    for slot, client in enumerate(clients):
        assert client.messages == seen, "every worker shows the same stream"
        mine = [message for message in seen if message.payload.startswith(b"%d " % slot)]
        assert [message.payload for message in mine] == [b"%d %d" % (slot, number) for number in range(50)]
        assert client.answers[2:] == [f"ok pub {name} {message.seq}" for message in mine]


def test_one_read_may_publish_to_the_streams_of_every_owner(node: Node, clients: list[LineClient]) -> None:
    names = [name for owner in range(WORKERS) for name in names_of(owner, WORKERS, 25, "many")]
    for slot, client in enumerate(clients):
        client.send(*(f"pub {name} |{slot}" for name in names))
    for client in clients:
        assert client.ask("ping") == "ok pong"
    reader = clients[2]
    reader.send(*(f"sub {name} 0 wait" for name in names))
    reader.read_messages(len(names) * WORKERS)
    counts = Counter((message.stream, message.payload) for message in reader.messages)
    assert counts == {(name, b"%d" % slot): 1 for name in names for slot in range(WORKERS)}


def test_own_publishes_are_before_an_own_subscription_to_what_is_new(clients: list[LineClient]) -> None:
    """`sub new` after a pipelined pub begins after it, also where the stream lives in another worker."""
    for slot, client in enumerate(clients):
        for owner in range(WORKERS):
            name = name_of(owner, WORKERS, f"new{slot}-")
            client.answers.clear()
            client.send(f"pub {name} |1", f"pub {name} |2", f"sub {name} new wait", f"pub {name} |3", "ping")
            client.read_until(lambda client=client: "ok pong" in client.answers)  # type: ignore[misc]
            assert client.answers == [f"ok sub {name} 2", "ok pong"]
            client.read_until(lambda client=client: bool(client.messages))  # type: ignore[misc]
            assert [(message.stream, message.seq, message.payload) for message in client.messages] == [(name, 2, b"3")]
            client.messages.clear()


def test_commands_for_an_owner_are_answered_through_every_worker(clients: list[LineClient]) -> None:
    for slot, client in enumerate(clients):
        for owner in range(WORKERS):
            name = name_of(owner, WORKERS, f"admin{slot}-")
            client.answers.clear()
            client.send(f"pub {name} |a", f"pub {name} |b", f"trim {name} #1", f"unmaster {name}", f"pub {name} |c")
            client.send(f"master {name}", "ack on", f"pub {name} |d", "ack off")
            client.read_until(lambda client=client: len(client.answers) == 7)  # type: ignore[misc]
            assert client.answers[:2] == [f"ok trim {name} 1 1", f"ok unmaster {name} 1"]
            assert client.answers[2].startswith(f"err disabled {name}: ")
            assert client.answers[3:] == [f"ok master {name} 2", "ok ack on", f"ok pub {name} 2", "ok ack off"]
            client.answers.clear()
            stat = {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {name}"))}
            assert (stat["first_seq"], stat["next_seq"], stat["epoch"]) == ("1", "3", "2")


def test_connections_move_to_their_streams_and_do_not_notice(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node:
        for slot in range(WORKERS):
            check_move(node, slot, (slot + 1) % WORKERS)


def check_move(node: Node, slot: int, owner: int) -> None:
    name = name_of(owner, WORKERS, f"moving{slot}-")
    with node.client_of(slot) as client:
        client.send("ack on", *(f"pub {name} |{number}" for number in range(200)))
        client.send_raw(f"pub {name} |cut in ".encode())
        client.read_until(lambda: len(client.answers) == 201)
        wait_for(lambda: slot_of(node, client) == owner, "the publisher is where its stream is")
        client.send_raw(b"two\r\n")
        client.send(*(f"pub {name} |{number}" for number in range(200)), f"sub {name} 0 wait")
        client.read_messages(401)
        assert client.answers[1:-1] == [f"ok pub {name} {seq}" for seq in range(401)]
        assert client.messages[200].payload == b"cut in two"
        client.send("close")


def slot_of(node: Node, client: LineClient) -> int:
    """Which worker serves a client, asked by another; -1 when it is on its way from one to the next."""
    me = "{}:{}".format(*client.sock.getsockname())
    with node.client() as admin:
        return next((int(row["worker"]) for row in rows(admin.ask_table("conns")) if row["peer"] == me), -1)


def test_connections_are_spread_and_a_crowded_worker_passes_new_ones_on(node: Node) -> None:
    handed_over = node.metric("tailrace_handed_over_connections_total")
    with contextlib.ExitStack() as held:
        crowd = connect_many(node, held, 400)
        slots = slots_of(node, crowd)
        assert min(slots.count(slot) for slot in range(WORKERS)) > 40, "the kernel spreads them"
        left = slots.count(1)
        for client, slot in zip(crowd, slots, strict=True):
            if slot != 1:
                client.close()
        wait_for(lambda: len(all_conns(node)) <= left + 1, "those that were closed are gone")
        late = slots_of(node, connect_many(node, held, 120))
        assert late.count(1) <= 5, "a crowded worker keeps no new connection"
        wait_for(lambda: node.metric("tailrace_handed_over_connections_total") >= handed_over + 5, "it is counted")
    wait_for(lambda: len(all_conns(node)) <= 1, "all are gone")


def connect_many(node: Node, held: contextlib.ExitStack, how_many: int) -> list[LineClient]:
    """`how_many` connections, each of which has had an answer."""
    clients = [held.enter_context(node.client()) for _ in range(how_many)]
    for client in clients:
        assert client.ask("ping") == "ok pong"
    return clients


def slots_of(node: Node, clients: list[LineClient]) -> list[int]:
    by_peer = {row["peer"]: int(row["worker"]) for row in all_conns(node)}
    return [by_peer["{}:{}".format(*client.sock.getsockname())] for client in clients]


def all_conns(node: Node) -> list[dict[str, str]]:
    with node.client() as admin:
        return rows(admin.ask_table("conns"))


def test_workers_say_who_they_are(node: Node, clients: list[LineClient]) -> None:
    for client in clients:
        assert client.ask("sub counted new wait") == "ok sub counted 0"
    wait_for(lambda: [row["subscriptions"] for row in node.workers()] == ["1"] * WORKERS, "subscriptions are counted")
    assert all(float(row["beat_age_s"]) < 5 for row in node.workers())
    assert sum(int(row["connections"]) for row in node.workers()) >= WORKERS
