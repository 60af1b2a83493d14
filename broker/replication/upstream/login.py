"""How this node logs in to other nodes: as one user, with SCRAM-SHA-256, or without a login.

A challenge is answered by a helper thread: the other end chooses how many iterations the key takes. The keys of the
latest challenges are kept, so that a new connection to the same node costs nothing. A certificate needs nothing of
this: the other node knows its user since the handshake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from tailrace.broker.process.settings import Settings
from tailrace.broker.streams.syncer import SyncJob
from tailrace.protocol import messages as m
from tailrace.protocol.messages import pack
from tailrace.protocol.scram import MECHANISM, ScramClient, ScramError, ScramKeys, derive_keys

KEYS_KEPT: Final = 64
"""One for each node that this one logs in to."""

RequestJob = Callable[["ChallengeAnswer", SyncJob], None]
"""Hands a job to a helper thread; calls back in the loop."""
Derive = Callable[[str, bytes, int], ScramKeys]


class NodeLoginFailed(Exception):
    """The other node cannot be logged in to; the text gives the reason."""


class ChallengeAnswer:
    """A job of the helper thread (`broker.streams.syncer`): sets `data` to the proof, or `wrong` to an error text."""

    __slots__ = ("_challenge", "_scram", "data", "name", "wrong")

    def __init__(self, scram: ScramClient, challenge: bytes) -> None:
        self.name = "a login at another node"
        self.data = b""
        self.wrong = ""
        self._scram = scram
        self._challenge = challenge

    def sync(self) -> None:
        try:
            self.data = self._scram.answer(self._challenge)
        except ScramError as error:
            self.wrong = str(error)


class NodeLogin:
    """One login, for one connection: `greet`, then `answer` if there is a challenge, then `check`."""

    __slots__ = ("_answered", "_proven", "_request", "_scram", "_user")

    def __init__(self, user: str, scram: ScramClient | None, request: RequestJob) -> None:
        """scram: None for a connection that does not log in."""
        self._user = user
        self._scram = scram
        self._request = request
        self._answered = self._proven = False

    def greet(self, hello: m.Hello) -> m.Hello:
        """The HELLO as it is to be sent. With a login it shows no token: a password is never beside it in clear."""
        if self._scram is None:
            return hello
        first = self._scram.first()
        return replace(hello, token=None, peer_token=None, mechanism=MECHANISM, user=self._user, login=first)

    def answer(self, challenge: bytes, send_envelope: Callable[[bytes], None], fail: Callable[[str], None]) -> None:
        """Answer a challenge, later: calls `send_envelope` with bytes to send, or `fail`. Raises NodeLoginFailed."""
        if self._scram is None or self._answered:
            raise NodeLoginFailed("it sent CHALLENGE, and no login is under way")
        self._answered = True
        job = ChallengeAnswer(self._scram, challenge)

        def answered() -> None:
            if job.wrong:
                fail(f"the login failed: {job.wrong}")
            else:
                self._proven = True
                send_envelope(pack(m.Prove(job.data)))

        self._request(job, SyncJob(answered))

    def check(self, proof: bytes | None) -> None:
        """The other node welcomes this one. Raises NodeLoginFailed if it does not know this node's password."""
        if self._scram is None:
            return
        try:
            if not self._proven:
                raise ScramError("it asked for no proof")
            self._scram.check(proof or b"")
        except ScramError as error:
            raise NodeLoginFailed(f"the login failed: {error}") from None


class NodeLogins:
    """One per worker."""

    def __init__(self, settings: Settings, request: RequestJob) -> None:
        self._user = settings.replication_user
        self._password = settings.replication_password
        self._request = request
        self._derive: Derive = lru_cache(maxsize=KEYS_KEPT)(derive_keys)

    def begin(self) -> NodeLogin:
        scram = ScramClient(self._user, self._password, self._derive) if self._user else None
        return NodeLogin(self._user, scram, self._request)
