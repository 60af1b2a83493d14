"""How a setting is described: its place in the configuration file, the kind of its value, its range, one sentence."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from enum import StrEnum
from typing import Any, Final

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
YEAR_S = 365 * DAY_S


MEMORY_BYTES: Final = 16 * MIB
"""Of messages in a stream in memory without max_bytes."""


class ClientCertificates(StrEnum):
    """Whether clients show certificates."""

    NONE = "none"  # none is asked for
    OPTIONAL = "optional"  # one that is shown is verified
    REQUIRED = "required"  # without one the handshake fails


class Durability(StrEnum):
    """When an appended message is on the disk."""

    ASYNC = "async"  # the kernel writes back when it likes (and every `async_sync_s` at the latest)
    INTERVAL = "interval"  # synced every `interval_ms`
    ALWAYS = "always"  # synced before its publish is acknowledged
    MEMORY = "memory"  # never: the stream is in memory, and gone when the node stops


class Kind(StrEnum):
    """What a value is, which decides how it may be written and how a wrong one is explained."""

    PATTERN = "pattern"
    PATTERNS = "patterns"
    STREAMS = "streams"
    ADDRESS = "address"
    ADDRESSES = "addresses"
    PLACE = "place"
    SECRET = "secret"
    PEERS = "peers"
    ORIGINS = "origins"
    HOST = "host"
    NAME = "name"
    PATH = "path"
    FILE = "file"
    FLAG = "true or false"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Spec:
    """A key of the configuration file: its section, the kind and range of its value, its description."""

    section: str
    key: str
    kind: Kind
    low: float
    high: float
    doc: str
    zero: str  # what 0 means when it is allowed below `low`, else ""
    choices: tuple[str, ...]


def setting(
    section: str,
    key: str,
    kind: Kind,
    default: object,
    doc: str,
    *,
    low: float = 0,
    high: float = 0,
    zero: str = "",
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that carries its own description (see `Spec`)."""
    spec = Spec(section, key, kind, low, high, doc, zero, choices)
    return field(default=default, metadata={"spec": spec})


def spec_of(described: Field[Any]) -> Spec:
    """The description a field made by `setting` carries."""
    spec = described.metadata["spec"]
    assert isinstance(spec, Spec)
    return spec
