"""NAME.meta: a stream's role and terms, if they differ from the default (a master in its first term, with a short
name).

Most streams have no such file. It is replaced whole, and is on the disk before `write_meta` returns.

    offset 0   8 bytes   magic
    offset 8   u32       CRC-32C of what follows
    offset 12            a msgpack map: name, role, epoch, upstream, from, epochs, and if there are any: contacts,
                         term_master, fence, not_before

Files from before there were slaves have neither `from` nor `epochs`, and are read as well.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from tailrace.shard.epochs import DEFAULT_HISTORY, EPOCH_MAX, EpochStart, History, last_epoch, make_history
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.files import Among, replace_file, sync_directory
from tailrace.shard.leaves import load
from tailrace.shard.names import NODE_BYTES_MAX, InvalidName, file_stem, stem_is_hashed, validate_name

META_SUFFIX: Final = ".meta"
META_MAGIC: Final = b"TRmeta\x001"
META_BYTES_MAX: Final = 64 * 1024
HOST_BYTES_MAX: Final = 255
PLACE_KINDS: Final = ("time", "seq", "new")
_HEAD = struct.Struct("<8sI")

crc32c = load("tailrace.shard.frame_cy").crc32c


class Role(StrEnum):
    """This node's role for a stream."""

    MASTER = "master"
    SLAVE = "slave"
    DISABLED = "disabled"


class Upstream(NamedTuple):
    """The node that a slave follows, and FROM: the copy's beginning, which counts only while it has no message.

    `kind` and `value` are a place: "time" and microseconds, "seq" and a seq, or "new" and 0.
    """

    host: str
    port: int
    kind: str = "time"
    value: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Contact(NamedTuple):
    """A node that must know who the master of a stream is.

    epoch: the latest term that it has confirmed to know. was_above: it was this node's upstream, or its upstream's; any
    other is notified of a term only if its own messages are of the same stream.
    """

    host: str
    port: int
    epoch: int = 0
    was_above: bool = True


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """`upstream` is there for a slave, and may stay for a stream that was one.

    `epoch` is the latest term that is known here. `history` has the epochs of the messages, as far as it was stored; if
    the messages differ, they are right (`shard.epochs.reconcile`). `term_master` is the node id of the master of term
    `epoch`, if another node has announced it before its messages came. `fence` is the term of a fence, while this node
    follows no master of it; 0 if there is none. `not_before`: the earliest term that this node may begin, because a
    former stream of this name was deleted here; 0 if any that is later than `epoch`.
    """

    name: str
    role: Role = Role.MASTER
    epoch: int = 1
    upstream: Upstream | None = None
    history: History = DEFAULT_HISTORY
    contacts: tuple[Contact, ...] = ()
    term_master: str = ""
    fence: int = 0
    not_before: int = 0

    @property
    def term_seq(self) -> int:
        """The beginning of the latest stored term. A promotion may pass over a node that has not reached it."""
        return self.history[-1].first_seq if self.history else 0

    @property
    def is_default(self) -> bool:
        """Whether the file can be omitted."""
        short = not stem_is_hashed(file_stem(self.name))
        plain = self.role is Role.MASTER and self.epoch == 1 and self.upstream is None and not self.contacts
        return short and plain and self.history in (DEFAULT_HISTORY, ())


def meta_path(directory: Path, name: str) -> Path:
    return directory / (file_stem(name) + META_SUFFIX)


def read_meta(directory: Path, name: str) -> StreamMeta:
    """Reads the stream's meta, the default without a file. Raises MetaDamaged, OSError."""
    path = meta_path(directory, name)
    try:
        meta = read_meta_file(path, name)
    except FileNotFoundError:
        return StreamMeta(name)
    if meta.name != name:
        raise MetaDamaged(name, path, 0, f"it is of the stream {meta.name!r}")
    return meta


def read_meta_file(path: Path, name: str = "") -> StreamMeta:
    """The meta in this very file; `name` is for the error's text. Raises MetaDamaged, FileNotFoundError, OSError."""
    with open(path, "rb") as file:
        data = file.read(META_BYTES_MAX + 1)
    if len(data) < _HEAD.size or len(data) > META_BYTES_MAX:
        raise MetaDamaged(name, path, 0, f"it has {len(data)} bytes")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != META_MAGIC:
        raise MetaDamaged(name, path, 0, f"it begins with {magic!r}, not {META_MAGIC!r}")
    if crc != crc32c(body):
        raise MetaDamaged(name, path, 8, "its checksum does not fit")
    return _parse(path, name, body)


