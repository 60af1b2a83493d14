"""The role of this node for a stream, and its term: how an owner changes them.

The functions without an underscore that take (owner, arguments) are verbs of `broker.streams.owner_calls`. A term is an
epoch and the node that is its master; of two terms the one with the larger epoch is the later, and with equal epochs,
which two slaves may choose when both are promoted out of each other's sight, the one with the larger node id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from tailrace.broker.replication.roles.internal_streams import copied_from, is_companion
from tailrace.broker.replication.roles.peers import NodeAddress
from tailrace.broker.replication.upstream.contacts import (
    are_related,
    confirmed,
    outstanding,
    unconfirmed,
    with_contacts,
    with_former,
)
from tailrace.broker.streams.owner import DELETING_TEXT, OpenStream, Owner, Refused, require_new_name
from tailrace.broker.streams.refused import CallArgs
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import (
    DEFAULT_HISTORY,
    EPOCH_FIRST_MAX,
    EPOCH_LEAP_MAX,
    EPOCHS_MAX,
    EpochStart,
    History,
    begin_epoch,
    claim,
    last_epoch,
    make_history,
    reconcile,
)
from tailrace.shard.errors import StorageError, peer_text
from tailrace.shard.meta import Contact, Role, StreamMeta, Upstream
from tailrace.shard.names import CURSOR_PREFIX, base_of

log = logging.getLogger(__name__)

Term: TypeAlias = tuple[int, str]
"""epoch, node id of its master ("" when nobody here knows)"""

BUSY_TEXT = "the end of this stream is being set aside; try again in a moment"


def history_of(owner: Owner, stream: OpenStream) -> History:
    """The terms of a stream's messages and of the one to come: as stored in .meta, as far as the messages agree."""
    meta = owner.roles.meta(stream.name)
    stored = meta.history
    if stored == DEFAULT_HISTORY and meta.role is Role.MASTER and is_companion(stream.name):
        stored = _without_former(stored, owner.roles.meta(base_of(stream.name)).history[:1])
    if not {stream.name, base_of(stream.name)} & owner.roles.metas.keys() and meta.role is Role.MASTER:
        stored = claim(stored, owner.catalog.directory.node_id)  # nobody else was ever the master of it
    return reconcile(stored, stream.log.epochs(), stream.log.next_seq)


def _without_former(stored: History, begin: History) -> History:
    """If the stream was made again after a deletion, its companions too begin in its first term."""
    return begin if begin and begin[0].first_seq == 0 and begin[0].epoch > 1 else stored


def term_of(owner: Owner, name: bytes) -> Term:
    """The latest term that is known here. Raises Refused, StorageError, OSError."""
    meta = owner.roles.meta(name)
    return term(meta, history_of(owner, owner.stream(name)))


def term(meta: StreamMeta, history: History) -> Term:
    epoch = max(meta.epoch, last_epoch(history))
    if meta.term_master and meta.epoch == epoch:
        return epoch, meta.term_master
    known = bool(history) and history[-1].epoch == epoch
    return epoch, history[-1].master if known else ""


def _reported_term(owner: Owner, meta: StreamMeta, known: Term) -> Term:
    """A term as sent to others: without a master if that was this node, which is not the master any more."""
    own = meta.role is not Role.MASTER and known[1] == owner.catalog.directory.node_id
    return (known[0], "") if own else known


def written_history(owner: Owner, name: bytes) -> History:
    """The terms as far as they are written down, which takes no look at the messages; the last is the latest known."""
    meta = owner.roles.meta(name)
    history = meta.history
    if meta.role is Role.MASTER and name not in owner.roles.metas:
        history = claim(history, owner.catalog.directory.node_id)
    epoch, master = _reported_term(owner, meta, term(meta, history))
    if not history or (history[-1].epoch, history[-1].master) == (epoch, master):
        return history or (EpochStart(epoch, 0, master),)
    before = tuple([start for start in history if start.epoch < epoch])
    return (*before[-(EPOCHS_MAX - 1) :], EpochStart(epoch, history[-1].first_seq, master))


# --- commands of an operator ------------------------------------------------------------------------------------------


def master(owner: Owner, args: CallArgs) -> int:
    """[stream] -> epoch. Makes the stream, or this node its master in the next term."""
    name = args[0]
    _require_own_role(name)
    if name not in owner.catalog.names:
        if owner.context.home(name) != name:
            raise owner.unknown(name)  # a topic: no publish would come to a stream of this name
        require_new_name(name)
        owner.create(name, by_command=True)
    return promote(owner, args)


