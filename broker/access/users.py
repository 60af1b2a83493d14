"""The users of a node, from the file of users. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.rules import ANONYMOUS
from tailrace.protocol.scram import ScramVerifier

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}")
"""The name of a user or of a group."""
MARK_BYTES: Final = 8
PRODUCER_PREFIX_BYTES: Final = 8
NAME_RULE: Final = "1 to 64 letters, digits and . _ @ -, and begins with a letter, a digit or _"


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Bounds over all connections of a user; 0: none but those of every connection."""

    max_connections: int = 0
    max_streams: int = 0
    max_consumers: int = 0
    max_handles: int = 0
    max_sessions: int = 0
    max_will_bytes: int = 0
    bytes_in_per_s: int = 0


NO_LIMITS: Final = UserLimits()


def may_hold(held: int, total: int, bound: int, limit: int) -> bool:
    """Whether one holder may have `held` of a pool of which all holders have `total` then. `limit`: its own; without
    one, 0, it may have no more than is left for others, so that a newcomer finds room however much one of them wants.
    """
    return total <= bound and held <= (limit or bound - total)


@dataclass(frozen=True, slots=True)
class User:
    """`scram`, `token_hashes` (SHA-256), `certificates` (subjects or alternative names): each is a way to log in.

    `addresses`: HOST:PORT where nodes with this user listen, beside the address that they connect from.
    """

    name: str
    groups: frozenset[str] = frozenset()
    scram: ScramVerifier | None = field(default=None, repr=False)
    token_hashes: tuple[bytes, ...] = field(default=(), repr=False)
    certificates: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    limits: UserLimits = NO_LIMITS

    def credentials(self, proof: Proof) -> list[bytes]:
        """A mark of each secret or certificate by which the user can log in in this way."""
        if proof is Proof.CERTIFICATE:
            return [name.encode() for name in self.certificates]
        marks = [] if self.scram is None else [self.scram.stored_key[:MARK_BYTES]]
        if proof is Proof.BEARER:
            marks += [each[:MARK_BYTES] for each in self.token_hashes]
        return marks if proof in (Proof.SCRAM, Proof.BEARER) else []


def name_valid(name: str) -> bool:
    """Whether a user or a group may have this name."""
    return NAME.fullmatch(name) is not None and name != ANONYMOUS


@lru_cache(1_024)
def producer_prefix(name: str) -> bytes:
    """What the ids of a user's producers begin with, on every node; "": of those who have not logged in.

    So a producer belongs to one user without anything that would have to be kept, or passed between nodes.
    """
    return hashlib.sha256(b"tailrace producer\0" + name.encode()).digest()[:PRODUCER_PREFIX_BYTES]


def user_of_certificate(users: tuple[User, ...], names: tuple[str, ...]) -> User | None:
    """The user whose certificate has one of these names: its subject as RFC 4514 text, or alternative names."""
    return next((user for user in users if any(name in user.certificates for name in names)), None)
