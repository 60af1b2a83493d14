"""Calls about the streams of a node: patterns in, requests out, and the broker's answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import astuple, dataclass
from typing import Final, TypeAlias, TypeVar

from tailrace.core.arguments import checked_stream
from tailrace.core.calls import PendingCall
from tailrace.core.places import to_datetime
from tailrace.errors import BrokerFault, InvalidArgument
from tailrace.protocol import names
from tailrace.protocol.listing import FEATURE, List, Listed, ListedKind, StreamRow, WorkerRow
from tailrace.shard.names import name_bytes_valid

T = TypeVar("T")
Calls: TypeAlias = Generator[PendingCall, PendingCall, T]
"""Yields calls one after the other, and is sent each when it is done; returns a result."""

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
        try:
            last = f", the last at {to_datetime(self.last_timestamp_us):%Y-%m-%d %H:%M:%S}" if self.messages else ""
        except (ValueError, OverflowError):  # no calendar has such a time
            last = ""
        return f"{self.name}: {self.messages} messages{last}"


def is_pattern(text: str) -> bool:
    return WILDCARD in text


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name is of the pattern, in which `*` stands for any characters, none too."""
    matches = names.matcher(pattern.encode())
    return lambda name: matches(name.encode())


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


def all_pages(
    what: ListedKind, prefix: str, timeout_s: float, is_enough: Callable[[Listed], bool] = lambda _answer: False
) -> Calls[list[Listed]]:
    """Raises the calls' errors, InvalidArgument; BrokerFault if the broker goes back in the list, without end."""
    answers: list[Listed] = []
    after = ""
    while True:
        call = yield list_call(what, prefix, after, timeout_s)
        answer: Listed = call.outcome()
        answers.append(answer)
        if not answer.next or is_enough(answer):
            return answers
        if answer.next <= after:
            raise BrokerFault(f"the broker lists {answer.next!r} after {after!r}")
        after = answer.next


def find_names(patterns: Iterable[str], timeout_s: float, most: float = math.inf) -> Calls[tuple[list[str], int]]:
    """The streams to begin with, and the version of the node's names. Raises as `all_pages`.

    `most`: a pattern that has more is not listed to its end.
    """
    names = [each for each in patterns if not is_pattern(each)]
    versions: list[int] = []
    for pattern in filter(is_pattern, patterns):
        found, matches = list[str](), matcher(pattern)

        def has_more(answer: Listed, found: list[str] = found, matches: Callable[[str], bool] = matches) -> bool:
            found += filter(matches, answer.names)
            return len(found) > most

        answers = yield from all_pages("names", prefix_of(pattern), timeout_s, has_more)
        names += [name for answer in answers for name in answer.names]
        versions.append(answers[0].version)
    return names, min(versions, default=0)  # streams that were made while the pages came make a later one


def find_streams(prefix: str, timeout_s: float) -> Calls[list[StreamInfo]]:
    """Those whose names begin with `prefix`, or are of that pattern. Raises as `all_pages`."""
    matches = matcher(prefix if is_pattern(prefix) else prefix + WILDCARD)
    answers = yield from all_pages("streams", prefix_of(prefix), timeout_s)
    return [each for answer in answers for each in infos_of(answer) if matches(each.name)]


def find_workers(timeout_s: float) -> Calls[list[WorkerRow]]:
    """The node's worker processes. Raises as `all_pages`."""
    answers = yield from all_pages("workers", "", timeout_s)
    return [worker for answer in answers for worker in answer.workers]


def prefix_of(pattern: str) -> str:
    """What all names of a pattern begin with."""
    return pattern.partition(WILDCARD)[0]


def infos_of(answer: Listed) -> list[StreamInfo]:
    return [StreamInfo(*astuple(row)) for row in answer.streams]
