"""The features of the binary protocol with messages of their own, and the modules that pack and read those.

A sender of a message has its class, so its module is loaded and has put its packers into `PACKERS`. The module that
reads a feature's messages is imported with the first of them: most clients receive none, and need not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.protocol.opcodes import Op

if TYPE_CHECKING:
    from tailrace.protocol.fields import Fields

REPLICATION: Final = "replication"
"""What nodes say to each other: `protocol.replication`."""
CONSUMERS: Final = "consumers"
"""What is said of durable consumers: `protocol.consuming`."""
LISTING: Final = "listing"
"""The streams and the workers of a node: `protocol.listing`."""
FILTERS: Final = "filtered-consumers"
"""The field `topics` of CONSUME, and of the rows of CONSUMED: durable consumers may have a topic filter."""
LAST: Final = "last"
"""The last values of topics: `protocol.recalling`."""
PATTERNS: Final = "patterns"
"""One subscription of all streams of a pattern: `protocol.collecting`."""
SHARING: Final = "sharing"
"""Streams in memory that nodes share: `protocol.sharing`."""
NO_FEATURES: Final[frozenset[str]] = frozenset()


class FeatureReaders(NamedTuple):
    """The readers of a feature's messages, by opcode; the fixed ones have bodies that are not maps.

    `request_elements_max`, `response_elements_max`: of any array or map in one.
    """

    requests: Mapping[int, Callable[[Fields], Any]]
    responses: Mapping[int, Callable[[Fields], Any]]
    request_elements_max: int
    response_elements_max: int
    fixed_responses: Mapping[int, Callable[[memoryview], Any]] = MappingProxyType({})


REQUESTS: Final[Mapping[int, str]] = {
    **dict.fromkeys((Op.FOLLOW, Op.HELD, Op.WATCH, Op.CLAIM, Op.ASK, Op.CALL, Op.FENCE), REPLICATION),
    **dict.fromkeys((Op.CONSUME, Op.GET), CONSUMERS),
    Op.LIST: LISTING,
    Op.RECALL: LAST,
    Op.COLLECT: PATTERNS,
    Op.INTEREST: SHARING,
}
"""The feature that a request belongs to, by its opcode."""
RESPONSES: Final[Mapping[int, str]] = {
    **dict.fromkeys((Op.FOLLOWED, Op.NAMES, Op.CLAIMED, Op.TOLD, Op.RETURNED, Op.FENCED), REPLICATION),
    **dict.fromkeys((Op.CONSUMED, Op.GOT), CONSUMERS),
    Op.LISTED: LISTING,
    Op.RECALLED: LAST,
    **dict.fromkeys((Op.COLLECTED, Op.ADDED), PATTERNS),
}
"""The feature that a response belongs to, by its opcode."""
HOMES: Final[Mapping[str, str]] = {
    REPLICATION: "tailrace.protocol.replication_readers",
    CONSUMERS: "tailrace.protocol.consuming_readers",
    LISTING: "tailrace.protocol.listing",
    LAST: "tailrace.protocol.recalling",
    PATTERNS: "tailrace.protocol.collecting",
    SHARING: "tailrace.protocol.sharing",
}
"""The module whose `READERS` read a feature's messages."""
PACKERS: Final[dict[type, Callable[[Any], bytes]]] = {}
"""The whole envelope of a message, by its class; of those messages whose module is loaded."""


@cache
def readers_of(feature: str) -> FeatureReaders:
    """Imports them when they are first asked for."""
    readers: FeatureReaders = import_module(HOMES[feature]).READERS
    return readers
