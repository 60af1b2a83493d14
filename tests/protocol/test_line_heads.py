"""The heads of `pub` lines and the frames of their payloads; test_line_cy.py compares them with the compiled leaf."""

from __future__ import annotations

import pytest

from tailrace.protocol.line_heads import (
    HEAD_BYTES_MAX,
    WholeFrame,
    frame_with_metadata,
    frames_of,
    parse_head,
    topic_of,
)
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import pack_frame

A_TOPIC = topic_metadata(b"a/b")


@pytest.mark.parametrize(
    ("head", "parsed"),
    [
        (b"pub s |", (b"s", b"")),
        (b"PUB\ts|", (b"s", b"")),
        (b"pub s topic a/b |", (b"s", A_TOPIC)),
        (b"pub s\tTopic  a%2Fb|", (b"s", A_TOPIC)),
        (b"pub topic |", (b"topic", b"")),
        (b"pub s topic |", None),
        (b"pub s topic a/+ |", None),
        (b"pub s subject a |", None),
        (b"pub s/$dead |", None),
        (b"pub 100% |", (b"100%", b"")),
        (b"pub s/a%20b |", None),
        (b"pub s/a |", (b"s/a", b"")),
        (b"pub $s |", None),
        (b"sub s |", None),
        (b"pub s ", None),
    ],
)
def test_a_head(head: bytes, parsed: tuple[bytes, bytes] | None) -> None:
    assert parse_head(head) == parsed


def test_the_longest_head() -> None:
    longest = b"pub s topic " + b"a" * (HEAD_BYTES_MAX - 14) + b" |"
    assert parse_head(longest) is not None and parse_head(longest.replace(b" |", b"a |")) is None


def test_the_topic_of_a_word() -> None:
    assert topic_of(b"a%20b") == b"a b" and topic_of(b"100%25") == b"100%"
    assert topic_of(b"a%zz") is None and topic_of(b"a%") is None, "the line is answered with the reason"
    assert topic_of(b"a%2B") is None and topic_of(b"%FF") is None and topic_of(b"") is None


@pytest.mark.parametrize("sizes", [[5, 5], [0, 1, 2], [1, 5_000], [3_000, 3_000]])
def test_frames(sizes: list[int]) -> None:
    plain = [b"x" * size for size in sizes]
    expected = [pack_frame(payload) for payload in plain]
    assert frames_of(plain) == b"".join(expected)
    whole = frame_with_metadata(A_TOPIC, b"y")
    assert whole == pack_frame(b"y", metadata=A_TOPIC) and type(whole) is WholeFrame
    assert frames_of([*plain, whole, b""]) == b"".join([*expected, whole, pack_frame(b"")])
