"""The login in a HELLO of the binary protocol: bearer, external, or SCRAM-SHA-256 in four messages."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from tailrace.broker.access.identity import LoginFailure, Proof
from tailrace.broker.access.users import MARK_BYTES, producer_prefix
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.login import Logins
from tailrace.broker.routing.batch import StampableFrames
from tailrace.broker.streams.deduplication import is_by_producer
from tailrace.protocol import messages as m
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import pack
from tailrace.protocol.scram import MECHANISM, ScramError, ScramServer, ScramVerifier

ANOTHERS_TEXT = "the id of this producer does not begin as WELCOME says that this user's do; nothing of this was logged"


class ScramLogin(NamedTuple):
    """An exchange that waits for the client's proof."""

    hello: m.Hello
    server: ScramServer
    verifier: ScramVerifier


class GreetedClient(ClientConnection):
    """A connection that begins with a HELLO. `login`: of it, while it waits for the client's proof."""

    __slots__ = ("login",)

    login: ScramLogin | None

    @property
    @abstractmethod
    def logins(self) -> Logins: ...

    @abstractmethod
    def greet(self, message: m.Hello, proof: bytes | None = None) -> None:
        """Answer a HELLO: it is known who the peer is. `proof`: the broker's own, after a login with SCRAM."""

    @property
    def producer_prefix(self) -> bytes:
        """Empty if its producers may have any id: without users, and for nodes, which publish for their clients."""
        return producer_prefix(self.identity.user) if self.services.access.has_users and not self.bound else b""

    def is_by_another(self, frames: StampableFrames) -> bool:
        """Whether any of these messages is numbered by a producer that cannot be this user's."""
        return self.services.access.has_users and not is_by_producer(frames, self.producer_prefix)

    @abstractmethod
    def send_envelope(self, envelope: bytes) -> None: ...


def begin(client: GreetedClient, hello: m.Hello) -> None:
    """A HELLO that names a mechanism. It is answered with WELCOME, CHALLENGE, or ERROR some time later."""
    if hello.mechanism == m.BEARER:
        secret = (hello.login or b"").decode("utf-8", "replace")
        client.logins.with_secret(client, hello.user or "", secret, lambda: client.greet(hello))
    elif hello.mechanism == MECHANISM:
        _challenge(client, hello)
    elif hello.mechanism == m.EXTERNAL:
        if client.identity.proof is Proof.CERTIFICATE:
            client.greet(hello)
        else:
            client.logins.fail(client, hello.user or "", LoginFailure.CERTIFICATE)
    else:
        text = f"the mechanisms of this broker are {MECHANISM}, {m.BEARER} and {m.EXTERNAL}"
        client.logins.fail(client, hello.user or "", LoginFailure.MECHANISM, text, Code.UNSUPPORTED)


def _challenge(client: GreetedClient, hello: m.Hello) -> None:
    try:
        server = ScramServer(hello.login or b"")
    except ScramError:
        client.logins.fail(client, hello.user or "", LoginFailure.EXCHANGE)
        return
    verifier = client.logins.verifier_of(server.user)
    client.login = ScramLogin(hello, server, verifier)
    client.send_envelope(pack(m.Challenge(server.challenge(verifier))))


def finish(client: GreetedClient, message: m.Prove) -> None:
    """The client's proof. An unknown user fails as a wrong password does."""
    login, client.login = client.login, None
    if login is None:  # or its exchange was with another worker
        client.end_with(Code.UNAVAILABLE, "no login is under way on this connection; connect again")
        return
    name = login.server.user
    try:
        final = login.server.finish(login.verifier, message.data)
    except ScramError:
        known = name in client.services.access.users
        client.logins.fail(client, name, LoginFailure.SECRET if known else LoginFailure.USER)
        return
    if client.logins.succeed(client, name, Proof.SCRAM, login.verifier.stored_key[:MARK_BYTES]):
        client.greet(login.hello, final)
