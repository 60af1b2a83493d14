"""One connection to a broker, without its socket: the codec, outgoing bytes, handles, heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.core.heartbeat import NOT_KNOWN, Beat, Heartbeat, Transit
from tailrace.core.login import Login
from tailrace.core.options import ClientOptions
from tailrace.core.publications import PendingPublication
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.features import CONSUMERS, FILTERS, LAST, LISTING, PATTERNS
from tailrace.protocol.outgoing import Outgoing
from tailrace.version import VERSION

CLIENT_NAME: Final = f"tailrace-py/{VERSION}"
FEATURES: Final = frozenset({CONSUMERS, FILTERS, LAST, LISTING, PATTERNS})
"""Whose messages are taken from every broker."""

COPIED_MAX_BYTES: Final = 4_096
"""Of frames that are put into one buffer with their head: a system call takes a bounded number of buffers."""

_PUBLISH: Final = int(m.Op.PUBLISH)
_TO_ONE_BYTES: Final = m.PUBLISH_HEAD.size + m.HANDLE_BYTES  # of a body, before the frames
_pack_to_one = m.PUBLISH_TO_ONE.pack


class BrokerLink:
    """State from connecting until the loss; never used again."""

    __slots__ = (
        "_handles",
        "_handles_made",
        "_refused",
        "_transit",
        "codec",
        "heartbeat",
        "login",
        "numbered",
        "outgoing",
        "useful",
        "welcome",
    )

    def __init__(
        self,
        options: ClientOptions,
        heartbeat: Heartbeat,
        *,
        transit: Callable[[], Transit] = lambda: NOT_KNOWN,
    ) -> None:
        """`transit`: which of our bytes are under way."""
        self.codec = ClientCodec(features=FEATURES)
        self.outgoing = Outgoing()
        self.heartbeat = heartbeat
        self._transit = transit
        self.welcome: m.Welcome | None = None
        self.numbered = False  # the broker recognises repeated publishes by their numbers
        self.useful = False  # it has brought a message or an acknowledgement
        self._handles: dict[str, int] = {}
        self._handles_made = 0
        self._refused: dict[str, m.Failed] = {}  # streams whose OPEN was refused, and are not asked for again
        features = {m.TOPICS_FEATURE, *([m.PRODUCERS_FEATURE] if options.idempotent else []), *FEATURES}
        self.login = Login(options)
        hello = m.Hello(m.VERSION, tuple(sorted(features)), CLIENT_NAME, options.token)
        self.send(self.login.hello(hello, options))

    def greeted(self, welcome: m.Welcome) -> None:
        self.welcome = welcome
        self.numbered = m.PRODUCERS_FEATURE in welcome.features

    @property
    def knows_topics(self) -> bool:
        """Whether the broker has filters of topics."""
        return self.welcome is not None and m.TOPICS_FEATURE in self.welcome.features

    @property
    def knows_patterns(self) -> bool:
        """Whether the broker subscribes to all streams of a pattern with one request."""
        return self.welcome is not None and PATTERNS in self.welcome.features

    def send(self, message: m.AnyMessage) -> None:
        self.outgoing.add(m.pack(message))

    def publish(self, publication: PendingPublication) -> None:
        """Behind an OPEN for each stream that has no handle yet. The frames must not change before they are sent."""
        streams, handles_of, frames = publication.streams, self._handles, publication.frames
        request, ack, replicas = publication.request, publication.ack, publication.replicas
        if len(streams) == 1:
            handle = handles_of.get(streams[0]) or self._open(streams[0])
            head = _pack_to_one(_PUBLISH, _TO_ONE_BYTES + len(frames), request, ack, replicas, 1, handle)
        else:
            handles = [handles_of.get(stream) or self._open(stream) for stream in streams]
            head = m.pack_publish(request, ack, handles, frames, replicas)
        if len(frames) > COPIED_MAX_BYTES:
            self.outgoing.add(head, frames)
        else:
            self.outgoing.add(head + frames)

    def beat(self, now_s: float) -> bool:
        """Ping the broker if that is due; False if it answers no more."""
        heartbeat = self.heartbeat
        if now_s < heartbeat.due_s:
            return True
        acknowledged, waiting = self._transit()
        beat = heartbeat.beat(now_s, Transit(acknowledged, waiting + self.outgoing.nbytes))
        if beat is Beat.PING:
            self.send(m.Ping())
        return beat is not Beat.DEAD

    def handle_refused(self, failed: m.Failed) -> None:
        """The broker did not take a handle. Publishes with it are refused too, and less clearly."""
        for stream, handle in self._handles.items():
            if handle == failed.id:
                self._refused[stream] = failed

    def refusal_of(self, streams: tuple[str, ...]) -> m.Failed | None:
        """Why one of these streams has no handle, if one has none."""
        for stream in streams if self._refused else ():
            if stream in self._refused:
                return self._refused[stream]
        return None

    def explained(self, streams: tuple[str, ...], results: tuple[m.PartResult, ...]) -> tuple[m.PartResult, ...]:
        """The results of a publish; those of streams that have no handle with the reason why they have none."""
        if not self._refused or len(results) != len(streams):
            return results
        rows = []
        for stream, row in zip(streams, results, strict=True):
            refused = self._refused.get(stream)
            rows.append(row if refused is None else (*row[:3], refused.code, refused.text))
        return tuple(rows)

    def _open(self, stream: str) -> int:
        self._handles_made += 1
        handle = self._handles[stream] = self._handles_made
        self.send(m.Open(handle, stream.encode()))
        return handle
