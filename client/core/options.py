"""The options of a client, and their bounds."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, fields

from tailrace.errors import InvalidArgument

WINDOW_BYTES = 4 << 20
"""Of a subscription's messages that the broker may send ahead of who reads them."""
CONSUMER_BATCH = 100
"""The most messages that a durable consumer is asked for at once."""
CONSUMER_LINGER_S = 0.1
"""How long what was finished waits for the next request before it has one of its own."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Times in seconds. All of them are more than 0; `math.inf` waits for ever.

    token: the secret that the broker requires; timeout_s: for the answer to anything; connect_timeout_s: for one
    attempt to connect, greeting included; reconnect_s: how long to try to reconnect; heartbeat_s: of silence before a
    PING while nothing is asked; silence_s: after which the connection is given up while an answer is owed;
    max_in_flight, max_in_flight_bytes: publishes that wait for their answers, beyond which publishing waits;
    random_order: begin with any of the addresses, not with the first; idempotent: number publishes, so that a retry is
    logged once; tls: True for TLS to all addresses, or the context for it, also of those that begin with tails://;
    user: who logs in, with `password`, which is not sent, or with `token`, which is a token of that user then.
    """

    token: str | None = None
    timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    reconnect_s: float = 120.0
    heartbeat_s: float = 30.0
    max_in_flight: int = 1_024
    max_in_flight_bytes: int = 16 << 20
    random_order: bool = False
    idempotent: bool = True
    silence_s: float = 5.0
    tls: ssl.SSLContext | bool | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.password is not None and (self.user is None or self.token is not None):
            raise InvalidArgument("a password goes with a user, and without a token")
        if not isinstance(self.tls, ssl.SSLContext | bool | None):
            raise InvalidArgument(f"tls is {self.tls!r}; it is True, or an ssl.SSLContext such as tls_context() makes")
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("token", "random_order", "idempotent", "tls", "user", "password"):
                check_positive(each.name, value)


def check_positive(name: str, value: object) -> None:
    """Raises InvalidArgument unless an argument is a number more than 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidArgument(f"{name} is {value!r}; it is a number more than 0")
