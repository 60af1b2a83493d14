"""Logging in, on any door: credentials are checked, failures are delayed, counted and logged.

A token costs one quick hash, SCRAM three; a password that is itself sent is hashed by a helper thread. A failed login
is answered FAILED_S later with one text for every reason, and ends the connection, which is not read until then.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tailrace.broker.access.identity import LoginFailure, Proof
from tailrace.broker.access.users import MARK_BYTES, User
from tailrace.broker.process.event_log import Event
from tailrace.broker.streams.syncer import SyncJob
from tailrace.protocol.errors import Code
from tailrace.protocol.scram import ITERATIONS, SALT_BYTES, ScramVerifier, password_matches

if TYPE_CHECKING:
    from tailrace.broker.connection.client import ClientConnection
    from tailrace.broker.services import Services

FAILED_S: Final = 1.0
"""How long the answer to a failed login is held back."""
CHECKS_MAX: Final = 64
"""Passwords of one worker that wait for the helper thread."""
NAME_CHARACTERS_MAX: Final = 64
"""Of the name that a failed login gave, in the log."""
FAILED_TEXT: Final = "the login failed: no such user, or not with this secret"
INSECURE_TEXT: Final = "a secret is taken only over TLS or from this machine; use SCRAM-SHA-256, which sends none"
REVOKED_TEXT: Final = "this user may not log in any more, or not with what it showed; log in again"
NO_LOGIN_TEXT: Final = "this broker wants a login"


class PasswordCheck:
    """For the helper thread (`broker.streams.syncer`)."""

    __slots__ = ("_password", "_verifier", "matches", "name")

    def __init__(self, verifier: ScramVerifier, password: str) -> None:
        self.name = "a login"
        self.matches = False
        self._verifier = verifier
        self._password = password

    def sync(self) -> None:
        self.matches = password_matches(self._verifier, self._password)


class Logins:
    """One per worker. `request` hands something expensive to a helper thread."""

    def __init__(self, services: Services, request: Callable[[Any, object], None]) -> None:
        self._services = services
        self._request = request
        self._failed: deque[tuple[float, ClientConnection, Code, str]] = deque()  # no more than there are connections
        self._checks = 0

    @property
    def busy(self) -> bool:
        """Whether a login has not been answered yet, for which the loop must not rest long."""
        return bool(self._failed or self._checks)

    # --- credentials --------------------------------------------------------------------------------------------------

    def with_secret(self, client: ClientConnection, name: str, secret: str, done: Callable[[], None]) -> None:
        """Log in with a token, or with a password. `done` is called once it has worked; until then the client waits."""
        if not (client.encrypted or client.identity.local):
            self.fail(client, name, LoginFailure.INSECURE, INSECURE_TEXT)
            return
        user = self._services.access.users.get(name)
        token = None if user is None else _token_mark(user, secret)
        if token is not None:
            if self.succeed(client, name, Proof.BEARER, token):
                done()
        elif self._checks >= CHECKS_MAX:
            self.fail(client, name, LoginFailure.OVERLOADED, "too many logins at once; try again", Code.OVERLOADED)
        else:
            self._check(client, name, user, secret, done)

    def _check(
        self, client: ClientConnection, name: str, user: User | None, password: str, done: Callable[[], None]
    ) -> None:
        """A user that does not exist, or has no password, takes as long as one that has."""
        verifier = self.verifier_of(name)
        check = PasswordCheck(verifier, password)
        client.hold_up()
        self._checks += 1

        def checked() -> None:
            self._checks -= 1
            if client.closed:
                return
            if user is None or not check.matches:
                client.held_up -= 1
                self.fail(client, name, LoginFailure.SECRET if user else LoginFailure.USER)
                return
            if self.succeed(client, user.name, Proof.BEARER, verifier.stored_key[:MARK_BYTES]):
                done()
                client.go_on()
            else:
                client.held_up -= 1

        self._request(check, SyncJob(checked))

    def verifier_of(self, name: str) -> ScramVerifier:
        """A user's; for others one that looks like some user's, the same each time, and that no password fits."""
        access = self._services.access
        user = access.users.get(name)
        if user is not None and user.scram is not None:
            return user.scram
        made = hmac.digest(access.secret, name.encode("utf-8", "replace"), "sha512")
        models = access.verifiers
        model = models[made[-1] % len(models)] if models else None
        iterations, salt_bytes = (ITERATIONS, SALT_BYTES) if model is None else (model.iterations, len(model.salt))
        return ScramVerifier(iterations, made[:salt_bytes], made[-32:], made[-32:])

    # --- the outcome ------------------------------------------------------------------------------------------------

    def succeed(self, client: ClientConnection, name: str, proof: Proof, credential: bytes) -> bool:
        """The user is proven. False if this login has failed all the same: the user has as many connections as it may
        have, or is no more.
        """
        services = self._services
        account = services.accounts.of_user(name, services.now_s)
        if account not in client.accounts and services.accounts.is_full(account):
            self.fail(client, name, LoginFailure.LIMIT, account.connections_refusal(), Code.CONNECTIONS)
            return False
        identity = services.access.logged_in(client.identity, name, proof, credential)
        if services.access.is_revoked(identity):
            self.fail(client, name, LoginFailure.USER)
            return False
        client.become_user(identity)
        services.metrics.logins.add(proof.value)
        services.events.write(Event.LOGIN, client)
        return True

    def fail(
        self,
        client: ClientConnection,
        name: str,
        reason: LoginFailure,
        text: str = FAILED_TEXT,
        code: Code = Code.DENIED,
    ) -> None:
        """Send the reason after FAILED_S, and end the connection then. Until then nothing of it is read."""
        client.barred = True
        client.hold_up()
        self._services.metrics.login_failures.add(reason.value)
        self._failed.append((self._services.now_s + FAILED_S, client, code, text))
        tried = {"user": name[:NAME_CHARACTERS_MAX], "reason": reason.value}
        self._services.events.write(Event.LOGIN_FAILED, client, **tried)

    def tick(self) -> None:
        """From the quick timer: answer those whose time has come."""
        while self._failed and self._failed[0][0] <= self._services.now_s:
            _due_s, client, code, text = self._failed.popleft()
            if not client.closed:
                client.barred = False
                client.end_with(code, text, is_logged=True)
                client.go_on()


def _token_mark(user: User, token: str) -> bytes | None:
    """What marks the user's token that this is; None if it is not one of them."""
    shown = hashlib.sha256(token.encode()).digest()
    return next((known[:MARK_BYTES] for known in user.token_hashes if hmac.compare_digest(known, shown)), None)
