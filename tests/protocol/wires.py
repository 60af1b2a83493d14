"""What the tests of the binary protocol share: one of each message, feeding a codec in any pieces, a pair of codecs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, get_args

from tailrace.protocol import collecting, consuming, listing, recalling, replication, sharing
from tailrace.protocol.binary import RESPONSE_MAX_BYTES, ClientCodec
from tailrace.protocol.consuming import Consume, Consumed, Get, Got, Standing
from tailrace.protocol.features import HOMES
from tailrace.protocol.messages import (
    Ack,
    AnyMessage,
    Challenge,
    Chunk,
    Close,
    CoreRequest,
    CoreResponse,
    Credit,
    Ended,
    Failed,
    Hello,
    Malformed,
    Open,
    Opened,
    Ping,
    Pong,
    Prove,
    Publish,
    Published,
    Request,
    Response,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Welcome,
    pack,
)
from tailrace.protocol.places import FROM_NEW, From
from tailrace.protocol.replication import (
    Ask,
    Call,
    Claim,
    Claimed,
    CopyEnd,
    Fence,
    Fenced,
    Follow,
    Followed,
    Held,
    Names,
    NodeLink,
    Returned,
    Told,
    Watch,
)
from tailrace.shard.epochs import EpochStart
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tests.protocol.plain_codec import PlainCodec

MAX_ENVELOPE_BYTES = 1 << 18
MAX_MESSAGE_BYTES = 100_000
FRAMES = pack_frame(b"one") + pack_frame(b"", metadata=b"\x80") + pack_frame(b"three", metadata=b"\x81\xa1k\x01")
HELLO = Hello(1, ("a feature",), "test/1")
ALL_FEATURES = frozenset(HOMES)
REQUEST_KINDS = {
    *get_args(CoreRequest),
    *get_args(consuming.ConsumerRequest),
    *get_args(replication.NodeRequest),
    listing.List,
    recalling.Recall,
    collecting.Collect,
    sharing.Interest,
}
RESPONSE_KINDS = {
    *get_args(CoreResponse),
    *get_args(consuming.ConsumerResponse),
    *get_args(replication.NodeResponse),
    listing.Listed,
    recalling.Recalled,
    collecting.Collected,
    collecting.Added,
}
HISTORY = (EpochStart(1, 0, "n1"), EpochStart(4, 6), EpochStart(2**32 - 1, 2**63 - 2, "n" * 32))

frame_cy = load("tailrace.shard.frame_cy")

Refusal: TypeAlias = tuple[int, int, str, bool]
"""opcode, id, code, fatal"""


def publish(
    request: int = 1, handles: tuple[int, ...] = (7,), frames: bytes = FRAMES, ack: int = Ack.APPENDED
) -> Publish:
    """`frames` should be whole; if they are not, `count` is their number."""
    count, _fault = frame_cy.measure(frames, 0, len(frames), len(frames))
    return Publish(request, ack, 2 if ack == Ack.REPLICATED else 0, handles, memoryview(frames), count)


def stamped(frames: bytes = FRAMES, seq: int = 4, timestamp_us: int = 1_000, epoch: int = 1) -> memoryview:
    copy = bytearray(frames)
    frame_cy.stamp(copy, seq, timestamp_us, epoch, 0)
    return memoryview(copy)


STANDING = Standing(b"billing", 7, 3, None, 2, 1, 0, 0, 5_000_000, 30.0, 5)
STREAM_ROW = listing.StreamRow("é", "slave", 2, 1, 9, 4_096, 8_192, 1_000, 2_000, 3, 300, 1, 5, 2**63 - 1)
END_ROW = listing.EndRow(1, 9, 2_000, 2)
FILES_ROWS = (listing.FilesRow("0" * 16, 0), listing.FilesRow("f" * 16, 2))
WORKER_ROW = listing.WorkerRow(1, 4_711, "ready", 250_000, 3, 4, 5, 0)
REQUESTS: Sequence[Request] = (
    HELLO,
    Open(7, b"news"),
    Open(2**32 - 1, "é/あ".encode()),
    publish(),
    publish(2**32 - 1, (7, 2**32 - 1, 7), ack=Ack.NONE),
    publish(3, ack=Ack.SYNCED),
    publish(4, ack=Ack.REPLICATED),
    Subscribe(1, b"news", From("seq", 2**63 - 1)),
    Subscribe(2, b"news", From("time", 17), 3, ("seq", 99), 4_096),
    Subscribe(3, b"news", FROM_NEW, 0, ("time", 2**63 - 1), 0),
    Subscribe(4, b"25", From("time", 0), 0, ("now", 0)),
    Subscribe(5, b"25", From("last", 10)),
    Subscribe(6, b"sensors/7", FROM_NEW, exact=True),
    Unsubscribe(1),
    Credit(2, 2**63 - 1),
    Follow(1, b"news", 7, 2, "n1", last=(1, 2**32 - 1)),
    Follow(2, "é".encode(), 0, 0, start=From("time", 17)),
    Follow(3, b"news", 2**63 - 1, 2**32 - 1, "n" * 32, start=FROM_NEW),
    Held((), ()),
    Held(((1, "n2", 7, 5), (2**32 - 1, "n" * 32, 2**63 - 1, 0)), ((1, "n3"),)),
    Watch(1, b""),
    Watch(2, "é/".encode()),
    Claim(1, b"news", HISTORY),
    Fence(1, b"news", 2**32 - 1),
    Ask(1),
    Ask(2, b"news"),
    Ask(3, None, (b"news", b"$cursor/news")),
    Ask(4, promise=(7, 5_000)),
    Call(1, b"news", "get", b"\x90"),
    Consume(1, "create", b"news", b"billing", FROM_NEW),
    Consume(2, "create", "é".encode(), b"$n", From("time", 17), 0.25, 5, 3, 255),
    Consume(3, "create", b"news", b"billing", FROM_NEW, topics=b"news/+/#"),
    Consume(3, "reset", b"news", b"n" * 100, From("seq", 2**63 - 1), ack=2),
    Consume(4, "delete", b"news", b"billing"),
    Consume(5, "leave", b"news", b"billing", member=b"m" * 100),
    Consume(2**32 - 1, "list", b"news"),
    Get(1, b"news", b"billing", b"m1"),
    Get(
        2,
        b"news",
        "é".encode(),
        b"m" * 100,
        ((0, 0, 1), (5, 2**63 - 1, 2**32 - 1)),
        ((3, 1, "why"), (4, 2**32 - 1, "")),
        100,
        5,
        60_000,
        True,
        3,
        1,
        2**63 - 1,
    ),
    Get(2**32 - 1, b"news", b"billing", b"m1", ((1, 2, 1),), max_messages=10_000, wait_ms=1, ack=2),
    listing.List(1, "names"),
    listing.List(2**32 - 1, "streams", "é".encode(), b"n" * 200),
    listing.List(3, "workers"),
    listing.List(4, "grown", mark="4c0b7a3e.17"),
    listing.List(5, "ends", names=("é".encode(), b"n" * 200)),
    recalling.Recall(1, b"a/+/#"),
    recalling.Recall(2**32 - 1, "é".encode(), b"s", "a/é b".encode()),
    collecting.Collect(1, b"a.*", From("new", 0)),
    collecting.Collect(
        2**32 - 1, "é*".encode(), From("time", 7), 2, ("now", 0), 9, b"t/#", {"é".encode(): 2**62, b"s": 0}
    ),
    sharing.Interest(sharing.SHARED_FROM, b"s", True, (b"a/+", "é/#".encode()), (b"b",)),
    sharing.Interest(2**32 - 1, "é".encode(), ends=True),
    Prove(b"c=biws"),
    Ping(),
    Pong(),
    Close(),
)
"""HELLO, then one of each, and the forms that differ."""
RESPONSES: Sequence[Response] = (
    Welcome(1, ("a feature",), "tailrace/9", "node", 3, {"max_message_bytes": 2**63 - 1, "another": 0}),
    Welcome(1, (), "tailrace/9", "node", 3, {}, b"v=proof"),
    Welcome(1, (), "tailrace/9", "node", 3, {}, None, b"8 bytes."),
    Challenge(b"r=nonce"),
    Opened(7),
    Published(1, ((2**63, 3, 2**32 - 1),)),
    Published(2, ((0, 3, 0), (5, 3, 1), (8, 3, 2))),
    Subscribed(1, 5, 4),
    Subscribed(2, 5, 4, 2**63 - 1),
    Subscribed(3, 5, 4, None, "sensors"),
    Chunk(1, stamped()),
    Ended(1, 7),
    Ended(2, 8, "damaged", "the stream's files are damaged"),
    Followed(1, "following", 7, 2, 2**63 - 1, "slave", HISTORY, ("n1", "n" * 32)),
    Followed(1, "parted", 0, 2, 9, "master", HISTORY[:1], ("n1",)),
    Followed(1, "behind", 0, 2, 9, "slave", (), ()),
    Followed(1, "news", 0, 2, 9, "disabled", HISTORY[1:], ("n1",)),
    Followed(1, "news", 0, 2, 9, "master", HISTORY[1:], ("n1",), awaited=False),
    Names(1, ()),
    Names(1, (b"news", "é".encode())),
    Claimed(1, "slave", 4, "n1", True),
    Fenced(1, "slave", 4),
    Claimed(2, "master", 2**32 - 1, "", False),
    Returned(1, b"\x80"),
    Returned(2**32 - 1, None, "consumer", "é"),
    Told(1, "n1", ":5050", (), 0, 2**63 - 1, 1),
    Told(2, "n1", ":5050", (), 0, 0, 0, promised=True),
    Told(
        1,
        "n1",
        ":5050",
        (),
        0,
        0,
        0,
        (CopyEnd("s", "slave", 2**32 - 1, 2, 2**63 - 1, "n" * 32), CopyEnd("$cursor/s", "master", 1, 0, 0)),
    ),
    Told(
        2,
        "n1",
        "",
        (NodeLink("up", "", "[::1]:5050", "down", 1, 2, 3, 4), NodeLink("down", "n2", "", "caught up", 1, 0, 0, 0)),
        0,
        1,
        0,
    ),
    Consumed(1),
    Consumed(1, 2**63 - 1, False),
    Consumed(2, existed=True),
    Consumed(3, consumers=()),
    Consumed(3, consumers=(STANDING, replace(STANDING, name=b"n" * 100, lag_us=2**63 - 1, ack_wait_s=0.25))),
    Got(1, (), (), 0, memoryview(b"")),
    Got(2**32 - 1, ((4, 1, 0, 1), (5, 2, 2**32 - 1, 2**32 - 1)), ((0, 0), (7, 2**63 - 1)), 2**63 - 1, stamped()),
    listing.Listed(1),
    listing.Listed(4, ("a",), next="a", mark="4c0b7a3e.17", known=True),
    listing.Listed(5, ("a", "é"), ends=(END_ROW, listing.EndRow(2**48 - 1, 2**48 - 1, 0, 0)), files=FILES_ROWS),
    recalling.Recalled(1),
    recalling.Recalled(2, (("s", bytes(stamped())), ("é", b"")), "é", "a/é b"),
    collecting.Collected(1, 0),
    collecting.Collected(2, 0, 2**63 - 1),
    collecting.Added(1, 2**31, "é", 5, 3, 9),
    collecting.Added(1, 2**32 - 1, "s", 0, 0),
    listing.Listed(2, ("a", "é"), (STREAM_ROW, STREAM_ROW), (WORKER_ROW,), "é", 2**63 - 1, 2**63 - 1),
    Failed("usage", "what is wrong"),
    Failed("full", "no space", True, 5, 2**32 - 1, ((5, 3, 1, "", ""), (0, 3, 0, "full", "no space"))),
    Ping(),
    Pong(),
)


def session(messages: Iterable[AnyMessage]) -> bytes:
    return b"".join(pack(message) for message in messages)


def server(
    *, welcomed: bool = True, envelope: int = MAX_ENVELOPE_BYTES, features: frozenset[str] = ALL_FEATURES
) -> PlainCodec:
    codec = PlainCodec(envelope, MAX_MESSAGE_BYTES)
    codec.features = features
    if welcomed:
        assert [type(each) for each in feed_server(codec, [pack(HELLO)])] == [Hello]
    return codec


def client(max_envelope_bytes: int = RESPONSE_MAX_BYTES) -> ClientCodec:
    return ClientCodec(max_envelope_bytes, features=ALL_FEATURES)


def feed_server(codec: PlainCodec, pieces: Sequence[bytes]) -> list[Request | Malformed]:
    """Through one shared buffer that is overwritten after each piece, as the worker's is: only `owned` frames stay."""
    shared = bytearray(max(map(len, pieces), default=0))
    found: list[Request | Malformed] = []
    for piece in pieces:
        shared[: len(piece)] = piece
        for message in codec.feed(memoryview(shared), len(piece)):
            found.append(kept(message))
        shared[: len(piece)] = b"!" * len(piece)
    return found


