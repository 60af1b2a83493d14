"""What each address and each user takes: connections, new ones a second, streams made, handles, bytes a second.

One account per address and one per user, in each worker; an IPv6 address stands for its network of 64 bits, since one
host can use all of them. A connection that has logged in counts in both accounts. The number of connections is counted
over all workers (`AddressCells`), the rest by each worker for itself.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from tailrace.broker.access.identity import Identity
from tailrace.broker.access.users import NO_LIMITS, User
from tailrace.broker.connection.token_bucket import TokenBucket
from tailrace.broker.process.scoreboard import AddressCells
from tailrace.broker.process.setting_specs import HOUR_S
from tailrace.broker.process.settings import Settings

IDLE_MAX: Final = 16_384
"""Accounts without a connection that are kept, so that connecting again gives no new allowance."""
IDLE_S: Final = float(HOUR_S)
"""How long such an account is kept."""
BURST_S: Final = 2.0
"""Seconds of a rate that may come at once."""


_USER_PREFIX = "user "  # of the key of a user's account; no address has a blank


class AccountLimits(NamedTuple):
    """Bounds of one account; 0: no bound. `holder`: the kind of account, for texts."""

    holder: str
    connections: int
    streams_per_h: int
    consumers_per_h: int
    handles: int
    bytes_in_per_s: int
    accepts_per_s: int = 0
    will_bytes: int = 0


class Account:
    """One address, or one user. `received`, `streams`, `consumers`, `accepts`: None if it has no bound.

    `alone`: the accounts of a connection that has no other one.
    """

    __slots__ = (
        "accepts",
        "alone",
        "connections",
        "consumers",
        "handles",
        "key",
        "limits",
        "received",
        "streams",
        "will_bytes",
    )

    def __init__(self, key: str, limits: AccountLimits, now_s: float) -> None:
        self.key = key
        self.limits = limits
        self.alone = (self,)
        self.connections = 0  # of this worker
        self.handles = self.will_bytes = 0
        self.accepts = _bucket(limits.accepts_per_s, now_s)
        self.received = _bucket(limits.bytes_in_per_s, now_s)
        self.streams = _hourly(limits.streams_per_h, now_s)
        self.consumers = _hourly(limits.consumers_per_h, now_s)

    def connections_refusal(self) -> str:
        limits = self.limits
        return f"{self.key} has {limits.connections} connections, which is the limit of one {limits.holder}"

    def handles_refusal(self) -> str:
        """Why there may not be one more handle; empty if there may."""
        limits = self.limits
        if 0 < limits.handles <= self.handles:
            return f"{self.key} has {limits.handles} handles here, the limit of one {limits.holder}"
        return ""

    def streams_refusal(self, now_s: float) -> str:
        """Why no stream may be made now; empty if one may."""
        return self._hourly_refusal(self.streams, "streams", now_s)

    def consumers_refusal(self, now_s: float) -> str:
        """Why no durable consumer may be made now; empty if one may."""
        return self._hourly_refusal(self.consumers, "consumers", now_s)

    def _hourly_refusal(self, bucket: TokenBucket | None, what: str, now_s: float) -> str:
        if bucket is None or bucket.level(now_s) >= 1:
            return ""
        return f"{self.key} has made {bucket.burst:.0f} {what} in an hour, the limit of one {self.limits.holder}"


UNBOUNDED: Final = AccountLimits("user", 0, 0, 0, 0, 0)


def _limits_of_addresses(settings: Settings) -> AccountLimits:
    return AccountLimits(
        "address",
        settings.max_address_connections,
        settings.max_address_streams,
        settings.max_address_consumers,
        settings.max_address_handles,
        settings.max_address_rate_bytes,
        settings.max_address_accepts,
    )


def _limits_of_user(user: User) -> AccountLimits:
    limits = user.limits
    if limits == NO_LIMITS:
        return UNBOUNDED
    return AccountLimits(
        "user",
        limits.max_connections,
        limits.max_streams,
        limits.max_consumers,
        limits.max_handles,
        limits.bytes_in_per_s,
        will_bytes=limits.max_will_bytes,
    )


def _bucket(rate: float, now_s: float) -> TokenBucket | None:
    return TokenBucket(rate, rate * BURST_S, now_s) if rate else None


def _hourly(count: int, now_s: float) -> TokenBucket | None:
    return TokenBucket(count / HOUR_S, count, now_s) if count else None


class AccountBook:
    """The accounts of one worker."""

    def __init__(self, settings: Settings, cells: AddressCells) -> None:
        self._users = {user.name: _limits_of_user(user) for user in settings.users or ()}
        self._address_limits = _limits_of_addresses(settings)
        self._cells = cells
        self._accounts: dict[str, Account] = {}
        self._of_users: dict[str, Account] = {}  # those of the same that are users', by name
        self._idle: dict[str, float] = {}  # since when, the longest first

    def of(self, peer: str, now_s: float) -> Account:
        """The account of a peer, given as HOST:PORT."""
        return self._of(account_key(peer), self._address_limits, now_s)

    def of_user(self, name: str, now_s: float) -> Account:
        """The account of a user, who need not be in the file of users any more."""
        account = self._of_users.get(name)
        if account is None:
            account = self._of_users[name] = self._of(_USER_PREFIX + name, self._users.get(name, UNBOUNDED), now_s)
        return account

    def connections_by_user(self) -> dict[str, int]:
        """How many connections of this worker each user has."""
        return {name: account.connections for name, account in self._of_users.items() if account.connections}

    def all_of(self, account: Account, identity: Identity, now_s: float) -> tuple[Account, ...]:
        """Those of a connection from this account's address."""
        return (account, self.of_user(identity.user, now_s)) if identity.user else account.alone

    def _of(self, key: str, limits: AccountLimits, now_s: float) -> Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, limits, now_s)
            self._set_idle(account, now_s)
        return account

    def opened(self, account: Account) -> None:
        account.connections += 1
        self._cells.add(account.key, 1)
        self._idle.pop(account.key, None)

    def closed(self, account: Account, now_s: float) -> None:
        account.connections -= 1
        self._cells.add(account.key, -1)
        if not account.connections:
            self._set_idle(account, now_s)

    def moved(self, before: tuple[Account, ...], after: tuple[Account, ...], now_s: float) -> None:
        """A connection counts in other accounts than before."""
        for account in after:
            if account not in before:
                self.opened(account)
        for account in before:
            if account not in after:
                self.closed(account, now_s)

    def is_full(self, account: Account) -> bool:
        """Whether the account has all the connections that it may have, over all workers. Rarely too early, never too
        late.
        """
        return 0 < account.limits.connections <= self._cells.total(account.key)

    def use_cells(self, cells: AddressCells) -> None:
        """Count in other cells from now on."""
        self._cells = cells
        cells.clear()
        for account in self._accounts.values():
            if account.connections:
                cells.add(account.key, account.connections)

    def tick(self, now_s: float) -> None:
        """Forget those that have been idle for long."""
        while self._idle:
            key = next(iter(self._idle))
            if self._idle[key] > now_s - IDLE_S:
                return
            self._forget(key)

    def _set_idle(self, account: Account, now_s: float) -> None:
        self._idle[account.key] = now_s
        if len(self._idle) > IDLE_MAX:
            self._forget(next(iter(self._idle)))

    def _forget(self, key: str) -> None:
        del self._idle[key]
        del self._accounts[key]
        if key.startswith(_USER_PREFIX):
            del self._of_users[key.removeprefix(_USER_PREFIX)]


def host_of(peer: str) -> str:
    """The host in HOST:PORT, without the brackets of an IPv6 address."""
    return peer.rpartition(":")[0].strip("[]")


def account_key(peer: str) -> str:
    """What the account of a peer goes by: its IPv4 address, the /64 of its IPv6 address, or the host as it stands."""
    host = host_of(peer)
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
