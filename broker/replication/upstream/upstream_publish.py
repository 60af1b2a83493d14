"""One turn's publishes to a slaved stream, on their way to its master."""

from __future__ import annotations

from typing import Protocol

from tailrace.broker.routing.batch import StampableFrames, StreamBatch
from tailrace.protocol.errors import Code, code_of
from tailrace.protocol.messages import Ack, Buffer, Failed, pack_publish


class PublishLink(Protocol):
    """What a request goes out over: an uplink that is up."""

    def queue(self, *buffers: Buffer) -> None: ...

    def handle_of(self, name: bytes) -> int: ...


class UpstreamPublish:
    """A batch as one PUBLISH. It is always answered, even if its publishers want no answer: the window needs that."""

    __slots__ = ("_batch", "_frames", "nbytes", "request_id", "since_s")

    def __init__(self, request_id: int, batch: StreamBatch) -> None:
        self.request_id = request_id
        self.since_s = 0.0
        self.nbytes = batch.nbytes
        self._batch = batch
        self._frames: StampableFrames = (
            batch.take_frames()
        )  # kept until the answer: a node that leaves may give them back

    @property
    def name(self) -> bytes:
        """The stream's."""
        return self._batch.name

    def send(self, link: PublishLink) -> None:
        batch, frames = self._batch, self._frames
        ack = Ack.REPLICATED if batch.replicas else Ack.SYNCED if batch.sync else Ack.APPENDED
        head = pack_publish(self.request_id, ack, (link.handle_of(batch.name),), frames, batch.replicas)
        link.queue(head, frames)

    def fail(self, code: Code, text: str) -> None:
        self._batch.refused(code, text)

    def published(self, first_seq: int, subscribers: int) -> None:
        self._batch.published(first_seq, subscribers)

    def failed(self, answer: Failed) -> None:
        if answer.code == Code.UNREPLICATED and answer.results:
            first_seq, _count, _subscribers, _code, text = answer.results[0]
            self._batch.unreplicated(first_seq, text)
            return
        self._batch.refused(code_of(answer.code), answer.text)
