"""What each line command does, once it is parsed: one method a command, found by its type.

Publishing is not here: it never leaves the fast path (`Client`, `Router`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from tailrace.broker.access.rules import Right, denied_text
from tailrace.broker.connection.last import (
    VALUE_BYTES_MAX,
    VALUES_MAX,
    GatheredPage,
    LastReader,
    Position,
    page_text,
)
from tailrace.broker.connection.line import LineClient
from tailrace.broker.connection.login import Logins
from tailrace.broker.connection.named import reading_of
from tailrace.broker.consumers.edge import line
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.process.event_log import Event
from tailrace.broker.process.lease import boottime_ns
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.replication.downstream.in_sync import InSyncRow
from tailrace.broker.replication.roles.apply_rules import RuleOutcome, together
from tailrace.broker.replication.roles.promotion_check import Findings, PromotionChecks
from tailrace.broker.replication.roles.rules import covers, is_pattern, prefix_of
from tailrace.broker.routing.batch import Pending
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.services import Services
from tailrace.broker.sessions.record import log_of
from tailrace.broker.streams.owner import Refused
from tailrace.protocol import answers
from tailrace.protocol import commands as c
from tailrace.protocol.address import join_address
from tailrace.protocol.consuming import Consume
from tailrace.protocol.errors import Code
from tailrace.protocol.names import ALL_STREAMS, StreamGroup
from tailrace.protocol.places import FROM_THE_END
from tailrace.protocol.topics import escaped, word_of_name
from tailrace.shard.meta import Role

GATHER_COLUMNS_STREAMS = ("stream", "role", "epoch")
SESSION_COLUMNS = ("client", "user", "connected", "away_s", "expiry_s", "bytes")
SESSIONS_SHOWN_MAX = 1_000
GATHER_COLUMNS_CONNS = ("worker", "peer", "age_s", "subscriptions", "unsent_bytes", "lag_messages")
"""What commands that are for everybody need."""
RULES_SLOT = 0  # whose worker saves the rules, which are for many streams at once
NO_UPSTREAM = ["", 0, "time", 0]
PROMISE_COLUMNS = ("address", "node", "promised")
LEASE_COLUMNS = ("state", "epoch", "until_ms", "promised_ms", "since_ms", "isr")
IN_SYNC_COLUMNS = ("node", "lag_s", "streams", "settled", "group")
WORKER_COLUMNS = ("worker", "pid", "state", "beat_age_s", "connections", "subscriptions", "streams", "restarts")


class SubscriptionStep:
    """Something a connection asked about its subscriptions; `take` does it, as soon as it can be done."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[], None] | None = None) -> None:
        self.take = take