def promote(owner: Owner, args: CallArgs) -> int:
    """[stream, and perhaps: the term to begin (0: the next), the latest term that other nodes know, whether they were
    not asked] -> epoch, 0 if they are to be asked first.

    This node is the stream's master from now on, in a term above all that are known. What other nodes know is believed
    as far as it can be true.
    """
    name: bytes = args[0]
    wanted, known_elsewhere, unasked = map(int, (*args[1:], 0, 0, False)[:3])
    stream = _changeable(owner, name)
    meta = owner.roles.meta(name)
    if meta.role is Role.MASTER and wanted in (0, meta.epoch):
        return meta.epoch
    if unasked and (meta.role is Role.SLAVE or owner.roles.peers.nodes or name in owner.replicas.streams):
        return 0
    known = term(meta, history_of(owner, stream))
    known = max(known[0], meta.not_before - 1), known[1]
    if wanted:
        _require_above(known, wanted)
        _require_near(known, wanted)
    # The node that deleted the stream of this name may begin it anew in the term `not_before` at this very moment.
    epoch = wanted or min(max(known[0], meta.not_before, known_elsewhere), known[0] + EPOCH_LEAP_MAX - 1) + 1
    # The upstream stays written down: it must learn of the new term, and so must every peer.
    if meta.role is Role.SLAVE:
        meta = with_contacts(meta, _others(meta.upstream, (*owner.roles.peers.nodes, *owner.roles.upstreams(name))))
    _begin_term(owner, stream, meta, epoch)
    _begin_terms_of_companions(owner, name, epoch)
    return epoch


def fence(owner: Owner, args: CallArgs) -> list[Any]:
    """[stream, epoch] -> [role, latest term known]. From now on this node takes no messages in an earlier term.

    A master of an earlier term gives up; a slave leaves an upstream that is not in this term, and reports nothing to it
    until that knows of the term too (`broker.replication.upstream.fetchers`). A stream that is not here is made, so
    that this node neither begins it nor copies it in an earlier term.
    """
    name, epoch = args
    _require_own_role(name)
    is_new = name not in owner.catalog.names
    if is_new and (later := _make_for_fence(owner, name, epoch)):
        return [Role.DISABLED.value, later]
    stream = _changeable(owner, name)
    meta = owner.roles.meta(name)
    known = term(meta, history_of(owner, stream))
    if not is_new:
        _require_near(known, epoch)
    if known[0] < epoch:
        log.warning("stream %r: fenced: nothing of a term before %d is acknowledged here from now on", name, epoch)
        if meta.role is Role.MASTER:
            follow(owner, stream, meta.upstream, epoch, fence=epoch)
        else:
            own = history_of(owner, stream)
            owner.roles.set_meta(replace(_in_term(meta, own, epoch, ""), history=own, fence=epoch))
    return [owner.roles.role(name).value, max(known[0], epoch)]


def _make_for_fence(owner: Owner, name: bytes, epoch: int) -> int:
    """Make a stream that is not here, or return the term in which it was deleted here if no earlier one is to come."""
    require_new_name(name)
    if name in owner.catalog.deleting:
        raise Refused(Code.UNAVAILABLE, DELETING_TEXT)
    if owner.catalog.directory.is_in_memory(name):
        raise Refused(Code.UNKNOWN, "no such stream here, and it would be in memory, which no other node copies")
    deleted = owner.catalog.deleted.before(name)
    if deleted is not None and deleted.epoch >= epoch:
        return deleted.epoch
    if deleted is not None:
        _require_near((deleted.epoch, ""), epoch)
    else:
        _require_first(epoch)
    owner.create(name, by_command=True, is_copy=True)
    owner.roles.metas.pop(name, None)  # of a stream that was deleted here
    return 0


def unmaster(owner: Owner, args: CallArgs) -> int:
    """[stream] -> epoch. The stream stays readable and takes no more messages."""
    name = args[0]
    stream = _changeable(owner, name)
    meta = owner.roles.meta(name)
    if meta.role is Role.MASTER:
        meta = with_former(meta, None)
        owner.roles.set_meta(replace(meta, role=Role.DISABLED, upstream=None, history=history_of(owner, stream)))
    return meta.epoch


