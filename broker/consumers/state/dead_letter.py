"""A dead letter: the message that a consumer could not do, as it goes to `X/$dead`. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from tailrace.broker.consumers.state.consumer import DeadLetter
from tailrace.shard.frame import FLAG_PRODUCER, HEADER_BYTES, MAX_METADATA_BYTES, pack_frame, unpack_header
from tailrace.shard.numbering import write_numbering

HEADERS_KEY: Final = "h"
"""Where a message's headers stand in its metadata, as the client writes them."""
TOLD_HEADERS: Final = frozenset(("dead-stream", "dead-seq", "dead-consumer", "dead-deliveries", "dead-reason"))
"""What a letter has beside its message's own headers."""


def make_frame(stream: bytes, letter: DeadLetter, frame: bytes | bytearray | memoryview) -> bytearray:
    """The letter as an unstamped frame, made of the stream's stamped one: its payload, its headers, and headers about
    its death. The message's own headers are left out if they leave no room for those.

    A run of one message of a producer of its own, so that a letter that is sent again at any time is recognized.
    """
    header = unpack_header(frame)
    payload_start = HEADER_BYTES + header.metadata_bytes
    payload = memoryview(frame)[payload_start : header.length]
    fields = _fields(bytes(frame[HEADER_BYTES:payload_start]))
    told = {
        "dead-stream": stream.decode(),
        "dead-seq": str(letter.seq),
        "dead-consumer": letter.consumer.decode(),
        "dead-deliveries": str(letter.deliveries),
        "dead-reason": letter.reason,
    }
    headers = fields.get(HEADERS_KEY)
    fields[HEADERS_KEY] = {**headers, **told} if isinstance(headers, dict) else told
    metadata = _numbered(fields, letter.producer_id(stream))
    if len(metadata) > MAX_METADATA_BYTES:
        metadata = _numbered({HEADERS_KEY: told}, letter.producer_id(stream))
    return bytearray(pack_frame(payload, flags=FLAG_PRODUCER, metadata=metadata))


def make_redriven(metadata: bytes, payload: bytes, producer_id: bytes) -> bytearray:
    """A letter as the unstamped frame that goes back to its stream: payload, key and headers as they were at first."""
    fields = _fields(metadata)
    headers = fields.get(HEADERS_KEY)
    if isinstance(headers, dict):
        fields[HEADERS_KEY] = {name: value for name, value in headers.items() if name not in TOLD_HEADERS}
        if not fields[HEADERS_KEY]:
            del fields[HEADERS_KEY]
    return bytearray(pack_frame(payload, flags=FLAG_PRODUCER, metadata=_numbered(fields, producer_id)))


def _fields(metadata: bytes) -> dict[Any, Any]:
    """The fields of a message's metadata; none if it cannot be read."""
    try:
        fields = msgpack.unpackb(metadata) if metadata else {}
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    return fields if isinstance(fields, dict) else {}


def _numbered(fields: dict[Any, Any], producer_id: bytes) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return write_numbering(packed, producer_id, 0)
