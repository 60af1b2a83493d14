"""The requests that a node may send to the owner of a stream at another node, and the checks of the answers.

A request is checked here, as a client's is on entry (`protocol.consuming_readers`). A value goes to one of this
node's own clients, so it is checked here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.consuming_readers import read_body
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import CONTROL_BODY_MAX_BYTES, NUMBER_MAX, U32_MAX
from tailrace.protocol.names import consumer_name
from tailrace.protocol.topics import filter_fault
from tailrace.shard.names import NAME_BYTES_MAX

MemberRequest = c.Consume | c.Get | c.MemberNotice
ValueCheck = Callable[[Any], bool]

CALLS_MAX: Final = 4_096
"""Calls of one connection that have no answer yet; more are refused."""
ARGS_BYTES_MAX: Final = CONTROL_BODY_MAX_BYTES - NAME_BYTES_MAX - 64
"""The longest request, packed: with stream, verb and id they are a control message."""
MAP_ELEMENTS_MAX: Final = 16
"""The most elements of any map."""
LIST_BYTES_MAX: Final = 16 << 20
"""The longest list of consumers, packed."""
GIVEN_BYTES_MAX: Final = 2 << 20
"""The longest value of a get, packed."""
RANGES_MAX: Final = 1 << 16
"""The most runs or ranges in one."""
LETTERS_BYTES_MAX: Final = 64 << 10
"""The longest value about removed dead letters, packed."""
SHORT_BYTES_MAX: Final = 4 << 10
"""The longest value of all else, packed."""

_STANDING_BYTES_MAX = 400 + c.CONSUMER_FILTER_BYTES_MAX + 16  # a row of the list of consumers, about
_RUN_BYTES_MAX = 1 + 9 + 3 * 5
_RANGE_BYTES_MAX = 1 + 9 + 9
assert c.CONSUMERS_MAX * _STANDING_BYTES_MAX <= LIST_BYTES_MAX
assert c.MESSAGES_MAX * _RUN_BYTES_MAX + RANGES_MAX * _RANGE_BYTES_MAX <= GIVEN_BYTES_MAX


class ResultShape(NamedTuple):
    """What a verb gives: the longest in bytes, the most elements of any array of it, and whether this can be one."""

    bytes_max: int
    elements_max: int
    fits: ValueCheck


# --- what an element may be -------------------------------------------------------------------------------------------


def _number(high: int = NUMBER_MAX) -> ValueCheck:
    return lambda value: type(value) is int and 0 <= value <= high


def _flag(value: Any) -> bool:
    return type(value) is bool


def _seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= c.ACK_WAIT_MAX_S


def _seconds_over_0(value: Any) -> bool:
    return _seconds(value) and value > 0


def _name(value: Any) -> bool:
    try:
        return type(value) is bytes and consumer_name(value) == value
    except PeerError:
        return False


def _filter(value: Any) -> bool:
    return type(value) is bytes and len(value) <= c.CONSUMER_FILTER_BYTES_MAX and not filter_fault(value)


def _rows(*checks: ValueCheck) -> ValueCheck:
    def is_row(row: Any) -> bool:
        return type(row) is list and len(row) == len(checks) and all(map(lambda fits, each: fits(each), checks, row))

    return _array(is_row)


def _array(fits: ValueCheck) -> ValueCheck:
    return lambda value: type(value) is list and all(map(fits, value))


def _map(needed: Mapping[str, ValueCheck], others: Mapping[str, ValueCheck] | None = None) -> ValueCheck:
    """A map that has all that is needed, perhaps some of the others, and nothing else."""
    known = {**needed, **(others or {})}

    def fits(value: Any) -> bool:
        if type(value) is not dict or not needed.keys() <= value.keys() <= known.keys():
            return False
        return all(known[key](each) for key, each in value.items())

    return fits


# --- the verbs --------------------------------------------------------------------------------------------------------

_SEQ = _number()
_NUMBERS = ("next_seq", "lag_messages", "in_flight", "members", "redelivered", "dead", "idle_us", "deliveries_max")
_WAITS: Final[Mapping[str, ValueCheck]] = {"ack_wait_s": _seconds_over_0, "retry_s": _seconds, "retry_max_s": _seconds}
_OF_SOME: Final[Mapping[str, ValueCheck]] = {"lag_us": _SEQ, "topics": _filter, "lag_at_most": _flag}
_STANDING = _map({"name": _name, **_WAITS, **dict.fromkeys(_NUMBERS, _SEQ)}, _OF_SOME)

_RANGES: Final = _rows(_SEQ, _SEQ)
_NOTHING: Final = ResultShape(SHORT_BYTES_MAX, 1, _map({}))
_DEEDS: Final[Mapping[str, ResultShape]] = {
    "create": ResultShape(SHORT_BYTES_MAX, 2, _map({"next_seq": _SEQ, "created": _flag})),
    "reset": ResultShape(SHORT_BYTES_MAX, 1, _map({"next_seq": _SEQ})),
    "delete": ResultShape(SHORT_BYTES_MAX, 1, _map({"existed": _flag})),
    "list": ResultShape(LIST_BYTES_MAX, c.CONSUMERS_MAX, _map({"consumers": _array(_STANDING)})),
    "letters": ResultShape(LETTERS_BYTES_MAX, c.REMOVED_MAX + 1, _map({"next_seq": _SEQ, "removed": _RANGES})),
    "redrive": ResultShape(SHORT_BYTES_MAX, 2, _map({"count": _SEQ, "next_seq": _SEQ})),
    "purge": ResultShape(SHORT_BYTES_MAX, 2, _map({"count": _SEQ, "next_seq": _SEQ})),
}
_RUNS: Final = _rows(_SEQ, *[_number(U32_MAX)] * 3)


def _runs(messages_max: int) -> ValueCheck:
    """Runs that have `messages_max` messages in all at most, and one each at least."""

    def fits(value: Any) -> bool:
        return (
            _RUNS(value)
            and all(count > 0 and first + count <= NUMBER_MAX for first, count, _deliveries, _epoch in value)
            and sum(run[1] for run in value) <= messages_max
        )

    return fits


def _stale(value: Any) -> bool:
    return _RANGES(value) and all(first <= last for first, last in value)


def _given(request: c.Get) -> ResultShape:
    fits = _map({"runs": _runs(request.max_messages), "stale": _stale, "trimmed": _SEQ})
    return ResultShape(GIVEN_BYTES_MAX, RANGES_MAX, fits)


def _expected(request: MemberRequest) -> ResultShape:
    """The shape of this request's result."""
    return _given(request) if isinstance(request, c.Get) else _DEEDS.get(request.do, _NOTHING)


