"""Commands for many streams at once: the rule is written down once, by the worker of slot 0, then every worker does it.

The three functions are verbs of `broker.owner_calls`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from broker.owner import Owner, Refused
from broker.protocol.errors import Code
from broker.replication import roles
from broker.replication.companions import is_companion
from broker.replication.node_file import NodeFile, read_node_file, write_node_file
from broker.replication.rules import Rule, TooManyRules, covers
from shard.errors import DirectoryError, StorageError
from shard.meta import Role, Upstream
from shard.names import is_reserved

log = logging.getLogger(__name__)

Args = list[Any]

PAUSE_STREAMS = 256  # between two signs of life: each of them may be opened for this


def rule(owner: Owner, args: Args) -> None:
    """[pattern, host ("" for none), port, kind, value]. What streams of this pattern do from now on is on the disk."""
    pattern, host, *rest = args
    upstream = Upstream(host, *rest) if host else None
    kept = _read(owner)
    try:
        wanted = replace(owner.rules, commands=kept.rules).with_rule(Rule(pattern, upstream))
        configured = tuple(each for each in kept.configured if each not in owner.rules.former or each in wanted.former)
        _write(owner, replace(kept, rules=wanted.commands, configured=configured))
    except TooManyRules as error:
        raise Refused(Code.OVERLOADED, str(error)) from error


def followed(owner: Owner, _args: Args) -> None:
    """[]. Some node follows a stream of this one: what a master does after the machine went down depends on it."""
    kept = _read(owner)
    if not kept.followed:
        _write(owner, replace(kept, followed=True))


class Outcome(NamedTuple):
    """What became of a command for many streams. `code` and `text`: why the first of those that failed did."""

    changed: int
    failed: int = 0
    code: str = ""
    text: str = ""


def together(outcomes: Iterable[Sequence[Any]]) -> Outcome:
    """Those of several workers, or of several passes over the same streams, as one."""
    changed, failed, code, text = 0, 0, "", ""
    for outcome in outcomes:
        each = Outcome(*outcome)
        changed, failed = changed + each.changed, failed + each.failed
        code, text = (code, text) if code else (each.code, each.text)
    return Outcome(changed, failed, code, text)


def rules(owner: Owner, args: Args) -> list[Any]:
    """[verb, pattern, host, port, kind, value] -> Outcome for the streams of this worker. Reads the rules anew.

    Before a rule is taken back its streams have their roles written down one by one, and before one is obeyed it is on
    the disk: so `slave` asks for `rule` and then for this, `promote` and `unslave` for this, `rule`, and this.
    """
    verb, pattern, *upstream = args
    outcomes = []
    meant = [name for name in owner.names if covers(pattern, name) and _has_own_role(name)]
    for number, name in enumerate(meant):
        outcomes.append(_change(owner, verb, name, upstream))
        if number % PAUSE_STREAMS == 0:
            owner.on_pause()
    try:
        owner.read_rules()
    except DirectoryError as error:
        raise Refused(Code.UNAVAILABLE, str(error)) from error
    owner.on_rules()
    return list(together(outcomes))


def _has_own_role(name: bytes) -> bool:
    """Not the broker's own, nor a companion, which goes with its stream."""
    return not is_reserved(name) and not is_companion(name)


def _change(owner: Owner, verb: str, name: bytes, upstream: list[Any]) -> Outcome:
    """One stream that cannot be changed, because it is damaged perhaps, keeps no other from it."""
    try:
        return Outcome(int(_DO[verb](owner, name, upstream)))
    except Refused as refused:
        reason = Outcome(0, 1, refused.code, f"{name.decode()}: {refused.text}")
    except (StorageError, OSError) as error:
        reason = Outcome(0, 1, Code.UNAVAILABLE, f"{name.decode()}: {error}")
    log.error("%s: stream %s", verb, reason.text)
    meta = owner.meta(name)
    if verb != "slave" and meta.role is not Role.MASTER and name not in owner.metas:
        # Only the rule that is taken back makes it a slave. Without it this would be a master that nobody promoted.
        owner.set_meta(replace(meta, role=Role.DISABLED, upstream=None))
    return reason


def _slave(owner: Owner, name: bytes, upstream: list[Any]) -> bool:
    roles.slave(owner, [name, *upstream])
    return True


def _unslave(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    if not _follows(owner, name):
        return False
    roles.unslave(owner, [name])
    return True


def _follows(owner: Owner, name: bytes) -> bool:
    """Whether a stream follows another node, or did by a section of the configuration that is gone."""
    return owner.role(name) is Role.SLAVE or (name not in owner.metas and owner.rules.is_orphan(name))


def _promote(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    if not _follows(owner, name):
        return False
    roles.promote(owner, [name])
    return True


_DO: Final[Mapping[str, Callable[[Owner, bytes, list[Any]], bool]]] = {
    "slave": _slave,
    "unslave": _unslave,
    "promote": _promote,
}


def _read(owner: Owner) -> NodeFile:
    try:
        return read_node_file(owner.directory.path)
    except DirectoryError as error:
        raise Refused(Code.UNAVAILABLE, str(error)) from error


def _write(owner: Owner, content: NodeFile) -> None:
    try:
        write_node_file(owner.directory.path, content)
    except OSError as error:
        raise Refused(Code.FULL, f"the rule could not be written down: {error.strerror}") from error
