"""The durable consumers of the broker in memory: its promises, in the simplest form.

Time stands still here: a test decides when messages are returned (`give_back`), as after `ack_wait_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

from tailrace.broker.consumers.state.ranges import merged
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Op
from tests.client.model import Model, ModelConnection, Stream


@dataclass
class Group:
    """One durable consumer. `flight`: seq to member; `before`: seq to how often it was given before."""

    first_seq: int
    ack_wait_s: float = 30.0
    deliveries_max: int = 0
    finished: set[int] = field(default_factory=set)
    flight: dict[int, bytes] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    members: set[bytes] = field(default_factory=set)
    dead: int = 0

    def unfinished(self, stream: Stream) -> list[int]:
        return [seq for seq in range(self.first_seq, stream.next_seq) if seq not in self.finished]

    def settle(self, stream: Stream, get: c.Get) -> list[c.MessageRange]:
        """Applies the member's acknowledgements; returns the stale ones."""
        stale: list[c.MessageRange] = []
        for first, last, epoch in get.finished:
            for seq in range(first, last + 1):
                is_lost = seq >= stream.next_seq or stream.epoch_of(seq) != epoch
                if is_lost or self.flight.get(seq, get.member) != get.member:
                    stale.append((seq, seq))
                else:
                    self.flight.pop(seq, None)
                    self.finished.add(seq)
        for seq, epoch, _reason in get.failed:
            if seq >= stream.next_seq or stream.epoch_of(seq) != epoch:
                stale.append((seq, seq))
            elif self.flight.get(seq) == get.member:
                self.give_back(seq)
            elif seq in self.flight:
                stale.append((seq, seq))
        return stale

    def lose(self, seq: int) -> None:
        """A promotion has lost messages from this one on."""
        self.finished = {each for each in self.finished if each < seq}
        self.flight = {each: member for each, member in self.flight.items() if each < seq}
        self.before = {each: count for each, count in self.before.items() if each < seq}

    def give_back(self, seq: int) -> None:
        """It was not finished, and comes again unless it has too often."""
        del self.flight[seq]
        self.before[seq] = self.before.get(seq, 0) + 1
        if self.before[seq] == self.deliveries_max:
            self.finished.add(seq)
            self.dead += 1

    def give_back_all(self) -> None:
        for seq in list(self.flight):
            self.give_back(seq)

    def give(self, stream: Stream, get: c.Get) -> list[int]:
        mine = [seq for seq, member in self.flight.items() if member == get.member]
        if mine and not get.fresh:
            return sorted(mine)[: get.max_messages]
        free = [seq for seq in self.unfinished(stream) if seq not in self.flight][: get.max_messages]
        self.flight.update(dict.fromkeys(free, get.member))
        return free


