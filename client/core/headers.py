"""A frame's metadata: user headers, which are a map of texts, and the topic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import msgpack

from tailrace.errors import InvalidArgument
from tailrace.protocol.topics import topic_fault, topic_metadata
from tailrace.shard.frame import MAX_METADATA_BYTES, RUN_METADATA_BYTES

UserHeaders: TypeAlias = dict[str, str | bytes]
HEADERS_KEY = "h"
KEY_HEADER = "key"
"""The header that says which messages a durable consumer with several members keeps in order."""
REPLY_TO = "reply-to"
"""The header of a request that names the stream for replies to it."""
CORRELATION = "correlation"
"""The header of a request that its reply repeats."""
HEADERS_BYTES_MAX = MAX_METADATA_BYTES - RUN_METADATA_BYTES

_UNREADABLE = (ValueError, TypeError, msgpack.UnpackException)


def pack_headers(
    headers: Mapping[str, str | bytes] | None, key: str | bytes | None = None, topic: str | None = None
) -> bytes:
    """The metadata of a frame with these headers, with the header "key", and with this topic; b"" for nothing.

    Raises InvalidArgument.
    """
    if key is not None:
        if headers and KEY_HEADER in headers:
            raise InvalidArgument(f"key={key!r} and a header {KEY_HEADER!r} with it: pass one of them")
        headers = {**(headers or {}), KEY_HEADER: key}
    start = b"" if topic is None else _pack_topic(topic)
    if not headers:
        return start
    for name, value in headers.items():
        if type(name) is not str or not isinstance(value, str | bytes):
            raise InvalidArgument(f"the header {name!r}: {value!r} is not a text and its value, a text or bytes")
    try:
        metadata: bytes = msgpack.packb({HEADERS_KEY: dict(headers)})
        if start:
            metadata = b"\x82" + start[1:] + metadata[1:]  # the topic's map and that of the headers as one
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"headers that have no UTF-8 form: {error}") from None
    if len(metadata) > HEADERS_BYTES_MAX:
        raise InvalidArgument(f"headers of {len(metadata):,} bytes; at most {HEADERS_BYTES_MAX:,} are possible")
    return metadata


@lru_cache(maxsize=4_096)
def _pack_topic(topic: object) -> bytes:
    """Raises InvalidArgument."""
    if not isinstance(topic, str):
        raise InvalidArgument(f"{topic!r} is not a topic: it is a str, not {type(topic).__name__}")
    fault = topic_fault(topic.encode(errors="surrogatepass"))
    if fault:
        raise InvalidArgument(fault)
    return topic_metadata(topic.encode())


def unpack_headers(metadata: bytes) -> UserHeaders:
    """Returns the headers in a frame's metadata; {} without any that can be read."""
    if not metadata:
        return {}
    try:
        headers = msgpack.unpackb(metadata).get(HEADERS_KEY)
    except (*_UNREADABLE, AttributeError):
        return {}
    return headers if isinstance(headers, dict) else {}


def reply_headers(
    request: UserHeaders, headers: Mapping[str, str | bytes] | None, shown: str
) -> tuple[str, UserHeaders]:
    """The stream for a reply to a request with these headers, and the reply's headers. Raises InvalidArgument."""
    stream, correlation = request.get(REPLY_TO), request.get(CORRELATION)
    if not isinstance(stream, str) or correlation is None:
        raise InvalidArgument(f"{shown} is not a request: it has no headers {REPLY_TO!r} and {CORRELATION!r}")
    return stream, {**(headers or {}), CORRELATION: correlation}
