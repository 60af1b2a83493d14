"""What a client of the binary protocol must do, as checks that drive it. docs/conformance.md describes the language."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from tailrace.testing import Server

LARGE_BYTES = 1 << 20
MANY = 400
MANY_BYTES = 16 << 10
"""MANY messages of this size are more than any client's credit, so that it has to be renewed."""


class CheckFailed(Exception):
    """The client did something else, which is the text."""


class DrivenClient(Protocol):
    """The program under test."""

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        """Give it a command; its answer. Raises CheckFailed if the answer is an error, or does not come."""

    def refused(self, do: str, **fields: object) -> str:
        """Give it a command that the broker refuses; the error's code. Raises CheckFailed if it succeeds."""


Check: TypeAlias = Callable[[DrivenClient, Server], None]


def publishing(client: DrivenClient, _server: Server) -> None:
    """seqs count from 0, each stream's own"""
    for stream, seq in (("p", 0), ("p", 1), ("q", 0)):
        same(seq_of(client.ask("publish", stream=stream, payload=text(b"one"))), seq, f"the seq in {stream!r}")


def payloads(client: DrivenClient, _server: Server) -> None:
    """any bytes come back as they were: none, each byte, a large message"""
    sent = [b"", bytes(range(256)), b"x" * LARGE_BYTES, "ü€🜚".encode()]
    for payload in sent:
        client.ask("publish", stream="payloads", payload=text(payload))
    found = messages_of(client.ask("read", stream="payloads", **{"from": 0}, live=False))
    same([payload_of(each) for each in found], sent, "the payloads")


def headers(client: DrivenClient, _server: Server) -> None:
    """headers come back, and a message without any has none"""
    sent: list[dict[str, str]] = [{"shop": "7", "größe": "ü" * 40}, {}, {f"h{n}": str(n) for n in range(20)}]
    for each in sent:
        client.ask("publish", stream="headers", payload="", headers=each or None)
    found = messages_of(client.ask("read", stream="headers", **{"from": 0}, live=False))
    same([each["headers"] for each in found], sent, "the headers")


def acknowledgements(client: DrivenClient, _server: Server) -> None:
    """each level of acknowledgement; one that cannot be reached is an error with its code"""
    client.ask("publish", stream="acks", payload="", ack=0)
    for ack, seq, what in ((1, 1, "the seq after an unacknowledged message"), (2, 2, "the seq of a synced message")):
        same(seq_of(client.ask("publish", stream="acks", payload="", ack=ack)), seq, what)
    same(client.refused("publish", stream="acks", payload="", ack=3, replicas=1), "unreplicated", "the code")


def refusals(client: DrivenClient, _server: Server) -> None:
    """a refused request is an error with the broker's code, and the connection goes on"""
    same(client.refused("publish", stream="no name", payload=""), "name", "the code")
    same(client.refused("publish", stream="refused", payload=text(bytes(LARGE_BYTES + 1))), "size", "the code")
    same(seq_of(client.ask("publish", stream="refused", payload="")), 0, "the seq of the next message")


def reading(client: DrivenClient, _server: Server) -> None:
    """a reader begins anywhere, and its credit is renewed"""
    payload = text(bytes(MANY_BYTES))
    for _ in range(MANY):
        client.ask("publish", stream="many", payload=payload, ack=0)
    client.ask("publish", stream="many", payload="")
    for first in (0, MANY - 3):
        found = messages_of(client.ask("read", stream="many", **{"from": first}, live=False))
        same([each["seq"] for each in found], list(range(first, MANY + 1)), "the seqs")


def resuming(client: DrivenClient, server: Server) -> None:
    """a broker that dies and returns interrupts nothing: no message is missing, none comes twice"""
    for number in range(3):
        client.ask("publish", stream="resumed", payload=text(b"%d" % number), ack=2)
    server.kill()
    server.start()
    for number in range(3, 6):
        client.ask("publish", stream="resumed", payload=text(b"%d" % number))
    found = messages_of(client.ask("read", stream="resumed", **{"from": 1}, live=True, count=5))
    same([payload_of(each) for each in found], [b"%d" % n for n in range(1, 6)], "the payloads")


def consuming(client: DrivenClient, _server: Server) -> None:
    """a durable consumer gives each message until it is finished"""
    for number in range(3):
        client.ask("publish", stream="work", payload=text(b"%d" % number))
    client.ask("consume", stream="work", name="c")
    who = {"stream": "work", "name": "c", "member": "m"}
    first = messages_of(client.ask("get", **who, max=2))
    same([each["seq"] for each in first], [0, 1], "the messages of the first get")
    again = messages_of(client.ask("get", **who, max=2))
    same([each["seq"] for each in again], [0, 1], "the messages of a get that is repeated")
    done = [{"seq": each["seq"], "epoch": each["epoch"]} for each in first]
    rest = messages_of(client.ask("get", **who, max=2, finished=done))
    same([each["seq"] for each in rest], [2], "the messages behind those that are finished")
    same(client.refused("get", stream="work", name="nobody", member="m", max=1), "consumer", "the code")


CHECKS: Sequence[Check] = (
    publishing,
    payloads,
    headers,
    acknowledgements,
    refusals,
    reading,
    resuming,
    consuming,
)
MESSAGE: Mapping[str, type] = {"seq": int, "epoch": int, "headers": dict, "payload": str}
SETTINGS: Mapping[str, Any] = {"max_message_bytes": LARGE_BYTES, "replication_timeout_s": 1}


def text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def seq_of(answer: Mapping[str, Any]) -> int:
    return int(_field(answer, "seq", int))


def messages_of(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of an answer, each with its four fields. Raises CheckFailed."""
    found: list[Mapping[str, Any]] = _field(answer, "messages", list)
    for each in found:
        if not isinstance(each, dict):
            raise CheckFailed(f"a message is not an object: {_short(each)}")
        for name, kind in MESSAGE.items():
            _field(each, name, kind)
    return found


def payload_of(message: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(message["payload"], validate=True)
    except ValueError:
        raise CheckFailed(f"a payload is not base64: {_short(message['payload'])}") from None


def _field(record: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(record.get(name), kind):
        raise CheckFailed(f"{name!r} is missing, or not of its type: {_short(record)}")
    return record[name]


def same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: {_short(found)}, not {_short(wanted)}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