class Groups:
    """Answers CONSUME and GET of a model. `waiting`: gets that wait for messages; `gets`, `leaves`: all that came."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.groups: dict[tuple[bytes, bytes], Group] = {}
        self.dropped: list[bytes] = []
        self.removed: dict[bytes, list[tuple[int, int]]] = {}
        self.waiting: list[tuple[ModelConnection, c.Get]] = []
        self.gets: list[c.Get] = []
        self.leaves: list[c.Consume] = []
        model.features.add(c.FEATURE)
        model.on_message = self.take
        model.on_pump = self.serve

    def group(self, stream: bytes, name: bytes) -> Group:
        return self.groups[stream, name]

    def delete(self, stream: bytes) -> None:
        """The stream itself, with its consumers."""
        self.model.delete(stream)
        self.groups = {key: group for key, group in self.groups.items() if key[0] != stream}
        for connection, get in [each for each in self.waiting if each[1].stream == stream]:
            self.waiting.remove((connection, get))
            connection.fail("unknown", op=Op.GET, id=get.id)

    def take(self, connection: ModelConnection, message: object) -> bool:
        match message:
            case c.Consume():
                self._consume(connection, message)
            case c.Get():
                self.gets.append(message)
                self._get(connection, message)
            case m.Close():
                self._end_all(connection)
                return False
            case _:
                return False
        return True

    def serve(self) -> None:
        """Delivers messages to waiting gets."""
        waiting, self.waiting = self.waiting, []
        for connection, get in waiting:
            if not connection.closed:
                self._give(connection, get, [])

    def _consume(self, connection: ModelConnection, message: c.Consume) -> None:
        key, stream = (message.stream, message.name), self.model.stream(message.stream)
        if message.do == "list":
            rows = [self._row(name, group, stream) for (of, name), group in self.groups.items() if of == message.stream]
            connection.say(c.Consumed(message.id, consumers=tuple(rows)))
        elif message.do == "drop":
            self.dropped.append(message.stream)
            connection.say(c.Consumed(message.id))
        elif message.do in ("letters", "redrive", "purge"):
            self._consume_letters(connection, message)
        elif message.do == "create":
            created = key not in self.groups
            settings = (message.ack_wait_s or 30.0, message.deliveries_max or 0)
            group = self.groups.setdefault(key, Group(_seq(stream, message), *settings))
            connection.say(c.Consumed(message.id, next_seq=group.first_seq, created=created))
        elif key not in self.groups:
            connection.fail("consumer", op=Op.CONSUME, id=message.id)
        elif message.do == "reset":
            self.groups[key] = Group(_seq(stream, message))
            connection.say(c.Consumed(message.id, next_seq=self.groups[key].first_seq))
        elif message.do == "leave":
            self.leaves.append(message)
            group = self.groups[key]
            group.flight = {seq: member for seq, member in group.flight.items() if member != message.member}
            connection.say(c.Consumed(message.id))
        else:
            del self.groups[key]
            connection.say(c.Consumed(message.id, existed=True))

    def _consume_letters(self, connection: ModelConnection, message: c.Consume) -> None:
        """A redrive takes one letter at a time, so that its client has to go on."""
        end = self.model.stream(message.stream + b"/$dead").next_seq
        removed = self.removed.setdefault(message.stream, [])
        if message.do == "letters":
            connection.say(c.Consumed(message.id, next_seq=end, removed=tuple(removed)))
            return
        last = min(message.first_seq if message.do == "redrive" else message.last_seq, end - 1)
        removed[:] = merged([*removed, (message.first_seq, last)])
        connection.say(c.Consumed(message.id, count=last + 1 - message.first_seq, next_seq=last + 1))

    def _row(self, name: bytes, group: Group, stream: Stream) -> c.Standing:
        left = group.unfinished(stream)
        return c.Standing(
            name=name,
            next_seq=left[0] if left else stream.next_seq,
            lag_messages=len(left),
            lag_us=1_500_000 if left else None,
            in_flight=len(group.flight),
            members=len(group.members),
            redelivered=sum(group.before.values()),
            dead=group.dead,
            idle_us=250_000,
            ack_wait_s=group.ack_wait_s,
            deliveries_max=group.deliveries_max,
        )

    def _get(self, connection: ModelConnection, get: c.Get) -> None:
        group = self.groups.get((get.stream, get.name))
        if group is None:
            connection.fail("consumer", op=Op.GET, id=get.id)
            return
        group.members.add(get.member)
        self._end_older(get)
        self._give(connection, get, group.settle(self.model.stream(get.stream), get))

    def _end_all(self, closing: ModelConnection) -> None:
        """Nothing waits at a connection that is about to be closed."""
        for connection, get in list(self.waiting):
            if connection is closing:
                self.waiting.remove((connection, get))
                connection.say(c.Got(get.id, (), (), 0, memoryview(b"")))

    def _end_older(self, newer: c.Get) -> None:
        """A member has one waiting get, over all its connections."""
        for connection, get in list(self.waiting):
            if (get.stream, get.name, get.member) == (newer.stream, newer.name, newer.member):
                self.waiting.remove((connection, get))
                if not connection.closed:
                    connection.say(c.Got(get.id, (), (), 0, memoryview(b"")))

    def _give(self, connection: ModelConnection, get: c.Get, stale: list[c.MessageRange]) -> None:
        group, stream = self.group(get.stream, get.name), self.model.stream(get.stream)
        seqs = group.give(stream, get) if get.max_messages else []
        if get.max_messages and get.wait_ms and not seqs and not stale:
            self.waiting.append((connection, get))
            return
        rows = [(seq - place, seq, group.before.get(seq, 0), stream.epoch_of(seq)) for place, seq in enumerate(seqs)]
        runs = []
        for (_, before, epoch), row in groupby(rows, key=lambda each: (each[0], *each[2:])):
            found = [each[1] for each in row]
            runs.append((found[0], len(found), before, epoch))
        frames = b"".join(stream.frames[seq - stream.first_seq] for seq in seqs)
        connection.say(c.Got(get.id, tuple(runs), tuple(stale), 0, memoryview(frames)))


def _seq(stream: Stream, message: c.Consume) -> int:
    kind, value = message.start or ("time", 0)
    return {"seq": value, "new": stream.next_seq, "time": stream.seq_at(value)}[kind]
