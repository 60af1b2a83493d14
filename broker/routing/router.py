"""Routes each publish or call: into the logs of this worker, or to the sibling that owns the stream.

Publishes are staged per stream through a turn of the loop and go on as one batch each, in `flush`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count
from types import MappingProxyType
from typing import Any, Protocol

from tailrace.broker.process.metrics import Traffic, WorkerMetrics
from tailrace.broker.process.work import NOBODY, Asker, WorkQueue
from tailrace.broker.routing.batch import (
    FramePublication,
    LinePublication,
    LonePart,
    LoneSink,
    OutcomeSink,
    Pending,
    PublicationClient,
    QuietRead,
    RunPublication,
    StampableFrames,
    StreamBatch,
)
from tailrace.broker.routing.requests import ForwardedBatches, OwnerCall, answered_together
from tailrace.broker.routing.route import Route
from tailrace.broker.routing.verbs import LONG, NOT_IN_MEMORY, OF_A_COPY, OF_A_STREAM
from tailrace.broker.streams.deduplication import is_numbered
from tailrace.broker.streams.owner import BATCHES_A_BEAT as BATCHES_A_BEAT
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.owner_calls import call
from tailrace.broker.streams.refused import OnResult
from tailrace.broker.streams.roles import IN_MEMORY_TEXT, ROLE_UNWRITTEN_TEXT
from tailrace.protocol.commands import Staged
from tailrace.protocol.errors import Code
from tailrace.shard.names import shard_of

WINDOW_MESSAGES = 64  # of one client, over which the owners of its streams are counted
# If all of these are for one sibling, the window ends here: to forward them costs more than to move the client.
WINDOW_MESSAGES_MIN = 16
UP_BATCH_BYTES = 4 << 20  # a batch for another node's stream grows no further: it is one PUBLISH there
SCATTERED_STREAMS, SCATTERED_BYTES = 64, 16 << 10  # more streams than this, less than that for each
SEND_FIRST_STREAMS = 16  # to be appended here: before that, forwarded batches are sent
SLOTS_KEPT = 4_096  # streams whose owners need not be computed again
NEW_STREAMS = 32  # of a turn: with more of them it makes streams, which takes as long for each when done with many
AWAY_SHARE = 0.75  # of a window, to one sibling: the client belongs there
NONE_DENIED: Mapping[int, Refused] = MappingProxyType({})

LateAnswer = Callable[[list[Any], OnResult], None]


class SharedSink(LoneSink, Protocol):
    """Several clients that have each sent a message to the same stream."""

    name: bytes

    @property
    def clients(self) -> Sequence[PublishingClient]: ...


class PublishingClient(Protocol):
    """What the router needs of a client that publishes."""

    traffic: Traffic
    window_slot: int  # of the siblings published to, the first in this window
    window_away: int  # messages to it
    window_messages: int

    def pause_for(self, route: Route) -> None: ...


class LinePublisher(PublishingClient, PublicationClient, Protocol):
    """A client whose answers stand in a row."""

    def answers_ready(self) -> None: ...

    def pend(self, pending: Pending) -> None: ...


class Router:
    """One per worker. A stream's owner is the slot `shard % slots`."""

    def __init__(
        self,
        owner: Owner,
        routes: dict[int, Route],
        slots: int,
        shards: int,
        metrics: WorkerMetrics,
        work: WorkQueue,
        send_forwards: Callable[[], None],
        *,
        answered_later: Mapping[str, LateAnswer],
        on_away: Callable[[Any, int], bool],
    ) -> None:
        """`send_forwards` sends at once the queues for the siblings.

        answered_later: by verb, the calls whose answers are not known at once. on_away: called with a client that
        publishes mostly to one other worker, and the slot of that worker; returns False if it is to be called again.
        """
        self.owner = owner
        self._send_forwards = send_forwards
        self.routes = routes
        self._work = work
        self._metrics = metrics
        self._staged: dict[bytes, StreamBatch] = {}
        self._lone: dict[bytes, LonePart] = {}  # of this turn, of open streams that are not in `_staged`
        self._full: list[StreamBatch] = []  # of this turn too, before those of the same streams that are staged
        self.staged_bytes = 0
        self._new_streams = 0  # of this turn, of this worker's own
        self._ids = count(1)
        self.slot_of: Callable[[bytes], int] = lru_cache(SLOTS_KEPT)(lambda name: shard_of(name, shards) % slots)
        self.answered_later = answered_later
        self.on_away = on_away

    @property
    def scattered(self) -> bool:
        """Whether the staged messages go to many streams, a few each, and more messages would find them here."""
        batches = len(self._staged) + len(self._lone)
        few_each = batches > SCATTERED_STREAMS and self.staged_bytes < batches * SCATTERED_BYTES
        return few_each and not self.makes_streams

    @property
    def makes_streams(self) -> bool:
        """Whether many streams are new. They are made in later turns (`broker.process.work`), and taking them down
        makes this one long. Also, the memory of a turn with very many batches of one message is never free again: the
        lasting objects of each stream lie between them.
        """
        return self._new_streams > NEW_STREAMS

    # --- publishing -------------------------------------------------------------------------------------------------

    def batch(self, name: bytes, replicas: int = 0, *, numbered: bool = False) -> StreamBatch:
        """This turn's batch of a stream, for publishes that wait for `replicas` nodes."""
        batch = self._staged.get(name)
        if batch is not None:
            if batch.replicas == replicas and batch.numbered is numbered and not self._is_full(batch):
                return batch
            self._full.append(batch)
        elif (part := self._lone.pop(name, None)) is not None:
            batch = self._batch_from(part, name)
            if not (replicas or numbered):
                self._staged[name] = batch
                return batch
            self._full.append(batch)
        batch = self._staged[name] = self._new_batch(name, replicas)
        batch.numbered = numbered
        return batch

    def _batch_from(self, part: LonePart, name: bytes) -> StreamBatch:
        """What was to be appended alone, as a batch that others join."""
        batch = self._new_batch(name, 0)
        batch.add(*part)
        return batch

    def _is_lone(self, name: bytes) -> bool:
        """Whether publishes to this stream, which is open here, are the first of this turn.

        Most are the only ones then. If they are unnumbered and nobody waits for replicas, or for the disk where the
        stream's others do not, they are a `LonePart`: an append without a batch around it costs half as much.
        """
        here = name in self.owner.catalog.open and name not in self.owner.uproutes
        return here and name not in self._lone and name not in self._staged

    def stage_lone(self, name: bytes, sink: LoneSink, messages: int, frames: bytearray) -> bool:
        """Take messages for which nobody waits for replicas or the disk, if they may go alone."""
        if not self._is_lone(name) or is_numbered(frames):
            return False
        self._lone[name] = sink, 0, messages, frames
        return True

    def batch_for(self, name: bytes, frames: StampableFrames, replicas: int = 0) -> StreamBatch:
        """The batch that these frames go into: with numbered ones only if they are numbered."""
        return self.batch(name, replicas, numbered=is_numbered(frames))

    def alone(self, batch: StreamBatch) -> None:
        """Take a batch of this turn that no other publisher's messages are to join, behind those before it."""
        before = self._staged.pop(batch.name, None)
        if before is None and batch.name in self._lone:
            before = self._batch_from(self._lone.pop(batch.name), batch.name)
        self._full += [batch] if before is None else [before, batch]

    def _new_batch(self, name: bytes, replicas: int) -> StreamBatch:
        slot = self.slot_of(name)
        route = self.routes.get(slot) or self.owner.uproutes.get(name)
        if route is None and name not in self.owner.catalog.names:
            self._new_streams += 1
        return StreamBatch(name, slot, route, replicas)

    def _is_full(self, batch: StreamBatch) -> bool:
        return batch.nbytes > UP_BATCH_BYTES and batch.slot not in self.routes and batch.route is not None

    def publish(self, client: LinePublisher, staged: Staged) -> None:
        """Take what one read of one connection published."""
        if staged.order:
            self._publish_awaited(client, staged.groups, staged.order)
            self._count(client, len(staged.order))
            return
        remote = []
        messages = 0
        nbytes = 0
        is_lone, lone, read = self._is_lone, self._lone, QuietRead(client, staged.groups)
        for key, group in enumerate(staged.groups):
            name, count, frames = group
            messages += count
            if is_lone(name):
                lone[name] = read, key, count, frames
                nbytes += len(frames)
                continue
            batch = self.batch(name)
            if batch.route is not None:
                remote.append(group)
            else:
                batch.add_quiet(client, count, frames)
                nbytes += len(frames)
        self.staged_bytes += nbytes
        if remote:
            self._publish_awaited(client, remote, [])
        self._count(client, messages)

    def publish_allowed(self, client: LinePublisher, staged: Staged, denied: Mapping[int, Refused]) -> None:
        """As `publish`, but for the groups with these indexes, which are refused."""
        self._publish_awaited(client, staged.groups, staged.order, denied)
        self._count(client, sum(group[1] for group in staged.groups))

    def publish_frames(
        self,
        client: PublishingClient,
        publication: FramePublication,
        names: list[bytes],
        frames: StampableFrames,
        sync: bool,
        replicas: int = 0,
    ) -> None:
        """Take one PUBLISH: the same frames for each of the streams. `frames` is the router's from here on."""
        messages = publication.count
        numbered = is_numbered(frames)
        for key, name in enumerate(names):
            batch = self._staged.get(name)
            if batch is None or batch.numbered is not numbered or batch.replicas != replicas or batch.route is not None:
                batch = self.batch(name, replicas, numbered=numbered)
            batch.add(publication, key, messages, bytearray(frames) if key else frames)
            batch.sync |= sync
            self.staged_bytes += len(frames)
            if batch.route is not None:
                self._note_remote(client, batch.route, messages)
        self._count(client, messages * len(names))

    def publish_parts(
        self,
        client: PublishingClient,
        publication: FramePublication,
        parts: list[tuple[int, bytes, bytearray]],
        sync: bool,
        replicas: int,
    ) -> None:
        """As `publish_frames`, for some of the streams, each with its place among all, and frames of its own."""
        for key, name, frames in parts:
            batch = self.batch_for(name, frames, replicas)
            batch.add(publication, key, publication.count, frames)
            batch.sync |= sync
            self.staged_bytes += len(frames)
            if batch.route is not None:
                self._note_remote(client, batch.route, publication.count)
        self._count(client, publication.count * len(parts))

    def publish_group(
        self, client: PublishingClient, run: RunPublication, key: int, frames: bytearray, sync: bool, replicas: int = 0
    ) -> None:
        """Take what a run of PUBLISH has for one stream."""
        name, messages, numbered = run.names[key], run.counts[key], is_numbered(frames)
        if self._is_lone(name) and not (numbered or sync or replicas):
            self._lone[name] = run, key, messages, frames
            self.staged_bytes += len(frames)
            self._count(client, messages)
            return
        batch = self._staged.get(name)
        if batch is None or batch.numbered is not numbered or batch.replicas != replicas or batch.route is not None:
            batch = self.batch(name, replicas, numbered=numbered)
        batch.add(run, key, messages, frames)
        batch.sync |= sync
        self.staged_bytes += len(frames)
        if batch.route is not None:
            self._note_remote(client, batch.route, messages)
        self._count(client, messages)

    def publish_shared(self, runs: Sequence[tuple[SharedSink, bytearray]]) -> None:
        """Take a message of each client of these runs, all of one protocol, for the stream of the run: unnumbered, and
        nobody waits for replicas.
        """
        is_lone, lone = self._is_lone, self._lone
        messages = 0
        for sink, frames in runs:
            name, clients = sink.name, sink.clients
            self.staged_bytes += len(frames)
            if is_lone(name):
                messages += len(clients)
                lone[name] = sink, 0, len(clients), frames
                for client in clients:
                    client.window_messages += 1
                    if client.window_messages >= WINDOW_MESSAGES:  # none ends before with a message to this worker
                        self._end_window(client)
                continue
            batch = self.batch(name)
            batch.add(sink, 0, len(clients), frames)
            for client in clients:
                if batch.route is not None:
                    self._note_remote(client, batch.route, 1)
                self._count(client, 1)
        if messages:
            runs[0][0].clients[0].traffic.messages_in += messages

    def publish_numbered(self, sink: OutcomeSink, name: bytes, client: PublishingClient, frame: bytearray) -> None:
        """Take a message that its producer has numbered, and that waits for no replicas."""
        batch = self._staged.get(name)
        if batch is None or not batch.numbered or batch.replicas or batch.route is not None:
            batch = self.batch(name, numbered=True)
        batch.add(sink, 0, 1, frame)
        self.staged_bytes += len(frame)
        if batch.route is not None:
            self._note_remote(client, batch.route, 1)
        self._count(client, 1)

    def _publish_awaited(
        self,
        client: LinePublisher,
        groups: list[tuple[bytes, int, bytearray]],
        order: list[int],
        denied: Mapping[int, Refused] = NONE_DENIED,
    ) -> None:
        publication = LinePublication(client.answers_ready, client, groups, order)
        client.pend(publication)
        away: dict[Route, int] = {}
        is_lone, lone = self._is_lone, self._lone
        for key, (name, messages, frames) in enumerate(groups):
            if key in denied:
                publication.refused(key, denied[key].code, denied[key].text)
                continue
            self.staged_bytes += len(frames)
            if is_lone(name):
                lone[name] = publication, key, messages, frames
                continue
            batch = self.batch(name)
            batch.add(publication, key, messages, frames)
            route = batch.route
            if route is not None:
                away[route] = away.get(route, 0) + messages
        for route, messages in away.items():
            self._note_remote(client, route, messages)

    def _note_remote(self, client: PublishingClient, route: Route, messages: int) -> None:
        slot = route.slot
        if self.routes.get(slot) is route and (client.window_slot == slot or not client.window_away):
            client.window_slot = slot
            client.window_away += messages
        if route.congested:
            client.pause_for(route)

    def _count(self, client: PublishingClient, messages: int) -> None:
        client.traffic.messages_in += messages
        client.window_messages += messages
        if client.window_away:
            if client.window_messages >= WINDOW_MESSAGES_MIN:
                self._end_window(client)
        elif client.window_messages >= WINDOW_MESSAGES:
            client.window_messages = 0

    def _end_window(self, client: PublishingClient) -> None:
        """Once a window of a client's messages is full: does the client belong elsewhere?"""
        away = client.window_away
        if client.window_messages < WINDOW_MESSAGES and away < client.window_messages:
            return
        if away >= AWAY_SHARE * client.window_messages and not self.on_away(client, client.window_slot):
            return
        client.window_messages = client.window_away = 0

    def flush(self) -> None:
        """Forward the batches staged for the siblings' streams, append the rest. Nothing stays staged."""
        if not (self._staged or self._full or self._lone):
            return
        alone, here = not self._full, list[StreamBatch]()
        self._new_streams = self.staged_bytes = 0
        if self._lone and self._full:  # of streams that were opened meanwhile, and so that have batches before it
            for name in {batch.name for batch in self._full if batch.name in self._lone}:
                self._staged[name] = self._batch_from(self._lone.pop(name), name)
        if self._staged or self._full:
            staged, self._staged = [*self._full, *self._staged.values()], {}
            self._full.clear()
            here = self._forward_all(staged) if self.routes else staged
        begun_s, before = time.monotonic(), self._metrics.appended_messages
        if self._lone:
            parts, self._lone = self._lone, {}
            waiting = self._work.waiting
            late = {name: parts.pop(name) for name in [name for name in parts if name in waiting]} if waiting else {}
            for name in self.owner.append_parts(parts, begun_s):
                late[name] = parts.pop(name)
            if late:
                here, alone = [self._batch_from(part, name) for name, part in late.items()] + here, False
        if here:
            self._append_all(here, alone, begun_s)
        if self._metrics.appended_messages > before:
            self._metrics.append.observe(time.monotonic() - begun_s)

    def _append_all(self, here: list[StreamBatch], alone: bool, now_s: float) -> None:
        """Append the batches of this worker's streams. `alone`: no two of them are for the same stream."""
        rows: dict[bytes, list[StreamBatch]] = {}
        opened, waiting = self.owner.catalog.open, self._work.waiting
        messages = nbytes = 0
        for place, batch in enumerate(here, start=1):
            if not place % BATCHES_A_BEAT:
                self.owner.events.on_pause()
            if batch.name in self.owner.uproutes:  # now, even if not when this was staged
                for each in batch.apart() if batch.numbered else (batch,):
                    self.owner.context.send_up(each)
            elif (batch.name in opened and not (waiting and batch.name in waiting)) or self._opened_for(batch):
                messages += batch.count
                nbytes += batch.nbytes
                if alone and not batch.numbered:
                    self.owner.append(batch, now_s)
                else:
                    rows.setdefault(batch.name, []).append(batch)
        for place, row in enumerate(rows.values(), start=1):
            if not place % BATCHES_A_BEAT:
                self.owner.events.on_pause()
            self.owner.append_row(row, now_s)
        if messages:
            self._metrics.appended_messages += messages
            self._metrics.appended_bytes += nbytes

    def _forward_all(self, staged: list[StreamBatch]) -> list[StreamBatch]:
        """Forward the batches of siblings; returns the others. If these are many, the siblings append meanwhile."""
        remote: dict[int, list[StreamBatch]] = {}
        here: list[StreamBatch] = []
        for batch in staged:
            if batch.slot not in self.routes:
                here.append(batch)
                continue
            batches = remote.get(batch.slot)
            if batches is None:
                batches = remote[batch.slot] = []
            if batch.numbered:
                batches += batch.apart()
            else:
                batches.append(batch)
        for slot, batches in remote.items():
            self._forward(slot, batches)
        if remote and len(here) + len(self._lone) >= SEND_FIRST_STREAMS:
            self._send_forwards()
        return here

    def _opened_for(self, batch: StreamBatch) -> bool:
        """Whether the stream of a batch is open now. If not, the batch was refused, or waits for a later turn."""
        if self._work.may_begin(batch.name):
            if not self._work.timed(lambda: self.owner.open_for(batch)):
                return False
            if batch.name not in self._work.waiting:
                return True
        self._append_later(batch)
        return False

    def _append_later(self, batch: StreamBatch, *, first: bool = False) -> None:
        self._work.later(
            batch.name,
            batch.askers(),
            lambda: self._submit(batch),
            lambda: batch.give_back(self._submit),
            first=first,
        )

    def _submit(self, batch: StreamBatch) -> None:
        """Append a batch that waited, or pass it on to the present owner of its stream."""
        if batch.slot in self.routes:
            self._forward(batch.slot, batch.apart() if batch.numbered else [batch])
        elif batch.name in self.owner.uproutes:
            for each in batch.apart() if batch.numbered else (batch,):
                self.owner.context.send_up(each)
        elif not self.owner.open_for(batch):
            return
        elif batch.name in self.owner.roles.unwritten:  # its term begins, since the machine went down
            self._append_later(batch, first=True)
        else:
            self._metrics.appended_messages += batch.count
            self._metrics.appended_bytes += batch.nbytes
            self.owner.append_row([batch], time.monotonic())

    def give_back(self) -> None:
        """This worker owns its shards no more: what waited for them goes to the successor."""
        for step in self._work.take_all():
            step.give_back()

    def _forward(self, slot: int, batches: list[StreamBatch]) -> None:
        for together in answered_together(batches):
            forward = ForwardedBatches(next(self._ids), together)
            self._metrics.forwarded_messages += sum(batch.count for batch in together)
            self._metrics.forwarded_bytes += forward.nbytes
            self.routes[slot].submit(forward)

    # --- calls ------------------------------------------------------------------------------------------------------

    def call(self, name: bytes, verb: str, args: list[Any], done: OnResult, asker: Asker = NOBODY) -> None:
        """Ask the owner of the stream `name`; `done` gets the value or a `Refused`, at once when the stream is here
        and open and the call is not one of `answered_later`. `asker` is held up while the owner has no time for it.
        """
        self.call_slot(self.slot_of(name), verb, args, done, asker)

    def call_slot(
        self,
        slot: int,
        verb: str,
        args: list[Any],
        done: OnResult,
        asker: Asker = NOBODY,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        """`give_back`: what to do where the shards were given up before the call was done; else it is asked again."""
        route = self.routes.get(slot)
        if route is not None:
            route.submit(OwnerCall(next(self._ids), verb, args, done, asker))
        elif verb in OF_A_STREAM and (
            verb in LONG or args[0] not in self.owner.catalog.open or args[0] in self._work.waiting
        ):
            again = give_back or (lambda: self.call_slot(slot, verb, args, done, asker))
            self._work.do(args[0], (asker,), lambda: self._call_step(verb, args, done, asker, again), again)
        else:
            self._call_here(verb, args, done)

    def _call_step(
        self, verb: str, args: list[Any], done: OnResult, asker: Asker, give_back: Callable[[], None]
    ) -> None:
        """A call that concerns one stream. If the stream begins a term when it is opened, the call waits for that."""
        name = args[0]
        if verb not in LONG and name in self.owner.catalog.names and name not in self.owner.catalog.open:
            with suppress(Refused):  # the call itself will report it
                self.owner.stream(name)
            if name in self.owner.roles.unwritten:
                step = partial(self._call_here, verb, args, done)
                self._work.later(name, (asker,), step, give_back, first=True)
                return
        self._call_here(verb, args, done)

    def _call_here(self, verb: str, args: list[Any], done: OnResult) -> None:
        memory = self.owner.catalog.directory.memory
        if memory is not None and verb in NOT_IN_MEMORY and memory.holds(args[0]):
            done(Refused(Code.UNSUPPORTED, IN_MEMORY_TEXT))
            return
        if self.owner.roles.copies.on_demand and verb in OF_A_COPY:
            step = partial(self._call_here, verb, args, done)
            if self.owner.context.await_copy(args[0], step, done):
                return
        later = self.answered_later.get(verb)
        if later is not None:
            later(args, done)
            return
        roles_set = self.owner.roles.writes
        try:
            value = call(self.owner, verb, args)
        except Refused as refused:
            done(refused)
            return
        if self.owner.roles.writes == roles_set:
            done(value)
        elif verb == "follow":  # its answer must be the latest: later changes are sent to the follower
            self.owner.roles.when_written(
                lambda error: done(_full(error)) if error is not None else self._call_here(verb, args, done)
            )
        else:
            self.owner.roles.when_written(lambda error: done(_written(value, error)))


def _written(value: Any, error: OSError | None) -> Any:
    """What a call that has set roles is answered with when they have been written, or could not be."""
    return value if error is None else _full(error)


def _full(error: OSError) -> Refused:
    return Refused(Code.FULL, ROLE_UNWRITTEN_TEXT.format(cause=error.strerror))