def write_meta(directory: Path, meta: StreamMeta, among: Among | None = None) -> None:
    """Syncs the meta to the disk, or removes the file if it equals the default; `among` others, as `sync_later` asks.

    Raises OSError, InvalidName, ValueError for what could not be read again.
    """
    path = meta_path(directory, validate_name(meta.name))
    _require_sound(meta)
    if meta.is_default and among is not None:
        among.remove(path)
        return
    if meta.is_default:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        sync_directory(directory)
        return
    upstream = meta.upstream
    fields: dict[str, Any] = {
        "name": meta.name,
        "role": str(meta.role),
        "epoch": meta.epoch,
        "upstream": str(upstream) if upstream else "",
        "from": [upstream.kind, upstream.value] if upstream else [],
        "epochs": [list(start) for start in meta.history],
    }
    if meta.contacts:
        fields["contacts"] = [list(contact) for contact in meta.contacts]
    if meta.term_master:
        fields["term_master"] = meta.term_master
    if meta.fence:
        fields["fence"] = meta.fence
    if meta.not_before:
        fields["not_before"] = meta.not_before
    body: bytes = msgpack.packb(fields)
    data = _HEAD.pack(META_MAGIC, crc32c(body)) + body
    if among is None:
        replace_file(path, data)
    else:
        among.replace(path, data)


def _parse(path: Path, name: str, body: bytes) -> StreamMeta:
    try:
        fields: dict[str, Any] = msgpack.unpackb(body)
        epoch, upstream = fields["epoch"], _parse_upstream(fields["upstream"], fields.get("from"))
        starts = fields.get("epochs")
        if starts is None:  # nobody wrote down where epochs began
            history = DEFAULT_HISTORY if epoch == 1 else ()
        else:
            history = make_history(EpochStart(*start) for start in starts)
        contacts = tuple([Contact(*row) for row in fields.get("contacts", [])])
        master, fence = fields.get("term_master", ""), fields.get("fence", 0)
        role, not_before = Role(fields["role"]), fields.get("not_before", 0)
        own_name = validate_name(fields["name"])
        meta = StreamMeta(own_name, role, epoch, upstream, history, contacts, master, fence, not_before)
        _require_sound(meta)
        return meta
    except (ValueError, KeyError, TypeError, AttributeError, InvalidName) as error:
        raise MetaDamaged(name, path, _HEAD.size, f"its map is invalid: {error!r}") from error


def _parse_upstream(text: str, place: list[Any] | None) -> Upstream | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    return Upstream(host, int(port), *(place or []))


def _require_sound(meta: StreamMeta) -> None:
    """Raises ValueError."""
    epoch: Any = meta.epoch
    latest = last_epoch(make_history(meta.history))
    if type(epoch) is not int or not max(latest, 1) <= epoch <= EPOCH_MAX:
        raise ValueError(f"epoch = {epoch!r}, with a history up to {latest}")
    if len(meta.term_master.encode()) > NODE_BYTES_MAX:
        raise ValueError(f"term_master = {meta.term_master!r}")
    for contact in meta.contacts:
        _require_address("contact", contact.host, contact.port)
        if not 0 <= contact.epoch <= EPOCH_MAX:
            raise ValueError(f"contact with epoch {contact.epoch!r}")
    fence: Any = meta.fence
    if type(fence) is not int or not 0 <= fence <= epoch:
        raise ValueError(f"fence = {fence!r}, in term {epoch}")
    if meta.upstream is None:
        return
    host, port, kind, value = meta.upstream
    _require_address("upstream", host, port)
    if kind not in PLACE_KINDS or type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"from = {kind!r}, {value!r}")


def _require_address(what: str, host: str, port: int) -> None:
    """Raises ValueError."""
    if not 0 < len(host.encode()) <= HOST_BYTES_MAX or not 0 < port < 65_536:
        raise ValueError(f"{what} = {host!r}, port {port!r}")
