"""Tails that were set aside are published again, with headers and keys, and each message once."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import pytest

import tailrace
from tailrace.cli import main
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, USAGE
from tailrace.protocol.messages import Ack, pack_publish
from tailrace.shard.diverged import diverged_path
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.numbering import write_numbering
from tests.system.binary_peer import BinaryPeer, peer
from tests.system.node import running

mark_run = load("tailrace.shard.run_cy").mark_run
HEADERS = msgpack.packb({"h": {"lang": "en"}, "k": b"key"})


def run(number: int, *payloads: bytes, producer: bytes = b"P") -> bytearray:
    """A run of a producer, the first message with headers and a key."""
    frames = bytearray(b"".join(pack_frame(payload) for payload in payloads))
    marked: bytearray = mark_run(frames, write_numbering(HEADERS, producer, number))
    return marked


def set_aside(folder: Path) -> Path:
    """The file of a tail: a plain message, one with headers, P's 2, 3, 4 and Q's 7, which nobody knows."""
    folder.mkdir()
    log = StreamLog.open(folder, "s", create=True, boot_id="0" * 32)
    log.append(bytearray(pack_frame(b"kept")), 1, 1, 1)
    plain = pack_frame(b"plain") + pack_frame(b"headed", metadata=HEADERS)
    log.append(bytearray(plain), 2, 2, 1)
    log.append(run(2, b"P2", b"P3", b"P4"), 3, 3, 1)
    log.append(run(7, b"Q7", producer=b"Q"), 1, 4, 1)
    log.set_aside(1)
    log.close()
    return diverged_path(folder, "s")


def publish(publisher: BinaryPeer, request: int, frames: bytearray) -> None:
    publisher.send_raw(pack_publish(request, Ack.APPENDED, [publisher.handle("s")], frames) + frames)
    publisher.answer_to(request)


def test_each_message_is_in_the_stream_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The producer has sent two of its messages again by itself, and goes on after the tail was published."""
    file = set_aside(tmp_path / "aside")
    with running(tmp_path / "data", workers=1) as node, peer(node) as publisher:
        server = f"127.0.0.1:{node.port}"
        publish(publisher, 1, run(0, b"P0", b"P1", b"P2"))
        for _ in range(2):
            assert main.run(["republish", str(file), "--server", server]) == OK
            assert capsys.readouterr().out == "s: all 6 messages of tail 1 are in the stream\n"
        assert main.run(["republish", str(file), "--json", "--server", server]) == OK
        assert json.loads(capsys.readouterr().out) == {"stream": "s", "tail": 1, "messages": 6}
        publish(publisher, 2, run(3, b"P3", b"P4", b"P5"))
        with tailrace.connect(server) as client:
            found = list(client.subscribe("s", end=tailrace.NOW))
        payloads = [b"P0", b"P1", b"P2", b"plain", b"headed", b"P3", b"P4", b"Q7", b"P5"]
        assert [message.payload for message in found] == payloads
        headed = {message.payload: message for message in found}
        for payload in (b"headed", b"Q7"):
            fields = msgpack.unpackb(headed[payload].metadata)
            assert (fields["h"], fields["k"]) == ({"lang": "en"}, b"key")
        with node.client() as admin:
            admin.ask("unmaster s")
        assert main.run(["republish", str(file), "--server", server, "--stream", "s"]) == REFUSED
        assert "disabled: " in capsys.readouterr().err
    assert main.run(["republish", str(file), "--server", server]) == NO_CONNECTION
    assert main.run(["republish", str(file.with_suffix(".torn"))]) == USAGE


def test_a_tail_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = set_aside(tmp_path / "aside")
    (tmp_path / "e.diverged").touch()
    with running(tmp_path / "data", workers=1) as node:
        server = f"127.0.0.1:{node.port}"
        assert main.run(["republish", str(file), "--part", "2", "--server", server]) == REFUSED
        assert main.run(["republish", str(tmp_path / "e.diverged"), "--server", server]) == REFUSED
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"tailrace: {file}: has no tail 2\ntailrace: {tmp_path}/e.diverged: has no tail\n")
        assert main.run(["republish", str(file), "--port", str(node.metrics_port)]) == NO_CONNECTION
        assert "this is not a tailrace broker: it answers in HTTP" in capsys.readouterr().err
