"""What a broker would deliver over the binary protocol."""

from __future__ import annotations

from bench.peers.base import SUBSCRIPTION
from tailrace.protocol.messages import Chunk, pack
from tailrace.shard.frame import HEADER, HEADER_BYTES


def stamped(payload: bytes, first_seq: int, count: int, metadata: bytes = b"") -> bytes:
    """Frames with their seqs; nobody here looks at their checksums."""
    length = HEADER_BYTES + len(metadata) + len(payload)
    heads = (HEADER.pack(length, 0, seq, 1, 1, 0, len(metadata)) for seq in range(first_seq, first_seq + count))
    return b"".join(head + metadata + payload for head in heads)


def chunk(
    payload: bytes, first_seq: int, count: int, *, subscription: int = SUBSCRIPTION, metadata: bytes = b""
) -> bytes:
    return pack(Chunk(subscription, memoryview(stamped(payload, first_seq, count, metadata))))
