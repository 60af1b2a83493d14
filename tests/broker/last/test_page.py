"""Pages of last values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.last import page as module
from tailrace.broker.last.page import LastPage, read_page
from tests.broker.last.test_stream_values import Holder, publish
from tests.broker.owning import BOOT


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path, keeps_all=True)
    publish(
        made.owner, *((b"a%s" % rest, b"x" * 10, False) for rest in (b"", b"!", b"/1", b"/1/x", b"/2", b"b", b"b/1"))
    )
    made.step()
    yield made


def topics(holder: Holder, topic_filter: bytes, after: bytes = b"", most: int = 99, size: int = 1 << 20) -> LastPage:
    readers = StreamReaders(holder.owner.catalog.directory, 10, BOOT)
    try:
        return read_page(readers, holder.values, topic_filter, after, most, size, retained=False)
    finally:
        readers.close()


@pytest.mark.parametrize(
    ("topic_filter", "messages"),
    [(b"#", 7), (b"a/#", 4), (b"a", 1), (b"a/+", 2), (b"+/1", 2), (b"+", 3), (b"a/1/#", 2), (b"c/#", 0), (b"ab/2", 0)],
)
def test_what_a_filter_matches(holder: Holder, topic_filter: bytes, messages: int) -> None:
    assert topics(holder, topic_filter).messages == messages


def test_a_page_ends_at_its_bounds_and_the_next_goes_on(holder: Holder) -> None:
    first = topics(holder, b"#", most=3)
    assert (first.messages, first.after, first.more) == (3, b"a/1", True)
    rest = topics(holder, b"#", after=first.after)
    assert (rest.messages, rest.after, rest.more) == (4, b"ab/1", False)
    assert first.frames + rest.frames == topics(holder, b"#").frames
    assert topics(holder, b"#", size=1).messages == 1
    assert topics(holder, b"#", size=100)[1:] == (2, b"a!", True)
    assert topics(holder, b"a", after=b"a").messages == 0


def test_topics_that_do_not_match_are_bounded_too(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCANNED_MAX", 4)
    assert topics(holder, b"+/2")[1:] == (0, b"a/1/x", True)
    assert topics(holder, b"+/2", after=b"a/1/x")[1:] == (1, b"ab/1", False)
