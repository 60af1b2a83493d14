from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bench.peers.base import Site, make_payload
from bench.peers.tailrace_nodes import NODES_MAX, TailraceNodes
from tailrace.protocol.messages import Ack, Hello, Open, Ping, Publish
from tests.protocol.plain_codec import PlainCodec

NAME, PAYLOAD = "b.000000", make_payload(100)


def site(path: Path) -> Site:
    return Site(path, 1000, 1001, (1002, 1003, 1004, 1005, 1006))


@pytest.mark.parametrize("nodes", range(2, NODES_MAX + 1))
def test_each_node_follows_the_one_before_it(tmp_path: Path, nodes: int) -> None:
    peer = TailraceNodes().changed(nodes=nodes)
    assert peer.command(site(tmp_path))[1:3] == ["-m", "bench.load.together"]
    commands = json.loads((tmp_path / "commands.json").read_text())
    ports = [command[command.index("--port") + 1] for command in commands]
    assert ports == ["1000", *map(str, peer.slave_ports(site(tmp_path)))]
    assert len({port for command in commands for port in command if port.isdigit() and int(port) >= 1000}) == 2 * nodes
    configs = [tomllib.loads((tmp_path / f"node-{number}.toml").read_text()) for number in range(nodes)]
    upstreams = [config["slave"][0]["upstream"] for config in configs[1:]]
    assert upstreams == [f"127.0.0.1:{port}" for port in ports[:-1]]
    assert "slave" not in configs[0]


@pytest.mark.parametrize("nodes", [1, NODES_MAX + 1])
def test_a_chain_that_there_are_no_ports_for(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(ValueError, match=f"a chain of {nodes} nodes; it has 2 to 3"):
        TailraceNodes().changed(nodes=nodes).command(site(tmp_path))


def test_nodes_that_do_not_follow_are_told_nothing(tmp_path: Path) -> None:
    peer = TailraceNodes().changed(following=False)
    peer.command(site(tmp_path))
    assert "slave" not in tomllib.loads((tmp_path / "node-1.toml").read_text())
    assert peer.prepare() == []


@pytest.mark.parametrize(
    ("peer", "ack", "replicas"),
    [
        (TailraceNodes(), Ack.APPENDED, 0),
        (TailraceNodes(replicas=1).changed(nodes=3), Ack.REPLICATED, 1),
        (TailraceNodes().changed(nodes=3).held_by_all(), Ack.REPLICATED, 2),
        (TailraceNodes(replicas=1).held_by_all(), Ack.REPLICATED, 1),
    ],
)
def test_what_is_asked_of_a_publish(peer: TailraceNodes, ack: Ack, replicas: int) -> None:
    said = b"".join(step.send for step in peer.publisher(0, [NAME])) + peer.publish_many(NAME, PAYLOAD, 3)
    hello, ping, opened, publish = list(PlainCodec(1 << 20, 1 << 20).feed(said, len(said)))
    assert isinstance(hello, Hello) and isinstance(ping, Ping) and isinstance(opened, Open)
    assert isinstance(publish, Publish)
    assert (publish.ack, publish.replicas, publish.count) == (ack, replicas, 3)
    assert publish.handles == (opened.id,)


def test_the_variants_have_names_of_their_own() -> None:
    peers = [TailraceNodes(), TailraceNodes(replicas=1)]
    assert [peer.name for peer in peers] == ["tailrace-slaves", "tailrace-slaves-held"]
    assert [peer.kinds for peer in peers] == [{"replicated", "hop", "catch-up"}, {"replicated", "lease-replicated"}]
