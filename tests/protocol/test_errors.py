"""Codes and the two kinds of error."""

from __future__ import annotations

import pickle

import msgpack
import pytest

from tailrace.protocol.errors import Code, PeerError, UsageError, code_of


@pytest.mark.parametrize("code", Code)
def test_a_code_is_one_word_with_a_meaning(code: Code) -> None:
    assert code.value == code.name.lower()
    assert code.value.isascii()
    assert code.value.isalpha()
    assert code.meaning.isprintable()
    assert f"{code}" == code.value
    assert Code(code.value) is code


def test_codes_cross_processes() -> None:
    assert pickle.loads(pickle.dumps(Code.FULL)) is Code.FULL
    assert Code(msgpack.unpackb(msgpack.packb(Code.FULL))) is Code.FULL


def test_a_code_of_a_later_broker_is_unavailable() -> None:
    assert (code_of("full"), code_of("of a later version"), code_of("")) == (
        Code.FULL,
        Code.UNAVAILABLE,
        Code.UNAVAILABLE,
    )


def test_meanings_differ() -> None:
    assert len({code.meaning for code in Code}) == len(Code)


def test_a_peer_error_says_code_and_text() -> None:
    error = PeerError(Code.SIZE, "too large", fatal=True)
    assert str(error) == "size: too large"
    assert (error.code, error.text, error.fatal) == (Code.SIZE, "too large", True)
    assert not PeerError(Code.SIZE, "too large").fatal


def test_the_two_kinds_are_apart() -> None:
    assert not issubclass(PeerError, UsageError)
    assert not issubclass(UsageError, PeerError)
