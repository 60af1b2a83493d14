"""The handles of a connection that speaks the binary protocol: each stands for a stream, or for a topic in one.

A name is resolved once, when it is opened. Messages to the handle of a topic get the topic into their metadata.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.hello_login import ANOTHERS_TEXT, GreetedClient
from tailrace.broker.routing.batch import FramePublication
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import Placed
from tailrace.broker.topics.stamping import UnstampableFrame, with_topic
from tailrace.protocol import messages as m
from tailrace.protocol.binary import PlacedHandle
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack, Op, pack
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.names import name_bytes_valid

UNKNOWN_HANDLE_TEXT: Final = "handle {handle} stands for no stream; OPEN it first"
ANOTHER_TOPIC_TEXT: Final = "a message has metadata that cannot take the topic, or another topic than the name's"


class HandleClient(GreetedClient):
    """`placed`: the handles of topics; `handles`: those of streams; `revoked`: those whose right has gone since."""

    __slots__ = ("handles", "placed", "revoked", "under_way")

    handles: dict[int, bytes]
    placed: dict[int, PlacedHandle]
    revoked: dict[int, bytes]
    under_way: int

    @property
    @abstractmethod
    def is_node(self) -> bool:
        """Whether the peer speaks as nodes do. Nodes mean streams by the names that they send."""

    @abstractmethod
    def is_node_of(self, name: bytes) -> bool:
        """Whether the peer is a node that has the right to this stream."""

    @abstractmethod
    def refuse_request(self, op: int, number: int, code: Code, text: str) -> None: ...

    @abstractmethod
    def publish_done(self, publication: FramePublication) -> None: ...


def open_handle(client: HandleClient, message: m.Open) -> None:
    refused = _open_refusal(client, message)
    if refused is not None:
        client.refuse_request(Op.OPEN, message.id, refused.code, refused.text)
        return
    hold(client, message.id, message.stream)
    client.revoked.pop(message.id, None)
    client.send_envelope(pack(m.Opened(message.id)))


def hold(client: HandleClient, number: int, name: bytes) -> None:
    """Lets a handle stand for a name."""
    placed = _placed(client, name)
    if placed.topic:
        client.placed[number] = PlacedHandle(*placed, topic_metadata(placed.topic))
    else:
        client.handles[number] = placed.stream
    _count(client, 1)


def release_all(client: HandleClient) -> None:
    """The connection has ended."""
    _count(client, -len(client.handles) - len(client.placed))


def names_by_handle(client: HandleClient) -> list[tuple[int, bytes]]:
    """All of them, those whose right has gone too, for the worker that takes the connection over."""
    topics = [(number, placed.topic) for number, placed in client.placed.items()]
    return [*client.handles.items(), *topics, *client.revoked.items()]


def revoke_denied(client: HandleClient) -> None:
    """Takes away the handles of names that it may publish to no longer."""
    for number, name in names_by_handle(client):
        if number not in client.revoked and not _may_publish(client, name):
            client.handles.pop(number, None)
            client.placed.pop(number, None)
            client.revoked[number] = name
            _count(client, -1)


def handle_refusal(client: HandleClient, number: int) -> Refused:
    """Why nothing can be published to this handle."""
    if number in client.placed:
        return Refused(Code.TOPIC, f"{client.placed[number].topic.decode()}: {ANOTHER_TOPIC_TEXT}")
    name = client.revoked.get(number)
    if name is None:
        return Refused(Code.USAGE, UNKNOWN_HANDLE_TEXT.format(handle=number))
    return Refused(Code.DENIED, f"{name.decode()}: {client.denial(Right.PUBLISH).text}")


def stream_of(client: HandleClient, number: int) -> bytes:
    """The stream that a handle stands for, or in which its topic lies; b"" if nothing can be published to it."""
    name = client.handles.get(number)
    if name is not None:
        return name
    placed = client.placed.get(number)
    return b"" if placed is None else placed.stream


def _stamped(client: HandleClient, number: int, frames: bytearray) -> tuple[bytes, bytearray]:
    """The stream of a topic's handle, and the frames with the topic; b"" if they cannot be published to it."""
    placed = client.placed.get(number)
    if placed is None:
        return b"", frames
    try:
        return placed.stream, with_topic(frames, placed.topic)
    except UnstampableFrame:
        return b"", frames


def publish_apart(client: HandleClient, message: m.Publish) -> None:
    """A PUBLISH of which one handle at least is not that of a stream.

    If it is that of a topic the frames differ from stream to stream. If its OPEN was refused the other streams take the
    message all the same.
    """
    if client.is_by_another(message.frames):
        client.refuse_request(Op.PUBLISH, message.request, Code.PRODUCER, ANOTHERS_TEXT)
        return
    names: list[bytes] = []
    parts: list[tuple[int, bytes, bytearray]] = []
    refusals: list[tuple[int, Refused]] = []
    for place, number in enumerate(message.handles):
        stream, frames = client.handles.get(number, b""), bytearray(message.frames)
        if not stream:
            stream, frames = _stamped(client, number, frames)
        if not stream:
            refusals.append((place, handle_refusal(client, number)))
        elif stream in names:
            text = f"two of the names lie in the stream {stream.decode()}: publish to each alone"
            client.refuse_request(Op.PUBLISH, message.request, Code.USAGE, text)
            return
        else:
            parts.append((place, stream, frames))
        names.append(stream)
    if not parts:
        client.refuse_request(Op.PUBLISH, message.request, refusals[0][1].code, refusals[0][1].text)
        return
    publication = FramePublication(client, message.request, message.ack != Ack.NONE, names, message.count)
    client.under_way += 1
    client.services.router.publish_parts(client, publication, parts, message.ack == Ack.SYNCED, message.replicas)
    for place, refused in refusals:
        publication.refused(place, refused.code, refused.text)
    client.note_awaited()


def _open_refusal(client: HandleClient, message: m.Open) -> Refused | None:
    settings = client.services.settings
    limit = settings.max_streams if client.bound else settings.max_handles
    if message.id in client.handles or message.id in client.placed:
        return Refused(Code.USAGE, f"handle {message.id} is in use; choose another")
    if len(client.handles) + len(client.placed) >= limit:
        return Refused(Code.HANDLES, f"this connection has {limit} handles, which is its limit")
    full = "" if client.bound else next(filter(None, (each.handles_refusal() for each in client.accounts)), "")
    if full:
        return Refused(Code.HANDLES, full)
    if not _may_publish(client, message.stream):
        return Refused(Code.DENIED, f"{message.stream.decode()}: {client.denial(Right.PUBLISH).text}")
    return None


def _placed(client: HandleClient, name: bytes) -> Placed:
    return Placed(name, b"") if client.is_node and name_bytes_valid(name) else client.services.topic_rules.place(name)


def _may_publish(client: HandleClient, name: bytes) -> bool:
    return client.is_node_of(name) or client.publish_refusal(_placed(client, name)) is None


def _count(client: HandleClient, count: int) -> None:
    for account in client.accounts:
        account.handles += count
