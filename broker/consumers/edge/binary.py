"""CONSUME and GET of a binary connection. Each is answered when its outcome is known: they wait for nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.named import NamedReading, consumed_by_name
from tailrace.broker.consumers.edge.session import FetchedGet
from tailrace.broker.process.event_log import Event
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.messages import pack
from tailrace.protocol.opcodes import Op

if TYPE_CHECKING:
    from tailrace.broker.connection.binary import BinaryClient

OF_LETTERS: Final = ("letters", "redrive", "purge")
"""Requests about all dead letters of a stream: the name of one of its topics does not do."""


def consume(client: BinaryClient, message: c.Consume) -> None:
    def answer(value: Any) -> None:
        if isinstance(value, Refused):
            client.refuse_request(Op.CONSUME, message.id, value.code, value.text)
        else:
            client.send_envelope(pack(_consumed(message.id, value)))

    if message.do == "drop":
        if not client.may(Right.ADMIN, message.stream):
            answer(client.denial(Right.ADMIN))
            return
        command = f"delete stream={message.stream.decode()}"
        client.services.events.write(Event.ADMIN, client, command=command)
    elif not client.is_free or client.services.topic_rules.count:
        found = _named(client, message.stream, message.topics, places=message.do not in OF_LETTERS)
        if isinstance(found, Refused):
            answer(found)
            return
        topics = found.topics if message.do == "create" else message.topics
        message = replace(message, stream=found.stream, topics=topics)
    if message.do == "redrive" and not client.is_free and not client.may(Right.PUBLISH, message.stream):
        answer(client.denial(Right.PUBLISH))
        return
    client.consumers.consume(message, answer)


def get(client: BinaryClient, message: c.Get) -> None:
    def answer(outcome: FetchedGet | Refused) -> None:
        if isinstance(outcome, Refused):
            client.refuse_request(Op.GET, message.id, outcome.code, outcome.text)
            return
        runs, frames, stale, trimmed = outcome
        client.send_envelope(c.pack_got(message.id, runs, stale, trimmed, sum(map(len, frames))))
        for part in frames:
            client.send_envelope(part)
        client.traffic.messages_out += sum(run[1] for run in runs)

    if not client.is_free or client.services.topic_rules.count:
        found = _named(client, message.stream)
        if isinstance(found, Refused):
            answer(found)
            return
        message = replace(message, stream=found.stream)
    client.consumers.get(message, answer)


def _named(client: BinaryClient, name: bytes, topics: bytes = b"", *, places: bool = True) -> NamedReading | Refused:
    """The stream that a name stands for, if the connection may consume it; a node means a stream of this name."""
    if places and not client.is_node:
        return consumed_by_name(client, name, topics)
    return NamedReading(name, topics) if client.may(Right.CONSUME, name) else client.denial(Right.CONSUME)


def _consumed(number: int, value: dict[str, Any]) -> c.Consumed:
    rows = value.get("consumers")
    consumers = None if rows is None else tuple([c.Standing(**{"lag_us": None, **row}) for row in rows])
    removed = value.get("removed")
    return c.Consumed(
        number,
        value.get("next_seq"),
        value.get("created"),
        value.get("existed"),
        consumers,
        value.get("count"),
        None if removed is None else tuple([(first, last) for first, last in removed]),
    )
