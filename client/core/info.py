"""What clients, subscriptions and consumers of both shells have in common: facts, and checks of arguments."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tailrace.core.address import Address, parse_addresses
from tailrace.core.arguments import checked_stream
from tailrace.core.batch import Batches, BatchLimits
from tailrace.core.connector import ConnectionPhase
from tailrace.core.forks import watch
from tailrace.core.message import Message
from tailrace.core.options import ClientOptions
from tailrace.core.session import Session
from tailrace.core.subscription_state import Arrived, SubscriptionPhase, SubscriptionState
from tailrace.errors import InvalidArgument, TailraceError
from tailrace.protocol.messages import Ack

if TYPE_CHECKING:
    from tailrace.core.consumer_state import ConsumerState


def first_addresses(addresses: Iterable[str | Iterable[str]], options: ClientOptions) -> list[Address]:
    """The addresses in the order in which they are tried. Raises InvalidArgument."""
    found = list(parse_addresses(addresses))
    if options.random_order:
        random.shuffle(found)
    return found


class ClientInfo:
    """The part of a client that waits for nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def is_connected(self) -> bool:
        return self._session.phase is ConnectionPhase.READY and not self._session.is_severed

    @property
    def node(self) -> str:
        """The id of the node that this client is, or was last, connected to."""
        return "" if self._session.welcome is None else self._session.welcome.node

    @property
    def worker(self) -> int:
        """The slot of the node's worker that has the connection; -1 before the first."""
        return -1 if self._session.welcome is None else self._session.welcome.worker

    @property
    def software(self) -> str:
        """The broker's name and version."""
        return "" if self._session.welcome is None else self._session.welcome.software

    @property
    def limits(self) -> dict[str, int]:
        """The broker's limits, by name."""
        return dict(self._session.limits)

    @property
    def connections(self) -> int:
        """How many connections were made so far: one more than were lost and made again."""
        return self._session.connections

    @property
    def failure(self) -> TailraceError | None:
        """Why this client has given up; None while it has not."""
        return self._session.failure

    @property
    def refused(self) -> int:
        """Errors that came for publishes without acknowledgement (`Ack.NONE`)."""
        return self._session.publications.refused

    @property
    def last_refusal(self) -> TailraceError | None:
        """The latest of them."""
        return self._session.publications.last_refusal

    def __repr__(self) -> str:
        return f"<{type(self).__name__} node={self.node!r} {self._session.phase.name}>"

    def _timeout(self, timeout_s: float | None) -> float:
        """Raises InvalidArgument for one that is not a number: it would never be over."""
        if timeout_s is None:
            return self._session.options.timeout_s
        if timeout_s != timeout_s:
            raise InvalidArgument(f"timeout_s is {timeout_s}; it is a number of seconds")
        return timeout_s

    def _batches(
        self,
        stream: str,
        max_messages: int,
        max_bytes: int,
        linger_s: float,
        ack: Ack,
        replicas: int,
        timeout_s: float | None,
        retry: bool,
    ) -> Batches:
        """Raises InvalidArgument, InvalidStreamName."""
        limits = BatchLimits(max_messages, min(max_bytes, self._session.limits["max_envelope_bytes"] // 2), linger_s)
        return Batches(checked_stream(stream), limits, ack, self._timeout(timeout_s), retry, replicas)


class SubscriptionInfo:
    """The part of a subscription that waits for nothing."""

    def __init__(self, state: SubscriptionState) -> None:
        self._state = state
        self._rest: Iterator[Message] = iter(())
        self._given: Arrived | None = None  # where `_rest` comes from
        watch(self)

    @property
    def stream(self) -> str:
        return self._state.stream

    @property
    def start_seq(self) -> int:
        """The seq of the first message; -1 before the broker has answered."""
        return self._state.start_seq

    @property
    def is_over(self) -> bool:
        """Whether no messages come any more."""
        return self._state.phase is SubscriptionPhase.OVER

    @property
    def end_seq(self) -> int | None:
        """The seq before which it ends; None when it has no end."""
        return self._state.end_seq

    def sever(self) -> None:
        """In a forked child: the remaining messages are the parent's, also in the middle of an iteration."""
        deque(self._rest, maxlen=0)

    def __repr__(self) -> str:
        state = self._state
        return f"<{type(self).__name__} {state.stream!r} next_seq={state.next_seq} {state.phase.name}>"


class MemberInfo:
    """The part of a durable consumer's member that waits for nothing."""

    def __init__(self, state: ConsumerState, timeout_s: float) -> None:
        self._state = state
        self._timeout_s = timeout_s

    @property
    def stream(self) -> str:
        return self._state.options.stream

    @property
    def name(self) -> str:
        return self._state.options.name

    @property
    def member(self) -> str:
        """The name of this member among those of the consumer."""
        return self._state.options.member

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.stream!r} member={self.member!r}>"
