"""Python's values as payloads, and the options that all ways to publish share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from msgpack import packb

from tailrace.errors import InvalidArgument
from tailrace.protocol.messages import Ack


class PublishOptions(TypedDict, total=False):
    """The keywords of `publish`."""

    headers: Mapping[str, str | bytes] | None
    key: str | bytes | None
    topic: str | None
    ack: Ack
    replicas: int
    timeout_s: float | None
    retry: bool


def json_payload(value: Any) -> bytes:
    """Compact JSON in UTF-8. Raises InvalidArgument."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a value that has no JSON form: {error}") from None


def msgpack_payload(value: Any) -> bytes:
    """Raises InvalidArgument."""
    try:
        packed: bytes = packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"a value that has no msgpack form: {error}") from None
    return packed
