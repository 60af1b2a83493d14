from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers.base import Site, Unavailable
from bench.peers.jetstream_cluster import NODES, JetStreamCluster


def test_every_server_knows_the_others(tmp_path: Path) -> None:
    site = Site(tmp_path, 1000, 1001, (1002, 1003, 1004, 1005, 1006))
    try:
        JetStreamCluster().command(site)
    except Unavailable as error:
        pytest.skip(str(error))
    commands = json.loads((tmp_path / "commands.json").read_text())
    texts = [Path(command[-1]).read_text() for command in commands]
    assert len(texts) == NODES
    for number, text in enumerate(texts, 1):
        lines = text.splitlines()
        assert [line for line in lines if line.startswith("server_name")] == [f"server_name: n{number}"]
        assert f'store_dir: "{tmp_path}/n{number}/store"' in text
        assert all(f"nats-route://127.0.0.1:{port}" in text for port in (1004, 1005, 1006))
    assert [text.split('listen: "127.0.0.1:')[1][:4] for text in texts] == ["1000", "1002", "1003"]
    assert [text.split('listen: "127.0.0.1:')[2][:4] for text in texts] == ["1004", "1005", "1006"]


def test_it_serves_once_the_stream_has_three_replicas_and_the_first_server_leads() -> None:
    create, step_down, info = JetStreamCluster().ready()[-3:]
    assert b'"num_replicas": 3' in create.send and create.until == b'"num_replicas":3'
    assert b'"preferred": "n1"' in step_down.send
    assert info.until == b'"leader":"n1"'