class Commands:
    """The commands of one worker. `ask_to_stop` asks the supervisor to stop the node."""

    def __init__(
        self,
        services: Services,
        subscribing: Subscriptions,
        calls: WorkerCalls,
        scouts: PromotionChecks,
        logins: Logins,
        last_reader: LastReader,
        board: Board,
        ask_to_stop: Callable[[], None],
    ) -> None:
        self._services = services
        self._subscribing = subscribing
        self._calls = calls
        self._scouts = scouts
        self._logins = logins
        self._last_reader = last_reader
        self._board = board
        self._ask_to_stop = ask_to_stop
        self._table: Mapping[type, Callable[[LineClient, Any], None]] = {
            c.Subscribe: self.subscribe,
            c.Unsubscribe: self.unsubscribe,
            c.ReadLast: self.last,
            c.Ack: self.ack,
            c.Auth: self.auth,
            c.Ping: self.ping,
            c.Help: self.help,
            c.Master: self.master,
            c.Unmaster: self.unmaster,
            c.Slave: self.slave,
            c.Unslave: self.unslave,
            c.Promote: self.promote,
            c.Fence: self.fence,
            c.GrantLease: self.lease,
            c.ShowLease: self.show_lease,
            c.ShowGroups: self.groups,
            c.RequestPromises: self.promises,
            c.InSyncNodes: self.in_sync,
            c.Trim: self.trim,
            c.Delete: self.delete,
            c.Streams: self.streams,
            c.GrownStreams: self.grown,
            c.Stat: self.stat,
            c.Workers: self.workers,
            c.Space: self.space,
            c.Conns: self.conns,
            c.Pull: self.pull,
            c.Sessions: self.sessions,
            c.ForgetSession: self.forget_session,
            c.Shutdown: self.shutdown,
            **dict.fromkeys(line.COMMANDS, line.execute),
        }

    def execute(self, client: LineClient, command: Any) -> None:
        kind = type(command)
        if kind in c.ADMIN:
            if refusal := _not_an_administrator(client, command):
                client.refuse(Code.DENIED, refusal)
                return
            if not self._is_routine(command):
                self._services.events.write(Event.ADMIN, client, command=shown_command(command))
        elif kind in line.COMMANDS:
            found = line.placed(client, command)
            if isinstance(found, Refused):
                client.refuse(found.code, f"{word_of_name(command.stream).decode()}: {found.text}")
                return
            command = found
        self._table[kind](client, command)

    def _is_routine(self, command: Any) -> bool:
        """Whether it only looks at what an agent looks at all the time, or gives a master its lease for longer."""
        match command:
            case c.Stat() | c.ShowLease() | c.ShowGroups() | c.InSyncNodes(nodes=()):
                return True
            case c.GrantLease(term, until_ms, group):
                page = self._board.lease
                return until_ms > 0 and page.groups == group.groups and page.term(group.number) == term
        return False

    # --- for everybody ----------------------------------------------------------------------------------------------

    def ack(self, client: LineClient, command: c.Ack) -> None:
        client.answer(answers.ok_ack(command.on))

    def auth(self, client: LineClient, command: c.Auth) -> None:
        def done() -> None:
            client.answer(answers.ok("auth", command.user))

        self._logins.with_secret(client, command.user.decode(), command.secret.decode(), done)

    def ping(self, client: LineClient, _command: c.Ping) -> None:
        client.answer(answers.pong())

    def help(self, client: LineClient, command: c.Help) -> None:
        admin = client.may(Right.ADMIN)
        client.answer(answers.help_on(command.word, admin=admin) if command.word else answers.help_text(admin=admin))

    # A subscription may have to wait for the owner of its stream, which is asked at once, so that it begins behind the
    # publishes before it and no later. Later subscriptions and their ends wait their turn.

    def subscribe(self, client: LineClient, command: c.Subscribe) -> None:
        pending = self._pend(client)
        found = reading_of(client, command.stream, command.topics)
        if isinstance(found, Refused):
            pending.settle(self._unreadable(client, command.stream, found))
        elif not found.stream:
            client.line.patterns.subscribe(client, command, pending)
        else:
            name = b"" if found.topics == command.topics else command.stream
            placed = replace(command, stream=found.stream, topics=found.topics, name=name)
            self._subscribe_to(client, placed, pending)

    def _subscribe_to(self, client: LineClient, command: c.Subscribe, pending: Pending) -> None:
        refused = None if client.subscribing else self._not_subscribable(client, command.key)
        if refused is not None:
            pending.settle(self._refusal(refused))
            return
        turn = SubscriptionStep()
        client.subscribing.append(turn)

        def found(value: int | Refused) -> None:
            turn.take = lambda: self._found(client, pending, command, value)
            self._take_turns(client)

        self._subscribing.find(client, command, found, ask_end=command.start.kind in FROM_THE_END)

    def _take_turns(self, client: LineClient) -> None:
        turns = client.subscribing
        while turns and (take := turns[0].take) is not None:
            turns.popleft()
            take()

    def _not_subscribable(self, client: LineClient, name: bytes) -> Refused | None:
        if name in client.cursors or client.line.patterns.reads(client, name):
            return Refused(Code.SUBSCRIBED, f"this connection is subscribed to {word_of_name(name).decode()} already")
        if not client.cursor_room:
            limit = self._services.settings.max_subscriptions
            return Refused(Code.SUBSCRIPTIONS, f"this connection has {limit} subscriptions, which is its limit")
        return None

    def _found(self, client: LineClient, pending: Pending, command: c.Subscribe, value: int | Refused) -> None:
        """The stream exists, and its owner may have given its end; or why it cannot be read."""
        name = command.key
        refused = value if isinstance(value, Refused) else self._not_subscribable(client, name)
        if refused is not None:
            pending.settle(self._refusal(refused))
        elif client.lingering_since_s or client.closed:
            pending.settle(answers.ok_sub(name, max(value, 0) if isinstance(value, int) else 0))
        else:
            self._subscribe_here(client, pending, command, value if isinstance(value, int) else 0)

    def _subscribe_here(self, client: LineClient, pending: Pending, command: c.Subscribe, end_seq: int) -> None:
        name, subscribing = command.key, self._subscribing
        try:
            cursor = client.cursors[name] = subscribing.place(client, command, name, end_seq)
        except Refused as refused:
            pending.settle(self._refusal(refused))
            return
        pending.after = lambda: subscribing.start(client, cursor)
        pending.settle(answers.ok_sub(name, cursor.seq, command.stream if command.name else b""))

    def last(self, client: LineClient, command: c.ReadLast) -> None:
        """What the connection sent behind it waits, so that its answers are bounded."""
        pending = self._pend(client)
        found = reading_of(client, command.stream, b"")
        if isinstance(found, Refused):
            pending.settle(self._unreadable(client, command.stream, found))
            return

        def done(page: GatheredPage | Refused) -> None:
            pending.settle(self._refusal(page) if isinstance(page, Refused) else page_text(command.stream, page))

        client.hold_up()
        pending.after = client.go_on
        after = Position(command.after_stream, command.after)
        wanted = self._last_reader.filter_of(client, found)
        self._last_reader.read(client, wanted, after, VALUES_MAX, VALUE_BYTES_MAX, done)

    def unsubscribe(self, client: LineClient, command: c.Unsubscribe) -> None:
        if not client.subscribing:
            client.answer(self._unsubscribe(client, command.stream))
            return
        pending = self._pend(client)
        client.subscribing.append(SubscriptionStep(lambda: pending.settle(self._unsubscribe(client, command.stream))))

    def _unsubscribe(self, client: LineClient, name: bytes) -> bytes:
        if name in client.patterns:
            return client.line.patterns.unsubscribe(client, name)
        cursor, is_read = client.cursors.pop(name, None), client.line.patterns.reads(client, name)
        if cursor is None and not is_read:
            text = f"this connection is not subscribed to {word_of_name(name).decode()}"
            return self._refusal(Refused(Code.UNSUBSCRIBED, text))
        if cursor is not None:
            self._services.fanout.end(cursor)
        client.pass_over(name)
        return answers.ok_unsub(name)

    # --- for administrators -----------------------------------------------------------------------------------------

    def master(self, client: LineClient, command: c.Master) -> None:
        self._lead(client, "master", command.stream, 0, force=command.force)

    def unmaster(self, client: LineClient, command: c.Unmaster) -> None:
        name = command.stream
        if is_pattern(name):
            self._unmaster_many(client, name)
        else:
            self._ask(client, name, "unmaster", [], lambda epoch: answers.ok("unmaster", name, epoch))

    def _unmaster_many(self, client: LineClient, pattern: bytes) -> None:
        """No rule changes: streams that are made later are this node's own, as far as it makes any by itself."""
        pending = self._pend(client)

        def send_error(outcomes: list[Any]) -> None:
            outcome = together(outcomes)
            if outcome.failed:
                pending.settle(self._refusal(_not_all(outcome)))
            else:
                pending.settle(answers.ok("unmaster", pattern, outcome.changed))

        self._ask_all(pending, "rules", ["unmaster", pattern, *NO_UPSTREAM], send_error)

    def slave(self, client: LineClient, command: c.Slave) -> None:
        fields: list[bytes | str] = [command.stream, join_address(command.host, command.port)]
        upstream = [command.host, command.port, *command.start, *([True] if command.on_demand else [])]
        if is_pattern(command.stream):
            self._ask_many(client, command.stream, "slave", upstream, fields)
        else:
            self._ask(client, command.stream, "slave", upstream, lambda _told: answers.ok("slave", *fields))

    def unslave(self, client: LineClient, command: c.Unslave) -> None:
        if is_pattern(command.stream):
            self._ask_many(client, command.stream, "unslave", NO_UPSTREAM, [command.stream])
        else:
            self._ask(client, command.stream, "unslave", [], lambda _epoch: answers.ok("unslave", command.stream))

    def promote(self, client: LineClient, command: c.Promote) -> None:
        if is_pattern(command.stream):
            self._promote_many(client, command.stream, command.epoch, force=command.force)
        else:
            self._lead(client, "promote", command.stream, command.epoch, force=command.force)

    # Before a slave becomes the master, the nodes of its tree are asked whether one of them has more of the stream.
    # What the connection sends behind such a command may be done before that is known.

    def _lead(self, client: LineClient, verb: str, name: bytes, epoch: int, *, force: bool) -> None:
        """Make this node the master of one stream. Its owner decides whether other nodes are to be asked first."""
        self._lead_above(client, self._pend(client), verb, name, epoch, 0, unasked=not force)

    def _lead_above(
        self, client: LineClient, pending: Pending, verb: str, name: bytes, epoch: int, known: int, *, unasked: bool
    ) -> None:
        """The same in a term above `known`, the latest that other nodes know."""

        def checked(outcome: Findings | Refused) -> None:
            if self._may_promote(pending, outcome, name.decode(), epoch) and isinstance(outcome, Findings):
                known = outcome.known.get(name.decode(), 0)
                self._lead_above(client, pending, verb, name, epoch, known, unasked=False)

        def done(value: int | Refused) -> None:
            if isinstance(value, Refused):
                pending.settle(self._refusal(value))
            elif value:
                pending.settle(answers.ok(verb, name, value))
            else:
                self._scouts.check(name, (), checked)

        self._services.router.call(name, verb, [name, epoch, known, unasked], done, client)

    def _promote_many(self, client: LineClient, pattern: bytes, epoch: int, *, force: bool) -> None:
        """Nothing is promoted if another node has more of any of the streams. With an epoch, masters begin it too."""
        pending = self._pend(client)

        def promote() -> None:
            self._ask_many(client, pattern, "promote", [*NO_UPSTREAM[:-1], epoch], [pattern], pending)

        def listed(tables: list[list[list[Any]]]) -> None:
            rows = [row for rows in tables for row in rows]
            names = [each for each, role, _epoch in rows if covers(pattern, each) and role != Role.MASTER]
            self._scouts.check(None, sorted(names), checked)

        def checked(findings: Findings | Refused) -> None:
            if self._may_promote(pending, findings):
                promote()

        if force:
            promote()
        else:
            self._ask_all(pending, "streams", [prefix_of(pattern)], listed)

    def _may_promote(self, pending: Pending, outcome: Findings | Refused, name: str = "", epoch: int = 0) -> bool:
        """Whether other nodes' answers allow it; if not, that is answered."""
        refused = outcome if isinstance(outcome, Refused) else outcome.refusal(name, epoch)
        if refused is not None:
            pending.settle(self._refusal(refused))
        return refused is None

    def fence(self, client: LineClient, command: c.Fence) -> None:
        def render(value: list[Any]) -> bytes:
            return answers.ok("fence", command.stream, *value)

        self._ask(client, command.stream, "fence", [command.epoch], render)

    def lease(self, client: LineClient, command: c.GrantLease) -> None:
        page, group = self._board.lease, command.group
        if page.grant(command.term, command.until_ms * 1_000_000, group):
            client.answer(answers.ok("lease", str(group), command.term, command.until_ms))
        elif page.groups != group.groups:
            client.refuse(Code.USAGE, self._not_a_group())
        else:
            client.refuse(Code.USAGE, "this node had a lease of a later term, or has promised to lead in none")

    def _not_a_group(self) -> str:
        return f"the streams of this node are in {self._board.lease.groups} groups until it is started again"

    def show_lease(self, client: LineClient, command: c.ShowLease) -> None:
        if self._board.lease.groups != command.group.groups:
            client.refuse(Code.USAGE, self._not_a_group())
        else:
            rows = zip(LEASE_COLUMNS, self._lease_row(command.group.number), strict=True)
            client.answer(answers.table(("field", "value"), [list(row) for row in rows]))

    def groups(self, client: LineClient, _command: c.ShowGroups) -> None:
        count = self._board.lease.groups
        rows = [[str(StreamGroup(number, count)), *self._lease_row(number)] for number in range(count)]
        client.answer(answers.table(("group", *LEASE_COLUMNS), rows))

    def _lease_row(self, group: int) -> list[Any]:
        page, until_ns = self._board.lease, self._board.lease.until_ns(group)
        state = "none" if until_ns == 0 else "over" if until_ns <= boottime_ns() else "held"
        times_ms = [each // 1_000_000 for each in (until_ns, page.promised_ns(group), page.since_ns)]
        return [state, page.term(group), *times_ms, ",".join(page.read_isr(group)[1])]

    def promises(self, client: LineClient, command: c.RequestPromises) -> None:
        pending = self._pend(client)

        def done(rows: list[tuple[str, str, bool]]) -> None:
            shown = [[address, node or "-", int(promised)] for address, node, promised in rows]
            pending.settle(answers.table(PROMISE_COLUMNS, shown))

        if not self._scouts.promises.begin(command.nodes, command.term, command.length_ms, done, command.group):
            pending.settle(self._refusal(Refused(Code.OVERLOADED, "too many requests for promises; try again")))

    def in_sync(self, client: LineClient, command: c.InSyncNodes) -> None:
        if not command.nodes:
            self._show_in_sync(client, command.group)
        elif self._board.lease.set_isr(command.nodes, command.group):
            client.answer(answers.ok("isr", str(command.group), ",".join(command.nodes)))
        else:
            client.refuse(Code.USAGE, self._not_a_group())

    def _show_in_sync(self, client: LineClient, wanted: StreamGroup) -> None:
        """A node is as far behind as at the worker where it is furthest. `*` shows all groups."""
        groups = self._board.lease.groups

        def render(rows: list[Any]) -> bytes:
            of: dict[tuple[int, str], list[InSyncRow]] = {}
            for group, *row in rows:
                if wanted in (ALL_STREAMS, StreamGroup(group, groups)):
                    of.setdefault((group, row[0]), []).append(InSyncRow(*row))
            return answers.table(
                IN_SYNC_COLUMNS,
                [
                    [
                        node,
                        f"{max(row.lag_s for row in each):.3f}",
                        sum(row.streams for row in each),
                        int(all(row.settled for row in each)),
                        str(StreamGroup(group, groups)),
                    ]
                    for (group, node), each in sorted(of.items())
                ],
            )

        self._gather(client, "in_sync", [], render)

    def trim(self, client: LineClient, command: c.Trim) -> None:
        place = list(command.start)

        def render(value: list[int]) -> bytes:
            return answers.ok("trim", command.stream, value[0], value[1])

        self._ask(client, command.stream, "trim", [place, command.spare], render)

    def delete(self, client: LineClient, command: c.Delete) -> None:
        name, pending = command.stream, self._pend(client)

        def done(value: Any) -> None:
            pending.settle(self._refusal(value) if isinstance(value, Refused) else answers.ok("delete", name))

        self._services.router.call(name, "consume", [name, Consume(0, "drop", name)], done, client)

    def stat(self, client: LineClient, command: c.Stat) -> None:
        def render(value: dict[str, Any]) -> bytes:
            return answers.table(("field", "value"), [list(item) for item in value.items()])

        self._ask(client, command.stream, "stat", [], render)

    def shutdown(self, client: LineClient, command: c.Shutdown) -> None:
        """The name is asked for, so that nobody stops another node than meant, nor a program that probes this port."""
        name = self._services.settings.node_name or socket.gethostname()
        if command.node != name.encode():
            client.refuse(Code.USAGE, f"this stops the node {name}; write: shutdown {name}")
            return
        client.answer(answers.ok("shutdown"))
        self._ask_to_stop()

    def workers(self, client: LineClient, _command: c.Workers) -> None:
        rows = [
            [
                slot.index,
                slot.pid,
                slot.state_name,
                f"{slot.beat_age_s():.3f}",
                slot.connections,
                slot.subscriptions,
                slot.streams,
                slot.restarts,
            ]
            for slot in self._board
        ]
        client.answer(answers.table(WORKER_COLUMNS, rows))

    def space(self, client: LineClient, _command: c.Space) -> None:
        space = self._services.router.owner.space
        client.answer(answers.table(("field", "value"), space.report(self._board.total_disk_bytes())))

    def streams(self, client: LineClient, command: c.Streams) -> None:
        def render(rows: list[list[Any]]) -> bytes:
            decoded = [[name.decode(), role, epoch] for name, role, epoch in sorted(rows)]
            return answers.table(GATHER_COLUMNS_STREAMS, decoded)

        self._gather(client, "streams", [command.prefix], render)

    def grown(self, client: LineClient, command: c.GrownStreams) -> None:
        """The names follow if every worker knows those of its streams."""

        def render(values: list[list[Any]]) -> bytes:
            marks, counts, names = zip(*values, strict=True)
            rows = [["mark", min(marks)], ["streams", sum(counts)], ["known", int(None not in names)]]
            if None not in names:
                rows += [["grown", name.decode()] for known in names for name in known]
            return answers.table(("field", "value"), rows)

        pending = self._pend(client)
        self._ask_all(pending, "grown", [command.mark.decode()], lambda values: pending.settle(render(values)))

    def conns(self, client: LineClient, _command: c.Conns) -> None:
        self._gather(client, "conns", [], lambda rows: answers.table(GATHER_COLUMNS_CONNS, sorted(rows)))

    def pull(self, client: LineClient, command: c.Pull) -> None:
        def render(pages: list[Any]) -> bytes:
            return answers.pulled(max(page[0] for page in pages), [page[1:] for page in pages])

        self._gather_pages(client, "pull", [command.place], render)

    def sessions(self, client: LineClient, command: c.Sessions) -> None:
        """The first of them behind an identifier, in the order of their bytes."""

        def render(rows: list[Any]) -> bytes:
            shown = [
                [escaped(client_id).decode("utf-8", "replace"), user or "-", int(connected), *numbers]
                for client_id, user, connected, *numbers in sorted(rows)[:SESSIONS_SHOWN_MAX]
            ]
            return answers.table(SESSION_COLUMNS, shown)

        self._gather(client, "session_rows", [command.after], render)

    def forget_session(self, client: LineClient, command: c.ForgetSession) -> None:
        def render(was_there: bool) -> bytes:
            if was_there:
                return answers.ok("forget", escaped(command.client_id))
            return self._refusal(Refused(Code.UNKNOWN, "this client has no durable session"))

        pending = self._pend(client)

        def done(value: Any) -> None:
            pending.settle(self._refusal(value) if isinstance(value, Refused) else render(value))

        self._services.router.call(log_of(command.client_id), "session_drop", [command.client_id], done)

    # --- asking owners ----------------------------------------------------------------------------------------------

    def _ask(
        self,
        client: LineClient,
        stream: bytes,
        verb: str,
        args: list[Any],
        render: Callable[[Any], bytes],
    ) -> None:
        """Ask the owner of one stream and pass its answer on."""
        pending = self._pend(client)

        def done(value: Any) -> None:
            pending.settle(self._refusal(value) if isinstance(value, Refused) else render(value))

        self._services.router.call(stream, verb, [stream, *args], done, client)

    def _ask_many(
        self,
        client: LineClient,
        pattern: bytes,
        verb: str,
        upstream: list[Any],
        fields: list[bytes | str],
        pending: Pending | None = None,
    ) -> None:
        """Set the rule for all streams of a pattern; the answer is the number of streams that changed.

        The rule is on the disk before it is obeyed. One that is taken back is so for each of its streams first: should
        a worker die in between, a slave must not take itself for a master because its rule is gone.
        """
        place = pending or self._pend(client)
        args = [pattern, *upstream]

        def obey(before: RuleOutcome) -> None:
            self._ask_all(place, "rules", [verb, *args], lambda outcomes: send_error(before, together(outcomes)))

        def send_error(before: RuleOutcome, after: RuleOutcome) -> None:
            outcome = together((before, after))
            if outcome.failed:
                failed = max(before.failed, after.failed)  # those of the second pass failed in the first already
                place.settle(self._refusal(_not_all(outcome._replace(failed=failed))))
            else:
                place.settle(answers.ok(verb, *fields, outcome.changed))

        def write(before: RuleOutcome) -> None:
            def written(value: Any) -> None:
                if isinstance(value, Refused):
                    place.settle(self._refusal(value))
                else:
                    obey(before)

            self._calls.call_slot(RULES_SLOT, "rule", args, written)

        if upstream is NO_UPSTREAM:
            self._ask_all(place, "rules", [verb, *args], lambda outcomes: write(together(outcomes)))
        else:
            write(RuleOutcome(0))

    def _gather(self, client: LineClient, verb: str, args: list[Any], render: Callable[[list[Any]], bytes]) -> None:
        """Answer with the rows of every worker."""
        self._gather_pages(client, verb, args, lambda tables: render([row for rows in tables for row in rows]))

    def _gather_pages(
        self, client: LineClient, verb: str, args: list[Any], render: Callable[[list[Any]], bytes]
    ) -> None:
        """Answer with what every worker has. What the connection sent behind it waits: such answers are long."""
        pending = self._pend(client)
        client.hold_up()
        pending.after = client.go_on
        self._ask_all(pending, verb, args, lambda pages: pending.settle(render(pages)))

    def _ask_all(self, pending: Pending, verb: str, args: list[Any], then: Callable[[list[Any]], None]) -> None:
        """Ask every worker, and go on with all their answers; one that is down makes the answer an error, not a shorter
        list.
        """
        waiting = set(range(self._board.slots))
        values: list[Any] = []

        def done_by(slot: int) -> Callable[[Any], None]:
            def done(value: Any) -> None:
                if isinstance(value, Refused):
                    pending.settle(self._refusal(value))
                    return
                values.append(value)
                waiting.discard(slot)
                if not waiting:
                    then(values)

            return done

        for slot in range(self._board.slots):
            self._calls.call_slot(slot, verb, args, done_by(slot))

    def _pend(self, client: LineClient) -> Pending:
        """A place in the client's row of answers."""
        pending = Pending(client.answers_ready)
        client.pend(pending)
        return pending

    def _unreadable(self, client: LineClient, name: bytes, refused: Refused) -> bytes:
        text = f"{word_of_name(name).decode()}: {refused.text}"
        client.note_refused(refused.code, text)
        return answers.err(refused.code, text)

    def _refusal(self, refused: Refused) -> bytes:
        self._services.metrics.refused.add(refused.code)
        return answers.err(refused.code, refused.text)


def _not_an_administrator(client: LineClient, command: Any) -> str:
    """Why this connection may not give this command; empty when it may."""
    access = client.services.access
    if not access.has_users and not client.may(Right.ADMIN):
        return "this command is only for connections from this machine"
    name: bytes = getattr(command, "stream", getattr(command, "prefix", b""))
    is_whole = isinstance(command, c.Streams | c.GrownStreams) or is_pattern(name)
    stem = prefix_of(name) if is_pattern(name) else name
    if not (access.may_all(client.identity, Right.ADMIN, stem) if is_whole else client.may(Right.ADMIN, name)):
        return denied_text(client.identity, Right.ADMIN)
    if client.strayed:
        return "this connection has sent a line that is no command, and administers nothing any more: connect again"
    return ""


def shown_command(command: Any) -> str:
    """An administrative command for the log."""
    words = [type(command).__name__.lower()]
    for each in fields(command):
        value = getattr(command, each.name)
        words += [f"{each.name}={value.decode('utf-8', 'backslashreplace') if isinstance(value, bytes) else value}"]
    return " ".join(words)


def _not_all(outcome: RuleOutcome) -> Refused:
    text = f"not done for {outcome.failed} of these streams, but for all others; the first was {outcome.text}"
    return Refused(Code(outcome.code), text)
