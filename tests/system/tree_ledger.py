"""The answers that publishers got for their messages, compared with the log.

A publisher numbers its messages and sends each number once. A message that was not acknowledged is not sent again: what
follows has a new number. So each number is in the log exactly once when it was acknowledged, at the acknowledged seq;
not at all when it was refused; and at most once when nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

MARK = b"|"
"""Ends the message's name in the payload; whatever follows is there for its length."""


class Fate(Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Sent(NamedTuple):
    """The fate of one message. `seq` is -1 if the answer named none."""

    publisher: str
    connection: int
    number: int
    stream: str
    fate: Fate
    seq: int = -1

    @property
    def name(self) -> str:
        return f"{self.publisher}/{self.connection}/{self.number}"

    def line(self) -> str:
        return f"{self.publisher} {self.connection} {self.number} {self.stream} {self.fate.value} {self.seq}\n"


Names = Mapping[str, Mapping[int, str]]
"""The names of the messages in each stream's log, by their seqs."""


def parse_sent(line: str) -> Sent:
    """The message of a `Sent.line`. Raises ValueError."""
    publisher, connection, number, stream, fate, seq = line.split()
    return Sent(publisher, int(connection), int(number), stream, Fate(fate), int(seq))


def read_sent(files: Iterable[Path]) -> list[Sent]:
    """All that publishers have written down, each in its own order. A line that is being written is left out."""
    return [parse_sent(line) for file in files for line in file.read_text().splitlines(True) if line.endswith("\n")]


def name_in(payload: bytes) -> str:
    """The name of the message that has this payload."""
    return payload.split(MARK, 1)[0].decode("utf-8", "backslashreplace")


def faults(sent: Sequence[Sent], logs: Names, *, may_be_late: bool = False) -> list[str]:
    """What must not be, a line each; none when every promise was kept.

    `may_be_late`: a message whose fate is unknown may be logged after messages that were sent later. It can lie in the
    socket of a node that stands still, and be read when that goes on.
    """
    return [
        *_wrong_places(sent, logs),
        *_wrong_copies(sent, logs),
        *_wrong_order(_of_known_fate(sent, logs) if may_be_late else logs),
        *_overtaken(sent),
    ]


def _of_known_fate(sent: Sequence[Sent], logs: Names) -> Names:
    unknown = {message.name for message in sent if message.fate is Fate.UNKNOWN}
    return {stream: {seq: name for seq, name in log.items() if name not in unknown} for stream, log in logs.items()}


def _wrong_places(sent: Sequence[Sent], logs: Names) -> Iterable[str]:
    """Acknowledged messages that are not at the acknowledged seq."""
    for message in sent:
        if message.fate is Fate.ACKNOWLEDGED:
            found = logs.get(message.stream, {}).get(message.seq)
            if found != message.name:
                instead = f"there is {found}" if found else "there is nothing"
                yield f"stream {message.stream}: {message.name} was acknowledged as {message.seq}, where {instead}"


def _wrong_copies(sent: Sequence[Sent], logs: Names) -> Iterable[str]:
    """Messages that are in a log twice, although they were refused, in another stream than theirs, or never sent."""
    by_name = {message.name: message for message in sent}
    if len(by_name) != len(sent):
        yield f"{len(sent) - len(by_name)} messages have a name that another one has: the publishers are wrong"
    for stream, log in logs.items():
        seqs: dict[str, int] = {}
        for seq, name in log.items():
            message = by_name.get(name)
            if name in seqs:
                yield f"stream {stream}: {name} is there twice, as {seqs[name]} and as {seq}"
            elif message is None:
                yield f"stream {stream}: message {seq} is {name}, which nobody has sent"
            elif message.stream != stream:
                yield f"stream {stream}: message {seq} is {name}, which was sent to {message.stream}"
            elif message.fate is Fate.REFUSED:
                yield f"stream {stream}: message {seq} is {name}, whose publisher was told that it is not logged"
            seqs.setdefault(name, seq)


def _wrong_order(logs: Names) -> Iterable[str]:
    """Messages of one connection that are not in the order in which they were sent."""
    for stream, log in logs.items():
        latest: dict[str, tuple[int, int]] = {}
        for seq in sorted(log):
            connection, _slash, number = log[seq].rpartition("/")
            if not number.isdigit():
                continue  # reported by _wrong_copies
            before, seq_before = latest.get(connection, (-1, -1))
            if int(number) < before:
                yield f"stream {stream}: {log[seq]} is {seq}, behind {connection}/{before}, which is {seq_before}"
            latest[connection] = int(number), seq


def _overtaken(sent: Sequence[Sent]) -> Iterable[str]:
    """Acknowledged messages before one whose acknowledgement was there before they were sent.

    That holds over all connections of a publisher, because it takes every answer of one before it makes the next.
    """
    latest: dict[tuple[str, str], Sent] = {}
    for message in sent:
        if message.fate is Fate.ACKNOWLEDGED:
            before = latest.get((message.publisher, message.stream))
            if before is not None and message.seq <= before.seq:
                yield f"stream {message.stream}: {message.name} is {message.seq}, {before.name} before it {before.seq}"
            latest[message.publisher, message.stream] = message
