"""Blocks into lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.lines import LineSplitter


def split_all(splitter: LineSplitter, blocks: list[bytes]) -> list[bytes]:
    return [line for block in blocks for line in splitter.split(block)] + splitter.finish()


@given(st.lists(st.text("ab\n\r", max_size=8).map(str.encode)))
def test_however_the_input_is_cut(blocks: list[bytes]) -> None:
    text = b"".join(blocks)
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    splitter = LineSplitter(1_000)
    assert split_all(splitter, blocks) == expected
    assert splitter.ended == splitter.begun == len(expected)


def test_a_line_that_has_begun_counts() -> None:
    splitter = LineSplitter(1_000)
    assert splitter.split(b"a\nb") == [b"a"]
    assert (splitter.ended, splitter.begun) == (1, 2)
    assert splitter.split(b"c") == []
    assert splitter.split(b"\n") == [b"bc"]
    assert (splitter.ended, splitter.begun) == (2, 2)


def test_of_a_line_that_is_too_long_little_is_held() -> None:
    splitter = LineSplitter(10)
    for _ in range(100):
        assert splitter.split(bytes(1_000)) == []
    assert splitter.split(b"tail\nnext") == [bytes(11)]
    assert splitter.finish() == [b"next"]
    assert splitter.finish() == []