def kept(message: Request | Malformed) -> Request | Malformed:
    """The message with frames that stay: as a broker does, copied unless they are its own anyway."""
    if isinstance(message, Publish) and not message.owned:
        return replace(message, frames=_copied(message.frames))
    return message


def _copied(frames: memoryview) -> memoryview:
    return memoryview(bytes(frames))


def feed_client(codec: ClientCodec, pieces: Sequence[bytes]) -> list[Response]:
    """As `feed_server`; frames are copied."""
    shared = bytearray(max(map(len, pieces), default=0))
    found: list[Response] = []
    for piece in pieces:
        shared[: len(piece)] = piece
        for message in codec.feed(memoryview(shared)[: len(piece)]):
            if isinstance(message, Chunk | Got):
                message = replace(message, frames=_copied(message.frames))
            found.append(message)
        shared[: len(piece)] = b"!" * len(piece)
    return found


def flat(messages: Iterable[AnyMessage | Malformed]) -> list[Any]:
    """As values that can be compared however the input was cut."""
    return [_flat(message) for message in messages]


def _flat(message: AnyMessage | Malformed) -> Any:
    if isinstance(message, Malformed):
        return refusal(message)
    return replace(message, owned=False) if isinstance(message, Publish) else message


def refusal(message: Malformed) -> Refusal:
    return message.op, message.id, message.error.code.value, message.error.fatal
