"""A dead letter: the message that a consumer could not do, as it goes to `X/$dead`. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack

from shard.frame import FLAG_PRODUCER, HEADER_BYTES, MAX_METADATA_BYTES, pack_frame, unpack_header
from shard.numbering import write_numbering

HEADERS_KEY: Final = "h"
"""Where a message's headers stand in its metadata, as the client writes them."""
ID_BYTES: Final = 16


class Letter(NamedTuple):
    """Message `seq` of `stream`, which the consumer failed so often, the last time for `reason`.

    number: how many letters this consumer, made at `created_us`, has sent before.
    """

    stream: bytes
    consumer: bytes
    created_us: int
    number: int
    seq: int
    deliveries: int
    reason: str


def make_frame(letter: Letter, frame: bytes | bytearray | memoryview) -> bytearray:
    """The letter as an unstamped frame, made of the message's stamped one: its payload, its headers, and what became
    of it. Where the message's own headers leave no room for that they are left out.

    A run of one message of a producer of its own: a letter that is sent again, whenever that is, is known by it.
    """
    header = unpack_header(frame)
    payload_start = HEADER_BYTES + header.metadata_bytes
    payload = memoryview(frame)[payload_start : header.length]
    fields = _fields(bytes(frame[HEADER_BYTES:payload_start]))
    told = {
        "dead-stream": letter.stream.decode(),
        "dead-seq": str(letter.seq),
        "dead-consumer": letter.consumer.decode(),
        "dead-deliveries": str(letter.deliveries),
        "dead-reason": letter.reason,
    }
    headers = fields.get(HEADERS_KEY)
    fields[HEADERS_KEY] = {**headers, **told} if isinstance(headers, dict) else told
    metadata = _numbered(fields, letter)
    if len(metadata) > MAX_METADATA_BYTES:
        metadata = _numbered({HEADERS_KEY: told}, letter)
    return bytearray(pack_frame(payload, flags=FLAG_PRODUCER, metadata=metadata))


def producer_id(letter: Letter) -> bytes:
    """Another one for each letter there ever is."""
    made = blake2b(digest_size=ID_BYTES)
    for part in (letter.stream, letter.consumer, str(letter.created_us).encode(), str(letter.number).encode()):
        made.update(len(part).to_bytes(2, "little") + part)
    return made.digest()


def _fields(metadata: bytes) -> dict[Any, Any]:
    """What stands in a message's metadata; nothing where that cannot be read."""
    try:
        fields = msgpack.unpackb(metadata) if metadata else {}
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    return fields if isinstance(fields, dict) else {}


def _numbered(fields: dict[Any, Any], letter: Letter) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return write_numbering(packed, producer_id(letter), 0)
