"""The nodes that must learn of a stream's latest term: former upstreams, and the peers in the configuration. Pure.

They stay in the stream's .meta together with the latest term that each has confirmed, in every later role of the stream
here. A node claims the stream from each of them until it confirms; if a later term begins, from all of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from tailrace.shard.epochs import History
from tailrace.shard.meta import Contact, Role, StreamMeta, Upstream

CONTACTS_MAX: Final = 32
"""Contacts of one stream; beyond it those are dropped that were not upstreams, and then the oldest."""


def outstanding(meta: StreamMeta, epoch: int) -> Iterator[Contact]:
    """The nodes that have not confirmed term `epoch`. The current upstream learns of it by being followed."""
    upstream = meta.upstream
    if meta.role is Role.MASTER and upstream is not None:
        yield Contact(upstream.host, upstream.port)
    if meta.role is not Role.DISABLED:
        for contact in meta.contacts:
            if contact.epoch < epoch and (upstream is None or contact[:2] != upstream[:2]):
                yield contact


def with_former(meta: StreamMeta, upstream: Upstream | None) -> StreamMeta:
    """The meta of a stream that is about to leave its upstream for `upstream`."""
    former = meta.upstream
    if former is None or (upstream is not None and former[:2] == upstream[:2]):
        return meta
    return with_contacts(meta, [Contact(former.host, former.port)])


def with_contacts(meta: StreamMeta, more: Iterable[Contact]) -> StreamMeta:
    """The meta with these contacts, too. Of a node that is known already the one with `was_above` counts."""
    found = {contact[:2]: contact for contact in meta.contacts}
    for contact in more:
        known = found.get(contact[:2])
        if known is None or (contact.was_above and not known.was_above):
            found.pop(contact[:2], None)
            found[contact[:2]] = contact
    contacts = sorted(found.values(), key=lambda contact: contact.was_above)[-CONTACTS_MAX:]
    return meta if tuple(contacts) == meta.contacts else replace(meta, contacts=tuple(contacts))


def confirmed(meta: StreamMeta, nodes: Iterable[tuple[str, int]], epoch: int) -> StreamMeta:
    """The meta once these nodes know of term `epoch`."""
    told = set(nodes)
    contacts = tuple(
        [
            contact._replace(epoch=max(contact.epoch, epoch)) if contact[:2] in told else contact
            for contact in meta.contacts
        ]
    )
    upstream = meta.upstream
    if upstream is not None and meta.role is Role.MASTER and upstream[:2] in told:
        meta = with_contacts(replace(meta, contacts=contacts), [Contact(upstream.host, upstream.port, epoch)])
        return replace(meta, upstream=None)
    return replace(meta, contacts=contacts)


def unconfirmed(meta: StreamMeta) -> StreamMeta:
    """The meta once the term has another master than the contacts confirmed."""
    return replace(meta, contacts=tuple([contact._replace(epoch=0) for contact in meta.contacts]))


def are_related(mine: History, theirs: History) -> bool:
    """Whether two histories may be of one stream: unless each epoch that both know had different masters."""
    masters = {start.epoch: start.master for start in theirs}
    shared = [(start.master, masters[start.epoch]) for start in mine if start.epoch in masters]
    return not shared or any(one == other or not one or not other for one, other in shared)
