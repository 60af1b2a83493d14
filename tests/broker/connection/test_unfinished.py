"""Which unfinished requests give way."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.broker.connection.accounts import UNBOUNDED, Account
from tailrace.broker.connection.unfinished import holders_to_end


@dataclass
class Holding:
    name: str
    account: Account
    held_bytes: int


def test_the_oldest_of_the_address_that_holds_most_ends() -> None:
    greedy, modest = Account("192.0.2.1", UNBOUNDED, 0.0), Account("192.0.2.2", UNBOUNDED, 0.0)
    holders = [Holding("m", modest, 800), *(Holding(f"g{number}", greedy, 400) for number in range(4))]
    assert [each.name for each in holders_to_end(holders, 700)] == ["g0", "g1"]
    assert [each.name for each in holders_to_end(holders, 900)] == ["g0", "g1", "m"]
    assert holders_to_end(holders, 0) == []
    assert len(holders_to_end(holders, 1 << 30)) == 5
