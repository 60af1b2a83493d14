"""The role of this node for each stream of an owner: the roles that are saved, and the rules of the node.

A role is valid as soon as it is set. If it goes to the disk later, the stream takes nothing before it is written
(`unwritten`), and the role is taken back if it cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tailrace.broker.process.settings import Settings
from tailrace.broker.replication.roles.internal_streams import copied_from, is_companion, own_part, with_role_of
from tailrace.broker.replication.roles.node_file import NodeFile, note_configured, read_node_file, write_node_file
from tailrace.broker.replication.roles.peers import NodeAddress, Peers
from tailrace.broker.replication.roles.rules import Rules, configured
from tailrace.broker.streams.copy_states import CopyStates
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import EpochStart
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.meta import META_SUFFIX, Role, StreamMeta, read_meta_file, write_meta
from tailrace.shard.names import base_of, name_of_stem

if TYPE_CHECKING:
    from tailrace.broker.replication.roles.role_writer import RoleWriter
    from tailrace.broker.streams.catalog import StreamCatalog
    from tailrace.broker.streams.collaborators import OwnerEvents

IN_MEMORY_TEXT = (
    "this stream is in memory, and gone when the node stops: it has no consumers, copies or retained messages, and is"
    " trimmed instead of deleted"
)
ROLE_UNWRITTEN_TEXT = "the role could not be written down: {cause}"

Confirmed: TypeAlias = tuple[tuple[int, str], set[tuple[str, int]]]
"""A term, and the contacts that have confirmed it so far. It is written down when all have."""


class StreamRoles:
    """One per owner.

    metas: the saved roles, only of streams that differ from the default.
    rules: which upstream streams follow that have no saved role.
    was_followed: by another node, before this worker took its shards; `followers` are the addresses of the last ones.
    copies: which slaved streams are copied only while they are read.
    confirmed: which contacts have confirmed the term of a stream.
    unwritten: streams whose role is on its way to the disk, and how many times.
    reborn: streams that were opened first in this boot of the machine, and for which no term has begun yet.
    writes: how many roles were written, or are on their way to the disk.
    """

    def __init__(
        self, catalog: StreamCatalog, settings: Settings, events: OwnerEvents, writer: RoleWriter | None
    ) -> None:
        """Without `writer` roles are on the disk before `set_meta` returns."""
        self._catalog = catalog
        self._slaves = settings.slaves
        self._events = events
        self._writer = writer
        self.metas: dict[bytes, StreamMeta] = {}
        self.rules = Rules()
        self.copies = CopyStates()
        self.peers = Peers(settings.replication_peers)
        self.confirmed: dict[bytes, Confirmed] = {}
        self.unwritten: dict[bytes, int] = {}
        self.reborn: set[bytes] = set()
        self.was_followed = False
        self.followers: tuple[tuple[str, int], ...] = ()
        self.writes = 0
        self._node_file: NodeFile | None = None  # on its way to the disk

    def read_rules(self) -> None:
        """Raises DirectoryError."""
        directory = self._catalog.directory
        kept = read_node_file(directory.path)
        sections = configured(self._slaves)
        patterns = [rule.pattern for rule in sections if rule.upstream is not None]
        self.rules = Rules(kept.rules, sections, tuple([each for each in kept.configured if each not in patterns]))
        self.was_followed, self.followers = kept.followed, kept.followers
        if self._catalog.shards[:1] == [0] and not set(patterns) <= set(kept.configured):  # one worker writes it down
            note_configured(directory.path, kept, patterns)

    def read_metas(self) -> None:
        """Read the saved roles of the streams of all shards. A damaged file makes its stream damaged."""
        catalog = self._catalog
        paths = [catalog.directory.shard_path(shard) for shard in catalog.shards]
        for file in (file for path in paths for file in path.glob(f"*{META_SUFFIX}")):
            try:
                meta = read_meta_file(file)
            except MetaDamaged as damage:
                name = name_of_stem(file.stem)
                if name is not None:
                    catalog.note_damage(name.encode(), damage)
                continue
            if not is_plain(meta):
                self.metas[meta.name.encode()] = meta

    def drop(self, name: bytes) -> None:
        """A stream is deleted: nothing is written down of it any more."""
        self.metas.pop(name, None)
        self.confirmed.pop(name, None)
        self.reborn.discard(name)

    def forget_deleted(self, name: bytes) -> None:
        """Forget the role in which this node would make a deleted stream again. Raises Refused."""
        try:
            write_meta(self._catalog.shard_path(name), StreamMeta(name.decode()), self._writer)
        except OSError as error:
            raise Refused(Code.FULL, ROLE_UNWRITTEN_TEXT.format(cause=error.strerror)) from error
        self.metas.pop(name, None)

    def meta(self, name: bytes) -> StreamMeta:
        """The saved role of the stream, or else the one by the node's rules and the defaults."""
        memory = self._catalog.directory.memory
        if memory is not None and memory.holds(name):
            return StreamMeta(name.decode(), epoch=memory.term, history=(EpochStart(memory.term, 0),))
        meta = self.metas.get(name)
        if is_companion(name):
            return with_role_of(self.meta(base_of(name)), meta or StreamMeta(name.decode()))
        if meta is not None:
            return meta
        rule = self.rules.match(name)
        if rule is None and self.rules.is_orphan(name):
            return StreamMeta(name.decode(), Role.DISABLED)
        if rule is None or rule.upstream is None:
            return StreamMeta(name.decode())
        return StreamMeta(name.decode(), Role.SLAVE, upstream=copied_from(name, rule.upstream))

    def upstreams(self, name: bytes) -> tuple[NodeAddress, ...]:
        """The nodes of which a stream follows one, the first in its role; () if it follows none."""
        meta = self.meta(name)
        return self.rules.addresses(base_of(name), meta.upstream) if meta.role is Role.SLAVE else ()

    def role(self, name: bytes) -> Role:
        return self.meta(name).role

    def epoch(self, name: bytes) -> int:
        return self.meta(name).epoch

    def open_epoch(self, name: bytes) -> int:
        """The epoch of messages that this node may append; 0 if it is not the stream's master, or not yet.

        This is one comparison on the append path.
        """
        meta = self.meta(name)
        return meta.epoch if meta.role is Role.MASTER and name not in self.unwritten else 0

    def set_meta(self, meta: StreamMeta) -> None:
        """Save the role of a stream from now on. Raises Refused when the disk does not take it.

        It is valid here at once. If it goes to the disk later, nothing is appended to the stream before that, nobody is
        notified of it (`on_role`), and it is taken back if it cannot be written (`when_written`).
        """
        name = meta.name.encode()
        if self._catalog.directory.is_in_memory(name):
            raise Refused(Code.UNSUPPORTED, IN_MEMORY_TEXT)
        meta = own_part(meta) if is_companion(name) else meta
        try:
            write_meta(self._catalog.shard_path(name), meta, self._writer)
        except OSError as error:
            raise Refused(Code.FULL, ROLE_UNWRITTEN_TEXT.format(cause=error.strerror)) from error
        former, self.metas[name] = self.metas.get(name), meta
        affected = (name, *self._catalog.companions.of(name))
        if self._writer is None:
            for each in affected:
                self.announce(each)
            return
        self.writes += 1
        for each in affected:
            self.hold(each)
        begins = name in self.reborn
        self._writer.when_written(lambda error: self._role_written(meta, former, affected, begins, error))

    def node_file(self) -> NodeFile:
        """The rules of the node's file, or those about to be in it. Raises DirectoryError."""
        return self._node_file or read_node_file(self._catalog.directory.path)

    def set_node_file(self, content: NodeFile) -> None:
        """Write the node's file of rules, as `set_meta` does. Raises Refused."""
        try:
            write_node_file(self._catalog.directory.path, content, self._writer)
        except OSError as error:
            raise Refused(Code.FULL, f"the rule could not be written down: {error.strerror}") from error
        if self._writer is None:
            return
        self._node_file = content
        self.writes += 1
        self._writer.when_written(lambda _error: self._node_file_written(content))

    def _node_file_written(self, content: NodeFile) -> None:
        if self._node_file is content:
            self._node_file = None

    def when_written(self, done: Callable[[OSError | None], None]) -> None:
        """Call when all roles that were set until now are on the disk, or with why they could not be written."""
        if self._writer is None:
            done(None)
        else:
            self._writer.when_written(done)

    def _role_written(
        self,
        meta: StreamMeta,
        former: StreamMeta | None,
        affected: Sequence[bytes],
        begins: bool,
        error: OSError | None,
    ) -> None:
        name = meta.name.encode()
        if error is not None and self.metas.get(name) is meta:
            if former is None:
                self.metas.pop(name, None)
            else:
                self.metas[name] = former
            if begins:  # a term that was to begin with this node's start: the next publish tries again
                self.reborn.add(name)
        for each in affected:
            self.release(each)
        for each in affected:
            self.announce(each)

    def hold(self, name: bytes) -> None:
        """Nothing is appended to the stream until `release`, called once for each `hold`."""
        self.unwritten[name] = self.unwritten.get(name, 0) + 1
        self._events.on_unwritten(name)
        stream = self._catalog.open.get(name)
        if stream is not None:
            stream.unwritten, stream.epoch = True, 0

    def release(self, name: bytes) -> None:
        count = self.unwritten.pop(name) - 1
        if count:
            self.unwritten[name] = count
        elif (stream := self._catalog.open.get(name)) is not None:
            stream.unwritten = False
        self._events.on_written(name)

    def announce(self, name: bytes) -> None:
        """The role of a stream may have changed: from here on it counts."""
        stream = self._catalog.open.get(name)
        if stream is not None and name not in self.unwritten:
            stream.epoch = self.open_epoch(name)
        self._events.on_role(name)


def is_plain(meta: StreamMeta) -> bool:
    """Whether the saved role of a stream is the default one."""
    return meta == StreamMeta(meta.name)
