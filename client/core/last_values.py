"""Calls for the last values of topics: names in, requests out, and messages of the broker's answers."""

from __future__ import annotations

from tailrace.core.calls import PendingCall
from tailrace.core.listing import Calls, checked_patterns
from tailrace.core.message import Message
from tailrace.errors import BrokerFault, DamagedMessage
from tailrace.protocol.recalling import FEATURE, Recall, Recalled
from tailrace.shard.frame import HEADER_BYTES, unpack_header
from tailrace.shard.leaves import load

_parse = load("tailrace.shard.frame_cy").parse


def recall_call(name: str, stream: str, after: str, timeout_s: float) -> PendingCall:
    def make(number: int) -> Recall:
        return Recall(number, name.encode(), stream.encode(), after.encode())

    return PendingCall(name, "last values", make, timeout_s=timeout_s, feature=FEATURE)


def find_last(name: str, timeout_s: float) -> Calls[list[Message]]:
    """The last values of all that a name stands for. Raises the calls' errors, InvalidArgument, InvalidStreamName,
    DamagedMessage; BrokerFault if the broker goes back in the list, without end.
    """
    checked_patterns(name)
    found: list[Message] = []
    place = ("", "")
    while True:
        call = yield recall_call(name, *place, timeout_s)
        answer: Recalled = call.outcome()
        for stream, frames in answer.values:
            found += messages_in(stream, frames)
        if not answer.stream:
            return found
        if (answer.stream.encode(), answer.after.encode()) <= (place[0].encode(), place[1].encode()):
            raise BrokerFault(f"the broker goes on after {answer.after!r} behind {place[1]!r}")
        place = answer.stream, answer.after


def messages_in(stream: str, frames: bytes) -> list[Message]:
    """The messages of one stream. Raises DamagedMessage."""
    found = []
    at = 0
    try:
        while at < len(frames):
            end = at + max(unpack_header(frames, at).length, HEADER_BYTES)
            for seq, timestamp_us, epoch, _flags, metadata, payload in _parse(frames[at:end], 0, end - at, True):
                found.append(Message(stream, seq, timestamp_us, payload, metadata, epoch))
            at = end
    except ValueError as error:
        raise DamagedMessage(f"{stream}: a last value: {error}") from error
    return found
