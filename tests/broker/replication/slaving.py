"""A slave's copies of one stream under test, over an owner of real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.broker.replication.upstream.fetchers import FetchState, ReplicaFetcher, ReplicaFetchers
from tailrace.broker.replication.upstream.manager import SetAsideJob
from tailrace.broker.streams.owner import OpenStream
from tailrace.protocol import replication as r
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tests.broker.owning import around, make_owner
from tests.broker.replication.upstream_node import Ears, Original

S, T = b"s", b"t"
A = "node-a"
UPSTREAM = Upstream("10.0.0.1", 5050, "time", 7)
ONE: History = (EpochStart(1, 0, A),)
NOW_S = 1_000.0


class Slave:
    """The copies under test, over an owner of real files; their messages to the upstream; the tails to be set aside."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.owner = make_owner(path / "data", **settings)  # type: ignore[arg-type]
        self.original = Original(path / "upstream")
        self._ears = Ears()
        self._out = bytearray()
        self.set_aside: list[tuple[OpenStream, int, Callable[[str], None]]] = []
        self.paths: list[bytes] = []
        self.cuts: list[tuple[bytes, int]] = []
        self.ready: list[bytes] = []
        self.now_s = NOW_S
        around(self.owner).on_path = self.paths.append
        around(self.owner).on_cut = lambda name, seq: self.cuts.append((name, seq))
        self.copies = ReplicaFetchers(
            self.owner, [UPSTREAM[:2]], self._say, self._set_aside, lambda _name, step: step(), self.ready.append
        )

    @property
    def id(self) -> str:
        return self.owner.catalog.directory.node_id

    @property
    def log(self) -> StreamLog:
        return self.owner.stream(S).log

    @property
    def copy(self) -> ReplicaFetcher:
        return self.copies.by_name[S]

    def _say(self, data: bytes) -> None:
        assert self.copies.up, "said to nobody"
        self._out += data

    def _set_aside(self, stream: OpenStream, seq: int, done: Callable[[str], None]) -> None:
        stream.busy = True
        self.set_aside.append((stream, seq, done))

    def finish_cut(self, wrong: str = "") -> None:
        """The helper thread has done it, or something was wrong."""
        stream, seq, done = self.set_aside.pop(0)
        stream.busy = False
        setting = SetAsideJob(stream, seq)
        if not wrong:
            setting.sync()
            wrong = setting.wrong
        if wrong:
            self.owner.forget(stream)
        else:
            self.owner.events.on_cut(stream.name, setting.cut_seq)
        done(wrong)

    def heard(self) -> list[Any]:
        """The messages the upstream has received since the last time."""
        data = bytes(self._out)
        self._out.clear()
        return list(self._ears.hear(data))

    def follow(self, name: bytes = S) -> ReplicaFetcher:
        """Make a slave of it."""
        if name not in self.owner.catalog.names:
            self.owner.create(name)
        self.owner.roles.set_meta(StreamMeta(name.decode(), Role.SLAVE, 1, UPSTREAM, ((EpochStart(1, 0, ""),))))
        return self.copies.add(name)

    def up(self) -> list[Any]:
        """The uplink comes up; returns the requests sent then."""
        self.copies.went_up()
        self.copies.tick(self.now_s)
        return self.heard()

    def tick(self, seconds: float = 0.0) -> list[Any]:
        self.now_s += seconds
        self.copies.tick(self.now_s)
        return self.heard()

    def followed(
        self,
        state: str = "following",
        start_seq: int = 0,
        *,
        number: int = 0,
        history: History = ONE,
        path: tuple[str, ...] = (A,),
        first_seq: int = 0,
        awaited: bool = True,
    ) -> None:
        next_seq = max(self.original.log.next_seq, start_seq)
        standing = start_seq, first_seq, next_seq, "master", history, path
        self.copies.followed(r.Followed(number or self.copy.id, state, *standing, awaited=awaited), self.now_s)  # type: ignore[arg-type]

    def chunk(self, first_seq: int, next_seq: int, *, number: int = 0) -> None:
        frames = self.original.frames(first_seq, next_seq)
        self.copies.chunks(number or self.copy.id, [frames], self.now_s)

    def reports(self) -> list[r.Held]:
        return [
            message
            for data in self.copies.reports()
            for message in self._ears.hear(data)
            if isinstance(message, r.Held)
        ]

    def be(self, state: FetchState) -> None:
        """Bring the copy of ten messages, or of none on demand, into this state, with nothing left unheard."""
        self.original.append(*(b"%d" % number for number in range(20)))
        self.follow()
        if state is FetchState.IDLE:
            self.copies.set_on_demand(self.copy, on_demand=True)
        if self.log.next_seq == 0 and state is not FetchState.IDLE:
            self.log.take(self.original.frames(0, 10))
        if state is FetchState.DOWN:
            return
        self.copies.went_up()
        if state is not FetchState.QUEUED:
            self.copies.tick(self.now_s)
        if state is FetchState.FOLLOWING:
            self.followed("following", 10)
        elif state is FetchState.CUTTING:
            self.followed("parted", history=(EpochStart(1, 0, A), EpochStart(2, 5, A)))
        elif state is FetchState.WAITING:
            self.followed("behind")
        assert self.copy.state is state
        self.heard()
