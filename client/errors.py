"""Everything the client library raises, in one tree; `except TailraceError` catches all of it.

    TailraceError
    ├── BrokerError             the broker refused: one class for each code of the protocol, such as
    │   ├── StreamDisabled      the stream takes no messages here
    │   ├── MessageTooLarge     the message is larger than the broker takes
    │   ├── NotReplicated       it is logged, but too few nodes hold it
    │   ├── NumbersMissing      messages published before are not logged, these may or may not be
    │   ├── ProducerUnknown     the broker does not know whether it is logged
    │   ├── StreamDeleted       the stream was deleted
    │   ├── StreamDiverged      messages that were read are not in the stream any more
    │   ├── NoSuchConsumer      the stream has no durable consumer of this name
    │   ├── StaleAck            acknowledged messages were no longer this member's
    │   └── Trimmed             messages were dropped before they were read
    ├── PartlyPublished         a publish to several streams went well in some of them only
    ├── ConnectFailed           no broker could be reached            (a ConnectionError too)
    ├── ConnectionLost          it was lost and did not come back     (a ConnectionError too)
    ├── OperationTimeout        no answer in time                     (a TimeoutError too)
    ├── ClientClosed            the client was closed before or meanwhile
    ├── InvalidArgument         invalid arguments     (a ValueError too)
    ├── StreamBehind            the stream ends before the seq where reading should go on
    └── BrokerFault             the broker violated the protocol
        ├── SeqFault            a message is missing, or came out of its order
        └── DamagedMessage      a checksum is wrong

Texts name the fault, its place and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.protocol.names import printable

if TYPE_CHECKING:
    from tailrace.core.message import Receipt


class TailraceError(Exception):
    """The root of the tree. `text` is what `str()` gives, in which characters that cannot be seen are escaped."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return printable(self.text)


# --- errors of the broker -----------------------------------------------------------------------------------------


class BrokerError(TailraceError):
    """The broker's answer was an error. `code` is its word in the protocol, `stream` the stream it is about or ""."""

    code = ""

    def __init__(self, text: str, stream: str = "", code: str = "") -> None:
        super().__init__(text)
        self.stream = stream
        self.code = code or type(self).code

    def __str__(self) -> str:
        place = "" if not self.stream or self.text.startswith(f"{self.stream}: ") else f"{self.stream}: "
        return printable(f"{self.code}: {place}{self.text}")


class UnknownCommand(BrokerError):
    code = "command"


class BadRequest(BrokerError):
    """A request that the broker could not read."""

    code = "usage"


class InvalidStreamName(BrokerError):
    """Not a stream's name: 1 to 200 bytes of UTF-8 without white space, control characters or `|`."""

    code = "name"


class InvalidTopic(BrokerError):
    """Not a topic, or not a topic filter."""

    code = "topic"


class ReservedName(BrokerError):
    """Names that begin with `$` are the broker's own."""

    code = "reserved"


class InvalidStart(BrokerError):
    """Not a place in a stream."""

    code = "from"


class LineTooLong(BrokerError):
    code = "line"


class MessageTooLarge(BrokerError):
    """Larger than the broker takes; nothing of the request was logged."""

    code = "size"


class IncompleteRequest(BrokerError):
    code = "incomplete"


class Denied(BrokerError):
    """The token is missing or wrong, or this is not allowed from here."""

    code = "denied"


class StreamDisabled(BrokerError):
    """The stream takes no messages on this node."""

    code = "disabled"


class StreamUnavailable(BrokerError):
    """The stream could not be reached. A publish that got this may or may not be logged."""

    code = "unavailable"


class DiskFull(BrokerError):
    code = "full"


class StreamDamaged(BrokerError):
    """The stream's files are damaged; `tailrace check` shows where."""

    code = "damaged"


class UnknownStream(BrokerError):
    code = "unknown"


class AlreadySubscribed(BrokerError):
    code = "subscribed"


class NotSubscribed(BrokerError):
    code = "unsubscribed"


class TooManyConnections(BrokerError):
    code = "connections"


class TooManySubscriptions(BrokerError):
    code = "subscriptions"


class TooManyHandles(BrokerError):
    """This connection publishes to as many streams as one may."""

    code = "handles"


class TooManyStreams(BrokerError):
    """This connection has made as many streams as one may."""

    code = "streams"


class TooManyNodeStreams(BrokerError):
    """The node has as many streams as it may."""

    code = "nodestreams"


class Overloaded(BrokerError):
    """The broker has reached a memory limit; nothing of the request was logged."""

    code = "overloaded"


class DeadlineExceeded(BrokerError):
    """The first byte, the login or the rest of a request did not come to the broker in time."""

    code = "timeout"


class Unsupported(BrokerError):
    code = "unsupported"


class BrokerClosing(BrokerError):
    code = "closing"


class Trimmed(BrokerError):
    """Messages of the stream were dropped before they were read: those from `first_seq` up to `last_seq`."""

    code = "trimmed"

    def __init__(self, text: str, stream: str = "", code: str = "", first_seq: int = -1, last_seq: int = -1) -> None:
        super().__init__(text, stream, code)
        self.first_seq = first_seq
        self.last_seq = last_seq