def slave(owner: Owner, args: CallArgs) -> str:
    """[stream, host, port, kind, value] -> host:port. This node follows the stream of another."""
    name, upstream = args[0], copied_from(args[0], Upstream(*args[1:]))
    _require_own_role(name)
    if name not in owner.catalog.names:
        owner.create(name, by_command=True)
    stream = _changeable(owner, name)
    follow(owner, stream, upstream, term_of(owner, name)[0], fence=owner.roles.meta(name).fence)
    if owner.roles.meta(name).term_master:  # the new upstream will send which node that was
        owner.roles.set_meta(replace(owner.roles.meta(name), term_master=""))
    return str(upstream)


def unslave(owner: Owner, args: CallArgs) -> int:
    """[stream] -> epoch. The stream follows nobody; it stays readable and takes no more messages.

    The copy leaves its tree: if it is promoted later, the nodes of the tree are not notified.
    """
    name = args[0]
    stream = _changeable(owner, name)
    meta = owner.roles.meta(name)
    if meta.role is not Role.MASTER:
        history = history_of(owner, stream)
        owner.roles.set_meta(replace(meta, role=Role.DISABLED, upstream=None, history=history, contacts=()))
    return meta.epoch


def follow(
    owner: Owner, stream: OpenStream, upstream: Upstream | None, epoch: int, master: str = "", *, fence: int = 0
) -> None:
    """Be a slave; without an upstream a slave of nobody, until somebody claims the stream.

    `master`: of term `epoch`, if that is known. `fence`: a term that the upstream may not be in. The former upstream
    stays a contact, and so do those that could have been it.
    """
    former = owner.roles.upstreams(stream.name)[1:]
    meta, history = owner.roles.meta(stream.name), history_of(owner, stream)
    if stream.name not in owner.roles.metas and not stream.log.next_seq:
        history = DEFAULT_HISTORY  # it was made for this, and nothing here is of a term of this node's own
    before = term(meta, history)
    if epoch == before[0] and master not in ("", before[1]):
        meta = unconfirmed(meta)
    meta = with_contacts(with_former(meta, upstream), _others(upstream, former))
    meta = _in_term(meta, history, epoch, master)
    owner.roles.set_meta(replace(meta, role=Role.SLAVE, upstream=upstream, history=history, fence=fence))


def _others(upstream: Upstream | None, nodes: Iterable[NodeAddress]) -> list[Contact]:
    """The nodes but the upstream as contacts: perhaps they are of another stream."""
    return [Contact(*node, was_above=False) for node in nodes if upstream is None or node != upstream[:2]]


def _in_term(meta: StreamMeta, history: History, epoch: int, master: str) -> StreamMeta:
    """The meta once this term is known. An earlier one changes nothing."""
    if epoch < meta.epoch or not (master or epoch > meta.epoch):
        return meta
    told = bool(history) and history[-1].epoch == epoch and history[-1].master == master
    not_before = meta.not_before if meta.not_before > epoch else 0
    return replace(meta, epoch=epoch, term_master="" if told else master, not_before=not_before)


# --- messages of other nodes ------------------------------------------------------------------------------------------


def claimed(owner: Owner, args: CallArgs) -> list[Any]:
    """[stream, history rows, host, port, whether only of the same stream] -> [role, epoch, master, accepted].

    The node at host:port is the master in the history's last term, or follows it. A master or slave in an earlier term
    turns to that node, and passes the claim on to its former upstream. Of two terms of the same epoch the one whose
    master has the larger node id is the later, everywhere. A claim from a peer that was never below this node may be
    of another stream with the same name, which changes nothing here.
    """
    name, rows, host, port, *rest = args
    _require_own_role(name)
    history = make_history(EpochStart(*row) for row in rows)
    claim_term = history[-1].epoch, history[-1].master
    if name not in owner.catalog.names:
        return _claimed_unknown(owner, name, history, Upstream(host, port, "seq", 0), any(rest))
    stream = _changeable(owner, name)
    meta, own = owner.roles.meta(name), history_of(owner, stream)
    mine = _reported_term(owner, meta, term(meta, own))
    if any(rest) and not are_related(own, history):
        return [meta.role.value, *claim_term, True]
    _require_near(mine, claim_term[0])
    claimant = Upstream(host, port, "seq", 0)
    if _turns(meta, mine, claim_term, claimant):
        log.warning("stream %r: %s leads to its master in term %d; following it", name, claimant, claim_term[0])
        follow(owner, stream, claimant, *claim_term)
        mine = claim_term
    elif meta.role is not Role.MASTER and (_is_later(claim_term, mine) or mine == (claim_term[0], "")):
        if claim_term[0] > 1:  # by far the most streams never have another, and need nothing written down
            owner.roles.set_meta(replace(_in_term(meta, own, *claim_term), history=own))
        mine = claim_term
    return [owner.roles.role(name).value, *mine, mine == claim_term or _leaves_it(meta, mine, claim_term, claimant)]