# --- their bytes ------------------------------------------------------------------------------------------------------


def pack_request(request: MemberRequest) -> bytes:
    """Raises Refused (`size`) if it is too long."""
    packed = c.pack_body(request)
    if len(packed) > ARGS_BYTES_MAX:
        text = f"{len(packed)} bytes are too many to ask the stream's master with; ask for less at once"
        raise Refused(Code.SIZE, text)
    return packed


def read_request(stream: bytes, verb: str, packed: bytes) -> MemberRequest:
    """Raises Refused if this is not a request about this stream."""
    if verb not in c.REQUEST_VERBS:
        raise Refused(Code.UNSUPPORTED, f"another node may ask for one of {', '.join(sorted(c.REQUEST_VERBS))}")
    try:
        request = read_body(verb, packed)
    except PeerError as error:
        raise Refused(error.code, error.text) from error
    if request.stream != stream:
        raise Refused(Code.USAGE, f"the arguments of {verb} are about another stream")
    return request


def pack_value(request: MemberRequest, value: Any) -> bytes:
    """Raises Refused (`size`) if the value is more than the asker takes."""
    packed: bytes = msgpack.packb(value)
    limit = _expected(request).bytes_max
    if len(packed) > limit:
        raise Refused(Code.SIZE, f"the answer has {len(packed)} bytes; at most {limit} go to another node")
    return packed


def read_value(request: MemberRequest, packed: bytes) -> Any:
    """The value of this request. Raises ValueError for a value that it cannot return."""
    expected = _expected(request)
    value = None if len(packed) > expected.bytes_max else _unpacked(packed, expected.elements_max, MAP_ELEMENTS_MAX)
    if not expected.fits(value):
        raise ValueError(f"{len(packed)} bytes that are no answer to {type(request).__name__}")
    return value


def _unpacked(packed: bytes, array_max: int, map_max: int) -> Any:
    """The value; None if it cannot be unpacked. `array_max`, `map_max`: the most elements of one."""
    try:
        return msgpack.unpackb(packed, raw=False, strict_map_key=True, max_array_len=array_max, max_map_len=map_max)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
