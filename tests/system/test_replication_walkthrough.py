"""The first use anybody makes of replication: two servers and a telnet on each, as its oldest description has it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.shard.directory import NODE_FILE, make_data_dir
from tests.system.node import Node, rows, running, wait_for
from tests.system.telnet import Telnet, open_telnet

pytestmark = pytest.mark.system

LOW_ID, HIGH_ID = "0" * 16, "f" * 16
"""Of two nodes that are masters in the same term the one with the higher id wins; that must not matter here."""


@contextlib.contextmanager
def node_with_id(data: Path, node_id: str, config: str = "") -> Iterator[Node]:
    """A node that believes to have this id."""
    make_data_dir(data)
    node_file = data / NODE_FILE
    node_file.write_text(json.dumps({**json.loads(node_file.read_text()), "node_id": node_id}))
    with running(data, workers=2, config=config) as node:
        yield node


whichever_id_is_higher = pytest.mark.parametrize(
    "pair", [(LOW_ID, HIGH_ID), (HIGH_ID, LOW_ID)], ids=["master-low", "master-high"], indirect=True
)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes that know nothing of each other."""
    first_id, second_id = getattr(request, "param", (LOW_ID, HIGH_ID))
    with node_with_id(tmp_path / "aa", first_id) as first, node_with_id(tmp_path / "bb", second_id) as second:
        yield first, second


@pytest.fixture
def telnets(pair: tuple[Node, Node]) -> Iterator[tuple[Telnet, Telnet]]:
    with open_telnet(pair[0]) as first, open_telnet(pair[1]) as second:
        yield first, second


