"""How the publishes of a turn for one owner become requests."""

from __future__ import annotations

from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.requests import FORWARD_BYTES, answered_together
from tests.broker.owning import Sink


def made(name: bytes, nbytes: int, replicas: int = 0) -> StreamBatch:
    batch = StreamBatch(name, 1, None, replicas)
    batch.add(Sink(), 0, 1, bytearray(nbytes))
    return batch


def test_batches_go_together_up_to_a_size_and_those_that_wait_for_nodes_by_themselves() -> None:
    a, b, c, d = (made(name, FORWARD_BYTES // 2) for name in (b"a", b"b", b"c", b"d"))
    copied = made(b"copied", 1, replicas=1)
    assert list(answered_together([a, b, c, copied, d])) == [[a, b], [c], [copied], [d]]
    assert list(answered_together([])) == []
