"""User headers as columns: a map of texts to bytes for each message, and the header "key" alone; and the topic."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.core.headers import KEY_HEADER, unpack_headers
from tailrace.shard.topics import topic_in
from tailrace.spark.entries import Int64s

HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())


def headers_array(frames: memoryview, metadata_starts: Int64s, metadata_bytes: Int64s) -> pa.MapArray:
    """The headers in each message's metadata; an empty map without any that can be read.

    Messages mostly have the same few headers, so each that differs is unpacked once.
    """
    counts = np.zeros(len(metadata_bytes), np.int64)
    keys: list[str] = []
    values: list[bytes] = []
    known: dict[bytes, list[tuple[str, bytes]]] = {}
    for place in np.flatnonzero(metadata_bytes):
        start = int(metadata_starts[place])
        metadata = bytes(frames[start : start + int(metadata_bytes[place])])
        pairs = known.get(metadata)
        if pairs is None:
            pairs = known[metadata] = _pairs(metadata)
        counts[place] = len(pairs)
        for key, value in pairs:
            keys.append(key)
            values.append(value)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), pa.array(values, pa.binary()))


def keys_array(frames: memoryview, metadata_starts: Int64s, metadata_bytes: Int64s) -> pa.Array:
    """The header "key" of each message, null without one."""
    found: list[bytes | None] = [None] * len(metadata_bytes)
    known: dict[bytes, bytes | None] = {}
    for place in np.flatnonzero(metadata_bytes):
        start = int(metadata_starts[place])
        metadata = bytes(frames[start : start + int(metadata_bytes[place])])
        if metadata not in known:
            known[metadata] = dict(_pairs(metadata)).get(KEY_HEADER)
        found[place] = known[metadata]
    return pa.array(found, pa.binary())


def topics_array(frames: memoryview, metadata_starts: Int64s, metadata_bytes: Int64s, streams: pa.Array) -> pa.Array:
    """The topic of each message; the name of its stream without one."""
    found: list[str | None] = [None] * len(metadata_bytes)
    known: dict[bytes, str | None] = {}
    for place in np.flatnonzero(metadata_bytes):
        start = int(metadata_starts[place])
        metadata = bytes(frames[start : start + int(metadata_bytes[place])])
        if metadata not in known:
            known[metadata] = topic_in(metadata).decode(errors="replace") or None
        found[place] = known[metadata]
    return pc.coalesce(pa.array(found, pa.string()), streams) if known else streams


def _pairs(metadata: bytes) -> list[tuple[str, bytes]]:
    """The broker does not check metadata: only texts with texts or bytes are headers."""
    found: dict[Any, Any] = dict(unpack_headers(metadata))
    return [
        (key, value.encode() if isinstance(value, str) else value)
        for key, value in found.items()
        if isinstance(key, str) and isinstance(value, str | bytes)
    ]
