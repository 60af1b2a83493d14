from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from tailrace.core.address import Address
from tailrace.errors import BrokerError, BrokerFault, ConnectFailed, ConnectionLost, Denied, OperationTimeout
from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tailrace.spark import broker_connection
from tailrace.spark.broker_connection import BrokerConnection, BrokerLogin, parse_listing
from tests.protocol.plain_codec import PlainCodec

FRAMES = pack_frame(b"one") + pack_frame(b"two")
WELCOME = m.pack(m.Welcome(1, (), "test/1", "n", 0, {}))
Script = Callable[[m.Request], list[m.Response]]


class FakeBroker:
    """Answers one connection by a script; keeps the requests it received."""

    def __init__(self, script: Script) -> None:
        self.heard: list[m.Request] = []
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        codec = PlainCodec(1 << 20, 1 << 20)
        codec.features = frozenset({listing.FEATURE})
        with sock:
            while data := sock.recv(1 << 16):
                for request in codec.feed(data, len(data)):
                    assert not isinstance(request, m.Malformed)
                    self.heard.append(request)
                    for answer in self._script(request):
                        sock.sendall(m.pack(answer))
                    if isinstance(request, m.Close):
                        return

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)


def serve(script: Script, request: pytest.FixtureRequest) -> FakeBroker:
    broker = FakeBroker(script)
    request.addfinalizer(broker.close)
    return broker


def script(answers: Callable[[m.Subscribe], list[m.Response]]) -> Script:
    """Welcome, and these answers to a subscription; an end to an unsubscription."""

    def answer(request: m.Request) -> list[m.Response]:
        if isinstance(request, m.Hello):
            return [m.Welcome(1, (), "test/1", "n", 0, {})]
        if isinstance(request, m.Unsubscribe):
            return [m.Ended(request.id, 0)]
        return answers(request) if isinstance(request, m.Subscribe) else []

    return answer


def test_a_place_costs_no_message(request: pytest.FixtureRequest) -> None:
    broker = serve(script(lambda asked: [m.Subscribed(asked.id, 7, 3, 9)]), request)
    with BrokerConnection([broker.address], BrokerLogin("secret")) as connection:
        assert connection.place("ü", From("time", 5)) == m.Subscribed(1, 7, 3, 9)
    broker.close()
    hello, subscribe, _ = broker.heard
    assert isinstance(hello, m.Hello)
    assert hello.token == "secret"
    assert subscribe == m.Subscribe(1, "ü".encode(), From("time", 5), 0, ("now", 0), 0, wait=True, exact=True)


def test_a_place_at_the_end_ends_by_itself(request: pytest.FixtureRequest) -> None:
    broker = serve(script(lambda asked: [m.Subscribed(asked.id, 9, 3, 9), m.Ended(asked.id, 9)]), request)
    with BrokerConnection([broker.address]) as connection:
        assert connection.place("a", From("time", 5)).next_seq == 9
        assert connection.place("a", From("time", 6)).next_seq == 9
    broker.close()
    assert not any(isinstance(each, m.Unsubscribe) for each in broker.heard)


def test_the_ends_of_many_streams_are_asked_for_together(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_connection, "ENDS_AT_ONCE", 3)
    held: list[m.Subscribe] = []

    def answers(asked: m.Subscribe) -> list[m.Response]:
        held.append(asked)
        if len(held) % 3 and asked.stream != b"last":
            return []  # all of a round are there before the first is answered
        said: list[m.Response] = []
        while held:
            each = held.pop()
            if each.stream == b"refused":
                said.append(m.Failed("denied", "not yours", False, 7, each.id))
            elif each.stream == b"empty":
                said += [m.Subscribed(each.id, 0, 0, 0), m.Ended(each.id, 0)]
            else:
                said += [m.Ping(), m.Subscribed(each.id, 2, 2, 9)]
        return said

    broker = serve(script(answers), request)
    with BrokerConnection([broker.address]) as connection:
        found = connection.ends(["a", "refused", "empty", "b", "c", "d", "last"])
        assert connection.ends([]) == {}
    assert {name: (each.first_seq, each.end_seq) for name, each in found.items()} == {
        **dict.fromkeys(["a", "b", "c", "d", "last"], (2, 9)),
        "empty": (0, 0),
    }


