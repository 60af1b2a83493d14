"""How replication stands on this node: the answer to ASK, gathered from all workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tailrace.broker.process.lease import LeasePage
from tailrace.broker.replication.status import links
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.streams.owner import Refused
from tailrace.protocol.replication import ENDS_MAX, Ask, CopyEnd, Told


class NodeStatus:
    """Answers ASK, for other nodes and for the checks of this one."""

    def __init__(self, calls: WorkerCalls, slots: int, node_id: str, address: str, lease: LeasePage) -> None:
        self._calls = calls
        self._slots = slots
        self._node_id = node_id
        self._address = address
        self._lease = lease

    def gather(self, ask: Ask, done: Callable[[Told | Refused], None], asker: Sequence[Any] = ()) -> None:
        """Ask every worker; one that is down makes the outcome an error, not a status that lacks something. asker: the
        identity of one who may not know of all streams, as exported.

        An ASK for the ends of streams by `streams` gathers nothing else, and one for a promise nothing at all.
        """
        if ask.promise is not None:
            term, length_ms = ask.promise
            promised = self._lease.promise(term, length_ms * 1_000_000, ask.group)
            done(Told(ask.id, self._node_id, self._address, (), 0, 0, 0, promised=promised))
            return
        calls = self._calls_for(ask, asker)
        links_parts: list[Any] = []
        ends: list[CopyEnd] = []
        failed: list[Refused] = []
        missing = len(calls)

        def take(verb: str, value: Any) -> None:
            nonlocal missing
            missing -= 1
            if isinstance(value, Refused):
                failed.append(value)
            elif verb == "ends":
                ends.extend(CopyEnd(*row) for row in value)
            else:
                links_parts.append(value)
            if not missing:
                done(failed[0] if failed else self._told(ask, links_parts, ends))

        for slot, verb, args in calls:
            self._calls.call_slot(slot, verb, args, partial(take, verb))

    def _calls_for(self, ask: Ask, asker: Sequence[Any]) -> list[tuple[int, str, list[Any]]]:
        """Slot, verb and arguments of each call that an ASK needs."""
        wanted: dict[int, list[bytes]] = {}
        for name in ask.streams or (() if ask.stream is None else (ask.stream,)):
            wanted.setdefault(self._calls.router.slot_of(name), []).append(name)
        calls: list[tuple[int, str, list[Any]]] = [(slot, "ends", [names]) for slot, names in wanted.items()]
        if not ask.streams:
            calls += [(slot, "links", [ask.stream, *([list(asker)] if asker else ())]) for slot in range(self._slots)]
        return calls

    def _told(self, ask: Ask, links_parts: list[Any], ends: list[CopyEnd]) -> Told:
        found, counts = links.together(links_parts)
        masters, slaves, disabled, turned = counts
        shown = tuple(ends[:ENDS_MAX])
        return Told(ask.id, self._node_id, self._address, tuple(found), masters, slaves, disabled, shown, turned)
