"""Calls about the streams of a node: patterns in, requests out, and the broker's answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final

from tailrace.core.arguments import checked_stream
from tailrace.core.calls import PendingCall
from tailrace.core.places import to_datetime
from tailrace.errors import InvalidArgument
from tailrace.protocol.listing import FEATURE, List, Listed, ListedKind, StreamRow
from tailrace.shard.names import name_bytes_valid

MINUTE_S: Final = 60
WILDCARD: Final = "*"


@dataclass(frozen=True, slots=True)
class StreamInfo(StreamRow):
    """One stream of the node. `rate_per_s`: messages in a second, over the last minute."""

    @property
    def messages(self) -> int:
        return self.next_seq - self.first_seq

    @property
    def rate_per_s(self) -> float:
        return self.minute_messages / MINUTE_S

    @property
    def bytes_per_s(self) -> float:
        return self.minute_bytes / MINUTE_S

    def age_s(self, now_us: int) -> float | None:
        """The age of the last message; None without any."""
        return max(now_us - self.last_timestamp_us, 0) / 1e6 if self.messages else None

    def __str__(self) -> str:
        last = f", the last at {to_datetime(self.last_timestamp_us):%Y-%m-%d %H:%M:%S}" if self.messages else ""
        return f"{self.name}: {self.messages} messages{last}"


def is_pattern(text: str) -> bool:
    return WILDCARD in text


@lru_cache(maxsize=1_024)
def matcher(pattern: str) -> Callable[[str], object]:
    """Whether a name is of the pattern, in which `*` stands for any characters, none too."""
    return re.compile(".*".join(map(re.escape, pattern.split(WILDCARD))), re.DOTALL).fullmatch


def checked_patterns(streams: str | Iterable[str]) -> tuple[str, ...]:
    """Names and patterns, each once. Raises InvalidArgument, InvalidStreamName."""
    texts = tuple(dict.fromkeys([streams] if isinstance(streams, str) else streams))
    if not texts:
        raise InvalidArgument("no stream to read: pass at least one name or pattern")
    for text in texts:
        checked_stream(text.replace(WILDCARD, "x"))
    return texts


def list_call(what: ListedKind, prefix: str, after: str, timeout_s: float) -> PendingCall:
    """Raises InvalidArgument."""
    if prefix and not name_bytes_valid(prefix.encode("utf-8", "replace")):
        raise InvalidArgument(f"{prefix!r} cannot begin a stream name")

    def make(number: int) -> List:
        return List(number, what, prefix.encode(), after.encode())

    return PendingCall(prefix or "the node", f"the list of {what}", make, timeout_s=timeout_s, feature=FEATURE)


def prefix_of(pattern: str) -> str:
    """What all names of a pattern begin with."""
    return pattern.partition(WILDCARD)[0]


def listed(call: PendingCall) -> Listed:
    """Raises the call's error."""
    answer: Listed = call.outcome()
    return answer


def infos_of(answer: Listed) -> list[StreamInfo]:
    return [StreamInfo(*astuple(row)) for row in answer.streams]
