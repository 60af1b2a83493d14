"""What an owner needs from the worker around it: `OwnerEvents` to notify, `OwnerContext` to ask.

Nothing here has a default. An owner cannot be made without all of it, and mypy reports an implementation that lacks a
method: retention would otherwise drop messages that consumers still need, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tailrace.broker.routing.batch import StreamBatch
    from tailrace.broker.streams.open_stream import OpenStream
    from tailrace.broker.streams.refused import Refused


class OwnerEvents(Protocol):
    """The owner calls these when something has changed. Names are those of streams."""

    def on_create(self) -> None:
        """There is one more stream."""

    def on_open(self, stream: OpenStream, /) -> None:
        """A stream was opened, or is to be published to: write down what must be on the disk before it takes messages.

        Raises Refused, StorageError, OSError if it must not take messages yet.
        """

    def on_role(self, name: bytes, /) -> None:
        """The role, the upstream or the history of a stream has changed."""

    def on_rules(self) -> None:
        """The rules of the node were read again."""

    def on_path(self, name: bytes, /) -> None:
        """Other nodes are between this one and the master of the stream, or publishes begin or cease to wait below."""

    def on_cut(self, name: bytes, seq: int, /) -> None:
        """The messages of a stream from `seq` on are gone: they were set aside, or lost."""

    def on_held(self, name: bytes, /) -> None:
        """This node, or one below it, holds or has synced more of a stream; or less."""

    def on_deleted(self, name: bytes, /) -> None:
        """A stream was deleted, or one of its companions."""

    def on_trim(self, stream: OpenStream, dropped: int, /) -> None:
        """The first `dropped` messages of a stream were dropped; their space is still taken."""

    def on_unwritten(self, name: bytes, /) -> None:
        """The role of a stream is on its way to the disk: work on the stream must wait until `on_written`."""

    def on_written(self, name: bytes, /) -> None:
        """Called once for each `on_unwritten`."""

    def on_pause(self) -> None:
        """Called now and then during long work, so that the worker does not look hung."""


class OwnerContext(Protocol):
    """What only the rest of the worker knows or can do. Names are those of streams."""

    def subscribers(self, name: bytes, /) -> int:
        """The subscribers of a stream on the whole node."""

    def spared_seq(self, name: bytes, /) -> int | None:
        """The first message that consumers of the stream still need; None if they need none. Raises Refused."""

    def require_kept(self, name: bytes, seq: int, /) -> None:
        """The messages before `seq` are to be dropped. Raises Refused if a last value of theirs would be lost."""

    def home(self, name: bytes, /) -> bytes:
        """The stream to which publishes to a name go by the operator's rules: the name itself if it is no topic."""

    def put_back(self, name: bytes, /) -> None:
        """A stream that is marked after a failed sync is about to be opened: write its frames in the journal again.

        Raises OSError.
        """

    def asks_first(self, name: bytes, /) -> bool:
        """Whether a stream that is being opened must wait for other nodes' answers before it takes messages."""

    def path_above(self, name: bytes, /) -> tuple[str, ...]:
        """Ids of the nodes from the upstream of a stream to its master; () on the master."""

    def stat_upstream(self, stream: OpenStream, /) -> dict[str, int | str]:
        """The fields of STAT about the upstream of a stream."""

    def consumer_lag(self, name: bytes, /) -> tuple[int, int]:
        """The durable consumers of a stream, and the lag in messages of the one furthest behind. Raises Refused."""

    def share_bytes(self, nbytes: int, is_whole: bool, /) -> int:
        """Let the other workers know how much this one's streams take; gives the sum over all workers.

        Without `is_whole` it may be more, so a larger figure of a worker before this one stays.
        """

    def delete(self, name: bytes, done: Callable[[Any | Refused], None], *, copy: bool = False) -> None:
        """Delete a stream of this owner; `done` gets {} or a Refused. `copy`: because its upstream has deleted it."""

    def send_up(self, batch: StreamBatch, /) -> None:
        """Send a publish to the master of a slaved stream. The batch is refused if the master cannot be reached."""

    def await_copy(self, name: bytes, step: Callable[[], None], done: Callable[[Any | Refused], None], /) -> bool:
        """Whether a call that reads a stream waits for its copy: `step` is called then, or `done` with a Refused."""

    def await_copies(self, step: Callable[[], None], done: Callable[[Any | Refused], None], /) -> bool:
        """Whether a call that is for the growth of all streams waits until all copies have been begun."""

    def call_up(self, name: bytes, verb: str, args: list[Any], done: Callable[[Any | Refused], None], /) -> None:
        """Call the owner of a stream at its master; `done` gets the value or a Refused."""
