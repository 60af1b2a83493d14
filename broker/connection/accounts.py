"""What each address takes: connections, new ones a second, streams made, handles, bytes a second.

One account per address, in each worker; an IPv6 address stands for its network of 64 bits, all of which one host can
use. The number of connections is counted over all workers (`AddressCells`), the rest by each worker for itself.
"""

from __future__ import annotations

import ipaddress
from typing import Final

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


class Account:
    """One address. `received` is None if bytes are not bounded."""

    __slots__ = ("accepts", "connections", "handles", "key", "received", "streams")

    def __init__(self, key: str, settings: Settings, now_s: float) -> None:
        self.key = key
        self.connections = 0  # of this worker
        self.handles = 0
        self.accepts = _bucket(settings.max_address_accepts, now_s)
        self.received = _bucket(settings.max_address_rate_bytes, now_s)
        hourly = settings.max_address_streams
        self.streams = TokenBucket(hourly / HOUR_S, hourly, now_s) if hourly else None


def _bucket(rate: float, now_s: float) -> TokenBucket | None:
    return TokenBucket(rate, rate * BURST_S, now_s) if rate else None


class AccountBook:
    """The accounts of one worker."""

    def __init__(self, settings: Settings, cells: AddressCells) -> None:
        self._settings = settings
        self._cells = cells
        self._accounts: dict[str, Account] = {}
        self._idle: dict[str, float] = {}  # since when, the longest first

    def of(self, peer: str, now_s: float) -> Account:
        """The account of a peer, given as HOST:PORT."""
        key = account_key(peer)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, self._settings, now_s)
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

    def connections(self, account: Account) -> int:
        """How many the address has in all workers. Rarely more than it really has, never less."""
        return self._cells.total(account.key)

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
