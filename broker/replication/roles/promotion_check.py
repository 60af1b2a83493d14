"""Before a promotion: does a node of the tree that can be reached have more of a stream than this one?

The tree is walked as `tailrace tree` does: from the nodes that this one follows, that follow it, and that its
configuration lists, on to those that they name. A node that does not answer in time counts as gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.broker.replication.roles.peers import NodeAddress, is_loopback
from tailrace.broker.replication.roles.promises import PromiseRequests
from tailrace.broker.replication.status.answer import NodeStatus
from tailrace.broker.replication.upstream.inquiry import Inquiry, InquiryServices
from tailrace.broker.services import Services
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.protocol.address import join_address, split_address
from tailrace.protocol.errors import Code
from tailrace.protocol.names import shown_text
from tailrace.protocol.replication import ASKED_STREAMS_MAX, Ask, CopyEnd, NodeLink, Told
from tailrace.shard.meta import Role

log = logging.getLogger(__name__)

NODES_MAX: Final = 64
"""Addresses that are asked for one promotion."""
SCOUTS_MAX: Final = 16
"""Promotions of one worker that are checked at the same time; more are refused."""
FIND_S: Final = 2.0
"""For finding the tree: a node that has not said by then who its neighbours are counts as gone."""
ANSWER_S: Final = 5.0
"""For each further answer of a node that has been found."""

OnFindings = Callable[["Findings | Refused"], None]


class NodeAhead(NamedTuple):
    """A node has more of a stream than this one."""

    node: str
    address: str
    theirs: CopyEnd
    mine: CopyEnd

    def __str__(self) -> str:
        rivals = (self.theirs.last_epoch, self.theirs.next_seq) <= (self.mine.last_epoch, self.mine.next_seq)
        there, here = (shown_end(end, with_master=rivals) for end in (self.theirs, self.mine))
        return f"node {self.node} at {self.address} has more of {self.theirs.stream}: {there}; here: {here}"


def shown_end(end: CopyEnd, *, with_master: bool) -> str:
    master = f" of master {end.last_master}" if with_master else ""
    return f"last_epoch {end.last_epoch}{master}, next_seq {end.next_seq}"


@dataclass(slots=True)
class Findings:
    """The answers of the nodes of the tree, summed up.

    ahead: of each stream the node with the most, if that is more than here; `known`: the highest term of each stream
    that any of them knows, `begun`: that one of them is the master in.
    """

    ahead: dict[str, NodeAhead] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)

    def compare(self, mine: Sequence[CopyEnd], told: Told, address: str) -> None:
        """Take the ends that a node has sent. `mine`: those of the same streams here."""
        here = {end.stream: end for end in mine}
        for theirs in told.ends:
            name = theirs.stream
            self.known[name] = max(self.known.get(name, 0), theirs.epoch)
            if theirs.role == Role.MASTER:
                self.begun[name] = max(self.begun.get(name, 0), theirs.epoch)
            own = here.get(name, CopyEnd(name, "", 0, 0, 0))
            known = self.ahead.get(name)
            if theirs.is_ahead_of(own if known is None else known.theirs):
                self.ahead[name] = NodeAhead(told.node, address, theirs, own)

    def refusal(self, stream: str, epoch: int) -> Refused | None:
        """Why a promotion would lose messages, or cannot begin term `epoch` (0: any) of `stream`; None if it may be.

        A node that knows of the term itself, and is not the master in it, was fenced for it.
        """
        if not self.ahead:
            known = self.known.get(stream, 0)
            if epoch and (epoch < known or epoch <= self.begun.get(stream, 0)):
                text = f"term {epoch} is not above all that are known: another node knows term {known}"
                return Refused(Code.USAGE, text)
            return None
        first = next(iter(self.ahead.values()))
        count = "" if len(self.ahead) == 1 else f"of {len(self.ahead)} streams other nodes have more, the first: "
        hint = "promote that node, or let this one follow it first; with the word force this promotion loses messages"
        return Refused(Code.BEHIND, f"{count}{first}; {hint}")


class PromotionCheck:
    """One check: of `stream`, or of `streams`, by walking the whole tree; `done` is called once."""

    def __init__(
        self, scouts: PromotionChecks, stream: bytes | None, streams: Sequence[bytes], done: OnFindings
    ) -> None:
        self._scouts = scouts
        self._stream = stream
        self._left = list(reversed(streams))
        self._done = done
        self._asked: dict[NodeAddress, Inquiry] = {}
        self._waiting: dict[Inquiry, None] = {}
        self._nodes: dict[str, Inquiry | None] = {}  # by their ids; this node has none
        self._mine: Sequence[CopyEnd] = ()
        self._number = 0
        self._findings = Findings()
        self._deadline_s = scouts.services.now_s + FIND_S
        self._busy = True  # with what must be complete before it goes on
        self.ended = False
        scouts.status.gather(Ask(0, stream), self._found_own)

    # --- finding the tree -------------------------------------------------------------------------------------------

    def _found_own(self, told: Told | Refused) -> None:
        if isinstance(told, Refused):
            self._end(told)
            return
        self._mine = told.ends
        if self._stream is not None and not any(end.role != Role.MASTER for end in told.ends):
            self._end(self._findings)  # there is nothing here that could be promoted
            return
        self._nodes[told.node] = None
        roles = self._scouts.owner.roles
        self._find((*roles.peers.nodes, *roles.rules.listed, *named_by(told.links, "")))
        self._go_on()

    def _find(self, named: Iterable[NodeAddress]) -> None:
        """Ask those of these nodes that have not been asked yet. One that refuses at once calls back within this."""
        self._busy = True
        for where in named:
            if where not in self._asked and len(self._asked) < NODES_MAX:
                inquiry = self._asked[where] = Inquiry(self._scouts.outside, *where, self._found)
                self._waiting[inquiry] = None
                inquiry.ask(Ask(1, self._stream))
        self._busy = False

    def _found(self, inquiry: Inquiry, told: Told | str) -> None:
        self._waiting.pop(inquiry, None)
        if self.ended:
            return
        address = join_address(inquiry.host, inquiry.port)
        if isinstance(told, str):
            self._nodes.pop(inquiry.node, None)
            log.info("promotion: %s is not asked: %s", address, shown_text(told))
        elif self._number:
            self._findings.compare(self._mine, told, address)
        elif told.node in self._nodes:
            inquiry.close()  # another address of a node that has answered
        else:
            self._nodes[told.node] = inquiry
            self._findings.compare(self._mine, told, address)
            self._find(named_by(told.links, inquiry.host))
        self._go_on()

    # --- streams, some at a time ------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Ask for the ends of the next streams when all have answered for the ones before."""
        if self.ended or self._waiting or self._busy:
            return
        others = [inquiry for inquiry in self._nodes.values() if inquiry is not None]
        if not self._left or not others:
            self._end(self._findings)
            return
        names = tuple(self._left[-ASKED_STREAMS_MAX:][::-1])
        del self._left[-ASKED_STREAMS_MAX:]
        self._number += 1
        self._deadline_s = self._scouts.services.now_s + ANSWER_S
        self._busy = True
        self._scouts.status.gather(Ask(0, None, names), lambda told: self._take_own(told, names, others))

    def _take_own(self, told: Told | Refused, names: tuple[bytes, ...], others: Iterable[Inquiry]) -> None:
        self._busy = False
        if isinstance(told, Refused):
            self._end(told)
            return
        self._mine = told.ends
        self._waiting.update(dict.fromkeys(each for each in others if not each.closed))
        for inquiry in list(self._waiting):
            inquiry.ask(Ask(1 + self._number, None, names))
        self._go_on()

    def tick(self, now_s: float) -> None:
        """Take nodes that have not answered in time for gone."""
        if now_s >= self._deadline_s:
            for inquiry in list(self._waiting):
                inquiry.fail("it does not answer")

    def abandon(self, why: str) -> None:
        self._end(Refused(Code.UNAVAILABLE, why))

    def _end(self, outcome: Findings | Refused) -> None:
        if self.ended:
            return
        self.ended = True
        for inquiry in self._asked.values():
            inquiry.close()
        self._done(outcome)


