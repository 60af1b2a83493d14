from __future__ import annotations

from tailrace.spark.slices import BAD_SHOWN_MAX, BadStream, BadStreams, Slice


def test_a_slice_counts_its_messages() -> None:
    assert Slice("news", 1, 5, 8).messages == 3


def test_bad_streams_are_named_and_not_all_of_them() -> None:
    assert "1 stream cannot be read: no stream 'a'. option" in str(BadStreams([BadStream("a", "no stream 'a'")]))
    many = BadStreams([BadStream(f"s{i}", f"cause {i}") for i in range(BAD_SHOWN_MAX + 3)])
    assert f"{BAD_SHOWN_MAX + 3} streams" in str(many)
    assert "cause 9; and 3 more" in str(many)
    assert "cause 10" not in str(many)
