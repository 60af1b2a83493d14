"""A connection that speaks lines: its codec, and its row of answers in the order of their commands.

An answer that is not known yet holds back those after it. Publishing never leaves the fast path: a whole read of `pub`
lines is one `Staged` for the router. What the other commands do is in `broker.connection.commands`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.broker.access.identity import Identity
from tailrace.broker.access.rules import Right
from tailrace.broker.connection.base import OUT_HIGH_BYTES, Pause
from tailrace.broker.connection.client import READ_BYTES_MIN, ClientConnection
from tailrace.broker.connection.singles import Singles
from tailrace.broker.connection.transport import AnySocket
from tailrace.broker.consumers.edge.line import LineConsumerSession
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.delivery.text_chunks import TextChunk, TextChunks
from tailrace.broker.routing.batch import Pending
from tailrace.broker.services import Services
from tailrace.broker.topics.placing import place_staged
from tailrace.protocol import answers
from tailrace.protocol.commands import Close, Foreign, Invalid, Reply, Staged
from tailrace.protocol.errors import Code
from tailrace.protocol.foreign import HTTP_400, http_400
from tailrace.protocol.line import LineCodec

if TYPE_CHECKING:
    from tailrace.broker.connection.commands import Commands, SubscriptionStep
    from tailrace.broker.connection.patterns import PatternSubscriptions

NAMES_A_READ: Final = 512
"""Where names are placed by rules, a read of more of them is followed by a short one: each has to be looked up."""
PASSED_OVER_MAX: Final = 1_024
"""Streams of a pattern that are not subscribed to again: given up by hand, or unreadable."""


@dataclass(frozen=True, slots=True)
class LineServices:
    """What connections that speak lines need beyond what all need."""

    chunks: TextChunks
    commands: Commands
    subscribing: Subscriptions
    patterns: PatternSubscriptions
    singles: Singles


class LineClient(ClientConnection):
    protocol = "line"

    __slots__ = (
        "_going_on",
        "_outcomes",
        "_place",
        "answers",
        "backlog",
        "choked",
        "codec",
        "in_row",
        "line",
        "patterns",
        "places",
        "subscribing",
        "under_way",
        "wide",
    )

    def __init__(self, services: Services, line: LineServices, sock: AnySocket, peer: str, identity: Identity) -> None:
        super().__init__(services, sock, peer, identity)
        self.line = line
        self.delivery = line.chunks
        self.traffic = services.metrics.line
        self.places = bool(services.topic_rules)  # a name may be a topic in a stream of another name
        settings = services.settings
        self.codec = LineCodec(settings.max_line_bytes, settings.max_message_bytes)
        self._place_by_table()
        self.answers: deque[Pending] = deque()  # the first is not known yet; the others wait behind it
        self.subscribing: deque[SubscriptionStep] = deque()  # the first waits for a stream's owner (`commands`)
        self.patterns: dict[bytes, dict[bytes, None]] = {}  # subscribed to; of each the streams that are passed over
        self.wide: dict[bytes, object] = {}  # of the patterns those with more streams than it may have cursors
        self._going_on = False
        self.under_way = 0  # single publishes (`broker.connection.singles`) whose outcome is not known yet
        self.in_row = False  # since something else has come behind them
        self._place: Pending | None = None
        self._outcomes = b""
        self.choked = False  # the rest of a read waits until the answers so far are read
        self.backlog: deque[object] = deque()  # the rest of a read, behind a command that waits (`broker.process.work`)

    def _place_by_table(self) -> None:
        """Lets the codec place names if no right has to be asked for; else it has to give the order of the messages."""
        self.codec.table = self.services.topic_rules.table if self.is_free else b""
        self.codec.in_order = self.places and not self.codec.table

    def become_user(self, identity: Identity) -> None:
        super().become_user(identity)
        self.line.singles.discard(self)  # those are not asked for rights
        self._place_by_table()

    def admitted(self) -> bool:
        access = self.services.access
        if access.has_users or access.admits(self.identity):  # with users, it can log in
            return True
        self.end_with(Code.DENIED, "this broker wants a token from other machines: use the binary protocol")
        return False

    @property
    def must_log_in(self) -> bool:
        return not self.services.access.admits(self.identity)

    # --- reading ----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> None:
        if self.under_way:
            self._put_in_row()
        command: object = None
        commands = iter(self.codec.feed(self.services.receive_view, count))
        for command in commands:
            if type(command) is Staged:
                if self.is_free and (command.placed or not (self.places or command.is_topic)):
                    self.services.router.publish(self, command)
                else:
                    self._publish_permitted(command)
            else:
                self._execute(command)
                if self.closed or self.lingering_since_s:
                    return
                if len(self.out) > OUT_HIGH_BYTES:
                    self._choke()
                if self.held_up:
                    self.backlog.extend(commands)
        if self.codec.in_order and type(command) is Staged and len(command.groups) > NAMES_A_READ:
            self.read_bytes = READ_BYTES_MIN
            self.read_more(count, 0)
        elif count >= self.read_bytes or self.codec.pending_bytes != self.held_bytes:
            self.read_more(count, _streams_of(command))
        if type(command) is Staged and len(command.groups) == 1 and command.groups[0][1] == 1 and self._is_plain:
            self.line.singles.add_line(self)

    @property
    def _is_plain(self) -> bool:
        """Whether its bytes are those of the socket, in any number, and it may publish to any stream."""
        is_free = self.is_free and not self.codec.in_order and not self.rates
        return is_free and self.codec.is_plain and self.layer is None

    def _publish_permitted(self, staged: Staged) -> None:
        """Publish to the streams that it has the right to, and refuse the others. Checks each stream once per read."""
        services = self.services
        if (self.places or staged.is_topic) and not staged.placed:
            staged, denied = place_staged(services.topic_rules, staged, self.publish_refusal)
            if not self.codec.ack:
                staged.order.clear()
        else:
            refused = self.denial(Right.PUBLISH)
            denied = {key: refused for key, group in enumerate(staged.groups) if not self.may(Right.PUBLISH, group[0])}
        if not denied:
            services.router.publish(self, staged)
            return
        services.router.publish_allowed(self, staged, denied)

    def _execute(self, command: object) -> None:
        """Any command but a publish, after everything this connection published before it."""
        self.services.router.flush()
        self.read_less()
        if self.held_up:
            self.backlog.appendleft(command)
        elif type(command) is Invalid:
            error = command.error
            if error.fatal:
                self.end_with(error.code, error.text)
            else:
                self.refuse(error.code, error.text)
        elif type(command) is Reply:
            self.answer(command.data)
        elif type(command) is Foreign:
            self.services.metrics.refused.add(Code.PROTOCOL)
            is_http = command.refusal == HTTP_400
            self.answer(http_400(self.services.settings.metrics_port) if is_http else command.refusal)
            self.finish()
        elif type(command) is Close:
            self.answer(answers.ok(command.word))
            self.finish()
        else:
            self.line.commands.execute(self, command)

    def go_on(self) -> None:
        """What waited is done: go on with the rest of the read, up to the next command that has to wait."""
        self.held_up -= 1
        if self._going_on:  # the command that has ended was begun in the loop below, which continues
            return
        self._going_on = True
        while self.backlog and not self.held_up and not (self.closed or self.lingering_since_s):
            command = self.backlog.popleft()
            if type(command) is Staged:
                self._publish_permitted(command)
            else:
                self._execute(command)
                if len(self.out) > OUT_HIGH_BYTES:
                    self._choke()
        self._going_on = False
        if not self.held_up and not self.closed:
            self.resume(Pause.WORK)
            self.services.note_answered(self)

    def _choke(self) -> None:
        """Execute no more lines while the peer has not read its answers: a few bytes can ask for very many."""
        if not self.held_up and not (self.closed or self.lingering_since_s):
            self.choked = True
            self.hold_up()

    def _read_on(self) -> None:
        super()._read_on()
        if self.choked:
            self.choked = False
            self.go_on()

    @property
    def pending_bytes(self) -> int:
        return self.codec.pending_bytes

    @property
    def strayed(self) -> bool:
        """Whether it has sent anything but commands: such a peer may not be who it seems."""
        return self.codec.strayed

    def end_of_input(self) -> None:
        self._put_in_row()
        for command in self.codec.feed_eof():
            self._execute(command)

    def forget_input(self) -> None:
        self.codec.feed_eof()
        self.backlog.clear()

    def has_unread(self) -> bool:
        return bool(self.backlog) or super().has_unread()

    @property
    def consumers(self) -> LineConsumerSession:
        serving = self._serving
        if not isinstance(serving, LineConsumerSession):
            serving = self._serving = LineConsumerSession(self)
        return serving

    # --- answers ----------------------------------------------------------------------------------------------------

    @property
    def awaited(self) -> int:
        return len(self.answers) + self.held_up + len(self.backlog) + self.under_way

    def answer(self, text: bytes) -> None:
        """Put an answer in its place: at once, or behind those that are not known yet."""
        self.services.answered_bytes += len(text)
        if not self.answers:
            self.out += text
        else:
            settled = Pending(self.answers_ready)
            settled.text = text
            self.answers.append(settled)
        self.services.note_answered(self)

    def pend(self, pending: Pending) -> None:
        self.answers.append(pending)
        self.note_awaited()

    def answers_ready(self) -> None:
        """Some pending answer was filled: send those that are ready in front."""
        row = self.answers
        while row and (text := row[0].text) is not None:
            pending = row.popleft()
            self.out += text
            if pending.after is not None:
                pending.after()
        self.services.note_answered(self)

    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        self.answer(answers.err(code, text))

    # Single publishes, which are read and answered together with those of others. They have a place in the row only
    # while something else waits behind them.

    @property
    def is_in_order(self) -> bool:
        """Whether one more single publish needs no place in the row: nothing is to be answered before it."""
        return not (self.answers or (self.under_way and self.codec.ack))

    def _put_in_row(self) -> None:
        if self.under_way and not self.in_row:
            self.in_row = True
            self._place = Pending(self.answers_ready)
            self.answers.append(self._place)

    def send_envelope(self, answer: bytes) -> None:
        """The outcome of a single publish; `outcome_known` follows."""
        if self.in_row:
            self._outcomes += answer
        else:
            self.answer(answer)

    def outcome_known(self) -> None:
        if self.under_way:
            return
        if self._place is not None:
            place, outcomes = self._place, self._outcomes
            self.in_row, self._place, self._outcomes = False, None, b""
            place.settle(outcomes)
        elif self.paused or self.lingering_since_s:
            self.services.note_answered(self)

    def single_refused(self, name: bytes, code: Code, text: str) -> None:
        self.under_way -= 1
        if not self.closed:
            self.note_refused(code, f"{name.decode()}: {text}")
            self.send_envelope(answers.publish_refused(name, 1, code, text))
            self.outcome_known()

    def publish_refused(self, name: bytes, count: int, code: Code, text: str) -> None:
        self.note_refused(code, f"{name.decode()}: {text}", count)
        self.answer(answers.publish_refused(name, count, code, text))

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        name = cursor.feed.name.decode()
        self.send_error(
            Code.TRIMMED, f"{name}: messages {cursor.seq} to {first_seq - 1} were trimmed before they were sent"
        )

    def send_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        if code is not Code.DELETED:  # a stream that is made later with the name is another one
            self.pass_over(cursor.feed.name)
        if code is not None:  # a line subscription has no end of its own
            self.send_error(code, f"{cursor.feed.name.decode()}: {text}; the subscription has ended")

    # --- subscriptions ----------------------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return bool(self.cursors or self.patterns)

    @property
    def stays(self) -> bool:
        """What grew while it moves would be lost to a wide subscription."""
        return super().stays or bool(self.wide)

    def pass_over(self, name: bytes) -> None:
        """The stream is not read any more; do not let a pattern subscribe to it again."""
        for pattern, passed_over in self.patterns.items():
            if self.line.patterns.selection(pattern).selects(name):
                passed_over[name] = None
                if len(passed_over) > PASSED_OVER_MAX:
                    del passed_over[next(iter(passed_over))]

    def _end_subscriptions(self) -> None:
        super()._end_subscriptions()
        self.patterns.clear()
        self.wide.clear()

    # --- sending ----------------------------------------------------------------------------------------------------

    def send_chunk(self, cursor: Cursor, chunk: TextChunk) -> int:
        """Send the rendering from `cursor.skip` on; how many bytes the socket took."""
        text, skip = chunk.text, cursor.skip
        try:
            sent = self.sock.send(memoryview(text)[skip:] if skip else text)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close("reset")
            return 0
        if skip + sent < chunk.nbytes or (self.layer is not None and self.layer.unsent_bytes):
            self.block()
        if sent:
            self.progress_s = self.services.now_s
        return sent

    def _release(self) -> None:
        super()._release()
        self.line.singles.discard(self)

    # --- moving -----------------------------------------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        serving = self._serving
        consumers = [serving.member, serving.export_state()] if isinstance(serving, LineConsumerSession) else None
        patterns = {pattern: list(passed_over) for pattern, passed_over in self.patterns.items()}
        return {"codec": self.codec.export_state(), "consumers": consumers, "patterns": patterns}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.codec.restore_state(state["codec"])
        self.patterns = {pattern: dict.fromkeys(names) for pattern, names in state["patterns"].items()}
        self.line.patterns.adopt(self)
        if state["consumers"] is not None:
            member, members = state["consumers"]
            self._serving = LineConsumerSession(self, member)
            self._serving.restore_state(members)

    def lose(self, key: bytes, name: bytes, next_seq: int, why: str) -> None:
        self.refuse(Code.UNAVAILABLE, f"{name.decode()}: {why}; the subscription has ended")


def _streams_of(command: object) -> int:
    """How many streams a run of `pub` lines is for, as `read_more` takes it: answers would be too many at once."""
    if type(command) is not Staged:
        return 0
    return 1 if command.order else len(command.groups)