def _claimed_unknown(owner: Owner, name: bytes, theirs: History, claimant: Upstream, is_peer: bool) -> list[Any]:
    """As `claimed`, of a stream that is not here.

    If it was deleted here, a copy that missed that was promoted. The term that was kept for this node is not begun, so
    it is the claimant's if that has begun it: this node follows. If that has begun an earlier one, it is to give in. A
    term of this node's own is claimed by those that have not asked for the stream since, some of which may not know
    whose it is: they will learn of it then.
    """
    claim_term = theirs[-1].epoch, theirs[-1].master
    accepted = [Role.DISABLED.value, *claim_term, True]
    if name in owner.catalog.deleting:
        raise Refused(Code.UNAVAILABLE, DELETING_TEXT)
    deleted = owner.catalog.deleted.before(name)
    if deleted is None or (is_peer and not deleted.is_of(theirs)):
        return accepted
    here = owner.catalog.directory.node_id
    if (claim_term[1] == here and claim_term[0] <= deleted.epoch) or (
        deleted.master == here and claim_term == (deleted.epoch, "")
    ):
        return accepted
    _require_near((deleted.epoch, deleted.master), claim_term[0])
    if claim_term[0] < deleted.epoch:
        if deleted.master == here and owner.roles.role(name) is not Role.MASTER:
            # Nobody will begin the term that was kept. In the one before, the claimant asks here for the stream, is
            # answered that it was deleted, and deletes its copy; in that term it would wait for a master for ever.
            return [Role.SLAVE.value, deleted.epoch - 1, "", claim_term[0] == deleted.epoch - 1]
        return [Role.MASTER.value, deleted.epoch, deleted.master, False] if deleted.master else accepted
    log.warning("stream %r: it was deleted here, and %s leads to a master of it; following it", name, claimant)
    owner.create(name, by_command=True, is_copy=True)
    owner.roles.metas.pop(name, None)
    follow(owner, owner.stream(name), claimant, *claim_term)
    return [Role.SLAVE.value, *claim_term, True]


def _leaves_it(meta: StreamMeta, mine: Term, claim_term: Term, claimant: Upstream) -> bool:
    """Whether a term of the same epoch has nothing here to contend with."""
    return mine[0] == claim_term[0] and (
        meta.role is Role.DISABLED or not claim_term[1] or (meta.role is Role.SLAVE and _is(meta, claimant))
    )


def _turns(meta: StreamMeta, mine: Term, claim_term: Term, claimant: Upstream) -> bool:
    """Whether a stream follows the claimant from now on. One that was fenced for this term has no master of it yet."""
    if meta.role is Role.MASTER:
        return mine < claim_term
    if meta.role is not Role.SLAVE or _is(meta, claimant):
        return False
    is_free = meta.upstream is None or meta.fence == claim_term[0]
    return _is_later(claim_term, mine) or (mine[0] == claim_term[0] and is_free)


def _is_later(one: Term, other: Term) -> bool:
    """Whether a term is later than another. An unknown master is not held against either."""
    return one[0] > other[0] or (one[0] == other[0] and "" not in (one[1], other[1]) and one[1] > other[1])


def _is(meta: StreamMeta, claimant: Upstream) -> bool:
    return meta.upstream is not None and meta.upstream[:2] == claimant[:2]


def give_in(owner: Owner, name: bytes, epoch: int, master: str = "", leads: Upstream | None = None) -> None:
    """A node does not accept this node's claim: it knows another master in this term, and leads to it.

    `leads`: that node; the former upstream if None. A slave turns to it only for a later term than it knows. Raises
    Refused, StorageError, OSError.
    """
    meta = owner.roles.meta(name)
    if name not in owner.catalog.names or meta.role is Role.DISABLED:
        return
    mine = term_of(owner, name)
    _require_near(mine, epoch)
    if meta.role is Role.MASTER or _is_later((epoch, master), mine):
        log.warning("stream %r: another node is the master in term %d; this node follows", name, epoch)
        follow(owner, owner.stream(name), leads or meta.upstream, max(epoch, meta.epoch), master)


