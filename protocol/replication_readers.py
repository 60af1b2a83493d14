"""The messages of `protocol.replication`, from the fields of their bodies.

Readers raise PeerError for invalid messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, get_args

from tailrace.protocol.address import split_address
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FeatureReaders
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX, Fields
from tailrace.protocol.names import (
    ALL_STREAMS,
    GROUPS_MAX,
    StreamGroup,
    copied_name,
    node_address,
    node_id,
    stream_name,
)
from tailrace.protocol.opcodes import Op
from tailrace.protocol.places import From
from tailrace.protocol.replication import (
    ASKED_STREAMS_MAX,
    PROMISE_MS_MAX,
    ROWS_MAX,
    Ask,
    Call,
    Claim,
    Claimed,
    CopyEnd,
    Direction,
    Fence,
    Fenced,
    Follow,
    Followed,
    FollowState,
    Held,
    Names,
    NodeLink,
    NodeRequest,
    NodeResponse,
    Returned,
    Told,
    Watch,
)
from tailrace.shard.epochs import EpochStart, History, make_history


def _follow(fields: Fields) -> Follow:
    number, next_seq = fields.number("id", U32_MAX), fields.number("next_seq")
    keeps = "epoch" in fields or "crc" in fields
    if keeps == ("from" in fields):
        raise _wrong("FOLLOW", "takes epoch and crc of the copy's last message, or from where it has none")
    if keeps and not next_seq:
        raise _wrong("FOLLOW", "has epoch and crc of a last message, but next_seq is 0")
    return Follow(
        id=number,
        stream=fields.copied_stream("stream"),
        next_seq=next_seq,
        term=fields.number("term", U32_MAX),
        term_master=_node_or_none(fields.text("term_master")),
        last=(fields.number("epoch", U32_MAX), fields.number("crc", U32_MAX)) if keeps else None,
        start=None if keeps else _start(fields),
    )


def _start(fields: Fields) -> From:
    start = fields.start("from")
    if start.kind == "last":
        raise _wrong("FOLLOW", "begins at a seq, a time or the end")
    return start


def _held(fields: Fields) -> Held:
    rows = fields.rows("rows", (int, str, int, int))
    gone = fields.rows("gone", (int, str))
    for number, node, *seqs in (*rows, *gone):
        _check_numbers("HELD", (number,), U32_MAX)
        _check_numbers("HELD", seqs, NUMBER_MAX)
        node_id(node)
    return Held(rows, gone)


def _watch(fields: Fields) -> Watch:
    number, prefix = fields.number("id", U32_MAX), fields.text("prefix").encode()
    return Watch(number, stream_name(prefix) if prefix else b"")


def _claim(fields: Fields) -> Claim:
    only_related = "only_related" in fields and fields.flag("only_related")
    claim = Claim(fields.number("id", U32_MAX), fields.led_stream("stream"), _history("CLAIM", fields), only_related)
    if not claim.history:
        raise _wrong("CLAIM", "has an empty history; it ends with the term that is claimed")
    return claim


def _ask(fields: Fields) -> Ask:
    number = fields.number("id", U32_MAX)
    names = fields.texts("streams") if "streams" in fields else ()
    if len(names) > ASKED_STREAMS_MAX:
        raise _wrong("ASK", f"asks for the ends of {len(names)} streams, of at most {ASKED_STREAMS_MAX} at once")
    streams = tuple([copied_name(name.encode()) for name in names])
    promise = _promise(fields.pair("promise")) if "promise" in fields else None
    group = _group(fields.pair("group")) if "group" in fields else ALL_STREAMS
    return Ask(number, fields.copied_stream("stream") if "stream" in fields else None, streams, promise, group)


def _group(asked: tuple[int, int]) -> StreamGroup:
    if not 0 <= asked[0] < asked[1] <= GROUPS_MAX:
        raise _wrong("ASK", f"asks about a group by [number, groups], of at most {GROUPS_MAX}")
    return StreamGroup(*asked)


def _promise(asked: tuple[int, int]) -> tuple[int, int]:
    if not (0 < asked[0] <= U32_MAX and 0 < asked[1] <= PROMISE_MS_MAX):
        raise _wrong("ASK", f"asks for a promise by [term, ms], with at most {PROMISE_MS_MAX} ms")
    return asked


def _fence(fields: Fields) -> Fence:
    fence = Fence(fields.number("id", U32_MAX), fields.led_stream("stream"), fields.number("epoch", U32_MAX))
    if not fence.epoch:
        raise _wrong("FENCE", "has epoch 0; terms are counted from 1")
    return fence


def _fenced(fields: Fields) -> Fenced:
    return Fenced(fields.number("id", U32_MAX), fields.text("role"), fields.number("epoch", U32_MAX))


def _followed(fields: Fields) -> Followed:
    state = fields.text("state")
    if state not in get_args(FollowState):
        raise _wrong("FOLLOWED", f"has a state that is none of {', '.join(get_args(FollowState))}")
    return Followed(
        id=fields.number("id", U32_MAX),
        state=state,  # type: ignore[arg-type]  # it is one of them
        start_seq=fields.number("start_seq"),
        first_seq=fields.number("first_seq"),
        next_seq=fields.number("next_seq"),
        role=fields.text("role"),
        history=_history("FOLLOWED", fields),
        path=tuple([node_id(node) for node in fields.texts("path")]),
        contacts=(*map(_whole_address, fields.texts("contacts")),) if "contacts" in fields else (),
        awaited=fields.flag("awaited") if "awaited" in fields else True,
    )


def _whole_address(text: str) -> str:
    try:
        split_address(text)
    except ValueError as error:
        raise _wrong("FOLLOWED", f"names a node with an invalid address: {error}") from None
    return text


def _names(fields: Fields) -> Names:
    number = fields.number("id", U32_MAX)
    return Names(number, tuple([copied_name(name.encode()) for name in fields.texts("names")]))


def _claimed(fields: Fields) -> Claimed:
    return Claimed(
        id=fields.number("id", U32_MAX),
        role=fields.text("role"),
        epoch=fields.number("epoch", U32_MAX),
        master=_node_or_none(fields.text("master")),
        accepted=fields.flag("accepted"),
    )


def _told(fields: Fields) -> Told:
    rows = fields.rows("links", (str, str, str, str, int, int, int, int))
    address = fields.text("address")
    return Told(
        id=fields.number("id", U32_MAX),
        node=node_id(fields.text("node")),
        address=address and node_address(address),
        links=tuple([_link(NodeLink(*row)) for row in rows]),
        masters=fields.number("masters"),
        slaves=fields.number("slaves"),
        disabled=fields.number("disabled"),
        ends=_ends(fields) if "ends" in fields else (),
        turned=fields.number("turned") if "turned" in fields else 0,
        promised="promised" in fields and fields.flag("promised"),
    )


def _ends(fields: Fields) -> tuple[CopyEnd, ...]:
    ends = tuple([CopyEnd(*row) for row in fields.rows("ends", (str, str, int, int, int, str))])
    for end in ends:
        copied_name(end.stream.encode())
        _check_numbers("TOLD", (end.epoch, end.last_epoch), U32_MAX)
        _check_numbers("TOLD", (end.next_seq,), NUMBER_MAX)
        if end.last_master:
            node_id(end.last_master)
    return ends


def _call(fields: Fields) -> Call:
    return Call(fields.number("id", U32_MAX), fields.stream("stream"), fields.text("verb"), fields.binary("args"))


def _returned(fields: Fields) -> Returned:
    number = fields.number("id", U32_MAX)
    if "value" in fields:
        return Returned(number, fields.binary("value"))
    return Returned(number, None, fields.text("code"), fields.text("text"))


def _link(link: NodeLink) -> NodeLink:
    """The link itself, when it can be one."""
    if link.direction not in get_args(Direction):
        raise _wrong("TOLD", f"has a link with a direction that is none of {', '.join(get_args(Direction))}")
    _check_numbers("TOLD", link[4:], NUMBER_MAX)
    _node_or_none(link.node)
    if link.address:
        node_address(link.address)
    return link


def _history(message: str, fields: Fields) -> History:
    rows = fields.rows("history", (int, int, str))
    try:
        history = make_history(EpochStart(*row) for row in rows)
    except ValueError as error:
        raise _wrong(message, f"has an invalid history: {error}") from None
    for start in history:
        _node_or_none(start.master)
    return history


def _node_or_none(text: str) -> str:
    """Reads a node's id; "" if unknown."""
    return text and node_id(text)


def _check_numbers(message: str, numbers: Iterable[int], high: int) -> None:
    for number in numbers:
        if not 0 <= number <= high:
            raise _wrong(message, f"has {number} in a row, not a number from 0 to {high}")


def _wrong(message: str, problem: str) -> PeerError:
    return PeerError(Code.USAGE, f"{message} {problem}")


REQUESTS: Final[Mapping[int, Callable[[Fields], NodeRequest]]] = {
    Op.FOLLOW: _follow,
    Op.HELD: _held,
    Op.WATCH: _watch,
    Op.CLAIM: _claim,
    Op.ASK: _ask,
    Op.CALL: _call,
    Op.FENCE: _fence,
}
RESPONSES: Final[Mapping[int, Callable[[Fields], NodeResponse]]] = {
    Op.FOLLOWED: _followed,
    Op.NAMES: _names,
    Op.CLAIMED: _claimed,
    Op.TOLD: _told,
    Op.RETURNED: _returned,
    Op.FENCED: _fenced,
}
READERS: Final = FeatureReaders(REQUESTS, RESPONSES, ROWS_MAX, ROWS_MAX)
