"""A member of a durable consumer for tests: a session with a broker in memory, on a clock that a test moves."""

from __future__ import annotations

from typing import Any

from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerOptions
from tailrace.protocol import consuming as c
from tests.client.model_consumers import Groups
from tests.client.pair import Pair

STREAM, NAME = b"s", b"billing"


class Member:
    """One of the consumer `billing` of the stream `s`, over a connection of its own."""

    def __init__(self, groups: Groups, name: str = "me", addresses: int = 1, **options: Any) -> None:
        self.pair = Pair(groups.model, addresses).ready()
        self.groups = groups
        chosen = ConsumerOptions("s", "billing", name, **{"answer_s": 30.0, "patience_s": 60.0, **options})
        self.state = self.pair.session.consume(chosen, self.pair.now_s)
        self.state.settle = lambda message, reason, delay_s: self.state.record(
            message, reason, self.pair.now_s, delay_s
        )

    def take(self) -> ConsumedMessage | None:
        """The next message, if there is one now; asks the broker for more otherwise."""
        message = self.state.take(self.pair.now_s)
        for _ in range(2):  # the answer to the first may have only messages that are here
            if message is None:
                self.pair.run()
                message = self.state.take(self.pair.now_s)
                self.pair.run()
        return message

    def next(self) -> ConsumedMessage:
        message = self.take()
        assert message is not None
        return message

    def work(self, count: int) -> list[int]:
        """Takes and finishes `count` messages."""
        seqs = []
        for _ in range(count):
            message = self.next()
            seqs.append(message.seq)
            message.ack()
        return seqs

    def gets(self) -> list[c.Get]:
        """The messages it has sent since the last time, to this broker."""
        said, self.groups.gets = self.groups.gets, []
        return said
