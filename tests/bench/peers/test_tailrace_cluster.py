from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from bench.peers.base import Site, Unavailable
from bench.peers.tailrace_cluster import TailraceCluster

PORTS = range(1000, 1008)


def commands_of(path: Path) -> list[list[str]]:
    try:
        TailraceCluster().command(Site(path, PORTS[0], PORTS[1], tuple(PORTS[2:])))
    except Unavailable as error:
        pytest.skip(str(error))
    commands: list[list[str]] = json.loads((path / "commands.json").read_text())
    return commands


def test_each_node_has_an_agent_and_all_agents_one_etcd(tmp_path: Path) -> None:
    etcd, *others = commands_of(tmp_path)
    nodes, agents = others[::2], others[1::2]
    assert [command[command.index("--port") + 1] for command in nodes] == ["1000", "1002", "1004"]
    assert [command[command.index("--metrics-port") + 1] for command in nodes] == ["1001", "1003", "1005"]
    assert "http://127.0.0.1:1006" in etcd and "http://127.0.0.1:1007" in etcd
    for number, (node, (_sh, _c, script)) in enumerate(zip(nodes, agents, strict=True)):
        data = node[node.index("--data") + 1]
        assert f"[ -S {data}/admin.sock ]" in script and f"--data {data}" in script
        assert "--etcd 127.0.0.1:1006" in script and f"--address 127.0.0.1:{1000 + 2 * number}" in script
        assert ("--found" in script) == (number == 0), "the first node leads: it is published to"


def test_the_nodes_wait_for_their_agents_and_know_each_other(tmp_path: Path) -> None:
    commands_of(tmp_path)
    for number in range(3):
        config = tomllib.loads((tmp_path / f"node-{number}.toml").read_text())
        assert config["cluster"]["start_fenced"]
        assert config["replication"]["peers"] == ["127.0.0.1:1000", "127.0.0.1:1002", "127.0.0.1:1004"]


def test_it_serves_once_both_others_hold_a_message() -> None:
    *_, publish = TailraceCluster().ready()
    assert b"settled" in publish.send and publish.until
