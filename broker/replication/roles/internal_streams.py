"""The companions of a stream X, `$cursor/X` and `X/$dead`: a node's role for them follows from its role for X.

A companion has terms of its own, and its .meta holds them and nothing else. Its role and its upstream are X's, at every
moment: so no command and no crash leaves a node that hands out the messages of a stream whose consumers it does not
know, and a claim of X is one of its companions too. A term of X is never later than the companion's, so that one that
is made on a new master is not taken for one of an earlier master.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tailrace.shard.meta import Role, StreamMeta, Upstream
from tailrace.shard.names import base_of, is_session_log


class InternalStreams:
    """Those that an owner has, by their streams."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[bytes, list[bytes]] = {}

    def note(self, names: Iterable[bytes]) -> None:
        """These streams are there now; those that are not companions are passed over."""
        for name in names:
            if is_companion(name):
                self._of.setdefault(base_of(name), []).append(name)

    def drop(self, name: bytes) -> None:
        """A stream is gone, and so are its companions."""
        self._of.pop(name, None)

    def of(self, name: bytes) -> tuple[bytes, ...]:
        """The companions that a stream has; one of them has none."""
        return tuple(self._of.get(name, ()))


def is_companion(name: bytes) -> bool:
    return base_of(name) != name


def copied_from(name: bytes, upstream: Upstream) -> Upstream:
    """The upstream of a stream by a command or rule. A log of sessions is of use from its beginning only."""
    return upstream._replace(kind="seq", value=0) if is_session_log(name) else upstream


def with_role_of(base: StreamMeta, own: StreamMeta) -> StreamMeta:
    """What a companion is on this node: as its stream, in its own term. Its copy begins at the beginning."""
    upstream = base.upstream if base.role is Role.SLAVE else None
    return replace(
        own,
        role=base.role,
        upstream=upstream and upstream._replace(kind="seq", value=0),
        epoch=max(own.epoch, base.epoch) if base.role is Role.MASTER else own.epoch,
    )


def own_part(meta: StreamMeta) -> StreamMeta:
    """The part of a companion's metadata that is written to the disk."""
    return replace(meta, role=Role.MASTER, upstream=None, contacts=(), term_master="")
