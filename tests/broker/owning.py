"""An owner of real files, without a worker around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.broker.process.lease import Lease
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Durability, Settings, StreamPolicy
from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.errors import Code
from tailrace.shard.directory import data_dir_exists, make_data_dir, open_data_dir
from tailrace.shard.frame import pack_frame

BOOT = "0123456789abcdef0123456789abcdef"
SHARDS = 4

_made: list[Owner] = []


class Sink:
    """Remembers the outcome of each part of a publish."""

    asker: Asker = NOBODY
    wants_subscribers = True

    def __init__(self, may_create: bool = True) -> None:
        self.published_at: dict[int, int] = {}
        self.refusals: dict[int, tuple[Code, str]] = {}
        self.logged_at: dict[int, int] = {}  # first seqs of the parts refused as unreplicated
        self.created = 0
        self._may_create = may_create

    def published(self, key: int, first_seq: int, _subscribers: int) -> None:
        self.published_at[key] = first_seq

    def refused(self, key: int, code: Code, text: str) -> None:
        self.refusals[key] = (code, text)

    def unreplicated(self, key: int, first_seq: int, text: str) -> None:
        self.logged_at[key] = first_seq
        self.refused(key, Code.UNREPLICATED, text)

    def may_create(self, _name: bytes) -> bool:
        return self._may_create

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.STREAMS, "no more streams")

    def count_created(self) -> None:
        self.created += 1


class Clock:
    """Monotonic seconds and wall-clock microseconds that move only when a test moves them."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def seconds(self) -> float:
        return self.now_s

    def microseconds(self) -> int:
        return int(self.now_s * 1e6)


class Around:
    """Stands for the worker around an owner. Nothing happens on any event; a test replaces those that it looks at."""

    def __init__(self) -> None:
        self.on_create: Callable[[], None] = lambda: None
        self.on_open: Callable[[OpenStream], None] = lambda _stream: None
        self.on_role: Callable[[bytes], None] = lambda _name: None
        self.on_rules: Callable[[], None] = lambda: None
        self.on_path: Callable[[bytes], None] = lambda _name: None
        self.on_cut: Callable[[bytes, int], None] = lambda _name, _seq: None
        self.on_held: Callable[[bytes], None] = lambda _name: None
        self.on_deleted: Callable[[bytes], None] = lambda _name: None
        self.on_trim: Callable[[OpenStream, int], None] = lambda _stream, _dropped: None
        self.on_unwritten: Callable[[bytes], None] = lambda _name: None
        self.on_written: Callable[[bytes], None] = lambda _name: None
        self.on_pause: Callable[[], None] = lambda: None
        self.subscribers: Callable[[bytes], int] = lambda _name: 0
        self.spared_seq: Callable[[bytes], int | None] = lambda _name: None
        self.require_kept: Callable[[bytes, int], None] = lambda _name, _seq: None
        self.home: Callable[[bytes], bytes] = lambda name: name
        self.put_back: Callable[[bytes], None] = lambda _name: None
        self.asks_first: Callable[[bytes], bool] = lambda _name: False
        self.path_above: Callable[[bytes], tuple[str, ...]] = lambda _name: ()
        self.stat_upstream: Callable[[OpenStream], dict[str, int | str]] = lambda _stream: {}
        self.consumer_lag: Callable[[bytes], tuple[int, int]] = lambda _name: (0, 0)
        self.share_bytes: Callable[[int, bool], int] = lambda nbytes, _is_whole: nbytes
        self.await_copy: Callable[[bytes, Callable[[], None], OnResult], bool] = lambda _name, _step, _done: False
        self.await_copies: Callable[[Callable[[], None], OnResult], bool] = lambda _step, _done: False
        self.send_up: Callable[[StreamBatch], None] = lambda batch: batch.refused(Code.UNAVAILABLE, "no way up")
        self.call_up: Callable[[bytes, str, list[Any], Callable[[Any | Refused], None]], None] = (
            lambda _name, _verb, _args, done: done(Refused(Code.UNAVAILABLE, "no way up"))
        )

    def delete(self, name: bytes, done: Callable[[Any | Refused], None], *, copy: bool = False) -> None:
        done(Refused(Code.UNSUPPORTED, f"{name.decode()} is not deleted here, copy: {copy}"))


def around(owner: Owner) -> Around:
    """What `make_owner` has put around an owner."""
    assert isinstance(owner.events, Around)
    assert owner.events is owner.context
    return owner.events


def make_owner(
    path: Path, clock: Clock | None = None, *, slot: int = 0, slots: int = 1, total: int = 0, **settings: object
) -> Owner:
    """The owner of a slot's shards, which it has taken; the data directory is made if it does not exist."""
    surroundings = Around()
    directory = open_data_dir(path) if data_dir_exists(path) else make_data_dir(path, SHARDS)
    owner = Owner(
        directory,
        slot,
        slots,
        Settings(data=path, **settings),  # type: ignore[arg-type]
        BOOT,
        WorkerMetrics(),
        total_streams=lambda: total,
        clock_us=(clock or Clock()).microseconds,
        events=surroundings,
        context=surroundings,
        lease=Lease(Board(1).lease, directory.node_id),
    )
    owner.take()
    _made.append(owner)
    return owner


def release_all() -> None:
    """Give back the descriptors of what the test has made: the whole suite runs in one process."""
    while _made:
        owner = _made.pop()
        if owner.catalog.owning:
            owner.release()


def policies(durability: Durability, interval_ms: int = 1_000) -> tuple[StreamPolicy, ...]:
    """The [[stream]] sections of a node that keeps all streams in one way."""
    return (StreamPolicy(durability=durability, interval_ms=interval_ms),)


def batch(name: bytes, *payloads: bytes, sink: Sink | None = None) -> StreamBatch:
    """A publish of some messages."""
    made = StreamBatch(name, 0)
    frames = bytearray(b"".join(pack_frame(payload) for payload in payloads))
    made.add(sink or Sink(), 0, len(payloads), frames)
    return made


def publish(owner: Owner, name: bytes, *payloads: bytes, now_s: float = 1_000.0) -> Sink:
    """Append; the sink knows the outcome."""
    sink = Sink()
    owner.append(batch(name, *(payloads or (b"message",)), sink=sink), now_s)
    return sink
