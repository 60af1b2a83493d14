"""What publishers without a connection have in common: they stay at their worker, and no limits of connections count.

Datagrams (`broker.udp.door`) and the messages of other nodes (`broker.sharing.shared`) are published by one each.
"""

from __future__ import annotations

from tailrace.broker.process.metrics import Traffic


class FixedPublisher:
    """A base of clients of the router, which counts no messages away from its worker: it could not follow them."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.window_slot = self.window_messages = 0

    def count_created(self) -> None:
        """The limits of connections do not count here."""

    @property
    def window_away(self) -> int:
        return 0

    @window_away.setter
    def window_away(self, _messages: int) -> None: ...