def named_by(links: Iterable[NodeLink], asked_host: str) -> list[NodeAddress]:
    """The addresses of the nodes at the other ends of these links, as far as the links carry them.

    A loopback address from a node at another host means that host.
    """
    found = []
    for link in links:
        try:
            host, port = split_address(link.address)
        except ValueError:
            continue
        if is_loopback(host) and asked_host and not is_loopback(asked_host):
            host = asked_host
        found.append((host, port))
    return found


class PromotionChecks:
    """The checks of one worker, and its requests for promises."""

    def __init__(self, owner: Owner, status: NodeStatus, outside: InquiryServices, services: Services) -> None:
        self.owner = owner
        self.status = status
        self.outside = outside
        self.services = services
        self.promises = PromiseRequests(outside, services)
        self._running: dict[PromotionCheck, None] = {}

    def __len__(self) -> int:
        return len(self._running) + len(self.promises)

    def check(self, stream: bytes | None, streams: Sequence[bytes], done: OnFindings) -> None:
        """Look whether another node has more of `stream`, or else of any of `streams`."""
        if len(self._running) >= SCOUTS_MAX:
            text = f"{SCOUTS_MAX} promotions wait for other nodes' answers; try again in a moment"
            done(Refused(Code.OVERLOADED, text))
            return
        scout = PromotionCheck(self, stream, streams, done)
        if not scout.ended:
            self._running[scout] = None

    def tick(self, now_s: float) -> None:
        for scout in list(self._running):
            scout.tick(now_s)
            if scout.ended:
                del self._running[scout]
        self.promises.tick(now_s)

    def stop(self) -> None:
        for scout in list(self._running):
            scout.abandon("this worker stops; ask again")
        self.promises.stop()
        self._running.clear()
