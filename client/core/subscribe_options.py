"""A program's settings for a subscription, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tailrace.core.arguments import checked_stream
from tailrace.core.options import WINDOW_BYTES
from tailrace.core.places import NEW, START, EndPlace, Last, StartPlace, end_of, start_of
from tailrace.errors import InvalidArgument
from tailrace.protocol.fields import NUMBER_MAX
from tailrace.protocol.messages import WirePlace
from tailrace.protocol.places import From
from tailrace.protocol.topics import filter_fault

OnTrimmed: TypeAlias = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """A program's settings for reading. `window_bytes`: of frames that may be sent ahead; `timeout_s`: for the
    answer; `wait`: the stream may be made later; `topics`: a filter for topics, empty for all messages;
    `resumes`: it goes on where the same program has read; `last`: seq, time and epoch of the message before its start,
    which must still be the same."""

    stream: str
    start: From
    skip: int = 0
    end: WirePlace | None = None
    window_bytes: int = WINDOW_BYTES
    check_crc: bool = True
    raise_trimmed: bool = True
    timeout_s: float = math.inf
    wait: bool = False
    topics: str = ""
    resumes: bool = False
    last: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("skip", self.skip, 0), ("credit_bytes", self.window_bytes, 1)):
            if type(value) is not int or not least <= value <= NUMBER_MAX:
                raise InvalidArgument(f"{name} is {value!r}; it is a number from {least} to {NUMBER_MAX}")

    def of_stream(self, name: str) -> SubscribeOptions:
        return replace(self, stream=name)


def spread(stream: str | Iterable[str], topics: str) -> tuple[str | Iterable[str], str]:
    """The streams to read, and the filter for their topics: a filter that begins with a wildcard is for all streams."""
    if isinstance(stream, str) and not topics and stream.partition("/")[0] in ("+", "#"):
        return "*", stream
    return stream, topics


def subscribe_options(
    stream: str,
    start: StartPlace,
    end: EndPlace,
    skip: int,
    credit_bytes: int,
    check_crc: bool,
    on_trimmed: OnTrimmed,
    timeout_s: float,
    wait: bool = False,
    topics: str = "",
) -> SubscribeOptions:
    """Raises InvalidArgument, InvalidStreamName."""
    checked_filter(topics)
    if on_trimmed not in ("raise", "skip"):
        raise InvalidArgument(f'on_trimmed is {on_trimmed!r}; it is "raise" or "skip"')
    place = start_of(start)
    if skip and place.kind != "time":
        raise InvalidArgument("skip goes with a start that is a time")
    raise_trimmed = on_trimmed == "raise"
    name = checked_stream(stream)
    end_place = end_of(end)
    return SubscribeOptions(
        name, place, skip, end_place, credit_bytes, check_crc, raise_trimmed, timeout_s, wait, topics
    )


def merged_options(
    make: Callable[..., SubscribeOptions], start: StartPlace, wait: bool
) -> Callable[[str, bool], SubscribeOptions]:
    """Returns what makes the options for each of several streams, given whether it was made later: then all of its
    messages are new. `make`: `subscribe_options` with all other arguments.
    """

    def options(stream: str, later: bool) -> SubscribeOptions:
        first = START if later and (start is NEW or isinstance(start, Last)) else start
        return make(stream, first, wait=wait or later)

    return options


def checked_filter(topics: object) -> str:
    """A topic filter itself, or "" for all messages. Raises InvalidArgument."""
    if not isinstance(topics, str):
        raise InvalidArgument(f'topics is {topics!r}; it is a topic filter, or "" for all messages')
    fault = filter_fault(topics.encode(errors="surrogatepass")) if topics else ""
    if fault:
        raise InvalidArgument(fault)
    return topics
