"""What a program asks of consumers, checked before it is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.core import consumer_calls
from tailrace.core.calls import PendingCall
from tailrace.core.consumer_state import ConsumerOptions
from tailrace.core.options import ClientOptions
from tailrace.core.places import NEW, START, Seq
from tailrace.errors import InvalidArgument, InvalidStreamName, NoSuchConsumer
from tailrace.protocol import consuming as c
from tailrace.protocol.fields import NUMBER_MAX
from tailrace.protocol.messages import Ack
from tailrace.protocol.names import CONSUMER_BYTES_MAX
from tailrace.protocol.places import From

FINE: dict[str, Any] = {
    "stream": "s",
    "name": "billing",
    "member": "me",
    "batch": 10,
    "ack_wait_s": None,
    "linger_s": 0.1,
    "ack": Ack.APPENDED,
    "replicas": 0,
    "on_trimmed": "raise",
    "options": ClientOptions(timeout_s=7.0, reconnect_s=9.0),
}


def test_options() -> None:
    chosen = consumer_calls.consumer_options(**FINE)
    assert chosen == ConsumerOptions("s", "billing", "me", 10, answer_s=7.0, patience_s=9.0, session=chosen.session)
    assert 0 < chosen.session <= NUMBER_MAX and chosen.session != consumer_calls.consumer_options(**FINE).session
    assert not consumer_calls.consumer_options(**{**FINE, "on_trimmed": "skip"}).raise_trimmed
    replicated = consumer_calls.consumer_options(**{**FINE, "ack": Ack.REPLICATED})
    assert (replicated.ack, replicated.replicas) == (Ack.REPLICATED, 1)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": ""}, "is not the name of a consumer or a member"),
        ({"name": "a b"}, "is not the name of a consumer or a member"),
        ({"name": "x" * 101}, "1 to 100 bytes"),
        ({"name": b"billing"}, "it is a str, not bytes"),
        ({"name": "\ud800"}, "has no UTF-8 form"),
        ({"member": "a|b"}, "is not the name of a consumer or a member"),
        ({"batch": 0}, "a number of messages from 1 to 10,000"),
        ({"batch": 10_001}, "a number of messages from 1 to 10,000"),
        ({"linger_s": -1}, "linger_s is -1"),
        ({"linger_s": float("nan")}, "linger_s is nan"),
        ({"ack": Ack.NONE}, "are always answered"),
        ({"replicas": 2}, r"replicas=2 goes with ack=Ack\.REPLICATED"),
        ({"on_trimmed": "ignore"}, 'it is "raise" or "skip"'),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        consumer_calls.consumer_options(**{**FINE, **wrong})


def test_a_streams_name() -> None:
    with pytest.raises(InvalidStreamName):
        consumer_calls.list_call("a b", 1.0)


def test_a_members_name_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="ä host|" + "x" * 300))
    first, second = consumer_calls.new_member(), consumer_calls.new_member()
    assert first != second
    assert first.startswith("hostxxx") and len(first) <= CONSUMER_BYTES_MAX
    assert consumer_calls.checked_name(first) == first


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            consumer_calls.create_call("s", "n", Seq(4), 60.0, 3, Ack.REPLICATED, 2, 1.0),
            c.Consume(9, "create", b"s", b"n", From("seq", 4), 60.0, 3, Ack.REPLICATED, 2),
        ),
        (
            consumer_calls.reset_call("s", "n", NEW, Ack.SYNCED, 0, 1.0),
            c.Consume(9, "reset", b"s", b"n", From("new", 0), ack=Ack.SYNCED),
        ),
        (consumer_calls.delete_call("s", "n", Ack.APPENDED, 0, 1.0), c.Consume(9, "delete", b"s", b"n")),
        (consumer_calls.list_call("s", 1.0), c.Consume(9, "list", b"s")),
    ],
)
def test_what_is_sent(call: PendingCall, message: c.Consume) -> None:
    assert call.make(9) == message


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ((0.0, 3), "ack_wait_s is 0.0"),
        ((1e9, 3), "ack_wait_s is"),
        ((1.0, -1), "deliveries_max is -1"),
        ((1.0, True), "deliveries_max is True"),
        ((1.0, 70_000), "deliveries_max is 70000"),
    ],
)
def test_settings_that_cannot_be(settings: tuple[float, int], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        consumer_calls.create_call("s", "n", START, *settings, Ack.APPENDED, 0, 1.0)


@pytest.mark.parametrize(
    ("existed", "error", "repeated", "expected"),
    [
        (True, None, False, True),
        (False, None, False, False),
        (False, None, True, True),  # its first answer was lost
        (None, NoSuchConsumer(""), False, False),
        (None, NoSuchConsumer(""), True, True),
    ],
)
def test_whether_there_was_one(
    existed: bool | None, error: NoSuchConsumer | None, repeated: bool, expected: bool
) -> None:
    call = consumer_calls.delete_call("s", "n", Ack.APPENDED, 0, 1.0)
    call.answer, call.error, call.is_repeated = c.Consumed(1, existed=existed), error, repeated
    assert consumer_calls.was_deleted(call) is expected