class StreamDeleted(BrokerError):
    """The stream was deleted. A publish makes another one of that name, which begins at seq 0."""

    code = "deleted"


class StreamDiverged(BrokerError):
    """Messages that were read are not in the stream any more: another node is its master, and did not have them.

    From `next_seq` on the stream has, or will have, other messages: subscribe again from there.
    """

    code = "diverged"

    def __init__(self, text: str, stream: str = "", code: str = "", next_seq: int = -1) -> None:
        super().__init__(text, stream, code)
        self.next_seq = next_seq


class NotReplicated(BrokerError):
    """The messages are logged, but were not held by as many nodes in time as was asked; they may be later.

    `receipt` has their seqs, with 0 subscribers; None if the broker did not send them.
    """

    code = "unreplicated"

    def __init__(self, text: str, stream: str = "", code: str = "", receipt: Receipt | None = None) -> None:
        super().__init__(text, stream, code)
        self.receipt = receipt


class NumbersMissing(BrokerError):
    """The broker lacks earlier publishes of this client: it, or the node it copies, has lost them.

    Unless the text states it, it is unknown whether these messages are logged.
    """

    code = "gap"


class ProducerUnknown(BrokerError):
    """The broker does not know this client's earlier publishes, so it does not know whether these are logged."""

    code = "producer"


class NoSuchConsumer(BrokerError):
    """The stream has no durable consumer of this name: it was never made, or is deleted."""

    code = "consumer"


class StaleAck(BrokerError):
    """Messages were finished, or had failed, when another member of their consumer had been given them; or when they
    had been lost in a promotion, so that other messages have their seqs.

    It took longer than the consumer's `ack_wait_s`, or the connection was lost for too long. They may be handled twice.
    Nothing was done about them, nor about those other messages. `ranges` has the first and the last seq of each row.
    """

    code = "stale"

    def __init__(
        self,
        text: str,
        stream: str = "",
        code: str = "",
        consumer: str = "",
        ranges: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(text, stream, code)
        self.consumer = consumer
        self.ranges = tuple(ranges)


class ReplicationCycle(BrokerError):
    """Nodes would follow each other in a circle."""

    code = "cycle"


class NodeBehind(BrokerError):
    """Another node has more of a stream than the one that was to become its master."""

    code = "behind"


class TooSlow(BrokerError):
    code = "slow"


class ProtocolRefused(BrokerError):
    """The two ends do not speak the same protocol."""

    code = "protocol"


BY_CODE: dict[str, type[BrokerError]] = {kind.code: kind for kind in BrokerError.__subclasses__()}
"""The class of each code."""


def broker_error(code: str, text: str, stream: str = "") -> BrokerError:
    """The error for a code; one that this version does not know becomes a plain BrokerError that carries it."""
    return BY_CODE.get(code, BrokerError)(text, stream, code)


# --- what happens on this side ----------------------------------------------------------------------------------------


class PartlyPublished(TailraceError):
    """One publish to several streams: it succeeded in some only.

    `outcomes` has, in the order of the request, a Receipt or the BrokerError of each stream.
    """

    def __init__(self, outcomes: Sequence[Receipt | BrokerError]) -> None:
        self.outcomes = tuple(outcomes)
        errors = [each for each in self.outcomes if isinstance(each, BrokerError)]
        shown = "; ".join(f"{error.stream}: {error.code}: {error.text}" for error in errors[:3])
        super().__init__(f"{len(errors)} of {len(self.outcomes)} streams failed: {shown}")


class ConnectFailed(TailraceError, ConnectionError):
    """No broker could be reached at any of the addresses; the text has the reason of each."""


class ConnectionLost(TailraceError, ConnectionError):
    """The connection was lost, and waiting calls cannot be served by another one."""


class OperationTimeout(TailraceError, TimeoutError):
    """The answer did not come in time. A publish that got this may or may not be logged."""


class ClientClosed(TailraceError):
    """The client was closed."""


class InvalidArgument(TailraceError, ValueError):
    """A value that was passed in cannot be used."""


class StreamBehind(TailraceError):
    """The stream ends before the seq where reading should begin or go on.

    If reading had begun, its last messages were lost with a machine, or this is another node. `end_seq`: the seq its
    next message will have.
    """

    def __init__(self, stream: str, asked_seq: int, end_seq: int, *, has_begun: bool = True) -> None:
        last = f"its last message has seq {end_seq - 1}" if end_seq else "it has had no messages"
        text = f"seq {asked_seq} is beyond the end of the stream: {last}, and the next one will have {end_seq}"
        if has_begun:
            hint = "its last messages were lost, or this is another node"
            text = f"reading should continue at seq {asked_seq}, but the next seq is {end_seq}: {hint}"
        super().__init__(f"{stream}: {text}")
        self.stream = stream
        self.asked_seq = asked_seq
        self.end_seq = end_seq


class BrokerFault(TailraceError):
    """The broker violated the protocol."""


class SeqFault(BrokerFault):
    """A message is missing, or messages came out of their order."""


class DamagedMessage(BrokerFault):
    """A message came with a checksum that is not its own."""
