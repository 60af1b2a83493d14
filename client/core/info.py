"""Facts about the connection, for both shells' clients."""

from __future__ import annotations

from tailrace.core.connector import ConnectionPhase
from tailrace.core.session import Session
from tailrace.errors import TailraceError


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
        return self._session.options.timeout_s if timeout_s is None else timeout_s
