from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers.base import Site, Unavailable, stream_names
from bench.peers.jetstream import NODES, PULL_BATCH, JetStream, JetStreamCluster, JetStreamPuller


def test_jetstream_answers_count_from_one_over_all_subjects() -> None:
    bodies = [b'{"stream":"BENCH","seq":%d}' % seq for seq in range(1, 1_201)]
    answers = [b"MSG _IN.000007 1 %d\r\n%s\r\n" % (len(body), body) for body in bodies]
    assert JetStream().answers_bytes(stream_names(9), 1_200) == len(b"".join(answers))
    assert JetStream().publish("b.1", b"@hello", client=7) == b"PUB b.1 _IN.000007 6\r\n@hello\r\n"


def test_jetstream_puller_keeps_two_batches_asked_for() -> None:
    puller = JetStreamPuller(3)
    assert puller.open().count(b"CONSUMER.MSG.NEXT.BENCH.r3") == 2
    assert puller.feed(b"@" * (PULL_BATCH - 1)) == b""
    assert puller.feed(b"@").count(b"MSG.NEXT") == 1
    assert puller.feed(b"@" * 2 * PULL_BATCH).count(b"MSG.NEXT") == 2
    assert puller.messages == 3 * PULL_BATCH


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