def record_term(owner: Owner, name: bytes, epoch: int, master_id: str) -> None:
    """Another node knows this term. A master of an earlier one takes no more messages from now on.

    Raises Refused for a term that cannot be, StorageError, OSError.
    """
    meta = owner.roles.meta(name)
    if meta.role is not Role.MASTER or name not in owner.catalog.names:
        return
    stream = owner.stream(name)
    mine = term(meta, history_of(owner, stream))
    _require_near(mine, epoch)
    if mine < (epoch, master_id) and is_companion(name):
        _begin_term(owner, stream, meta, epoch + 1)  # the terms of its stream name the master
    elif mine < (epoch, master_id):
        log.warning("stream %r: a later term, %d, has begun elsewhere; this node takes no more messages", name, epoch)
        follow(owner, stream, meta.upstream, epoch)


def _require_above(mine: Term, epoch: int) -> None:
    if epoch <= mine[0]:
        raise Refused(Code.USAGE, f"term {epoch} is not above all that are known: this node knows term {mine[0]}")


def _require_near(mine: Term, epoch: int) -> None:
    if epoch > mine[0] + EPOCH_LEAP_MAX:
        text = f"term {epoch} cannot be: the latest that is known here is {mine[0]}, and they are counted one by one"
        raise Refused(Code.USAGE, text)


def require_possible(owner: Owner, stream: OpenStream, theirs: History) -> None:
    """Raises Refused if a slave's upstream names terms that cannot be. A copy without messages knows of none yet."""
    mine = term(owner.roles.meta(stream.name), history_of(owner, stream))
    if mine[0] > 1 or stream.log.next_seq:
        _require_near(mine, last_epoch(theirs))
    else:
        _require_first(last_epoch(theirs))


def _require_first(epoch: int) -> None:
    """Raises Refused for a term that no stream can have had; this node knows none of the stream."""
    if epoch > EPOCH_FIRST_MAX:
        raise Refused(Code.USAGE, f"term {epoch} cannot be: no stream has had so many")


def settle_claim(owner: Owner, name: bytes, nodes: Iterable[tuple[str, int]] | None = None, epoch: int = 0) -> None:
    """These nodes, or the former upstream, know of the term: they need not be notified again."""
    meta = owner.roles.meta(name)
    if nodes is None:
        nodes = () if meta.upstream is None else [meta.upstream[:2]]
    settled = confirmed(meta, nodes, epoch or meta.epoch)
    if settled != meta:
        owner.roles.set_meta(settled)


def claimable(owner: Owner, name: bytes) -> Term:
    """The latest term that is written down, as it is claimed from other nodes."""
    return written_history(owner, name)[-1][::2]


def to_be_told(owner: Owner, name: bytes) -> list[Contact]:
    """The nodes that have not confirmed the latest term of a stream that is known here. A companion has none."""
    if is_companion(name):
        return []
    meta = owner.roles.meta(name)
    if meta.fence or (meta.upstream is None and not meta.contacts):
        return []  # nobody has sent the master of a fence's term
    now = claimable(owner, name)
    known, told = owner.roles.confirmed.get(name, (now, set()))
    return [contact for contact in outstanding(meta, now[0]) if known != now or contact[:2] not in told]


def note_confirmed(owner: Owner, name: bytes, node: tuple[str, int]) -> None:
    """A node knows of the stream's term. It is written down when all do: to notify them twice does no harm."""
    now = claimable(owner, name)
    known, told = owner.roles.confirmed.get(name, (now, set()))
    nodes = {*told, node} if known == now else {node}
    owner.roles.confirmed[name] = now, nodes
    if not to_be_told(owner, name):
        del owner.roles.confirmed[name]
        settle_claim(owner, name, nodes, now[0])


