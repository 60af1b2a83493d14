"""Telnet's option bytes: stripped and declined, wherever the input is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.telnet import DO, DONT, IAC, SB, SE, WILL, WONT, TelnetFilter, TelnetState
from tests.protocol.lines import cut, cuts


def run(*pieces: bytes) -> tuple[bytes, bytes]:
    telnet = TelnetFilter()
    fed = [telnet.feed(piece) for piece in pieces]
    return b"".join(data for data, _ in fed), b"".join(replies for _, replies in fed)


@pytest.mark.parametrize(
    ("sent", "data", "replies"),
    [
        (b"", b"", b""),
        (b"plain\r\n", b"plain\r\n", b""),
        (b"a" + bytes((IAC, IAC)) + b"b", b"a\xffb", b""),
        (bytes((IAC, DO, 6)), b"", bytes((IAC, WONT, 6))),
        (bytes((IAC, WILL, 10)), b"", bytes((IAC, DONT, 10))),
        (bytes((IAC, DO, IAC)), b"", bytes((IAC, WONT, IAC))),
        (bytes((IAC, DONT, 1, IAC, WONT, 1)) + b"x", b"x", b""),
        (bytes((IAC, 244, IAC, DO, 6)) + b"x", b"x", bytes((IAC, WONT, 6))),
        (bytes((IAC, SB, 24, 0)) + b"a\nb" + bytes((IAC, IAC, IAC, SE)) + b"x", b"x", b""),
        (b"a\r\0b\r\nc\rd\r\r\0", b"a\r\nb\r\nc\rd\r\r\n", b""),
        (b"a\r" + bytes((IAC, 241)) + b"\nb", b"a\r\nb", b""),
    ],
    ids=repr,
)
def test_sequences_whole_and_cut_anywhere(sent: bytes, data: bytes, replies: bytes) -> None:
    for pieces in ([sent], cut(sent, range(len(sent))), *([sent[:at], sent[at:]] for at in range(len(sent)))):
        assert run(*pieces) == (data, replies)


def test_an_unfinished_sub_negotiation_holds_nothing() -> None:
    telnet = TelnetFilter()
    assert telnet.feed(bytes((IAC, SB))) == (b"", b"")
    for _ in range(10):
        assert telnet.feed(b"x" * 100_000) == (b"", b"")
    assert telnet.state is TelnetState.SUB


def test_plain_data_is_passed_on_as_it_is() -> None:
    data = b"x" * 1_000
    assert TelnetFilter().feed(data)[0] is data


@given(st.binary(max_size=80), cuts)
def test_any_bytes_mean_the_same_however_they_are_cut(sent: bytes, places: list[int]) -> None:
    assert run(*cut(sent, places)) == run(sent)


commands = st.sampled_from([bytes((IAC, each)) for each in (DO, WILL, SB, SE, IAC)])
sequences = st.lists(st.one_of(st.binary(max_size=4), commands), max_size=20).map(b"".join)


@given(sequences, cuts)
def test_any_sequences_mean_the_same_however_they_are_cut(sent: bytes, places: list[int]) -> None:
    assert run(*cut(sent, places)) == run(sent)


@given(st.binary(max_size=80))
def test_what_is_escaped_comes_through(data: bytes) -> None:
    data = data.replace(b"\0", b"0")  # CR NUL is a line end
    assert run(data.replace(b"\xff", b"\xff\xff")) == (data, b"")


@given(sequences, st.integers(0, 80))
def test_a_filter_goes_on_from_another_ones_state(sent: bytes, place: int) -> None:
    first = TelnetFilter()
    data, replies = first.feed(sent[:place])
    more, more_replies = TelnetFilter(int(first.state)).feed(sent[place:])
    assert (data + more, replies + more_replies) == run(sent)


@given(st.binary(max_size=200))
def test_answers_are_no_longer_than_what_asked_for_them(sent: bytes) -> None:
    assert len(run(sent)[1]) <= len(sent)
