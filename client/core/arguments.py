"""Turns a program's arguments into frames: checks names, converts payloads to bytes, builds frames in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from tailrace.core.publications import PendingPublication
from tailrace.errors import InvalidArgument, InvalidStreamName, InvalidTopic, MessageTooLarge
from tailrace.protocol.messages import Ack
from tailrace.protocol.topics import leveled_fault
from tailrace.shard.leaves import load
from tailrace.shard.names import InvalidName, validate_name

Payload: TypeAlias = bytes | bytearray | memoryview

STREAMS_MAX = 1_024
"""Of one publish to several streams."""
REPLICAS_MAX = 255
"""Nodes that one publish may wait for: a PUBLISH has a byte for them."""

_APPENDED = Ack.APPENDED
_pack_frames = load("tailrace.shard.frame_cy").pack_frames


@lru_cache(maxsize=4_096)
def checked_stream(name: object) -> str:
    """The name itself, of a stream, a topic or a filter. Raises InvalidStreamName, InvalidTopic, InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{name!r} is not a stream name: it is a str, not {type(name).__name__}")
    try:
        return validate_name(name)
    except InvalidName as error:
        fault = leveled_fault(name.encode("utf-8", "ignore")) if _has_utf8(name) else None
        if fault is None:
            raise InvalidStreamName(str(error), name) from None
    if fault:
        raise InvalidTopic(fault, name)
    return name


def _has_utf8(name: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in name)


def checked_streams(names: Iterable[str]) -> tuple[str, ...]:
    """Raises InvalidStreamName, InvalidArgument."""
    if isinstance(names, str):
        raise InvalidArgument(f"{names!r} is one stream's name; pass a list of names, or call publish()")
    streams = tuple([checked_stream(name) for name in names])
    if not 0 < len(streams) <= STREAMS_MAX or len(set(streams)) < len(streams):
        raise InvalidArgument(f"{len(streams)} streams: pass 1 to {STREAMS_MAX}, each once")
    return streams


def checked_payload(payload: object) -> bytes:
    """Copies the payload as it is at this moment. Raises InvalidArgument."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    hint = "; write text.encode()" if isinstance(payload, str) else ""
    raise InvalidArgument(f"a payload is bytes, not {type(payload).__name__}{hint}")


def checked_payloads(payloads: Iterable[Payload]) -> list[bytes]:
    """Raises InvalidArgument."""
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise InvalidArgument("one payload where several are expected; pass a list, or call publish()")
    return [each if type(each) is bytes else checked_payload(each) for each in payloads]


def checked_replicas(ack: Ack, replicas: object) -> int:
    """The number of nodes below the master that must hold it, 0 unless REPLICATED. Raises InvalidArgument."""
    if type(replicas) is not int or not 0 <= replicas <= REPLICAS_MAX:
        raise InvalidArgument(f"replicas is {replicas!r}; it is a number of nodes from 1 to {REPLICAS_MAX}")
    if Ack(ack) is Ack.REPLICATED:
        return replicas or 1
    if replicas:
        raise InvalidArgument(f"replicas={replicas} goes with ack=Ack.REPLICATED, not with Ack.{Ack(ack).name}")
    return 0


def check_sizes(payloads: list[bytes], metadata: bytes, max_message_bytes: int, stream: str) -> None:
    """Raises MessageTooLarge where the broker would."""
    room = max_message_bytes - len(metadata)
    for index, payload in enumerate(payloads) if max(map(len, payloads), default=0) > room else ():
        if len(payload) > room:
            which = f"message {index + 1} of {len(payloads)}" if len(payloads) > 1 else "the message"
            text = f"{which} has {len(payload) + len(metadata):,} bytes; the broker's limit is {max_message_bytes:,}"
            raise MessageTooLarge(text, stream)


def pack_frames(payloads: list[bytes], metadata: bytes) -> bytearray:
    """The frames of messages that were checked."""
    frames: bytearray = _pack_frames(payloads, metadata)
    return frames


def make_publication(
    streams: tuple[str, ...],
    payloads: list[bytes],
    metadata: bytes,
    ack: Ack,
    replicas: int,
    timeout_s: float,
    retry: bool,
    max_bytes: int,
) -> PendingPublication:
    """Makes one publish of all these messages. Raises InvalidArgument, MessageTooLarge."""
    if not payloads:
        raise InvalidArgument("nothing to publish: pass at least one payload")
    if len(payloads) > 1 or len(payloads[0]) + len(metadata) > max_bytes:
        check_sizes(payloads, metadata, max_bytes, streams[0])
    if ack is not _APPENDED or replicas != 0:
        ack, replicas = Ack(ack), checked_replicas(ack, replicas)
    frames = _pack_frames(payloads, metadata)
    return PendingPublication(streams, frames, len(payloads), ack, timeout_s, replicas, retry)
