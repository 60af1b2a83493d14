"""What goes to the owner of a stream over a route: the publishes of a turn, and calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.link import WorkerLink
from tailrace.broker.routing.route import RoutedRequest
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol import sibling
from tailrace.protocol.errors import Code

FORWARD_BYTES = 512 << 10  # about, of one request: the owner appends its first streams while the others are on the way
JOINED_BYTES_MAX = 64 << 10  # of a request: it is copied into one buffer, which costs less than to send many
CALL_BYTES = 256  # what a call counts for in its route's window


class ForwardedBatches(RoutedRequest):
    """The batches of one turn for one owner.

    The owner may answer a part of them earlier (PARTLY), while the others wait for their streams to be opened.
    """

    def __init__(self, request_id: int, batches: list[StreamBatch]) -> None:
        self.request_id = request_id
        self.since_s = 0.0
        self.nbytes = sum(batch.nbytes for batch in batches)
        self._batches: dict[int, StreamBatch] = dict(enumerate(batches))  # not answered, by their place in the request
        self._held_up: dict[StreamBatch, tuple[Asker, ...]] | None = None  # once some are known to wait

    def send(self, link: WorkerLink) -> None:
        groups = [
            (batch.name, batch.count, batch.nbytes, batch.creator() is not None, batch.sync, batch.replicas)
            for batch in self._batches.values()
        ]
        self._batches = dict(enumerate(self._batches.values()))
        frames = [frames for batch in self._batches.values() for frames in batch.frames]
        if self.nbytes <= JOINED_BYTES_MAX:
            frames = [bytearray().join(frames)]
        link.queue(sibling.pack_forward(self.request_id, groups), *frames)

    def partly(self, rows: list[tuple[int, sibling.ForwardResult]]) -> int:
        """These are answered, the others wait: their publishers are held up. Gives the bytes it counts for now."""
        for place, result in rows:
            self._answered(self._batches.pop(place), result)
        if self._held_up is None:
            self._held_up = {batch: batch.askers() for batch in self._batches.values()}
            for askers in self._held_up.values():
                for asker in askers:
                    asker.hold_up()
        return CALL_BYTES

    def taken(self) -> int:
        """The owner has logged it: nothing of it need be sent again. Gives the bytes it counts for from now on."""
        for batch in self._batches.values():
            batch.frames.clear()
        return CALL_BYTES

    def fail(self, code: Code, text: str) -> None:
        for batch in self._batches.values():
            batch.refused(code, text)
            self._let_go(batch)

    def answered(self, results: list[sibling.ForwardResult]) -> None:
        for batch, result in zip(self._batches.values(), results, strict=True):
            self._answered(batch, result)

    def _answered(self, batch: StreamBatch, result: sibling.ForwardResult) -> None:
        first_seq, subscribers, created, code, text = result
        creator = batch.creator() if created else None
        if creator is not None:
            creator.count_created()
        if code == Code.UNREPLICATED:
            batch.unreplicated(first_seq, text)
        elif code == Code.STREAMS:
            refused = batch.creation_refusal()
            batch.refused(refused.code, refused.text)
        elif code:
            batch.refused(Code(code), text)
        else:
            batch.published(first_seq, subscribers)
        if self._held_up is not None:
            self._let_go(batch)

    def _let_go(self, batch: StreamBatch) -> None:
        for asker in self._held_up.pop(batch, ()) if self._held_up else ():
            asker.go_on()


class OwnerCall(RoutedRequest):
    """One verb for one owner. `asker` is held up while the owner has no time for it."""

    def __init__(self, request_id: int, verb: str, args: list[Any], done: OnResult, asker: Asker = NOBODY) -> None:
        self.request_id = request_id
        self.since_s = 0.0
        self.nbytes = CALL_BYTES
        self._verb = verb
        self._args = args
        self._done = done
        self._asker = asker
        self._held_up = False

    def send(self, link: WorkerLink) -> None:
        link.queue(sibling.pack_call(self.request_id, self._verb, self._args))

    def taken(self) -> int:
        """The owner has it in hand, and may take long: other requests on this route need not wait for that."""
        return 0

    def partly(self, _rows: list[tuple[int, sibling.ForwardResult]]) -> int:
        """It waits for its stream to be opened. Gives the bytes it counts for now."""
        if not self._held_up:
            self._held_up = True
            self._asker.hold_up()
        return 0

    def fail(self, code: Code, text: str) -> None:
        self._settle(Refused(code, text))

    def answered(self, value: Any, code: str, text: str) -> None:
        self._settle(Refused(Code(code), text) if code else value)

    def _settle(self, value: Any) -> None:
        self._done(value)
        if self._held_up:
            self._asker.go_on()


def answered_together(batches: list[StreamBatch]) -> Iterator[list[StreamBatch]]:
    """In their order, about FORWARD_BYTES of them; each that waits for replicas by itself, so that no other's answer
    waits for them too.
    """
    together: list[StreamBatch] = []
    nbytes = 0
    for batch in batches:
        if together and (batch.replicas or nbytes >= FORWARD_BYTES):
            yield together
            together, nbytes = [], 0
        if batch.replicas:
            yield [batch]
        else:
            together.append(batch)
            nbytes += batch.nbytes
    if together:
        yield together
