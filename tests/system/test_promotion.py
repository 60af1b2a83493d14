"""What a promotion depends on: who is known to hold what, which node is ahead, and who still acknowledges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.protocol.errors import Code
from broker.protocol.messages import Ack, Failed, Published, pack_publish
from broker.protocol.replication import Held
from shard.frame import pack_frame
from shard.leaves import load
from shard.numbering import write_numbering
from tests.system.binary_peer import BinaryPeer, peer
from tests.system.node import running
from tests.system.scripted import EVIL, Slave

pytestmark = pytest.mark.system

QUICK = """
[timing]
replication_timeout_s = "0.4 s"
"""
_mark_run = load("shard.run_cy").mark_run


def send_run(
    publisher: BinaryPeer, request: int, stream: str, number: int, payloads: Sequence[bytes], *, replicas: int = 0
) -> Published | Failed:
    """Publish a run of the producer `P`, whose first message has this number, and wait for the answer."""
    frames = _mark_run(bytearray(b"".join(map(pack_frame, payloads))), write_numbering(b"", b"P", number))
    ack = Ack.REPLICATED if replicas else Ack.APPENDED
    publisher.send_raw(pack_publish(request, ack, [publisher.handle(stream)], frames, replicas) + frames)
    return publisher.answer_to(request)


def test_a_repeat_is_not_acknowledged_as_replicated_before_its_last_message_is_held(tmp_path: Path) -> None:
    """Messages 0, 1 of a producer are at seqs 0, 1 and its 2, 3 at 12, 13; the slave has reported 12 messages."""
    data = tmp_path / "data"
    with running(data, workers=1, config=QUICK) as node, peer(node) as publisher, Slave(node.port) as slave:
        send_run(publisher, 1, "s", 0, [b"a", b"b"])
        publisher.publish("s", [b"other"] * 10)
        slave.follow(1, "s")
        slave.say(Held(((1, EVIL, 12, 12),)))
        assert isinstance(send_run(publisher, 2, "s", 0, [b"a", b"b"], replicas=1), Published)
        assert send_run(publisher, 3, "s", 2, [b"c", b"d"]) == Published(3, ((12, 2, 1),))
        refused = send_run(publisher, 4, "s", 0, [b"a", b"b", b"c", b"d"], replicas=1)
        assert isinstance(refused, Failed) and refused.code == Code.UNREPLICATED
        slave.say(Held(((1, EVIL, 14, 14),)))
        repeated = send_run(publisher, 5, "s", 0, [b"a", b"b", b"c", b"d"], replicas=1)
        assert isinstance(repeated, Published) and repeated.results[0][:2] == (0, 4)
