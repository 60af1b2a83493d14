"""One blocking connection to a broker, for reading ranges of streams as raw frames.

The client library gives messages; here whole chunks of frames are wanted, to be taken apart by NumPy.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from tailrace.core.address import Address
from tailrace.core.login import Login
from tailrace.core.options import ClientOptions
from tailrace.errors import BrokerFault, ConnectFailed, ConnectionLost, OperationTimeout, broker_error
from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.errors import PeerError
from tailrace.protocol.places import From
from tailrace.protocol.strangers import STRANGER_BYTES, stranger
from tailrace.protocol.tls import TLSFailed
from tailrace.sockets import connect_blocking, end_output, why
from tailrace.spark.slices import Identity, parse_stream_id
from tailrace.tls import context_for
from tailrace.version import VERSION

CLIENT_NAME: Final = f"tailrace-spark/{VERSION}"
CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 30.0
RECEIVE_BYTES: Final = 1 << 20
WINDOW_BYTES: Final = 8 << 20
"""Frames that the broker may send ahead of the task. A task that waits holds up nobody, and is not taken for slow."""


LISTS_AT_ONCE: Final = 4
"""Lists that are asked for at one time: a quarter of those that may wait on a connection."""
ENDS_AT_ONCE: Final = 256
"""Streams whose ends are asked for at one time: a quarter of the subscriptions that a connection may have."""


NO_FILES: Final = listing.FilesRow("", 0)


class Chunk(NamedTuple):
    """Frames in memory of their own. `trimmed`: messages before it are missing because they were dropped."""

    frames: memoryview
    trimmed: bool


class GrowthReport(NamedTuple):
    """The streams that have grown since an earlier mark, None if the node does not know; its next mark, and a number
    that is another one if it has other streams than before."""

    mark: str
    number: int
    names: list[str] | None


class ListedEnd(NamedTuple):
    """`files`: those of the stream on this node; NO_IDENTITY if it does not send it."""

    row: listing.EndRow
    files: Identity


class BrokerLogin(NamedTuple):
    """What `connect(user=..., password=..., token=...)` takes. Picklable."""

    token: str | None = None
    user: str | None = None
    password: str | None = None


NO_LOGIN: Final = BrokerLogin()


def find_login(options: Mapping[str, str]) -> BrokerLogin:
    """The login in the options `token`, `user` and `password` of Spark, which hides the values of both secrets. Their
    names are in small letters. Raises ValueError.
    """
    login = BrokerLogin(*(options.get(name) or None for name in BrokerLogin._fields))
    if login.password and (login.token or not login.user):
        raise ValueError("a password goes with the option user, and not with a token")
    if login.user and not (login.password or login.token):
        raise ValueError("the option user goes with a password or a token")
    return login


class BrokerConnection:
    """To the first of the addresses that answers. Use it as a context."""

    def __init__(
        self, addresses: Sequence[Address], login: BrokerLogin = NO_LOGIN, features: tuple[str, ...] = ()
    ) -> None:
        """Raises ConnectFailed; BrokerError when the broker does not want us."""
        self._sock, self.address = _dial(addresses)
        self._codec = ClientCodec(features=frozenset(features))
        self._held: deque[m.Response] = deque()
        self._is_new = True  # nothing has come from it
        self._last_id = 0
        try:
            self.welcome = self._greet(login, features)
        except BaseException:
            self._sock.close()
            raise

    def _greet(self, login: BrokerLogin, features: tuple[str, ...]) -> m.Welcome:
        """Raises BrokerError if the login is denied, BrokerFault if the broker does not prove that it knows it."""
        exchange = Login(options := ClientOptions(token=login.token, user=login.user, password=login.password))
        self._send(exchange.hello(m.Hello(m.VERSION, features, CLIENT_NAME, login.token), options))
        answer = self._await((m.Welcome, m.Challenge), "", 0)
        if isinstance(answer, m.Challenge):
            self._send(exchange.answer(answer.data))
            answer = self._await(m.Welcome, "", 0)
        assert isinstance(answer, m.Welcome)
        exchange.check(answer.login)
        return answer

    def names(self) -> list[str]:
        """The names of all streams that this login may read. Raises TailraceError."""
        return [name for page in self._pages("names") for name in page.names]

    def grown(self, mark: str) -> GrowthReport:
        """The streams among them that have grown since an earlier mark. Raises TailraceError."""
        pages = list(self._pages("grown", mark))
        names = [name for page in pages for name in page.names] if all(page.known for page in pages) else None
        return GrowthReport(pages[0].mark, pages[0].version, names)

    def _pages(self, what: listing.ListedKind, mark: str = "") -> Iterator[listing.Listed]:
        after = b""
        while True:
            self._last_id += 1
            self._send(listing.List(self._last_id, what, after=after, mark=mark))
            answer = self._await(listing.Listed, "", self._last_id)
            assert isinstance(answer, listing.Listed)
            yield answer
            if not answer.next:
                return
            if answer.next.encode() <= after:
                raise BrokerFault(f"{self.address} goes back in its list of streams")
            after = answer.next.encode()

    def place(self, stream: str, start: From, end: m.WirePlace = ("now", 0)) -> m.Subscribed:
        """Returns the seq of `start` in a stream, the first seq that is kept, and the seq of `end`. No message is sent.

        An unknown stream has no messages. Raises TailraceError.
        """
        self._last_id += 1
        asked = self._last_id
        self._send(m.Subscribe(asked, stream.encode(), start, 0, end, 0, wait=True, exact=True))
        answer = self._await(m.Subscribed, stream, asked)
        assert isinstance(answer, m.Subscribed)
        # One without messages ends by itself, and what ends it once more is answered with an error.
        if answer.next_seq != answer.end_seq:
            self._send(m.Unsubscribe(asked))
        self._await(m.Ended, stream, asked)
        return answer

    def listed_ends(self, streams: Sequence[str]) -> dict[str, ListedEnd]:
        """The ends of streams that the broker knows without opening them. Raises TailraceError."""
        found: dict[str, ListedEnd] = {}
        for first in range(0, len(streams), listing.ENDS_MAX * LISTS_AT_ONCE):
            part = [name.encode() for name in streams[first : first + listing.ENDS_MAX * LISTS_AT_ONCE]]
            pages = [tuple(part[place : place + listing.ENDS_MAX]) for place in range(0, len(part), listing.ENDS_MAX)]
            requests = [listing.List(self._last_id + 1 + place, "ends", names=page) for place, page in enumerate(pages)]
            self._last_id += len(requests)
            self.send_bytes(b"".join(map(m.pack, requests)))
            waiting = {request.id for request in requests}
            while waiting:
                self._take_listed(self.next_response(), waiting, found)
        return found

    def _take_listed(self, response: m.Response, waiting: set[int], found: dict[str, ListedEnd]) -> None:
        if isinstance(response, m.Failed) and (response.fatal or response.id in waiting):
            raise broker_error(response.code, response.text)
        if isinstance(response, listing.Listed) and response.id in waiting:
            waiting.remove(response.id)
            files = response.files or (NO_FILES,) * len(response.names)
            if not len(response.names) == len(response.ends) == len(files):
                counts = f"{len(response.ends)} ends and {len(files)} files of {len(response.names)} streams"
                raise BrokerFault(f"{self.address} has listed {counts}")
            try:
                identities = [(parse_stream_id(stream_id), cuts) for stream_id, cuts in files]
                found.update(zip(response.names, map(ListedEnd, response.ends, identities), strict=True))
            except ValueError as error:
                raise BrokerFault(f"{self.address} has listed streams: {error}") from None

    def ends(self, streams: Sequence[str]) -> dict[str, m.Subscribed]:
        """The places of the first message of many streams, as `place` returns them, asked for ENDS_AT_ONCE at a time.
        Streams that the broker refuses are left out. Raises TailraceError.
        """
        found: dict[str, m.Subscribed] = {}
        start, end = From("time", 0), ("now", 0)
        for first in range(0, len(streams), ENDS_AT_ONCE):
            asked = dict(enumerate(streams[first : first + ENDS_AT_ONCE], self._last_id + 1))
            names = ((number, name.encode()) for number, name in asked.items())
            requests = [m.Subscribe(number, name, start, 0, end, 0, wait=True, exact=True) for number, name in names]
            self._last_id += len(asked)
            self.send_bytes(b"".join(map(m.pack, requests)))
            while asked:
                self._take_end(self.next_response(), asked, found)
        return found

    def _take_end(self, response: m.Response, asked: dict[int, str], found: dict[str, m.Subscribed]) -> None:
        if isinstance(response, m.Failed) and response.fatal:
            raise broker_error(response.code, response.text)
        number = getattr(response, "id", 0)
        if number not in asked:
            return
        if isinstance(response, m.Subscribed):
            found[asked[number]] = response
            if response.next_seq != response.end_seq:
                self._send(m.Unsubscribe(number))
        elif isinstance(response, m.Ended | m.Failed):
            name = asked.pop(number)
            if isinstance(response, m.Failed) or response.code:
                found.pop(name, None)

    def chunks(self, stream: str, first_seq: int, end_seq: int) -> Iterator[Chunk]:
        """Yields the messages of a range, without trimmed ones. Raises TailraceError, such as UnknownStream."""
        request = self.range_request(stream, first_seq, end_seq, WINDOW_BYTES)
        self._send(request)
        asked = request.id
        answer = self._await(m.Subscribed, stream, asked)
        assert isinstance(answer, m.Subscribed)
        trimmed = answer.next_seq > first_seq
        while True:
            response = self.next_response()
            if isinstance(response, m.Chunk) and response.id == asked:
                yield Chunk(response.frames, trimmed)
                trimmed = False
                self._send(m.Credit(asked, len(response.frames)))
            elif isinstance(response, m.Failed) and response.code == "trimmed" and response.id == asked:
                trimmed = True
            elif isinstance(response, m.Ended) and response.id == asked:
                if response.code:
                    raise broker_error(response.code, response.text, stream)
                return
            elif isinstance(response, m.Failed) and (response.fatal or response.id == asked):
                raise broker_error(response.code, response.text, stream)

    def range_request(self, stream: str, first_seq: int, end_seq: int, credit: int) -> m.Subscribe:
        """What subscribes to a range, to be sent by the caller."""
        self._last_id += 1
        start, end = From("seq", first_seq), ("seq", end_seq)
        return m.Subscribe(self._last_id, stream.encode(), start, 0, end, credit, exact=True)

    def check(self) -> None:
        """Returns once the broker has answered. Raises ConnectionLost, OperationTimeout, BrokerFault."""
        self._send(m.Ping())
        while not isinstance(self.next_response(), m.Pong):
            pass

    @property
    def node_id(self) -> str:
        return self.welcome.node

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> BrokerConnection:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.close()

    def _await(self, kind: type | tuple[type, ...], stream: str, asked: int) -> m.Response:
        """The next answer of this kind to this request. Raises BrokerError for an error instead."""
        while True:
            response = self.next_response()
            if isinstance(response, kind) and getattr(response, "id", 0) == asked:
                return response
            if isinstance(response, m.Failed) and (response.fatal or response.id == asked):
                raise broker_error(response.code, response.text, stream)

    def _send(self, message: m.Request) -> None:
        self.send_bytes(m.pack(message))

    def send_bytes(self, data: bytes) -> None:
        """Sends packed messages. Raises ConnectionLost, OperationTimeout."""
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise OperationTimeout(f"{self.address} has read nothing for {ANSWER_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise ConnectionLost(f"the connection to {self.address} was lost: {error.strerror}") from None

    def next_response(self) -> m.Response:
        """The next message. Pings are answered. Raises ConnectionLost, OperationTimeout, BrokerFault."""
        while not self._held:
            self._receive()
        response = self._held.popleft()
        if isinstance(response, m.Ping):
            self._send(m.Pong())
        return response

    def _receive(self) -> None:
        """Raises ConnectionLost, OperationTimeout, BrokerFault."""
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise OperationTimeout(f"{self.address} has sent nothing for {ANSWER_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise ConnectionLost(f"the connection to {self.address} was lost: {error.strerror}") from None
        if not data:
            raise ConnectionLost(f"{self.address} has closed the connection")
        try:
            for response in self._codec.feed(data):
                if isinstance(response, m.Chunk):
                    response = m.Chunk(response.id, memoryview(bytes(response.frames)))
                self._held.append(response)
        except PeerError as error:
            text = stranger(data[:STRANGER_BYTES], str(error)) if self._is_new else str(error)
            raise BrokerFault(f"{self.address}: {text}") from None
        self._is_new = False


def _dial(addresses: Sequence[Address]) -> tuple[socket.socket, Address]:
    """Raises ConnectFailed with the reason of each address."""
    reasons = []
    for address in addresses:
        try:
            sock = connect_blocking(address, CONNECT_TIMEOUT_S, context_for(address, None))
        except TimeoutError:
            reasons.append(f"{address}: no answer within {CONNECT_TIMEOUT_S:g} s")
        except TLSFailed as error:
            reasons.append(f"{address}: {error.strerror}")
        except socket.gaierror as error:
            reasons.append(f"{address}: {error.strerror}")
        except OSError as error:
            reasons.append(f"{address}: {why(error.errno) if error.errno else error}")
        else:
            sock.settimeout(ANSWER_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock, address
    raise ConnectFailed("cannot connect to a broker: " + "; ".join(reasons))


def list_streams(address: Address) -> list[str]:
    """Returns all streams of the node, which it sends to its own machine only. Raises TailraceError."""
    return parse_listing(_ask_lines(address, "streams"))


def list_grown(address: Address, mark: str) -> GrowthReport:
    """Asks the node, which answers its own machine only. Without a mark no stream is known. Raises TailraceError."""
    rows = [line.split(" ", 1) for line in parse_table(_ask_lines(address, f"grown {mark}".rstrip()))]
    values = {field: value for field, value in rows if field != "grown"}
    names = [value for field, value in rows if field == "grown"]
    return GrowthReport(values["mark"], int(values["streams"]), names if values["known"] == "1" else None)


def _ask_lines(address: Address, line: str) -> bytes:
    """Returns the answer to a line, on a connection of its own. Raises TailraceError."""
    sock, address = _dial([address])
    with sock:
        try:
            sock.sendall(f"{line}\r\n".encode())
            end_output(sock)
            return b"".join(iter(lambda: sock.recv(RECEIVE_BYTES), b""))
        except OSError as error:
            raise ConnectionLost(f"the connection to {address} was lost: {error}") from None


def parse_listing(said: bytes) -> list[str]:
    """The names in the answer to `streams`. Raises BrokerError for an `err`."""
    return [line.split(" ", 1)[0] for line in parse_table(said)]


def parse_table(said: bytes) -> list[str]:
    """The rows of an answer. Raises BrokerError for an `err`."""
    lines = said.decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith("err "):
            _, code, text = (*line.split(" ", 2), "")[:3]
            raise broker_error(code, text)
    if not lines or lines[-1] != ".":
        raise ConnectionLost("the broker closed the connection in the middle of its answer")
    return lines[1:-1]
