"""Patterns of streams, and what a broker lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace import BrokerFault, InvalidArgument, InvalidStreamName
from tailrace.core import listing
from tailrace.protocol.listing import Listed
from tests.protocol.wires import STREAM_ROW


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "anything", True),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("*.eu", "orders.eu", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a.[b]*", "a.[b]c", True),
        ("plain", "plain", True),
        ("plain", "plainer", False),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert bool(listing.matcher(pattern)(name)) is matches
    assert not matches or name.startswith(listing.prefix_of(pattern))


def test_what_is_read() -> None:
    assert listing.checked_patterns("a") == ("a",)
    assert listing.checked_patterns(["a", "b.*", "a"]) == ("a", "b.*")
    with pytest.raises(InvalidArgument, match="no stream to read"):
        listing.checked_patterns([])
    with pytest.raises(InvalidStreamName):
        listing.checked_patterns(["a b*"])
    with pytest.raises(InvalidArgument, match="cannot begin a stream name"):
        listing.list_call("names", "a b", "", 1.0)


def test_figures() -> None:
    [info] = listing.infos_of(Listed(1, streams=(STREAM_ROW,)))
    assert (info.messages, info.rate_per_s, info.bytes_per_s) == (8, 0.05, 5.0)
    assert info.age_s(5_002_000) == 5.0
    assert str(info) == "é: 8 messages, the last at 1970-01-01 00:00:00"
    assert str(replace(info, last_timestamp_us=(1 << 63) - 1)) == "é: 8 messages", "no calendar has this time"


def test_a_list_that_goes_back_is_not_followed_for_ever() -> None:
    """Its broker would keep the client asking."""
    pages = listing.all_pages("names", "", 1.0)
    call = next(pages)
    for following in ("b", "c"):
        call.answer, call.done = Listed(1, (following,), next=following), True
        call = pages.send(call)
    call.answer, call.done = Listed(1, ("c",), next="c"), True
    with pytest.raises(BrokerFault, match="lists 'c' after 'c'"):
        pages.send(call)