def learn(owner: Owner, stream: OpenStream, theirs: History, contacts: Iterable[Contact] = ()) -> None:
    """Write down the terms that a slave's upstream has sent, if they hold more than is known here.

    `contacts`: nodes that the upstream still has to notify of its term. They are written down too, so that this node
    notifies them if the upstream is lost. Raises Refused for impossible terms.
    """
    meta = owner.roles.meta(stream.name)
    require_possible(owner, stream, theirs)
    epoch = max(meta.epoch, last_epoch(theirs))
    told = theirs[-1][::2] if theirs else (0, "")
    master = meta.term_master if meta.term_master and _is_later((meta.epoch, meta.term_master), told) else ""
    before = term(meta, meta.history)
    if before[0] == epoch and before[1] not in ("", master or told[1]):
        meta = unconfirmed(meta)  # they confirmed another master
    fence = meta.fence if meta.fence > last_epoch(theirs) else 0
    learnt = with_contacts(replace(meta, epoch=epoch, history=theirs, term_master=master, fence=fence), contacts)
    if learnt == meta or (stream.name not in owner.roles.metas and _is_first_term(theirs) and not learnt.contacts):
        return
    owner.roles.set_meta(learnt)


def _is_first_term(theirs: History) -> bool:
    """A first term from the beginning: by far the most streams never have another, and need nothing written down."""
    return len(theirs) == 1 and theirs[0][:2] == (1, 0)


# --- by itself ------------------------------------------------------------------------------------------------------


def begin_after_boot(owner: Owner, stream: OpenStream) -> None:
    """A master that the machine took down may have lost messages that its slaves have, or that its consumers are done
    with: a term of its own marks the messages that it gives out from now on. Raises Refused, StorageError, OSError: it
    takes no messages before that.
    """
    if stream.name not in owner.roles.reborn:
        return
    if is_companion(stream.name):
        _begin_with_its_stream(owner, stream.name)
        return
    meta = owner.roles.meta(stream.name)
    begins = meta.role is Role.MASTER and (owner.roles.was_followed or _has_consumers(owner, stream.name))
    if begins:
        _begin_term(owner, stream, meta, term(meta, history_of(owner, stream))[0] + 1)
    owner.roles.reborn.discard(stream.name)
    if begins:
        _begin_terms_of_companions(owner, stream.name, owner.roles.epoch(stream.name))


def _has_consumers(owner: Owner, name: bytes) -> bool:
    return CURSOR_PREFIX + name in owner.catalog.names


def _begin_with_its_stream(owner: Owner, name: bytes) -> None:
    """A companion has begun its term when its stream has. Raises as `begin_after_boot`."""
    base = base_of(name)
    if base in owner.catalog.names:
        owner.stream(base)
        if base in owner.roles.reborn:
            raise Refused(Code.UNAVAILABLE, f"the term of {base.decode()} could not be begun")
    owner.roles.reborn.discard(name)


def _begin_terms_of_companions(owner: Owner, base: bytes, epoch: int) -> None:
    """Their messages have the term of their stream from now on; its beginning is known once it is written down."""
    for name in owner.catalog.companions.of(base):
        try:
            stream = owner.stream(name)
            own = owner.roles.metas.get(name) or StreamMeta(name.decode())
            last = max(own.epoch, last_epoch(own.history), stream.log.last_epoch)
            _begin_term(owner, stream, owner.roles.meta(name), max(epoch, last + 1))
        except (Refused, StorageError, OSError) as error:
            log.error("stream %r: its term %d could not be written down: %s", name, epoch, error)


def _begin_term(owner: Owner, stream: OpenStream, meta: StreamMeta, epoch: int) -> int:
    """Written down before the first message of the term is appended."""
    try:
        history = begin_epoch(history_of(owner, stream), epoch, stream.log.next_seq, owner.catalog.directory.node_id)
    except ValueError as error:
        raise Refused(Code.UNSUPPORTED, f"no term can follow: {error}") from error
    meta = replace(meta, role=Role.MASTER, epoch=epoch, history=history)
    owner.roles.set_meta(replace(meta, term_master="", fence=0, not_before=0))
    return epoch


def _require_own_role(name: bytes) -> None:
    """Raises Refused for a companion."""
    base = base_of(name)
    if base != name:
        raise Refused(Code.USAGE, f"{name.decode()} goes with {base.decode()} and has its role; say this of that one")


def _changeable(owner: Owner, name: bytes) -> OpenStream:
    _require_own_role(name)
    if name not in owner.catalog.names:
        raise owner.unknown(name)
    try:
        stream = owner.stream(name)
    except StorageError as error:
        raise Refused(Code.UNAVAILABLE, peer_text(error)) from error
    together = (stream, *(owner.catalog.open.get(each) for each in owner.catalog.companions.of(name)))
    if any(each is not None and each.busy for each in together):
        raise Refused(Code.UNAVAILABLE, BUSY_TEXT)
    return stream
