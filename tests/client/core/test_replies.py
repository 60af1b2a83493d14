"""Requests and replies: headers, and which reply belongs to which request."""

from __future__ import annotations

import gc
import pickle
from weakref import WeakMethod

import pytest

from tailrace import ClientClosed, InvalidArgument, Message
from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.headers import pack_headers, reply_headers
from tailrace.core.message import bound_kind
from tailrace.core.replies import PendingReplies


class Publisher:
    def publish(self, stream: str, payload: bytes, **options: object) -> tuple[object, ...]:
        return stream, payload, options


def made(kind: type[Message] = Message, **headers: str | bytes) -> Message:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return tuple.__new__(kind, ("s", 7, 0, b"", pack_headers(names), 1))


def test_the_first_reply_of_each_request_counts() -> None:
    pending = PendingReplies()
    first, headers = pending.begin({"mine": b"x"})
    second, _ = pending.begin(None)
    assert headers == {"mine": b"x", "reply-to": pending.stream, "correlation": first} and first != second
    assert pending.stream.startswith("reply-to/") and pending.stream != PendingReplies().stream
    reply = made(correlation=second)
    for message in (reply, made(correlation=second, late="1"), made(correlation="999"), made(), made(correlation=b"1")):
        pending.arrived(message)
    assert pending.reply(first) is None and pending.reply(second) is reply
    pending.end(second)
    pending.arrived(reply)
    assert not {second} & set(pending._waiting)
    with pytest.raises(InvalidArgument, match="the client's own"):
        pending.begin({"reply-to": "elsewhere"})


def test_a_message_is_replied_to_by_the_client_that_received_it() -> None:
    publisher = Publisher()
    for base in (Message, ConsumedMessage):
        kind = bound_kind(base, WeakMethod(publisher.publish))
        request = made(kind, reply_to="r", correlation="3")
        assert base in type(request).__mro__ and repr(request).startswith("Message(")
        given = "r", b"yes", {"headers": {"mine": "1", "correlation": "3"}, "timeout_s": 2.0}
        assert request.reply(b"yes", headers={"mine": "1"}, timeout_s=2.0) == given
        with pytest.raises(InvalidArgument, match="s: message 7 is not a request"):
            made(kind).reply(b"yes")
    copy = pickle.loads(pickle.dumps(request))
    assert copy == request
    with pytest.raises(InvalidArgument, match="was not received by a client"):
        copy.reply(b"yes")
    del publisher
    gc.collect()
    with pytest.raises(ClientClosed, match="is gone"):
        request.reply(b"yes")
    assert reply_headers(request.headers, None, "") == ("r", {"correlation": "3"})
