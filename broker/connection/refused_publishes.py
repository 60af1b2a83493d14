"""The answers to refused publishes of the binary protocol.

One read may have very many requests that are refused for one reason: each is answered by itself, some of them at a
time (`broker.process.work`).
"""

from __future__ import annotations

from functools import partial
from struct import iter_unpack
from typing import Final, NamedTuple, Protocol

from tailrace.broker.process.work import Asker
from tailrace.broker.routing.batch import FramePublication
from tailrace.broker.services import Services
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Op, pack

ANSWERS_A_ROUND: Final = 64
REQUEST_BYTES: Final = 8


class RefusedRequests(NamedTuple):
    """`requests`: each its number and that of its messages, which are `messages` in all. first_seq: that of the first
    message, if they are in the log all the same.
    """

    requests: bytes
    messages: int
    code: Code
    text: str
    first_seq: int | None = None

    @property
    def number(self) -> int:
        return len(self.requests) // REQUEST_BYTES


class RequestClient(Asker, Protocol):
    """The side of a client that is used here: see `BinaryClient`."""

    closed: bool
    services: Services
    under_way: int

    def outcome_known(self) -> None: ...

    def send_envelope(self, envelope: bytes) -> None: ...


def answer_some(client: RequestClient, refused: RefusedRequests) -> None:
    """Now, and the others when the client has its turn."""
    requests, _messages, code, text, seq = refused
    end = ANSWERS_A_ROUND * REQUEST_BYTES
    client.under_way -= min(refused.number, ANSWERS_A_ROUND)
    if client.closed:
        return
    for request, messages in iter_unpack("<II", requests[:end]):
        logged = None
        if seq is not None:
            logged = ((seq, messages, 0, code, text),)
            seq += messages
        client.send_envelope(pack(m.Failed(code, text, False, Op.PUBLISH, request, logged)))
    if len(requests) > end:
        rest = refused._replace(requests=requests[end:], first_seq=seq)
        client.services.work.later(b"", (client,), partial(answer_some, client, rest))
    client.outcome_known()


def failed_publish(publication: FramePublication) -> m.Failed:
    """The answer to a publish that was refused, by one of its streams at least."""
    code, text = next(iter(publication.refusals.values()))
    names = publication.names
    rows = tuple(
        [(*result, *publication.refusals.get(place, ("", ""))) for place, result in enumerate(publication.results)]
    )
    if len(names) == 1:
        logged = rows if code is Code.UNREPLICATED else None  # has the places
        return m.Failed(code, f"{names[0].decode()}: {text}", False, Op.PUBLISH, publication.request, logged)
    text = f"{len(publication.refusals)} of {len(names)} streams refused this; the first: {text}"
    return m.Failed(code, text, False, Op.PUBLISH, publication.request, rows)
