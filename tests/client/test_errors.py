"""The tree of exceptions."""

from __future__ import annotations

import pickle

import pytest

from tailrace import errors
from tailrace.core.message import Receipt
from tailrace.errors import (
    BY_CODE,
    BrokerError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    InvalidArgument,
    NotReplicated,
    OperationTimeout,
    PartlyPublished,
    StreamBehind,
    StreamDisabled,
    TailraceError,
    Trimmed,
    broker_error,
)
from tailrace.protocol.errors import Code

KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]


def test_one_class_for_each_code_of_the_broker() -> None:
    assert set(BY_CODE) == {code.value for code in Code}
    assert len({*BY_CODE.values()}) == len(BY_CODE)


def test_one_tree() -> None:
    assert all(issubclass(kind, TailraceError) for kind in KINDS)
    assert all(kind.__doc__ or issubclass(kind, BrokerError) for kind in KINDS)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ConnectFailed, ConnectionError),
        (ConnectionLost, ConnectionError),
        (OperationTimeout, TimeoutError),
        (InvalidArgument, ValueError),
    ],
)
def test_they_are_what_python_calls_them(kind: type[TailraceError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=r"^why$"):
        raise kind("why")


def test_the_error_of_a_code() -> None:
    error = broker_error("disabled", "not here", "orders")
    assert type(error) is StreamDisabled
    assert (str(error), error.text, error.stream, error.code) == (
        "disabled: orders: not here",
        "not here",
        "orders",
        "disabled",
    )


def test_a_code_of_a_later_broker() -> None:
    error = broker_error("novel", "what is this?")
    assert type(error) is BrokerError
    assert str(error) == "novel: what is this?"


def test_they_say_what_is_known() -> None:
    trimmed = Trimmed("gone", "s", "", 3, 8)
    assert (trimmed.code, trimmed.first_seq, trimmed.last_seq) == ("trimmed", 3, 8)
    behind = StreamBehind("s", 10, 7)
    assert "s: reading should continue at seq 10, but the next seq is 7" in str(behind)
    partly = PartlyPublished([Receipt("a", 1, 1, 0), broker_error("full", "no space", "b")])
    assert str(partly) == "1 of 2 streams failed: b: full: no space"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    name = "a\N{RIGHT-TO-LEFT OVERRIDE}b\x1b[2J"
    error = broker_error("unknown", f"{name}: no such stream", name)
    assert str(error) == r"unknown: a\u202eb\x1b[2J: no such stream" and error.stream == name
    assert str(ClientClosed(name)) == r"a\u202eb\x1b[2J"


def test_they_can_be_sent_to_another_process() -> None:
    for error in (
        broker_error("full", "no space", "b"),
        ConnectionLost("gone"),
        Trimmed("gone"),
        NotReplicated("", receipt=Receipt("s", 7, 1, 0)),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
