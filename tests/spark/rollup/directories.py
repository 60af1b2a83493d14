"""Data directories that hypothesis makes: trims, empty streams, single messages, equal times, the edges of the day."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from tailrace.shard.names import InvalidName, validate_name
from tailrace.spark.rollup.day_plan import day_start_us
from tests.spark.data import DAY_US, Sent, make_directory, trim

DAY = date(2026, 11, 20)
DAY_START_US = day_start_us(DAY)
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US


class Made(NamedTuple):
    """A stream: the messages published to it, and which of them are trimmed then."""

    messages: list[Sent]
    trimmed: int


def is_name(text: str) -> bool:
    try:
        return validate_name(text) == text
    except InvalidName:
        return False


names = st.one_of(
    st.sampled_from(["a", "25", "a/b", "..", "%41", "=x", "$own", "ключ", "*?[x]", "day=1", "a" * 200, "é" * 100]),
    st.text(min_size=1, max_size=12).filter(is_name),
)
steps_us = st.one_of(
    st.just(0),
    st.integers(0, 3_000_000),
    st.sampled_from([1, MINUTE_US - 1, MINUTE_US, HOUR_US, 5 * HOUR_US]),
)
starts_us = st.one_of(
    st.sampled_from([-1, 0, 1, MINUTE_US, DAY_US - MINUTE_US - 1, DAY_US - 1, DAY_US, -HOUR_US, -2 * DAY_US]),
    st.integers(-HOUR_US, DAY_US),
)


@st.composite
def streams(draw: st.DrawFn) -> Made:
    at_us = DAY_START_US + draw(starts_us)
    epoch = 1
    messages = []
    for step_us in draw(st.lists(steps_us, max_size=30)):
        at_us += step_us
        epoch += draw(st.sampled_from([0, 0, 0, 1, 7]))
        payload = bytes(draw(st.sampled_from([0, 1, 5, 99, 100, 5_000])))
        metadata = draw(st.sampled_from([b"", b"", b"\x80"]))
        messages.append(Sent(at_us, payload, metadata, epoch))
    return Made(messages, draw(st.one_of(st.just(0), st.integers(0, len(messages)))))


directories = st.dictionaries(names, streams(), max_size=5)


def make(path: Path, made: dict[str, Made]) -> Path:
    make_directory(path, {name: stream.messages for name, stream in made.items()})
    for name, stream in made.items():
        if stream.trimmed:
            trim(path, name, stream.trimmed)
    return path
