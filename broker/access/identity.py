"""Who a connection is, and how that was proven. Connections that are nobody in particular share one value."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

from tailrace.shard.replacing import replaceable


class Proof(StrEnum):
    """How a connection has shown who it is."""

    ANONYMOUS = "anonymous"
    LOOPBACK = "loopback"  # it comes from this machine, which proves nothing about the user
    SOCKET = "socket"  # it came by the unix socket of administration, whose mode decides who may open it
    TOKEN = "token"  # it knows the [listen] token
    PEER = "peer"  # a node: at an address in [replication] peers
    PEER_TOKEN = "peer-token"  # a node: it knows the [replication] token
    BEARER = "bearer"
    SCRAM = "scram"
    CERTIFICATE = "certificate"


class LoginFailure(StrEnum):
    """The reason of a failed login, for metrics and the log. The peer gets the same text for the first four."""

    USER = "user"  # no such user
    SECRET = "secret"
    CERTIFICATE = "certificate"
    EXCHANGE = "exchange"  # messages of SCRAM that are not right
    MECHANISM = "mechanism"
    INSECURE = "insecure"
    OVERLOADED = "overloaded"
    LIMIT = "limit"  # the user has as many connections as it may have


STRONG: Final = frozenset({Proof.SCRAM, Proof.CERTIFICATE})
"""Proofs that cannot be copied from the wire: what the right `node` needs while users are configured."""


@replaceable
class Identity(NamedTuple):
    """`user` and `groups`: empty unless it logged in. `local`: it comes from this machine, or from its unix socket.

    `uid`: of the process at the other end of a unix socket, -1 if unknown. `credential`: a mark of the credential that
    was shown (`User.credentials`), by which a worker sees whether it is still valid.
    """

    user: str = ""
    groups: frozenset[str] = frozenset()
    proof: Proof = Proof.ANONYMOUS
    local: bool = False
    uid: int = -1
    credential: bytes = b""

    def __str__(self) -> str:
        """For log lines: who, and how proven."""
        who = f"user={self.user}" if self.user else "user=-"
        return f"{who} proof={self.proof}{'' if self.uid < 0 else f' uid={self.uid}'}"

    def export_state(self) -> list[Any]:
        """For another worker, which finds the groups in its own configuration (`AccessPolicy.restore`)."""
        return [self.user, self.proof.value, self.local, self.uid, self.credential]


REMOTE: Final = Identity()
LOCAL: Final = Identity(proof=Proof.LOOPBACK, local=True)


def unix_peer(uid: int) -> Identity:
    """A connection by the unix socket of administration."""
    return Identity(proof=Proof.SOCKET, local=True, uid=uid)
