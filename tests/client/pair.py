"""A session and a broker in memory, joined without sockets, on a clock that a test moves."""

from __future__ import annotations

from tailrace.core.address import Address
from tailrace.core.address_selector import ConnectAttempt
from tailrace.core.arguments import make_publication
from tailrace.core.connector import ConnectionPhase
from tailrace.core.headers import pack_headers
from tailrace.core.link import BrokerLink
from tailrace.core.message import Message
from tailrace.core.options import ClientOptions
from tailrace.core.places import START, EndPlace, StartPlace
from tailrace.core.publications import PendingPublication
from tailrace.core.session import Session
from tailrace.core.subscribe_options import subscribe_options
from tailrace.core.subscription_state import Arrived, SubscriptionState
from tailrace.errors import TailraceError
from tailrace.protocol.messages import Ack
from tests.client.model import MAX_MESSAGE_BYTES, Model, ModelConnection


class Pair:
    """`unreachable`: addresses that refuse; `silent`: those that drop everything.

    `cut_after`: bytes of the broker's after which the connection breaks.
    """

    def __init__(
        self, model: Model | None = None, addresses: int = 1, piece_bytes: int = 1 << 20, **options: object
    ) -> None:
        self.model = model or Model()
        self.now_s = 100.0
        self.addresses = [Address("model", port) for port in range(1, addresses + 1)]
        self.unreachable: set[Address] = set()
        self.silent: set[Address] = set()
        self.dialled: list[Address] = []
        self.cut_after: int | None = None
        self.session = Session(self.addresses, ClientOptions(**options), lambda: 0.5, self.now_s)  # type: ignore[arg-type]
        self._piece_bytes = piece_bytes
        self._peer: ModelConnection | None = None
        self._link: BrokerLink | None = None

    # --- moving -----------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> ModelConnection:
        assert self._peer is not None
        return self._peer

    def run(self, until_s: float | None = None) -> Pair:
        """Do all there is to do now; the clock goes on to `until_s`, stopping wherever something is due."""
        ticks = 0
        while True:
            while self._step():
                pass
            if until_s is None or self.session.due_s > until_s:
                break
            ticks = 0 if self.session.due_s > self.now_s else ticks + 1
            assert ticks < 5, "something stays due, whatever is done: this would be a loop without end"
            self.now_s = max(self.now_s, self.session.due_s)
            self.session.tick(self.now_s)
        if until_s is not None:
            self.now_s = until_s
        return self

    def wait(self, seconds: float) -> Pair:
        return self.run(self.now_s + seconds)

    def cut(self) -> None:
        """The connection breaks; bytes in transit are lost."""
        self._hang_up()
        self.session.lost("cut", self.now_s)

    def _step(self) -> bool:
        """Move some bytes; whether there were any."""
        session = self.session
        if self._link is not session.link:
            self._hang_up()
        attempt = session.dial(self.now_s)
        if attempt is not None:
            self._dial(attempt)
            return True
        if self._peer is None or session.link is None:
            return False
        return self._to_broker(session.link) or self._to_client(self._peer)

    def _dial(self, attempt: ConnectAttempt) -> None:
        self.dialled.append(attempt.address)
        if attempt.address in self.unreachable:
            self.session.dial_failed(attempt, "refused", self.now_s)
            return
        if attempt.address in self.silent:
            return
        self._peer = self.model.connect()
        assert self.session.dialled(attempt, self.now_s)
        self._link = self.session.link

    def _to_broker(self, link: BrokerLink) -> bool:
        data = b"".join(link.outgoing.head())[: self._piece_bytes]
        link.outgoing.sent(len(data))
        if data and not self.peer.closed:
            self.peer.feed(data)
        return bool(data)

    def _to_client(self, peer: ModelConnection) -> bool:
        piece = bytes(peer.out[: self._piece_bytes])
        if self.cut_after is not None:
            piece = piece[: self.cut_after]
            self.cut_after -= len(piece)
        del peer.out[: len(piece)]
        if piece:
            self.session.receive(piece, self.now_s)
        if self.cut_after == 0:
            self.cut_after = None
            self.cut()
        elif peer.closed and not piece:
            self._hang_up()
            self.session.lost("the broker closed the connection", self.now_s)
            return True
        return bool(piece)

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.closed = True
            self.model.connections.remove(self._peer)
        self._peer = self._link = None

    # --- what a program does ----------------------------------------------------------------------------------------

    def ready(self) -> Pair:
        self.run()
        assert self.session.phase is ConnectionPhase.READY
        return self

    def publish(
        self,
        *payloads: bytes,
        to: tuple[str, ...] = ("s",),
        ack: Ack = Ack.APPENDED,
        replicas: int = 0,
        retry: bool = True,
        timeout_s: float = 30.0,
    ) -> PendingPublication:
        metadata, limit = pack_headers(None), MAX_MESSAGE_BYTES
        publication = make_publication(to, list(payloads), metadata, ack, replicas, timeout_s, retry, limit)
        self.session.publish(publication, self.now_s)
        return publication

    def subscribe(
        self,
        start: StartPlace = START,
        end: EndPlace = None,
        *,
        stream: str = "s",
        skip: int = 0,
        credit_bytes: int = 1 << 20,
        check_crc: bool = True,
        raise_trimmed: bool = True,
        timeout_s: float = 30.0,
    ) -> SubscriptionState:
        on_trimmed = "raise" if raise_trimmed else "skip"
        options = subscribe_options(stream, start, end, skip, credit_bytes, check_crc, on_trimmed, timeout_s)  # type: ignore[arg-type]
        return self.session.subscribe(options, self.now_s)

    def read(self, subscription: SubscriptionState) -> list[Message]:
        """All there is now."""
        messages: list[Message] = []
        arrived: Arrived | None = None
        while True:
            arrived = self.session.next_arrived(subscription, arrived)
            if arrived is None:
                return messages
            if arrived.trimmed is not None:
                raise arrived.trimmed
            messages += arrived.messages
            self.run()

    def payloads(self, subscription: SubscriptionState) -> list[bytes]:
        return [message.payload for message in self.read(subscription)]


def error_of(publication: PendingPublication) -> TailraceError:
    assert publication.error is not None
    return publication.error
