"""The commands for durable consumers of a connection that speaks lines.

They are done one after the other: each begins when the answer of the one before has taken its place. All gets of a
connection are one member's, which is the connection's own. A seq in `ack` and `nack` means the message of that seq
that the connection was given last.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tailrace.broker.connection.named import consumed_by_name
from tailrace.broker.consumers.edge.delivered import DeliveredMessages
from tailrace.broker.consumers.edge.session import ConsumerSession, FetchedGet
from tailrace.broker.consumers.state.ranges import merged
from tailrace.broker.routing.batch import Pending
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import answers
from tailrace.protocol import commands as lines
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.protocol.topics import escaped
from tailrace.shard.leaves import load

if TYPE_CHECKING:
    from tailrace.broker.connection.line import LineClient

NUMBERS: Final = (
    "next_seq",
    "lag_messages",
    "lag_us",
    "in_flight",
    "members",
    "redelivered",
    "dead",
    "idle_us",
    "ack_wait_s",
    "deliveries_max",
    "retry_s",
    "retry_max_s",
)
COLUMNS: Final = ("consumer", *NUMBERS, "lag", "topics")
"""`lag`: whether `lag_messages` is exact, or at most as many match; `topics`: the filter, as a word of a line."""

_text = load("tailrace.protocol.text_cy")


class LineConsumerSession(ConsumerSession):
    """`member`: what the connection is called as a member of any consumer."""

    def __init__(self, client: LineClient, member: bytes = b"") -> None:
        super().__init__(client)
        self.member = member or b"line-" + os.urandom(8).hex().encode()
        self.handed = DeliveredMessages()
        self._row: deque[tuple[Pending, Callable[[Pending], None]]] = deque()
        self._busy = False  # the first of the row that has begun has not been answered
        self._stepping = False

    def take(self, client: LineClient, begin: Callable[[Pending], None]) -> None:
        """Let a command begin when those before it are answered; it settles its place in the row of answers."""
        pending = Pending(client.answers_ready, self._answered)
        self._row.append((pending, begin))
        client.pend(pending)
        self._step()

    def _answered(self) -> None:
        self._busy = False
        self._step()

    def _step(self) -> None:
        """A loop, since most commands are answered before they return."""
        if self._stepping:
            return
        self._stepping = True
        while self._row and not self._busy and not self.is_full:
            pending, begin = self._row.popleft()
            self._busy = True
            begin(pending)
        self._stepping = False
        if self.holds:
            self.client.services.held_gets[self] = None

    def retry(self) -> None:
        super().retry()
        self._step()

    @property
    def holds(self) -> bool:
        return super().holds or bool(self._row and not self._busy)

    def close(self) -> None:
        self._row.clear()
        super().close()

    def export_state(self) -> list[Any]:
        return [super().export_state(), self.handed.export_state()]

    def restore_state(self, state: list[Any]) -> None:
        members, handed = state
        super().restore_state(members)
        self.handed.restore_state(handed)


def placed(client: LineClient, command: Any) -> Any:
    """Any of `COMMANDS` with the stream that its name stands for; or Refused."""
    topics = command.topics if isinstance(command, lines.Consume) else b""
    found = consumed_by_name(client, command.stream, topics)
    if isinstance(found, Refused):
        return found
    if isinstance(command, lines.Consume):
        return replace(command, stream=found.stream, topics=found.topics)
    return command if found.stream == command.stream else replace(command, stream=found.stream)


def execute(client: LineClient, command: Any) -> None:
    """Any of `COMMANDS`, with its stream."""
    begin = COMMANDS[type(command)]
    serving = client.consumers
    serving.take(client, lambda pending: begin(serving, pending, command))


def _consume(serving: LineConsumerSession, pending: Pending, command: lines.Consume) -> None:
    wanted = c.Consume(0, "create", command.stream, command.name, command.start, topics=command.topics)
    _ask(serving, pending, wanted, lambda value: _ok("consume", command, value["next_seq"]))


def _reset(serving: LineConsumerSession, pending: Pending, command: lines.Reset) -> None:
    wanted = c.Consume(0, "reset", command.stream, command.name, command.start)
    _ask(serving, pending, wanted, lambda value: _ok("reset", command, value["next_seq"]))


def _unconsume(serving: LineConsumerSession, pending: Pending, command: lines.Unconsume) -> None:
    wanted = c.Consume(0, "delete", command.stream, command.name)
    _ask(serving, pending, wanted, lambda _value: _ok("unconsume", command))


def _leave(serving: LineConsumerSession, pending: Pending, command: lines.Leave) -> None:
    wanted = c.Consume(0, "leave", command.stream, command.name, member=serving.member)
    _ask(serving, pending, wanted, lambda _value: _ok("leave", command))


def _consumers(serving: LineConsumerSession, pending: Pending, command: lines.Consumers) -> None:
    def render(value: dict[str, Any]) -> bytes:
        rows = [
            [row["name"].decode(), *("" if row.get(key) is None else row[key] for key in NUMBERS), *_of_filter(row)]
            for row in value["consumers"]
        ]
        return answers.table(COLUMNS, rows)

    _ask(serving, pending, c.Consume(0, "list", command.stream), render)


def _of_filter(row: dict[str, Any]) -> tuple[str, str]:
    return "most" if row.get("lag_at_most") else "exact", escaped(row.get("topics", b"")).decode()


def _ask(
    serving: LineConsumerSession, pending: Pending, wanted: c.Consume, render: Callable[[dict[str, Any]], bytes]
) -> None:
    def answer(value: Any) -> None:
        pending.settle(_refusal(serving, value) if isinstance(value, Refused) else render(value))

    serving.consume(wanted, answer)


def _get(serving: LineConsumerSession, pending: Pending, command: lines.Get) -> None:
    stream, name = command.stream, command.name
    wanted = c.Get(0, stream, name, serving.member, max_messages=command.count, wait_ms=command.wait_ms)

    def answer(outcome: FetchedGet | Refused) -> None:
        if isinstance(outcome, Refused):
            pending.settle(_refusal(serving, outcome))
            return
        trimmed = _trimmed(stream, outcome.trimmed)
        try:
            text, count = _render(stream, outcome)
        except Refused as refused:
            pending.settle(trimmed + _refusal(serving, refused))
            return
        for first, messages, _deliveries, epoch in outcome.runs:
            serving.handed.note((stream, name), first, first + messages - 1, epoch)
        serving.client.traffic.messages_out += count
        pending.settle(trimmed + text + answers.ok("get", stream, name, count))

    serving.get(wanted, answer)


def _render(stream: bytes, gotten: FetchedGet) -> tuple[bytes, int]:
    """The messages as `msg` lines, and how many. Raises Refused for a frame that is not right."""
    texts, messages = [], 0
    for (first, count, _deliveries, _epoch), frames in zip(gotten.runs, gotten.frames, strict=True):
        text, rendered, _used, fault = _text.render(
            frames, 0, len(frames), first, first + count, b"msg " + stream + b" ", True, len(frames)
        )
        if rendered < count:
            raise Refused(Code.DAMAGED, f"{stream.decode()}: the frame of seq {first + rendered} is wrong: {fault}")
        texts.append(text)
        messages += count
    return b"".join(texts), messages


def _trimmed(stream: bytes, count: int) -> bytes:
    if not count:
        return b""
    return answers.err(Code.TRIMMED, f"{stream.decode()}: {count} messages were trimmed before they were got")


def _finish(serving: LineConsumerSession, pending: Pending, command: lines.Finish) -> None:
    seqs = [command.first] if command.first == command.last else [command.first, command.last]
    rows, unknown = serving.handed.meant((command.stream, command.name), command.first, command.last)
    wanted = c.Get(0, command.stream, command.name, serving.member, finished=tuple(rows))
    _answer_ack_only(serving, pending, wanted, unknown, _ok("ack", command, *seqs))


def _nack(serving: LineConsumerSession, pending: Pending, command: lines.Nack) -> None:
    rows, unknown = serving.handed.meant((command.stream, command.name), command.seq, command.seq)
    failed = tuple([(seq, epoch, command.reason) for seq, _last, epoch in rows])
    delays = tuple([(seq, epoch, command.delay_ms) for seq, _last, epoch in rows if command.delay_ms >= 0])
    wanted = c.Get(0, command.stream, command.name, serving.member, failed=failed, delays=delays)
    _answer_ack_only(serving, pending, wanted, unknown, _ok("nack", command, command.seq))


def _answer_ack_only(
    serving: LineConsumerSession, pending: Pending, wanted: c.Get, unknown: list[c.MessageRange], done: bytes
) -> None:
    """A get that asks for no messages. `unknown`: messages to finish or fail that were not given to this connection."""

    def answer(outcome: FetchedGet | Refused) -> None:
        if isinstance(outcome, FetchedGet) and (outcome.stale or unknown):
            text = _stale(merged([*outcome.stale, *unknown]))
            outcome = Refused(Code.STALE, f"{wanted.stream.decode()}: {text}")
        pending.settle(_refusal(serving, outcome) if isinstance(outcome, Refused) else done)

    serving.get(wanted, answer)


def _stale(ranges: list[c.MessageRange]) -> str:
    first, last = ranges[0]
    what = f"message {first} is" if first == last else f"messages {first} to {last} are"
    more = f", nor are {len(ranges) - 1} ranges more" if len(ranges) > 1 else ""
    why = "not given to it, another member's by now, or lost with a master; nothing was done"
    return f"{what} not this connection's{more}: {why}"


def _ok(
    word: str,
    command: lines.Consume | lines.Reset | lines.Unconsume | lines.Leave | lines.Finish | lines.Nack,
    *rest: int,
) -> bytes:
    return answers.ok(word, command.stream, command.name, *rest)


def _refusal(serving: ConsumerSession, refused: Refused) -> bytes:
    serving.client.services.metrics.refused.add(refused.code)
    return answers.err(refused.code, refused.text)


COMMANDS: Final[Mapping[type, Callable[[LineConsumerSession, Pending, Any], None]]] = {
    lines.Consume: _consume,
    lines.Unconsume: _unconsume,
    lines.Leave: _leave,
    lines.Get: _get,
    lines.Finish: _finish,
    lines.Nack: _nack,
    lines.Reset: _reset,
    lines.Consumers: _consumers,
}
