"""How a client logs in: what its HELLO says, and SCRAM's exchange. Keys derived from a password are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tailrace.core.options import ClientOptions
from tailrace.errors import BrokerFault
from tailrace.protocol import messages as m

if TYPE_CHECKING:
    from tailrace.protocol.scram import ScramClient, ScramKeys

KEYS_KEPT: Final = 8


class Login:
    """One login, for one connection."""

    __slots__ = ("_scram",)

    def __init__(self, options: ClientOptions) -> None:
        self._scram: ScramClient | None = None
        if options.user is not None and options.password is not None:
            from tailrace.protocol.scram import ScramClient  # here: it loads OpenSSL

            self._scram = ScramClient(options.user, options.password, _keys())

    def hello(self, hello: m.Hello, options: ClientOptions) -> m.Hello:
        """The HELLO with what this login begins with."""
        if self._scram is not None:
            login = self._scram.first()
            return replace(hello, token=None, mechanism="SCRAM-SHA-256", user=options.user, login=login)
        if options.user is not None and options.token is not None:
            login = options.token.encode()
            return replace(hello, token=None, mechanism=m.BEARER, user=options.user, login=login)
        return hello

    def answer(self, challenge: bytes) -> m.Prove:
        """Raises BrokerFault."""
        if self._scram is None:
            raise BrokerFault("the broker sent CHALLENGE, and no login with a password is under way")
        try:
            return m.Prove(self._scram.answer(challenge))
        except ValueError as error:
            raise BrokerFault(f"the login failed: {error}") from None

    def check(self, proof: bytes | None) -> None:
        """The broker has proven that it knows the user too. Raises BrokerFault if not."""
        if self._scram is None:
            return
        try:
            self._scram.check(proof or b"")
        except ValueError as error:
            raise BrokerFault(f"the login failed: {error}") from None


@lru_cache(maxsize=1)
def _keys() -> Callable[[str, bytes, int], ScramKeys]:
    """Derives keys; those of the latest passwords are remembered, so that a new connection costs nothing."""
    from tailrace.protocol.scram import derive_keys

    return lru_cache(maxsize=KEYS_KEPT)(derive_keys)
