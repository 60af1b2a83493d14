"""The arguments of the verbs "consume" and "get", from whatever msgpack carried: a sibling's, or another node's. Pure.

"get"      [stream, name, member, [[first, last, epoch], …] finished, [[seq, epoch, reason], …] failed, max_messages,
           max_bytes, wait_ms, fresh, sync, replicas, session]
           -> {runs: [[first seq, messages, deliveries, epoch], …], stale: [[first, last], …], trimmed}
"consume"  [stream, {do, …}]
           create {name, from: [kind, value], ack_wait_s?, deliveries_max?, sync?, replicas?} -> {next_seq, created}
           reset {name, from, sync?, replicas?} -> {next_seq}
           delete {name, sync?, replicas?} -> {existed}
           leave {name, member, sync?, replicas?} -> {}
           list {} -> {consumers: [{name, …}, …]}
           away {name, member, idle_ms?, session?}, wake {name, member} -> {}
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tailrace.broker.consumers.state.decide import Ask, Given
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import WAIT_MAX_MS
from tailrace.protocol.errors import Code
from tailrace.protocol.places import NUMBER_MAX
from tailrace.shard.header import VALUE_MAX

Args = list[Any]

MICROSECONDS: Final = 1_000_000
REPLICAS_MAX: Final = 255
PLACES: Final = frozenset({"time", "seq", "new"})


class Getting(NamedTuple):
    stream: bytes
    ask: Ask
    wait_s: float
    sync: bool
    replicas: int


class Deed(NamedTuple):
    """`place`: kind and value, where one is asked for. `idle_us`: how long the member has asked for nothing, as far as
    its connection knows; 0 where that is not told. `session`: that of the member there, as in an Ask."""

    stream: bytes
    do: str
    name: bytes = b""
    member: bytes = b""
    place: tuple[str, int] = ("new", 0)
    ack_wait_us: int | None = None
    deliveries_max: int | None = None
    idle_us: int = 0
    sync: bool = False
    replicas: int = 0
    session: int = 0


def read_get(args: Args) -> Getting:
    """Raises Refused for what is no get. That its numbers can be is looked at by who decides."""
    try:
        stream, name, member, finished, failed, max_messages, max_bytes, wait_ms, fresh, sync, replicas, session = args
        ask = Ask(
            _bytes(name),
            _bytes(member),
            tuple([(_number(first), _number(last), _number(epoch)) for first, last, epoch in finished]),
            tuple([(_number(seq), _number(epoch), _text(reason)) for seq, epoch, reason in failed]),
            _number(max_messages),
            _number(max_bytes),
            bool(fresh),
            _number(session, NUMBER_MAX),
        )
        wait_s = min(_number(wait_ms), WAIT_MAX_MS) / 1000
        return Getting(_bytes(stream), ask, wait_s, bool(sync), _number(replicas, REPLICAS_MAX))
    except (ValueError, TypeError) as error:
        raise _wrong("get", error) from error


def read_deed(args: Args) -> Deed:
    """Raises Refused."""
    try:
        stream, fields = args
        kind, value = fields.get("from", ("new", 0))
        if kind not in PLACES:
            raise ValueError(f"{kind!r} is no place in a stream")
        ack_wait_s, deliveries_max = fields.get("ack_wait_s"), fields.get("deliveries_max")
        return Deed(
            _bytes(stream),
            _text(fields["do"]),
            _bytes(fields.get("name", b"")),
            _bytes(fields.get("member", b"")),
            (kind, _number(value)),
            None if ack_wait_s is None else _microseconds(ack_wait_s),
            None if deliveries_max is None else _number(deliveries_max),
            1_000 * _number(fields.get("idle_ms", 0)),
            bool(fields.get("sync", False)),
            _number(fields.get("replicas", 0), REPLICAS_MAX),
            _number(fields.get("session", 0), NUMBER_MAX),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _wrong("consume", error) from error


def told(given: Given) -> dict[str, Any]:
    """The value of a get."""
    return {"runs": given.runs, "stale": given.stale, "trimmed": given.trimmed}


def _wrong(verb: str, error: Exception) -> Refused:
    return Refused(Code.USAGE, f"arguments of {verb} that cannot be read: {error!r}")


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"{value!r} where bytes were expected")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} where a text was expected")
    return value


def _number(value: Any, high: int = VALUE_MAX) -> int:
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f"{value!r} where a number from 0 to {high} was expected")
    return value


def _microseconds(seconds: Any) -> int:
    if type(seconds) not in (int, float) or not 0 <= seconds <= VALUE_MAX / MICROSECONDS:
        raise ValueError(f"{seconds!r} where seconds were expected")
    return int(seconds * MICROSECONDS)
