"""Deleting a stream at every door: readers, consumers, producers, slaves, and a name that is used again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.core.places import StartPlace
from tailrace.shard.names import shard_of
from tests.system.node import PATIENCE_S, LineClient, Node, running, wait_for
from tests.system.processes import worker_pid
from tests.system.test_dead_letters import bury, command
from tests.system.users import logged_in, token_of, with_users

pytestmark = pytest.mark.system

WORKERS = 2
KILLS = 3
SOON_S = 20.0  # long before the names are listed again anyway


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("delete") / "data", workers=WORKERS) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


@pytest.fixture
def peer(node: Node) -> Iterator[LineClient]:
    with LineClient(node.port) as peer:
        yield peer


def files_of(node: Node, stem: str) -> set[str]:
    return {file.suffix for file in node.data.glob(f"shard-*/*{stem}*")}


def payloads(client: tailrace.Client, stream: str) -> list[bytes]:
    return [message.payload for message in client.subscribe(stream, end=tailrace.NOW)]


def test_readers_are_told_and_nothing_is_left(node: Node, client: tailrace.Client, peer: LineClient) -> None:
    bury(client, "orders", [b"x" * 10_000] * 20)
    with LineClient(node.port) as reader:
        assert reader.ask("sub orders 0") == "ok sub orders 0"
        reader.read_messages(20)
        subscription = client.subscribe("orders", tailrace.Last(1))
        assert next(subscription).seq == 19
        assert peer.ask("delete orders") == "ok delete orders"
        reader.read_answers(2)
        assert reader.answers[1].startswith("err deleted orders: ")
        with pytest.raises(tailrace.StreamDeleted):
            next(subscription)
    assert peer.ask("delete orders").startswith("err unknown ")
    assert client.streams("orders") == [] and client.streams("$cursor/orders") == []
    assert files_of(node, "orders") == {".deleted", ".meta"}
    with pytest.raises(tailrace.UnknownStream):
        client.consumers("orders")


def test_a_pattern_finds_a_stream_that_is_made_when_another_is_deleted(
    node: Node, client: tailrace.Client, peer: LineClient
) -> None:
    """As many streams as before, and others."""
    client.publish("found.a", b"first")
    client.publish("junk", b"")
    with LineClient(node.port) as reader, client.subscribe("found.*") as subscription:
        assert reader.ask("sub found.* 0") == "ok sub found.* 1"
        assert next(subscription).payload == b"first" and reader.read_messages(1)
        with pytest.raises(tailrace.OperationTimeout):  # it has asked whether there are more
            subscription.receive(timeout_s=3)
        assert peer.ask("delete junk") == "ok delete junk"
        client.publish("found.b", b"made later")
        found = subscription.receive(timeout_s=SOON_S)
        assert found is not None and found.payload == b"made later"
        assert reader.read_messages(2, SOON_S)[1].payload == b"made later"


def test_a_pattern_finds_a_stream_that_is_made_again(node: Node, client: tailrace.Client, peer: LineClient) -> None:
    client.publish("reborn.a", b"first")
    with LineClient(node.port) as reader:
        assert reader.ask("sub reborn.* 0") == "ok sub reborn.* 1"
        reader.read_messages(1)
        assert peer.ask("delete reborn.a") == "ok delete reborn.a"
        client.publish("reborn.a", b"second")
        assert [message.payload for message in reader.read_messages(2)] == [b"first", b"second"]
        assert any(answer.startswith("err deleted reborn.a") for answer in reader.answers)


@pytest.mark.parametrize("has_read", [True, False])
def test_a_member_of_a_pattern_joins_a_stream_that_is_made_again(
    node: Node, client: tailrace.Client, has_read: bool
) -> None:
    """It asks for nothing while its program is busy, so it is not told of the deletion."""
    one, other = f"member{has_read:d}.a", f"member{has_read:d}.b"
    for name in (one, other):
        client.publish(name, b"old")
    start: StartPlace = tailrace.START if has_read else tailrace.NEW
    with tailrace.connect(f"127.0.0.1:{node.port}") as mine, mine.consumer(one[:-1] + "*", "g", start=start) as member:
        old = [member.receive(PATIENCE_S) for _ in range(2 * has_read)]
        client.delete_stream(one)
        client.publish_many(one, [b"new 0", b"new 1"])
        for message in old:
            assert message is not None
            message.ack()
        client.publish(other, b"later")
        found = []
        for _ in range(3):
            message = member.receive(SOON_S)
            assert message is not None
            message.ack()
            found.append((message.stream, message.seq, message.payload))
        assert sorted(found) == [(one, 0, b"new 0"), (one, 1, b"new 1"), (other, 1, b"later")]
        member.flush()
    assert [info.lag_messages for name in (one, other) for info in client.consumers(name)] == [0, 0]


@pytest.mark.parametrize("has_read", [True, False])
def test_a_member_of_a_pattern_does_not_make_a_consumer_again_that_was_deleted(
    node: Node, client: tailrace.Client, has_read: bool
) -> None:
    name = f"ended{has_read:d}.a"
    start: StartPlace = tailrace.START if has_read else tailrace.NEW
    client.publish(name, b"old")
    with tailrace.connect(f"127.0.0.1:{node.port}") as mine, mine.consumer(name[:-1] + "*", "g", start=start) as member:
        for _ in range(has_read):
            message = member.receive(PATIENCE_S)
            assert message is not None
            message.ack()
        member.flush()
        assert client.delete_consumer(name, "g")
        with pytest.raises(tailrace.NoSuchConsumer):
            member.receive(PATIENCE_S)
        with pytest.raises(tailrace.OperationTimeout):
            member.receive(2.5)
    assert client.consumers(name) == []


def test_the_name_is_that_of_another_stream_then(node: Node, client: tailrace.Client) -> None:
    client.publish_many("again", [b"old"] * 5)
    client.create_consumer("again", "billing")
    with tailrace.connect(f"127.0.0.1:{node.port}") as other, other.consumer("again", "billing") as member:
        message = next(member)
        client.delete_stream("again")
        receipt = client.publish("again", b"new")
        client.create_consumer("again", "billing")
        assert receipt.seq == 0
        message.ack()
        with pytest.raises(tailrace.BrokerError):
            member.flush()
            for _ in member:
                pass
    [info] = client.consumers("again")
    assert info.lag_messages == 1, "an acknowledgement of the former message is none of this one"
    [new] = client.subscribe("again", end=tailrace.NOW)
    assert (new.payload, new.epoch) == (b"new", message.epoch + 1)


def test_a_numbered_publish_goes_on_in_the_new_stream(client: tailrace.Client) -> None:
    for round_number in range(3):
        assert client.publish("numbered", b"%d" % round_number).seq == 0
        assert payloads(client, "numbered") == [b"%d" % round_number]
        client.delete_stream("numbered")


def test_asyncio_and_the_command(node: Node, client: tailrace.Client) -> None:
    async def work() -> None:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as other:
            await other.delete_stream("one")
            with pytest.raises(tailrace.UnknownStream):
                await other.delete_stream("one")

    client.publish("one", b"x")
    client.publish("two", b"x")
    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert command(node, "delete", "two", "--yes") == (0, b"two is deleted\n", b"")
    assert command(node, "delete", "two", "--yes")[0] == 1


def test_what_cannot_be_deleted(client: tailrace.Client, peer: LineClient) -> None:
    client.publish("kept", b"x")
    assert peer.ask("delete $cursor/kept").startswith("err reserved ")
    assert peer.ask("delete kept/$dead").startswith("err usage ")
    assert payloads(client, "kept") == [b"x"]


def test_under_load_with_the_owner_killed_it_is_there_or_not(node: Node, client: tailrace.Client) -> None:
    """After each kill the stream is whole, or gone and can be made again."""
    slot = shard_of(b"killed") % WORKERS
    dice = random.Random(7)
    for number in range(KILLS):
        client.publish_many("killed", [b"%d" % number] * 50, ack=tailrace.Ack.SYNCED)
        with LineClient(node.port) as peer:
            peer.send("delete killed")
            time.sleep(dice.random() / 100)  # at any step of it
            os.kill(worker_pid(node, slot), signal.SIGKILL)
            with contextlib.suppress(ConnectionError):  # the killed one may have been this connection's, too
                peer.read_answers(1)
        wait_for(lambda: client.publish("probe", b"x"), "the node works")
        found = [stream for stream in client.streams("killed") if stream.name == "killed"]
        if found:
            assert payloads(client, "killed")[-50:] == [b"%d" % number] * 50
            client.delete_stream("killed")
        assert not client.streams("killed")


KILLER = """
import os, signal, pathlib
from tailrace.shard import deletion
left = pathlib.Path(os.environ["KILL_AFTER_STEPS"])
def step():
    count = int(left.read_text())
    left.write_text(str(count - 1))
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
deletion.step = step
"""


def test_a_kill_at_any_step(tmp_path: Path) -> None:
    """The owner is killed after every third step in turn; the next one ends the deletion, and the name can be used
    again. `tests/shard/test_deletion.py` takes every step."""
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    left = tmp_path / "left"
    left.write_text("-1")
    environment = {"PYTHONPATH": str(tmp_path), "KILL_AFTER_STEPS": str(left)}
    node = Node(tmp_path / "data", workers=1, environment=environment)
    node.by_exec = True
    node.start()
    try:
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            kills = delete_with_kills(node, client, left)
        assert kills > 5
        assert node.stop() == 0, node.log()
    finally:
        node.kill()


def delete_with_kills(node: Node, client: tailrace.Client, left: Path) -> int:
    """How many times the owner was killed before a deletion came to its end."""
    for kills in itertools.count():
        assert client.publish("killed", b"%d" % kills).seq == 0
        client.create_consumer("killed", "billing")
        [message] = client.subscribe("killed", end=tailrace.NOW)
        assert (message.payload, message.epoch) == (b"%d" % kills, kills + 1)
        left.write_text(str(3 * kills))
        client.delete_stream("killed")
        assert not client.streams("killed") and not client.streams("$cursor/killed")
        assert files_of(node, "killed") == {".deleted", ".meta"}
        if int(left.read_text()) >= 0:
            return kills
    raise AssertionError


def test_slaves_follow(tmp_path: Path) -> None:
    with (
        running(tmp_path / "master", workers=1) as master,
        running(tmp_path / "slave", workers=1) as slave,
        LineClient(slave.port) as peer,
        tailrace.connect(f"127.0.0.1:{master.port}") as client,
        tailrace.connect(f"127.0.0.1:{slave.port}") as reader,
    ):
        assert peer.ask(f"slave 127.0.0.1 {master.port} * 0").startswith("ok slave")
        client.publish_many("tree", [b"old"] * 3)
        client.create_consumer("tree", "billing")
        wait_for(lambda: [each.next_seq for each in reader.streams("tree")] == [3], "it is copied")
        assert peer.ask("delete tree").startswith("err disabled ")
        client.delete_stream("tree")
        wait_for(lambda: not reader.streams("tree"), "the copy is deleted")
        client.publish("tree", b"new")
        wait_for(lambda: [each.next_seq for each in reader.streams("tree")] == [1], "the new one is copied")
        assert payloads(reader, "tree") == [b"new"]


@pytest.mark.thorough
def test_a_node_two_levels_below_that_was_away_deletes_its_copies(tmp_path: Path) -> None:
    """One of the streams is made again meanwhile, without consumers."""
    with (
        running(tmp_path / "root", workers=1) as root,
        running(tmp_path / "middle", workers=1) as middle,
        running(tmp_path / "leaf", workers=1) as leaf,
        tailrace.connect(f"127.0.0.1:{root.port}") as client,
        tailrace.connect(f"127.0.0.1:{middle.port}") as between,
    ):
        for upstream, node in ((root, middle), (middle, leaf)):
            with LineClient(node.port) as peer:
                assert peer.ask(f"slave 127.0.0.1 {upstream.port} * 0").startswith("ok slave")
        for name in ("gone", "again"):
            client.publish_many(name, [b"old"] * 3)
            client.create_consumer(name, "billing")
        with tailrace.connect(f"127.0.0.1:{leaf.port}") as reader:
            wait_for(lambda: ends(reader) == {"again": (1, 3), "gone": (1, 3)}, "all is copied")
            wait_for(lambda: any(each.next_seq for each in reader.streams("$cursor/again")), "and the consumers")
        leaf.kill()
        client.delete_stream("gone")
        client.delete_stream("again")
        client.publish("again", b"new")
        wait_for(lambda: ends(between) == {"again": (2, 1)}, "the middle follows")
        leaf.start()
        with tailrace.connect(f"127.0.0.1:{leaf.port}") as reader:
            wait_for(lambda: ends(reader) == {"again": (2, 1)}, "the leaf deletes its copy")
            assert payloads(reader, "again") == [b"new"]
            wait_for(
                lambda: not any(each.next_seq for each in reader.streams("$cursor/again")),
                "no consumer of the former stream is left",
            )
        wait_for(lambda: ends(client) == ends(between) == {"again": (2, 1)}, "and nobody makes it again")


def ends(client: tailrace.Client) -> dict[str, tuple[int, int]]:
    return {stream.name: (stream.epoch, stream.next_seq) for stream in client.streams()}


def test_only_an_administrator_of_the_stream_deletes_it(tmp_path: Path) -> None:
    """At every door: a user who may publish and consume may not delete."""
    rules = '[[rule]]\nallow = "ann"\nrights = ["publish", "subscribe", "consume", "create"]\n'
    with (
        running(tmp_path / "data", workers=1, config=with_users(tmp_path / "users", "ann", rules=rules)) as node,
        tailrace.connect(f"127.0.0.1:{node.port}", user="ann", token=token_of("ann")) as client,
        logged_in(node, "ann") as line,
    ):
        client.publish("kept", b"x")
        with pytest.raises(tailrace.Denied):
            client.delete_stream("kept")
        assert line.ask("delete kept").startswith("err denied ")
        assert payloads(client, "kept") == [b"x"]


def test_an_administrator_who_may_not_consume_deletes_at_every_door(tmp_path: Path) -> None:
    rules = '[[rule]]\nallow = "ann"\nrights = ["publish", "create"]\n[[rule]]\nallow = "root"\nrights = ["admin"]\n'
    with (
        running(
            tmp_path / "data", workers=1, config=with_users(tmp_path / "users", "ann", "root", rules=rules)
        ) as node,
        tailrace.connect(f"127.0.0.1:{node.port}", user="ann", token=token_of("ann")) as publisher,
        tailrace.connect(f"127.0.0.1:{node.port}", user="root", token=token_of("root")) as client,
        logged_in(node, "root") as line,
    ):
        for name in ("a", "b"):
            publisher.publish(name, b"x")
        client.delete_stream("a")
        assert line.ask("delete b") == "ok delete b"
