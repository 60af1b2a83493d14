"""Accounts of addresses: connections that share one, counts over all workers, and the part kept after the last
connection.
"""

from __future__ import annotations

import pytest

from tailrace.broker.connection import accounts
from tailrace.broker.connection.accounts import AccountBook, account_key
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("192.0.2.1:5050", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:5050", "192.0.2.1"),
        ("[2001:db8:0:1:2::3]:1", "2001:db8:0:1::"),
        ("[2001:db8:0:1:9::9]:1", "2001:db8:0:1::"),
        ("[fe80::1%eth0]:1", "fe80::"),
        ("unix/1000:4711", "unix/1000"),
        ("peer:1", "peer"),
    ],
)
def test_what_shares_an_account(peer: str, key: str) -> None:
    assert account_key(peer) == key


def test_connections_are_counted_over_all_workers() -> None:
    board = Board(2)
    three = Settings(max_address_connections=3)
    one, two = (AccountBook(three, board.address_cells(slot)) for slot in range(2))
    here, there = one.of("192.0.2.1:1", 0.0), two.of("192.0.2.1:2", 0.0)
    one.opened(here)
    two.opened(there)
    two.opened(there)
    assert one.is_full(here) and two.is_full(there)
    assert not one.is_full(one.of("192.0.2.2:1", 0.0))
    two.use_cells(board.address_cells(None))
    assert one.is_full(here), "the cells of a slot are its next owner's to clear"
    again = AccountBook(Settings(), board.address_cells(None))
    again.use_cells(board.address_cells(1))
    assert not one.is_full(here)
    one.opened(here)
    one.opened(here)
    assert one.is_full(here)


def test_an_allowance_outlives_the_connection_for_a_while() -> None:
    book = AccountBook(Settings(max_address_streams=5), Board(1).address_cells(0))
    account = book.of("192.0.2.1:1", 0.0)
    assert account.streams is not None
    account.streams.take(5, 0.0)
    book.opened(account)
    book.tick(2 * accounts.IDLE_S)
    book.closed(account, 10.0)
    book.tick(10.0)
    assert book.of("192.0.2.1:2", 10.0) is account
    book.tick(11.0 + accounts.IDLE_S)
    assert book.of("192.0.2.1:2", 10.0) is not account


def test_accounts_without_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "IDLE_MAX", 3)
    book = AccountBook(Settings(), Board(1).address_cells(0))
    first = book.of("192.0.2.1:1", 0.0)
    for number in range(2, 5):
        book.of(f"192.0.2.{number}:1", 0.0)
    assert book.of("192.0.2.1:1", 0.0) is not first