END = listing.EndRow(0, 1, 5, 1)
FILES, ODD_FILES = listing.FilesRow("0" * 16, 0), listing.FilesRow("0X" * 8, 0)


def test_ends_are_listed_some_pages_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ENDS_MAX", 2)
    monkeypatch.setattr(broker_connection, "LISTS_AT_ONCE", 2)
    held: list[listing.List] = []

    def answers(asked: m.Request) -> list[m.Response]:
        if isinstance(asked, m.Hello):
            return [m.Welcome(1, (listing.FEATURE,), "test/1", "n", 0, {})]
        assert isinstance(asked, listing.List)
        held.append(asked)
        if len(held) % 2:
            return []  # both are there before the first is answered, which is the later one
        found: list[m.Response] = []
        while held:
            each = held.pop()
            names = tuple(name.decode() for name in each.names if name != b"open")
            files = tuple(listing.FilesRow(f"{len(name):016x}", 2) for name in names) if "a" not in names else ()
            ends = tuple(listing.EndRow(0, len(name), 5, 1) for name in names)
            found.append(listing.Listed(each.id, names, ends=ends, files=files))
        return found

    broker = serve(answers, request)
    with BrokerConnection([broker.address], features=(listing.FEATURE,)) as connection:
        found = connection.listed_ends(["a", "bb", "open", "cccc", "d", "ee", "fff", "g"])
        wanted = ("a", "bb", "cccc", "d", "ee", "fff", "g")
        assert {name: each.row.next_seq for name, each in found.items()} == {name: len(name) for name in wanted}
        assert {name: each.files for name, each in found.items()} == {
            name: (0, 0) if name in ("a", "bb") else (len(name), 2) for name in wanted
        }
        assert connection.listed_ends([]) == {}
    broker.close()
    assert len(broker.heard) == 1 + 4


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda asked: listing.Listed(asked, ("a", "b"), ends=(END,)), BrokerFault),
        (lambda asked: listing.Listed(asked, ("a", "b"), ends=(END, END), files=(FILES,)), BrokerFault),
        (lambda asked: listing.Listed(asked, ("a", "b"), ends=(END, END), files=(FILES, ODD_FILES)), BrokerFault),
        (lambda asked: m.Failed("unavailable", "a worker is down", False, 36, asked), BrokerError),
    ],
)
def test_ends_that_cannot_be_listed(
    request: pytest.FixtureRequest, answer: Callable[[int], m.Response], error: type[Exception]
) -> None:
    def answers(asked: m.Request) -> list[m.Response]:
        hello = m.Welcome(1, (listing.FEATURE,), "test/1", "n", 0, {})
        return [hello] if isinstance(asked, m.Hello) else [answer(asked.id)] if isinstance(asked, listing.List) else []

    broker = serve(answers, request)
    with BrokerConnection([broker.address], features=(listing.FEATURE,)) as connection, pytest.raises(error):
        connection.listed_ends(["a", "b"])


def test_a_broker_that_goes_while_it_is_asked_for_ends(request: pytest.FixtureRequest) -> None:
    broker = serve(script(lambda _asked: [m.Failed("closing", "good bye", True)]), request)
    with BrokerConnection([broker.address]) as connection, pytest.raises(BrokerError, match="good bye"):
        connection.ends(["a", "b"])


def test_chunks_of_a_range_are_granted_again(request: pytest.FixtureRequest) -> None:
    def answers(asked: m.Subscribe) -> list[m.Response]:
        chunk = m.Chunk(asked.id, memoryview(FRAMES))
        return [m.Subscribed(asked.id, 5, 0, 9), chunk, m.Ping(), chunk, m.Ended(asked.id, 9)]

    broker = serve(script(answers), request)
    with BrokerConnection([broker.address]) as connection:
        chunks = list(connection.chunks("a", 5, 9))
    assert [(bytes(chunk.frames), chunk.trimmed) for chunk in chunks] == [(FRAMES, False)] * 2
    broker.close()
    assert [each.nbytes for each in broker.heard if isinstance(each, m.Credit)] == [len(FRAMES)] * 2
    assert any(isinstance(each, m.Pong) for each in broker.heard)


