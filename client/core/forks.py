"""Clients in a forked child: they stay the parent's.

A child shares its parent's sockets, and has a copy of the unanswered publishes with their numbers. The broker would
take its bytes for its parent's, and its parent's next messages for repeats of them. So in the child every client is
severed: its descriptors are closed there, without a byte on the wire, and its next use raises ClientClosed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from tailrace.errors import ClientClosed

TEXT = "this client was made before a fork and stays with the parent process; connect again in the child"


class Severable(Protocol):
    """Clients to sever in a child. A thread that the child does not have may have been using one."""

    def sever(self) -> None:
        """Called in the child, right after the fork. Must not raise, wait, or send anything."""


_watched: WeakSet[Severable] = WeakSet()


def watch(what: Severable) -> None:
    """Have it severed in every child from now on, for as long as it exists."""
    _watched.add(what)


class Severed:
    """Takes the place of what a client works with; every use raises ClientClosed."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise ClientClosed(TEXT)

    def __enter__(self) -> NoReturn:
        raise ClientClosed(TEXT)

    def __exit__(self, *_error: object) -> None:
        """Nothing was entered."""


SEVERED: Any = Severed()


def close_copies(descriptors: Iterable[int]) -> None:
    """Close the child's copies. The numbers stay taken, so that an object which still closes its own closes nothing
    else: they are of /dev/null from here on.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        if descriptor >= 0:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _sever_all() -> None:
    for each in list(_watched):
        each.sever()


os.register_at_fork(after_in_child=_sever_all)
