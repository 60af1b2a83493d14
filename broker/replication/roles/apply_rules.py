"""Commands for many streams at once: the rule is written down once, by the worker of slot 0, then every worker does it.

The three functions are verbs of `broker.streams.owner_calls`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from tailrace.broker.process.work import WorkQueue
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.internal_streams import is_companion
from tailrace.broker.replication.roles.node_file import NodeFile
from tailrace.broker.replication.roles.rules import Rule, TooManyRules, covers
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.refused import CallArgs
from tailrace.broker.streams.roles import ROLE_UNWRITTEN_TEXT
from tailrace.protocol.errors import Code
from tailrace.shard.errors import DirectoryError, StorageError, peer_text
from tailrace.shard.meta import Role, Upstream
from tailrace.shard.names import is_never_copied

log = logging.getLogger(__name__)


PAUSE_NAMES = 1_024  # of streams that are not meant, looked at in one step
AT_ONCE_MAX = 32  # streams that were made during a command, changed in the turn in which the rules are read
PASSES_MAX = 8  # over streams that were made during a command; those that are left then are changed at once, too
PROGRESS_S = 2.0  # between two lines of the log about a command that takes long


def rule(owner: Owner, args: CallArgs) -> None:
    """[pattern, host ("" for none), port, kind, value, perhaps: whether they are copied only while they are read]. What
    streams of this pattern do from now on is on the disk.
    """
    pattern, host, port, kind, value, *on_demand = args
    upstream = Upstream(host, port, kind, value) if host else None
    kept = _read(owner)
    try:
        former = owner.roles.rules.former
        wanted = replace(owner.roles.rules, commands=kept.rules).with_rule(
            Rule(pattern, upstream, on_demand=any(on_demand))
        )
        configured = tuple([each for each in kept.configured if each not in former or each in wanted.former])
        owner.roles.set_node_file(replace(kept, rules=wanted.commands, configured=configured))
    except TooManyRules as error:
        raise Refused(Code.OVERLOADED, str(error)) from error


def followed(owner: Owner, args: CallArgs) -> None:
    """[] or [host, port]. A node that listens there follows streams of this one: a master that starts depends on it."""
    kept = _read(owner)
    noted = replace(kept, followed=True)
    if args:
        noted = noted.with_follower(*args)
    if noted != kept:
        owner.roles.set_node_file(noted)


class RuleOutcome(NamedTuple):
    """The outcome of a command for many streams. `code` and `text`: why the first of those that failed did."""

    changed: int
    failed: int = 0
    code: str = ""
    text: str = ""


def together(outcomes: Iterable[Sequence[Any]]) -> RuleOutcome:
    """Those of several workers, or of several passes over the same streams, as one."""
    changed, failed, code, text = 0, 0, "", ""
    for outcome in outcomes:
        each = RuleOutcome(*outcome)
        changed, failed = changed + each.changed, failed + each.failed
        code, text = (code, text) if code else (each.code, each.text)
    return RuleOutcome(changed, failed, code, text)


def rules(owner: Owner, args: CallArgs) -> list[Any]:
    """[verb, pattern, host, port, kind, value] -> Outcome for the streams of this worker. Reads the rules anew.

    Before a rule is taken back its streams have their roles written down one by one, and before one is obeyed it is on
    the disk: so `slave` asks for `rule` and then for this, `promote` and `unslave` for this, `rule`, and this.
    """
    outcome = RuleOutcome(0)
    for each in changes(owner, args):
        if each is not None:
            outcome = together((outcome, each[1]()))
    _read_anew(owner)
    return list(outcome)


def changes(
    owner: Owner, args: CallArgs, names: Iterable[bytes] | None = None
) -> Iterator[tuple[bytes, Callable[[], RuleOutcome]] | None]:
    """[verb, pattern, host, port, kind, value] -> each stream that is meant, and what changes it; None now and then.

    `names`: all by default.
    """
    verb, pattern, *upstream = args
    for number, name in enumerate(list(owner.catalog.names) if names is None else names):
        if covers(pattern, name) and _has_own_role(name):
            yield name, partial(_change, owner, verb, name, upstream)
        elif number % PAUSE_NAMES == 0:
            yield None
    if verb == "slave" and names is None:
        deleted = [name for name in owner.catalog.deleted if covers(pattern, name) and name in owner.roles.metas]
        yield from ((name, partial(_change, owner, "forget", name, upstream)) for name in deleted)


def _read_anew(owner: Owner) -> None:
    try:
        owner.roles.read_rules()
    except DirectoryError as error:
        raise Refused(Code.UNAVAILABLE, peer_text(error)) from error
    owner.events.on_rules()


def obey(owner: Owner, work: WorkQueue, args: CallArgs, done: Callable[[Any | Refused], None]) -> None:
    """As `rules`, some streams in each turn."""
    RuleApplication(owner, work, args, done).next(None)


class RuleApplication:
    """A command for all streams of a pattern on its way through those of this worker, some in each turn.

    Streams that are made meanwhile are changed before the rules are read, the last of them in the turn of that. A
    publish may have made them: that their messages are of this node's term is written down only by the change. Or a
    FOLLOW of a later term, so that they follow nobody.

    `done` gets what `rules` gives when all roles are on the disk, or a Refused if one could not be written: the rule
    then stays as it is.
    """

    def __init__(self, owner: Owner, work: WorkQueue, args: CallArgs, done: Callable[[Any | Refused], None]) -> None:
        self._owner = owner
        self._work = work
        self._args = args
        self._done = done
        self._names = set(owner.catalog.names)
        self._changes = changes(owner, args)
        self._passes = 0
        self._outcome = RuleOutcome(0)
        self._looked_at = 0
        self._error: OSError | None = None
        self._told_s = time.monotonic()

    def hold_up(self) -> None:
        """Nothing to do: the sender of the command waits for its answer anyway."""

    def go_on(self) -> None:
        """As `hold_up`."""

    def next(self, change: Callable[[], RuleOutcome] | None) -> None:
        """Do a change, and have the next one done when its turn comes."""
        if change is not None:
            self._outcome = together((self._outcome, change()))
            self._owner.roles.when_written(self._written)
            self._looked_at += 1
            self._report_progress()
        try:
            found = next(self._changes)
        except StopIteration:
            self._owner.roles.when_written(self._end)
            return
        name, step = (b"", None) if found is None else found
        self._work.later(name, (self,), partial(self.next, step), self._give_up)

    def _report_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            verb, pattern = self._args[0], self._args[1].decode()
            log.info("%s %s: %d streams of this worker are done so far", verb, pattern, self._looked_at)

    def _written(self, error: OSError | None) -> None:
        self._error = self._error or error

    def _end(self, error: OSError | None) -> None:
        """All streams of a pass are changed, and their roles on the disk."""
        if self._refused(error):
            return
        newer = [name for name in self._owner.catalog.names if name not in self._names]
        if len(newer) > AT_ONCE_MAX and self._passes < PASSES_MAX:
            self._passes += 1
            self._names.update(newer)
            self._changes = changes(self._owner, self._args, newer)
            self.next(None)
            return
        for each in changes(self._owner, self._args, newer):
            if each is not None:
                self._outcome = together((self._outcome, each[1]()))
        try:
            _read_anew(self._owner)
        except Refused as refused:
            self._done(refused)
            return
        self._owner.roles.when_written(self._finish)

    def _finish(self, error: OSError | None) -> None:
        if not self._refused(error):
            self._done(list(self._outcome))

    def _refused(self, error: OSError | None) -> bool:
        """Whether a role could not be written; that is the answer then."""
        error = self._error or error
        if error is not None:
            self._done(Refused(Code.FULL, ROLE_UNWRITTEN_TEXT.format(cause=error.strerror)))
        return error is not None

    def _give_up(self) -> None:
        self._done(Refused(Code.UNAVAILABLE, "this worker is being replaced; give the command again"))


def _has_own_role(name: bytes) -> bool:
    """Not one that stays here, nor a companion, which goes with its stream."""
    return not is_never_copied(name) and not is_companion(name)


def _change(owner: Owner, verb: str, name: bytes, upstream: list[Any]) -> RuleOutcome:
    """One stream that cannot be changed, because it is damaged perhaps, keeps no other from it."""
    try:
        return RuleOutcome(int(_DO[verb](owner, name, upstream)))
    except Refused as refused:
        cause: object = refused.text
        reason = RuleOutcome(0, 1, refused.code, f"{name.decode()}: {refused.text}")
    except (StorageError, OSError) as error:
        cause = error
        reason = RuleOutcome(0, 1, Code.UNAVAILABLE, f"{name.decode()}: {peer_text(error)}")
    log.error("%s: stream %s: %s", verb, name.decode(), cause)
    meta = owner.roles.meta(name)
    if verb in _TAKE_BACK and meta.role is not Role.MASTER and name not in owner.roles.metas:
        # Only the rule that is taken back makes it a slave. Without it this would be a master that nobody promoted.
        owner.roles.set_meta(replace(meta, role=Role.DISABLED, upstream=None))
    return reason


def _slave(owner: Owner, name: bytes, upstream: list[Any]) -> bool:
    stream_roles.slave(owner, [name, *upstream[:4]])
    return True


def _forget(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    """A deleted stream: its role is by the rule when another node makes it again. It may have been made meanwhile."""
    if name not in owner.catalog.names:
        owner.roles.forget_deleted(name)
    return False


def _unslave(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    if not _follows(owner, name):
        return False
    stream_roles.unslave(owner, [name])
    return True


def _follows(owner: Owner, name: bytes) -> bool:
    """Whether a stream follows another node, or did by a section of the configuration that is gone."""
    return owner.roles.role(name) is Role.SLAVE or (name not in owner.roles.metas and owner.roles.rules.is_orphan(name))


def _promote(owner: Owner, name: bytes, upstream: list[Any]) -> bool:
    """The last of `upstream` is the term to begin, 0 for the next one of each stream that follows another node."""
    epoch = upstream[-1]
    role = owner.roles.role(name)
    if not (_follows(owner, name) or (epoch and role is Role.MASTER)):
        return False
    known = stream_roles.term_of(owner, name)[0]
    if role is Role.MASTER and known >= epoch:
        return False
    stream_roles.promote(owner, [name, epoch if known < epoch else 0])
    return True


def _unmaster(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    if owner.roles.role(name) is not Role.MASTER:
        return False
    stream_roles.unmaster(owner, [name])
    return True


_TAKE_BACK: Final = frozenset({"unslave", "promote"})
"""Commands that take a rule back."""

_DO: Final[Mapping[str, Callable[[Owner, bytes, list[Any]], bool]]] = {
    "slave": _slave,
    "forget": _forget,
    "unslave": _unslave,
    "promote": _promote,
    "unmaster": _unmaster,
}


def _read(owner: Owner) -> NodeFile:
    try:
        return owner.roles.node_file()
    except DirectoryError as error:
        raise Refused(Code.UNAVAILABLE, peer_text(error)) from error
