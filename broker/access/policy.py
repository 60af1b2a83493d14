"""The decision `may`: the rights of a connection on this node. Pure.

Without a file of users: connections from this machine may do everything, others what the [listen] token and
[replication] let them. With users the rules decide, and the address of a connection counts for nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tailrace.broker.access.identity import LOCAL, REMOTE, STRONG, Identity, Proof
from tailrace.broker.access.renewal import NO_TERMS, PolicyChange, PolicyTerms, terms_of
from tailrace.broker.access.rules import Right, decide, decide_prefix, denies_some
from tailrace.broker.access.users import User, user_of_certificate
from tailrace.broker.replication.roles.peers import Peers
from tailrace.broker.topics.rules import TopicRules
from tailrace.shard.names import base_of, base_of_prefix

if TYPE_CHECKING:
    from tailrace.broker.process.settings import Settings

DECISIONS_KEPT: Final = 65_536
"""Answers of `may` that are remembered, of all connections of a worker."""
_OF_WHOLE_STREAMS: Final = frozenset({Right.PUBLISH, Right.SUBSCRIBE, Right.CONSUME, Right.ADMIN, Right.NODE})
"""Rights that, given for a stream, are for all of its topics."""
_BY_NODES = frozenset({Proof.PEER, Proof.PEER_TOKEN})


class AccessPolicy:
    """`has_users`: whether connections must log in. `may`: see `_decide`."""

    def __init__(
        self,
        users: Sequence[User] | None = None,
        terms: PolicyTerms = NO_TERMS,
        *,
        topics: TopicRules | None = None,
    ) -> None:
        """topics: the places of names in streams."""
        self.secret = _secret_of(users or ())
        """Known to all workers of this node, and to nobody else."""
        self._topics = topics or TopicRules()
        self._go_by({user.name: user for user in users or ()}, terms, has_users=users is not None)

    def _go_by(self, users: Mapping[str, User], terms: PolicyTerms, *, has_users: bool) -> None:
        self.users = users
        self.has_users = has_users
        self.verifiers = tuple([user.scram for user in users.values() if user.scram is not None])
        self._rules = terms.rules
        self._token = terms.token
        self._replication_token = terms.replication_token
        self._peers = Peers(terms.peers)
        self._allow_anonymous = terms.allow_anonymous
        self._trusts_loopback = terms.trusts_loopback or has_users  # with users it only means that nobody listens in
        self.may = lru_cache(DECISIONS_KEPT)(self._decide)

    def renew(self, change: PolicyChange) -> None:
        """Go by another configuration from now on."""
        users = {name: user for name, user in self.users.items() if name not in change.removed}
        users.update((user.name, user) for user in change.changed)
        self._go_by(users, change.terms, has_users=change.has_users)

    # --- who it is --------------------------------------------------------------------------------------------------

    def arrived(self, *, local: bool) -> Identity:
        """A connection that has sent nothing yet."""
        return LOCAL if local and self._trusts_loopback else REMOTE

    def logged_in(self, identity: Identity, name: str, proof: Proof, credential: bytes) -> Identity:
        """The same connection, once it has proven that it is this user; by what (`User.credentials`)."""
        user = self.users.get(name)  # it may have been removed since its secret was looked at
        groups = frozenset[str]() if user is None else user.groups
        return identity._replace(user=name, groups=groups, proof=proof, credential=credential)

    def certified(self, identity: Identity, names: tuple[str, ...]) -> Identity:
        """The same connection with a verified certificate of these names: its user's, if it is one's."""
        user = user_of_certificate(tuple(self.users.values()), names)
        if user is None:
            return identity
        shown = next(name for name in names if name in user.certificates)
        return self.logged_in(identity, user.name, Proof.CERTIFICATE, shown.encode())

    def greeted(self, identity: Identity, token: str | None) -> Identity:
        """The same connection after a HELLO without a login, with the [listen] token that it shows, if any."""
        if not self.has_users and not identity.local and self._token and _same(self._token, token):
            return identity._replace(proof=Proof.TOKEN)
        return identity

    def greeted_by_node(self, identity: Identity, host: str, peer_token: str | None) -> Identity:
        """The same, after a HELLO of somebody who speaks as nodes do, at this IP address."""
        if self.has_users:
            return identity
        if self._replication_token and _same(self._replication_token, peer_token):
            return identity._replace(proof=Proof.PEER_TOKEN)
        return identity._replace(proof=Proof.PEER) if self._peers.admit(host) else identity

    def is_token_wrong(self, identity: Identity, token: str | None) -> bool:
        """Whether the [listen] token that a connection has shown, if any, is not this node's. Without effect on
        connections that need none.
        """
        return token is not None and not self.has_users and not self.admits(identity)

    def is_peer_token_wrong(self, identity: Identity, peer_token: str | None) -> bool:
        """As `is_token_wrong`, of the [replication] token."""
        asked = bool(self._replication_token) and not self.has_users
        return peer_token is not None and asked and not self.is_node(identity)

    def restore(self, state: list[Any]) -> Identity | None:
        """The identity that another worker exported; None if its user is no more, or cannot log in so any more."""
        name, word, local, uid, credential = state
        proof = Proof(word)
        if not name:
            shared = self.arrived(local=local)
            return shared if shared.proof is proof else Identity(proof=proof, local=local, uid=uid)
        found = self.logged_in(Identity(local=local, uid=uid), name, proof, credential)
        return None if self.is_revoked(found) else found

    def renewed(self, identity: Identity) -> Identity | None:
        """What `restore` makes of it."""
        return self.restore(identity.export_state())

    def named(self, user: str) -> Identity | None:
        """The identity of a user without a connection, for something that was asked for before; None if the user
        was removed. "": of a connection without a login.
        """
        if not self.has_users:
            return LOCAL
        if not user:
            return REMOTE if self._allow_anonymous else None
        found = self.users.get(user)
        return None if found is None else Identity(user, found.groups)

    def is_revoked(self, identity: Identity) -> bool:
        """Whether its user was removed, or cannot log in so any more."""
        if not identity.user:
            return False
        user = self.users.get(identity.user)
        return user is None or identity.credential not in user.credentials(identity.proof)

    # --- rights -----------------------------------------------------------------------------------------------------

    def admits(self, identity: Identity) -> bool:
        """Whether a connection may do anything here without a login, or has one."""
        if self.has_users:
            return bool(identity.user) or identity.proof is Proof.SOCKET or self._allow_anonymous
        return not self._token or identity.local or identity.proof is not Proof.ANONYMOUS

    def is_free(self, identity: Identity) -> bool:
        """Whether the connection may publish to, subscribe to, consume and create any stream: nothing is to be asked of
        `may` then.
        """
        return not self.has_users and self.admits(identity)

    def is_node(self, identity: Identity) -> bool:
        """Whether the connection may be another node's, with the right to some streams at least."""
        if not self.has_users:
            return identity.local or identity.proof in _BY_NODES
        return identity.proof in STRONG and any(
            rule.allow and rule.concerns(identity, Right.NODE) for rule in self._rules
        )

    def _decide(self, identity: Identity, right: Right, stream: bytes) -> bool:
        """`may(identity, right, stream)`; b"": for something about no stream, which takes the right to all of them.
        Companions follow their stream.

        Nobody has the right to a stream who is refused it for a name that lies there as a topic.
        """
        if not self.has_users:
            return self._without_users(identity, right)
        if identity.proof is Proof.SOCKET:
            return right is Right.ADMIN
        if right is Right.NODE and identity.proof not in STRONG:
            return False
        if not stream:
            return decide_prefix(self._rules, identity, right, "")
        base = base_of(stream)
        if not decide(self._rules, identity, right, base.decode()):
            return False
        beginnings = self._topics.prefixes_of(base) if right in _OF_WHOLE_STREAMS else ()
        return not any(denies_some(self._rules, identity, right, each.decode()) for each in beginnings)

    def may_all(self, identity: Identity, right: Right, prefix: bytes) -> bool:
        """Whether the right holds for every stream that begins so, or whose companions begin so."""
        if not self.has_users or identity.proof is Proof.SOCKET:
            return self._decide(identity, right, b"")
        if right is Right.NODE and identity.proof not in STRONG:
            return False
        return decide_prefix(self._rules, identity, right, base_of_prefix(prefix).decode())

    def _without_users(self, identity: Identity, right: Right) -> bool:
        if right is Right.ADMIN:
            return identity.local
        return self.is_node(identity) if right is Right.NODE else self.admits(identity)


def policy_of(settings: Settings, topics: TopicRules | None = None) -> AccessPolicy:
    return AccessPolicy(settings.users, terms_of(settings), topics=topics)


def _secret_of(users: Iterable[User]) -> bytes:
    """A digest of the first secret in the file of users: it stays the same while later users come and go."""
    secrets = ((user.scram and user.scram.stored_key, user.token_hashes) for user in users)
    return hashlib.sha256(repr(next(filter(any, secrets), "")).encode()).digest()


def _same(token: str, shown: str | None) -> bool:
    return shown is not None and hmac.compare_digest(token.encode(), shown.encode())
