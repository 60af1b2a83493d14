"""RECALL and RECALLED of the binary protocol: the last values of topics, page by page.

These messages are accepted only on a connection whose HELLO asked for the feature `FEATURE` and got it.

docs/binary-protocol.md draws both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tailrace.protocol import features
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FeatureReaders
from tailrace.protocol.fields import ELEMENTS_MAX, U32_MAX, Fields, pack_map
from tailrace.protocol.opcodes import Op
from tailrace.protocol.topics import topic_fault

FEATURE: Final = features.LAST
VALUES_MAX: Final = 1_000
"""Of one answer."""
VALUE_BYTES_MAX: Final = 256 << 10
"""Of one answer, with the heads of their frames; more only if one value is larger."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Asks for the last values of what `name` stands for: a topic, a stream, a filter or a pattern.

    Those behind the topic `after` of the stream `stream`; both empty for all.
    """

    id: int
    name: bytes
    stream: bytes = b""
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Recalled:
    """`values`: streams, each with whole stamped frames, in the order of their topics. `stream`, `after`: the place to
    go on behind; empty at the end.
    """

    id: int
    values: tuple[tuple[str, bytes], ...] = ()
    stream: str = ""
    after: str = ""


# --- their bytes ----------------------------------------------------------------------------------------------------


def _pack_recall(message: Recall) -> bytes:
    place = {"stream": message.stream.decode(), "after": message.after.decode()}
    body = {"id": message.id, "name": message.name.decode(), **place}
    return pack_map(Op.RECALL, {name: value for name, value in body.items() if value or name == "id"})


def _pack_recalled(message: Recalled) -> bytes:
    body = {"id": message.id, "values": message.values, "stream": message.stream, "after": message.after}
    return pack_map(Op.RECALLED, {name: value for name, value in body.items() if value or name == "id"})


def _recall(read: Fields) -> Recall:
    number, name = read.number("id", U32_MAX), read.consumed_stream("name")
    stream = read.stream("stream") if "stream" in read else b""
    after = read.text("after").encode() if "after" in read else b""
    if bool(stream) is not bool(after):
        raise PeerError(Code.USAGE, "RECALL: the fields `stream` and `after` are one place")
    if after and (fault := topic_fault(after)):
        raise PeerError(Code.TOPIC, fault)
    return Recall(number, name, stream, after)


def _recalled(read: Fields) -> Recalled:
    values = read.rows("values", (str, bytes)) if "values" in read else ()
    stream, after = [read.text(name) if name in read else "" for name in ("stream", "after")]
    return Recalled(read.number("id", U32_MAX), tuple([(name, frames) for name, frames in values]), stream, after)


RecallRequest: TypeAlias = Recall
RecallResponse: TypeAlias = Recalled
PACKERS: Final[Mapping[type, Callable[[Any], bytes]]] = {Recall: _pack_recall, Recalled: _pack_recalled}
features.PACKERS.update(PACKERS)
READERS: Final = FeatureReaders({Op.RECALL: _recall}, {Op.RECALLED: _recalled}, ELEMENTS_MAX, VALUES_MAX)
