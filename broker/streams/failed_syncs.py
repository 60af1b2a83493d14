"""Streams whose last sync has failed, and when each is tried again.

They are marked in their header pages too (`StreamLog.sync_failed_seq`), so that a worker which dies forgets none. While
such a stream waits for its next try it takes no publish that must be synced, as that could only fail as well; and
nothing at all while its messages are written again.
"""

from __future__ import annotations

from itertools import islice

RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0  # between two tries of a stream: doubled each time
RETRIES_A_TICK, LOOKS_A_TICK = 8, 256

WAITING_TEXT = "the disk has refused to sync this stream, which is tried again soon; nothing was appended"
WRITING_TEXT = "what the disk has refused of this stream is being written again; nothing was appended"


class SyncRetry:
    """`due_s` is a time of the owner's clock, 0 before the first try; `writing` while one is under way."""

    __slots__ = ("delay_s", "due_s", "writing")

    def __init__(self) -> None:
        self.due_s = 0.0
        self.delay_s = RETRY_MIN_S
        self.writing = False


class FailedSyncs(dict[bytes, SyncRetry]):
    """By name of the stream; it is bounded by the number of streams."""

    __slots__ = ()

    def found(self, name: bytes) -> None:
        """The stream is marked; it is tried at once, unless it waits for its next try already."""
        self.setdefault(name, SyncRetry())

    def failed(self, name: bytes, now_s: float) -> None:
        """A sync has failed: try again after a while."""
        retry = self.pop(name, None) or SyncRetry()
        self[name] = retry  # behind those that were not tried since
        retry.due_s, retry.writing = now_s + retry.delay_s, False
        retry.delay_s = min(2 * retry.delay_s, RETRY_MAX_S)

    def mended(self, name: bytes) -> None:
        self.pop(name, None)

    def begin(self, name: bytes, now_s: float) -> bool:
        """Whether the stream may be synced now; if it is marked, nothing is appended from here to the outcome."""
        retry = self.get(name)
        if retry is None:
            return True
        if retry.due_s > now_s:
            return False
        retry.writing = True
        return True

    @property
    def writes(self) -> bool:
        """Returns whether messages of any stream are being written again."""
        return any(retry.writing for retry in self.values())

    def due(self, now_s: float) -> list[bytes]:
        """At most RETRIES_A_TICK streams that are to be tried now. Each call looks at the next LOOKS_A_TICK streams."""
        due: list[bytes] = []
        for name in list(islice(self, LOOKS_A_TICK)):
            if len(due) == RETRIES_A_TICK:
                break
            retry = self[name] = self.pop(name)
            if retry.due_s <= now_s and not retry.writing:
                due.append(name)
        return due

    def refusal(self, name: bytes, to_sync: bool, now_s: float) -> str:
        """Why the stream takes no publish now, "" if it takes it. `to_sync`: the publish is answered when synced."""
        retry = self.get(name)
        if retry is None:
            return ""
        if retry.writing:
            return WRITING_TEXT
        return WAITING_TEXT if to_sync and retry.due_s > now_s else ""