def test_what_was_trimmed_is_told_with_the_chunk_behind_it(request: pytest.FixtureRequest) -> None:
    def answers(asked: m.Subscribe) -> list[m.Response]:
        chunk = m.Chunk(asked.id, memoryview(FRAMES))
        trimmed = m.Failed("trimmed", "gone", False, 7, asked.id)
        return [m.Subscribed(asked.id, 6, 6, 12), chunk, chunk, trimmed, chunk, m.Ended(asked.id, 12)]

    broker = serve(script(answers), request)
    with BrokerConnection([broker.address]) as connection:
        assert [chunk.trimmed for chunk in connection.chunks("a", 5, 12)] == [True, False, True]


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked: [m.Failed("damaged", "its files are damaged", False, 7, asked.id)],
        lambda asked: [m.Subscribed(asked.id, 0, 0, 9), m.Ended(asked.id, 3, "damaged", "its files are damaged")],
        lambda asked: [m.Subscribed(asked.id, 0, 0, 9), m.Failed("closing", "it is damaged", True)],
    ],
)
def test_what_the_broker_refuses_is_raised(
    request: pytest.FixtureRequest, answer: Callable[[m.Subscribe], list[m.Response]]
) -> None:
    broker = serve(script(answer), request)
    with BrokerConnection([broker.address]) as connection, pytest.raises(BrokerError, match="damaged"):
        list(connection.chunks("a", 0, 9))


def test_a_broker_that_does_not_want_us(request: pytest.FixtureRequest) -> None:
    broker = serve(lambda _request: [m.Failed("denied", "another token", True)], request)
    with pytest.raises(Denied, match="another token"):
        BrokerConnection([broker.address], BrokerLogin("wrong"))


def test_a_broker_that_goes_away(request: pytest.FixtureRequest) -> None:
    def answer(asked: m.Request) -> list[m.Response]:
        if isinstance(asked, m.Subscribe):
            raise ConnectionAbortedError  # the thread ends, and its socket with it
        return [m.Welcome(1, (), "test/1", "n", 0, {})]

    broker = serve(answer, request)
    with BrokerConnection([broker.address]) as connection:
        threading.excepthook = lambda _args: None
        try:
            with pytest.raises(ConnectionLost):
                list(connection.chunks("a", 0, 9))
        finally:
            threading.excepthook = threading.__excepthook__


def test_a_broker_that_is_silent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_connection, "ANSWER_TIMEOUT_S", 0.05)
    broker = serve(lambda _request: [], request)
    with pytest.raises(OperationTimeout, match="has sent nothing for"):
        BrokerConnection([broker.address])


def test_addresses_are_tried_in_turn(request: pytest.FixtureRequest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = Address("127.0.0.1", unused.getsockname()[1])
    broker = serve(script(lambda _asked: []), request)
    with BrokerConnection([dead, broker.address]) as connection:
        assert connection.address == broker.address
    with pytest.raises(ConnectFailed, match="is the broker running there"):
        BrokerConnection([dead])


def test_bytes_that_no_broker_sends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            sock, _ = listener.accept()
            sock.sendall(b"\xfe\0\0\0\0")
            sock.close()

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises((BrokerFault, ConnectionLost)):
            BrokerConnection([Address("127.0.0.1", listener.getsockname()[1])])
        thread.join()


def test_a_server_of_another_protocol_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                assert b"\r\n\r\n" in peer.recv(4_096), "it can see the end of a request"
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BrokerFault, match="this is not a tailrace broker: it answers in HTTP"):
            BrokerConnection([Address("127.0.0.1", listener.getsockname()[1])])
        thread.join()


def test_listings() -> None:
    said = b"stream role epoch\r\na master 1\r\n\xc3\xbc/x slave 2\r\n.\r\n"
    assert parse_listing(said) == ["a", "ü/x"]
    assert parse_listing(b"stream role epoch\r\n.\r\n") == []
    with pytest.raises(ConnectionLost):
        parse_listing(said[:-3])
    with pytest.raises(ConnectionLost):
        parse_listing(b"")
    with pytest.raises(Denied, match="own machine"):
        parse_listing(b"err denied only from its own machine\r\n")


def test_a_host_that_is_unknown_is_named() -> None:
    with pytest.raises(
        ConnectFailed, match=r"no\.such\.host\.invalid:5050: (Name or service|Temporary failure|No address)"
    ):
        BrokerConnection([Address("no.such.host.invalid", 5050)])
