"""Messages between nodes in the binary protocol: one small class per message, and its bytes.

These messages are accepted only on a connection whose HELLO asked for the feature `FEATURE` and got it. A node that
follows streams of another is that node's client, so it sends the requests here and receives the responses. FOLLOW is a
SUBSCRIBE that describes the end of the copy: messages come as CHUNK, the end as ENDED, a refusal as ERROR.

docs/binary-protocol.md draws all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tailrace.protocol import features
from tailrace.protocol.fields import CONTROL_BODY_MAX_BYTES, TEXT_CHARACTERS_MAX, pack_fields, pack_map
from tailrace.protocol.names import ALL_STREAMS, NODE_BYTES_MAX, StreamGroup
from tailrace.protocol.opcodes import Op
from tailrace.protocol.places import From
from tailrace.shard.epochs import EPOCHS_MAX, History
from tailrace.shard.replacing import replaceable

FEATURE: Final = features.REPLICATION
HELD_ROWS_MAX: Final = 1_024
"""The most rows of a HELD, those of what is gone included."""
NAMES_MAX: Final = 256
"""The most streams that one NAMES tells."""
CLAIMS: Final = "claims "
"""The state of a link by which nothing is followed begins so, with the number of streams that are claimed over it."""
LINKS_MAX: Final = 1_024
"""The most links that one TOLD tells."""
ASKED_STREAMS_MAX: Final = 32
"""The most streams whose ends one ASK asks for; each may have to be opened for that."""
ENDS_MAX: Final = 4 * ASKED_STREAMS_MAX
"""The most ends in one TOLD: of the streams and their companions."""
PROMISE_MS_MAX: Final = 60_000
"""The longest promise that one ASK asks for."""
ROWS_MAX: Final = max(HELD_ROWS_MAX, NAMES_MAX, LINKS_MAX, ENDS_MAX, EPOCHS_MAX)
"""The most elements of any array in these messages."""

FollowState: TypeAlias = Literal["following", "parted", "behind", "news"]
Direction: TypeAlias = Literal["up", "down"]
HeldMessages: TypeAlias = tuple[int, str, int, int]
"""id of the FOLLOW, node, its next seq, the seq up to which its disk has everything"""
GoneRow: TypeAlias = tuple[int, str]
"""id of the FOLLOW, node"""

_HELD_ROW_BYTES_MAX = 1 + 5 + (2 + NODE_BYTES_MAX) + 9 + 9
_HELD_REST_BYTES_MAX = 32  # the two keys and the heads of the two arrays
assert HELD_ROWS_MAX * _HELD_ROW_BYTES_MAX + _HELD_REST_BYTES_MAX <= CONTROL_BODY_MAX_BYTES


# --- from slave to upstream -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Follow:
    """Send the stream from `next_seq` on, if that message is the next one of the same line.

    `term`, `term_master`: the highest term of the stream that the slave knows, and its master ("" if unknown). A copy
    with messages has epoch and CRC-32C of the last one in `last`; one without any has its beginning in `start`. Exactly
    one of the two is present.
    """

    id: int
    stream: bytes
    next_seq: int
    term: int
    term_master: str = ""
    last: tuple[int, int] | None = None
    start: From | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The messages of followed streams on nodes below, the sender included. `gone` is applied before `rows`."""

    rows: tuple[HeldMessages, ...]
    gone: tuple[GoneRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch:
    """Send the names of the streams that begin with `prefix` (b"": all), and later those of new streams."""

    id: int
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The sender is the stream's master now, in the term that the history ends with, or follows who is.

    only_related: the receiver may have another stream with the same name, which is then none of the sender's business.
    """

    id: int
    stream: bytes
    history: History
    only_related: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks for the replication status of one stream, or of the whole node (None); or for the ends of `streams`.

    Or for a promise to lead in no later term than the first of these numbers, for the second in ms, in `group`.
    """

    id: int
    stream: bytes | None = None
    streams: tuple[bytes, ...] = ()
    promise: tuple[int, int] | None = None
    group: StreamGroup = ALL_STREAMS


@dataclass(frozen=True, slots=True)
class Call:
    """Asks the owner of the stream at its master; `args` is packed (`broker.replication.calls`)."""

    id: int
    stream: bytes
    verb: str
    args: bytes


@dataclass(frozen=True, slots=True)
class Fence:
    """Take no messages of the stream in an earlier term, follow nobody who is in one, and send no HELD there."""

    id: int
    stream: bytes
    epoch: int


# --- from upstream to slave -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Followed:
    """The state of a FOLLOW.

    "following": chunks follow from `start_seq` on. "parted": the copy's last message is another one here; compare the
    histories, cut, follow again. "behind": the copy goes on beyond the end here; follow again later. "news": nobody
    asked, but role, term, path or `awaited` have changed. `path`: node ids from the sender up to the master.
    `contacts`: addresses of nodes that do not know of the latest term yet. `awaited`: publishes wait for HELDs, or may.
    """

    id: int
    state: FollowState
    start_seq: int
    first_seq: int
    next_seq: int
    role: str
    history: History
    path: tuple[str, ...]
    contacts: tuple[str, ...] = ()
    awaited: bool = True


@dataclass(frozen=True, slots=True)
class Names:
    """Some more names of a WATCH."""

    id: int
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The sender's role for the stream, and the highest term it knows; `accepted`: whether that is the claimed."""

    id: int
    role: str
    epoch: int
    master: str
    accepted: bool


@replaceable
class NodeLink(NamedTuple):
    """To one node that this one follows ("up") or that follows it ("down"). The lag is the slave's, of all streams."""

    direction: Direction
    node: str
    address: str
    state: str
    streams: int
    lag_messages: int
    lag_bytes: int
    lag_ms: int


class CopyEnd(NamedTuple):
    """The end of a node's copy of a stream.

    epoch: the latest term that the node knows; last_epoch: the term of its last message, or the one of its line that
    begins right behind that; 0 if it never had a message. last_master: the id of that term's master, "" if unknown.
    """

    stream: str
    role: str
    epoch: int
    last_epoch: int
    next_seq: int
    last_master: str = ""

    def is_ahead_of(self, other: CopyEnd) -> bool:
        """Whether this copy has every message that was replicated to the other, and may have more.

        Two nodes that were promoted without contact may have begun terms of one number. Then the one with the larger id
        stays the master, and what the other has taken is set aside, however much it is.
        """
        if self.last_epoch == other.last_epoch and self.last_master and other.last_master:
            return (self.last_master, self.next_seq) > (other.last_master, other.next_seq)
        return (self.last_epoch, self.next_seq) > (other.last_epoch, other.next_seq)


@dataclass(frozen=True, slots=True)
class Told:
    """A node and its links. `masters`, `slaves`, `disabled`: streams that it has in that role.

    `ends`: of the streams that were asked for by name, and their companions, as far as the node has them. `turned`:
    streams that follow a node that claimed them, while new ones would be this node's own. `promised`: the node gives
    the promise that it was asked for; the other fields are empty then.
    """

    id: int
    node: str
    address: str
    links: tuple[NodeLink, ...]
    masters: int
    slaves: int
    disabled: int
    ends: tuple[CopyEnd, ...] = ()
    turned: int = 0
    promised: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a CALL: a value, packed, or else an error."""

    id: int
    value: bytes | None
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The sender's role for the stream, and the highest term it knows."""

    id: int
    role: str
    epoch: int


NodeRequest: TypeAlias = Follow | Held | Watch | Claim | Ask | Call | Fence
NodeResponse: TypeAlias = Followed | Names | Claimed | Told | Returned | Fenced


# --- their bytes ----------------------------------------------------------------------------------------------------


def pack_held(rows: Sequence[HeldMessages], gone: Sequence[GoneRow] = ()) -> list[bytes]:
    """Packs as many HELD as needed, each short enough; `gone` comes first."""
    parted = [gone[place : place + HELD_ROWS_MAX] for place in range(0, len(gone), HELD_ROWS_MAX)]
    envelopes = [_held(Held((), tuple(part))) for part in parted]
    parts = [rows[place : place + HELD_ROWS_MAX] for place in range(0, len(rows), HELD_ROWS_MAX)]
    return envelopes + [_held(Held(tuple(part))) for part in parts]


def _follow(message: Follow) -> bytes:
    epoch, crc = message.last or (None, None)
    body = {
        "id": message.id,
        "stream": message.stream.decode(),
        "next_seq": message.next_seq,
        "term": message.term,
        "term_master": message.term_master,
        "epoch": epoch,
        "crc": crc,
        "from": message.start,
    }
    return pack_map(Op.FOLLOW, body)


def _held(message: Held) -> bytes:
    return pack_map(Op.HELD, {"rows": message.rows, "gone": message.gone})


def _watch(message: Watch) -> bytes:
    return pack_map(Op.WATCH, {"id": message.id, "prefix": message.prefix.decode()})


def _claim(message: Claim) -> bytes:
    body = {
        "id": message.id,
        "stream": message.stream.decode(),
        "history": message.history,
        "only_related": message.only_related or None,
    }
    return pack_map(Op.CLAIM, body)


def _fence(message: Fence) -> bytes:
    return pack_map(Op.FENCE, {"id": message.id, "stream": message.stream.decode(), "epoch": message.epoch})


def _ask(message: Ask) -> bytes:
    stream = None if message.stream is None else message.stream.decode()
    streams = [name.decode() for name in message.streams]
    group = None if message.group == ALL_STREAMS else message.group
    body = {"id": message.id, "stream": stream, "streams": streams or None, "promise": message.promise, "group": group}
    return pack_map(Op.ASK, body)


def _followed(message: Followed) -> bytes:
    body = {
        "id": message.id,
        "state": message.state,
        "start_seq": message.start_seq,
        "first_seq": message.first_seq,
        "next_seq": message.next_seq,
        "role": message.role,
        "history": message.history,
        "path": message.path,
        "contacts": message.contacts or None,
        "awaited": None if message.awaited else False,
    }
    return pack_map(Op.FOLLOWED, body)


def _names(message: Names) -> bytes:
    return pack_map(Op.NAMES, {"id": message.id, "names": [name.decode() for name in message.names]})


def _call(message: Call) -> bytes:
    body = {"id": message.id, "stream": message.stream.decode(), "verb": message.verb, "args": message.args}
    return pack_map(Op.CALL, body)


def _returned(message: Returned) -> bytes:
    failed = message.value is None
    body = {
        "id": message.id,
        "value": message.value,
        "code": message.code if failed else None,
        "text": message.text[:TEXT_CHARACTERS_MAX] if failed else None,
    }
    return pack_map(Op.RETURNED, body)


PACKERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    Follow: _follow,
    Held: _held,
    Watch: _watch,
    Claim: _claim,
    Ask: _ask,
    Fence: _fence,
    Fenced: partial(pack_fields, Op.FENCED),
    Followed: _followed,
    Names: _names,
    Claimed: partial(pack_fields, Op.CLAIMED),
    Told: partial(pack_fields, Op.TOLD),
    Call: _call,
    Returned: _returned,
}
features.PACKERS.update(PACKERS)