def stat(node: Node, stream: str) -> dict[str, str]:
    with node.client() as client:
        return {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {stream}"))}


def payloads(node: Node, stream: str, count: int, start: str = "0") -> list[tuple[int, bytes]]:
    """(seq, payload) of `count` messages."""
    with node.client() as client:
        client.send(f"sub {stream} {start} wait")
        return [(message.seq, message.payload) for message in client.read_messages(count)]


@pytest.mark.few(1)
@whichever_id_is_higher
def test_the_table_of_two_servers(pair: tuple[Node, Node], telnets: tuple[Telnet, Telnet]) -> None:
    first, second = telnets
    first.enter(b"master 0")
    first.wait_for(b"ok master 0 1")
    second.enter(b"Slave 127.0.0.1 %d 0 0" % pair[0].port)
    second.wait_for(b"ok slave 0 127.0.0.1:%d" % pair[0].port)
    for each in telnets:
        each.enter(b"sub 0 0 wait")
        each.wait_for(b"ok sub 0 0")
    first.enter(b"pub 0 |Hello world")
    for each in telnets:
        each.wait_for(b"msg 0 0 ")
        each.wait_for(b" 11 |Hello world\r\n")
    second.enter(b"pub 0 |Bye world")
    for each in telnets:
        each.wait_for(b"msg 0 1 ")
        each.wait_for(b" 9 |Bye world\r\n")
    second.enter(b"ack on")
    second.enter(b"pub 0 |Really")
    second.wait_for(b"ok pub 0 2")
    assert (stat(pair[0], "0")["role"], stat(pair[1], "0")["role"]) == ("master", "slave")


@pytest.mark.few(1)
@whichever_id_is_higher
def test_a_stream_that_was_used_before_it_is_slaved(pair: tuple[Node, Node], telnets: tuple[Telnet, Telnet]) -> None:
    """A sub alone makes a stream; after `slave` it follows."""
    first, second = telnets
    for each in telnets:
        each.enter(b"sub 0 0 wait")
        each.wait_for(b"ok sub 0 0")
    second.enter(b"slave 127.0.0.1 %d 0 0" % pair[0].port)
    second.wait_for(b"ok slave 0 ")
    first.enter(b"pub 0 |from the master")
    for each in telnets:
        each.wait_for(b"|from the master\r\n")
    second.enter(b"pub 0 |from the slave")
    for each in telnets:
        each.wait_for(b"|from the slave\r\n")


def test_all_streams_and_those_to_come(pair: tuple[Node, Node]) -> None:
    master, slave = pair
    with master.client() as there, slave.client() as here:
        there.send("ack on", "pub old |1")
        there.read_answers(2)
        assert here.ask(f"slave 127.0.0.1 {master.port} * 0").startswith("ok slave * ")
        wait_for(lambda: "old slave 1" in here.ask_table("streams"), "the stream that was there")
        assert payloads(slave, "old", 1) == [(0, b"1")]
        there.send("pub new |2")
        wait_for(lambda: "new slave 1" in here.ask_table("streams"), "the stream that was made later")
        assert payloads(slave, "new", 1) == [(0, b"2")]
        here.answers.clear()
        assert here.ask("ack on") == "ok ack on"
        assert here.ask("pub made-here |3") == "ok pub made-here 0"
        assert payloads(master, "made-here", 1) == [(0, b"3")]


def test_the_same_by_configuration(tmp_path: Path) -> None:
    """It is obeyed from the start, and when it is read again."""
    with node_with_id(tmp_path / "aa", LOW_ID) as master, master.client() as there:
        section = f'[[slave]]\nstreams = "{{}}"\nupstream = "127.0.0.1:{master.port}"\n'
        assert [there.ask("ack on"), there.ask("pub log.1 |x")] == ["ok ack on", "ok pub log.1 0"]
        with node_with_id(tmp_path / "bb", HIGH_ID, section.format("up*")) as slave:
            with slave.client() as client:
                assert client.ask("ack on") == "ok ack on"
                assert client.ask("pub up.1 |up") == "ok pub up.1 0"
            assert payloads(master, "up.1", 1) == payloads(slave, "up.1", 1) == [(0, b"up")]
            (tmp_path / "bb.toml").write_text(section.format("*"))
            slave.signal(signal.SIGHUP)
            with slave.client() as client:
                wait_for(lambda: "log.1 slave 1" in client.ask_table("streams"), "the new section is obeyed")
            assert payloads(slave, "log.1", 1) == [(0, b"x")]


def test_dropping_old_messages_by_moving_to_a_new_server(pair: tuple[Node, Node]) -> None:
    """The maintenance recipe: slave as of a time, bring down the master, unslave, promote. Seqs stay as they are."""
    old, new = pair
    with old.client() as client:
        assert client.ask("ack on") == "ok ack on"
        assert client.ask("pub 0 |too old") == "ok pub 0 0"
        since_us = int(stat(old, "0")["last_timestamp_us"]) + 1
        wait_for(lambda: time.time_ns() // 1_000 > since_us, "the clock has moved on")
        assert [client.ask("pub 0 |kept"), client.ask("pub 0 |kept too")] == ["ok pub 0 1", "ok pub 0 2"]
    with new.client() as client:
        assert client.ask(f"slave 127.0.0.1 {old.port} 0 {since_us}").startswith("ok slave 0 ")
        wait_for(lambda: stat(new, "0")["next_seq"] == "3", "the new server has caught up")
        assert old.stop() == 0
        assert [client.ask("unslave 0"), client.ask("promote 0")] == ["ok unslave 0", "ok promote 0 2"]
        assert [client.ask("ack on"), client.ask("pub 0 |new")] == ["ok ack on", "ok pub 0 3"]
    assert stat(new, "0")["first_seq"] == "1"
    assert payloads(new, "0", 3) == [(1, b"kept"), (2, b"kept too"), (3, b"new")]


def test_swapping_master_and_slave(pair: tuple[Node, Node]) -> None:
    """Nothing is lost: the master stops taking messages before the slave becomes the master."""
    first, second = pair
    with first.client() as here, second.client() as there:
        assert [here.ask("ack on"), here.ask("pub s |1"), there.ask("ack on")] == [
            "ok ack on",
            "ok pub s 0",
            "ok ack on",
        ]
        assert there.ask(f"slave 127.0.0.1 {first.port} * 0").startswith("ok slave * ")
        wait_for(lambda: "s slave 1" in there.ask_table("streams"), "the slave has the stream")
        there.answers.clear()
        assert here.ask("unmaster s") == "ok unmaster s 1"
        assert here.ask("pub s |refused").startswith("err disabled ")
        wait_for(lambda: stat(second, "s")["next_seq"] == stat(first, "s")["next_seq"], "the slave has all of it")
        assert there.ask("promote s") == "ok promote s 2"
        assert here.ask(f"slave 127.0.0.1 {second.port} s 0").startswith("ok slave s ")
        assert [here.ask("pub s |2"), there.ask("pub s |3")] == ["ok pub s 1", "ok pub s 2"]
        assert payloads(first, "s", 3) == payloads(second, "s", 3) == [(0, b"1"), (1, b"2"), (2, b"3")]
        assert (stat(first, "s")["role"], stat(second, "s")["role"]) == ("slave", "master")


@pytest.mark.thorough
def test_the_tree_is_drawn(pair: tuple[Node, Node]) -> None:
    master, slave = pair
    with master.client() as there, slave.client() as here:
        assert there.ask("master 0") == "ok master 0 1"
        assert here.ask(f"slave 127.0.0.1 {master.port} 0 0").startswith("ok slave 0 ")
        assert [here.ask("ack on"), here.ask("pub 0 |x")] == ["ok ack on", "ok pub 0 0"]

    def drawn(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "tailrace.cli.main", "tree", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=120, check=True, text=True)
        return [line.rstrip() for line in done.stdout.splitlines()]

    for arguments in ([f"127.0.0.1:{master.port}"], [f"127.0.0.1:{slave.port}"]):
        wait_for(lambda: "caught up" in drawn(*arguments)[-1], "the slave is caught up")  # noqa: B023
        top, below = drawn(*arguments)
        assert top.startswith(f"127.0.0.1:{master.port}  ") and top.endswith("  master of 1 stream")
        assert below.startswith(f"└── 127.0.0.1:{slave.port}  ") and "  slave of 1 stream  up" in below
    of_stream = drawn(f"127.0.0.1:{slave.port}", "--stream", "0")
    assert of_stream[0].endswith("  master, epoch 1, last_epoch 1, next_seq 1")
    either = " or ".join(sorted(f"127.0.0.1:{node.port}" for node in pair))
    assert of_stream[-1] == f"may be promoted: {either}, with the most of 0, of nodes that answered"
