"""The topic in a frame's metadata: where it stands, and that anything else is not one."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.numbering import write_numbering
from tailrace.shard.topics import TOPIC_BYTES_MAX, topic_in

HEADERS = {"h": {"a": "b"}}


@pytest.mark.parametrize("topic", ["a", "sensors/7/temp", "é/𝄞", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 1_024])
@pytest.mark.parametrize("more", [{}, HEADERS, {str(number): 0 for number in range(14)}])
@pytest.mark.parametrize("number", [None, 0, 127, 128, 255, 256, 65_536, 1 << 32, (1 << 63) - 1])
def test_the_first_key_is_the_topic(topic: str, more: dict[str, object], number: int | None) -> None:
    metadata = msgpack.packb({"t": topic, **more})
    if number is not None and len(more) < 12:
        metadata = write_numbering(metadata, b"producer", number)
    assert topic_in(metadata) == topic.encode()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        HEADERS,
        {**HEADERS, "t": "late"},
        {"t": b"binary"},
        {"t": 7},
        {"t": None},
        {"t": ""},
        {"t": "x" * (TOPIC_BYTES_MAX + 1)},
        {"t": "x" * 65_535},
        {"tt": "a"},
        {b"t": "a"},
        {"n": 1, "p": b"the other way round", "t": "a"},
        ["t", "a"],
        "t",
    ],
)
def test_what_is_not_a_topic(fields: object) -> None:
    assert topic_in(msgpack.packb(fields)) == b""


@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda rest: b"\x82\xa1p\xc4" + rest))
def test_any_bytes_are_read(metadata: bytes) -> None:
    assert metadata.find(topic_in(metadata)) >= 0


def test_every_beginning_of_metadata_is_read() -> None:
    metadata = write_numbering(msgpack.packb({"t": "x" * 300, **HEADERS}), b"producer", 70_000)
    found = [topic_in(metadata[:size]) for size in range(len(metadata) + 1)]
    assert set(found) == {b"", b"x" * 300} and found == sorted(found)


@given(st.dictionaries(st.text(max_size=2), st.text(max_size=300) | st.binary() | st.integers(0, 1 << 60), max_size=15))
def test_it_agrees_with_msgpack(fields: dict[str, object]) -> None:
    keys = [key for key in fields if key not in ("p", "n")]
    topic = fields.get("t")
    is_topic = keys[:1] == ["t"] and isinstance(topic, str) and bool(topic) and not {"p", "n"} & set(fields)
    if not {"p", "n"} & set(fields):
        assert topic_in(msgpack.packb(fields)) == (str(topic).encode()[:TOPIC_BYTES_MAX] if is_topic else b"")
