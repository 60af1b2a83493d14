"""A connection that speaks MQTT: its codec, its acknowledgements in order, its window, its subscriptions.

A run of PUBLISH in one read is one publication for each stream. What a connection asks for beyond that is done by
`broker.connection.mqtt.opening` and `broker.connection.mqtt.subscribing`. A session ends with its connection unless it
is a durable one (`broker.connection.mqtt.durable`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from tailrace.broker.access.identity import Identity
from tailrace.broker.access.rules import Right
from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.login import Logins
from tailrace.broker.connection.mqtt import enhanced_login, opening, stepwise
from tailrace.broker.connection.mqtt.backlog import Backlog
from tailrace.broker.connection.mqtt.durable import has_delayed_will, step_of
from tailrace.broker.connection.mqtt.enhanced_login import ScramExchange
from tailrace.broker.connection.mqtt.publishing import RECEIVE_MAXIMUM, PublishGroups, PublishRow, stage_one, stage_run
from tailrace.broker.connection.mqtt.single_packets import SinglePacketsClient
from tailrace.broker.connection.mqtt.subscribing import may_read_figures
from tailrace.broker.connection.mqtt.window import SendWindow
from tailrace.broker.connection.transport import AnySocket
from tailrace.broker.consumers.edge.session import ConsumerSession
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.publish_chunks import FAILED, PublishChunk
from tailrace.broker.routing.batch import Pending, RunPublication
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt import packets as p
from tailrace.protocol.mqtt.codec import AckRun, AnyPacket, MqttCodec, StagedPublishes, StagingLimits
from tailrace.protocol.mqtt.outgoing_aliases import OutgoingAliases
from tailrace.protocol.mqtt.properties import PacketType, PropertyId
from tailrace.protocol.mqtt.publishes import NO_LIMIT, PublishForm, PublishRendering, with_ids
from tailrace.protocol.mqtt.reasons import PacketError, Reason, protocol_error, reason_of
from tailrace.protocol.mqtt.responses import fitting, pack_disconnect, pack_refusal
from tailrace.shard.frame import MAX_METADATA_BYTES

if TYPE_CHECKING:
    from tailrace.broker.connection.mqtt.durable import DurableSession
    from tailrace.broker.connection.mqtt.resending import Resending
    from tailrace.broker.connection.mqtt.retained import RetainedSending
    from tailrace.broker.connection.mqtt.services import MqttServices
    from tailrace.broker.connection.mqtt.session_state import KeptSubscription, Numbering
    from tailrace.broker.connection.mqtt.shared import SharedReading
    from tailrace.broker.connection.mqtt.subscribing import TopicSubscription

PACKET_OVERHEAD_BYTES: Final = 128 << 10
"""Of a PUBLISH beyond its payload: topic and properties."""
WINDOW_MAX: Final = 1_000
"""Messages with QoS 1 or 2 that a client has been sent and has not acknowledged."""


class MqttClient(SinglePacketsClient):
    """`claimed_ns`: see `SessionHolder`. `half_id`: the first identifier of the chunk that is half out; `rendered_us`:
    the time that it was made for. `unreleased`: QoS 2 messages of the client that it has not released; `undecided`:
    those of them that may still be refused; `numbers`: those of them that may not be logged. `withheld_bytes`: messages
    to the client that go out once its session is stored.
    """

    protocol = "mqtt"

    __slots__ = (
        "_going_on",
        "_will",
        "aliases",
        "asked_to_last",
        "backlog",
        "claimed_ns",
        "client_id",
        "codec",
        "forms",
        "given_aliases",
        "half_id",
        "keep_alive_s",
        "last_key",
        "mark",
        "mqtt",
        "numbers",
        "packet_bytes_max",
        "packet_s",
        "rendered_us",
        "sendings",
        "session",
        "shared",
        "subscriptions",
        "undecided",
        "unreleased",
        "window",
        "withheld_bytes",
    )

    def __init__(self, services: Services, mqtt: MqttServices, sock: AnySocket, peer: str, identity: Identity) -> None:
        super().__init__(services, sock, peer, identity)
        self.mqtt = mqtt
        self.delivery = mqtt.chunks
        self.traffic = services.metrics.mqtt
        self.codec = MqttCodec(services.settings.max_message_bytes + PACKET_OVERHEAD_BYTES)
        self.backlog = Backlog()
        self._going_on = False
        self.client_id = b""
        self.claimed_ns = 0
        self.mark = b""  # of this session, in its messages while it has a subscription with No Local
        self.auth_method = b""
        self.exchange: ScramExchange | None = None
        self.asked_to_last = False  # CONNECT has a Session Expiry Interval, which may then be another in DISCONNECT
        self.greeted = False  # CONNACK has accepted it
        self.keep_alive_s = 0
        self.packet_bytes_max = NO_LIMIT
        self.packet_s = self.life_s  # a part of a packet keeps nothing alive
        self._will: p.WillMessage | None = None
        self.end_reason: Reason | None = None
        self.aliases: dict[int, bytes] = {}
        self.given_aliases: OutgoingAliases | None = None
        self.unreleased: set[int] = set()
        self.undecided: set[int] = set()
        self.numbers: dict[int, Numbering] = {}
        self.withheld_bytes = 0
        self.window = SendWindow(WINDOW_MAX)
        self.half_id = self.rendered_us = self.last_key = 0
        self.forms: dict[int, PublishForm] = {}  # by cursor key
        self.subscriptions: dict[bytes, TopicSubscription] = {}  # by filter
        self.sendings: list[RetainedSending | Resending] = []  # one after the other
        self.session: DurableSession | None = None
        self.shared: SharedReading | None = None

    @property
    def version(self) -> int:
        return self.codec.version

    @property
    def user(self) -> str:
        return self.identity.user

    @property
    def will(self) -> p.WillMessage | None:
        return self._will

    @will.setter
    def will(self, will: p.WillMessage | None) -> None:
        self.mqtt.wills.exchange(self.accounts[-1], self._will, will)
        self._will = will

    def become_user(self, identity: Identity) -> None:
        super().become_user(identity)
        self.mqtt.singles.discard(self)  # those are not asked for rights

    @property
    def must_log_in(self) -> bool:
        return not self.greeted

    @property
    def logins(self) -> Logins:
        return self.mqtt.logins

    # --- reading ----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> None:
        """Runs of PUBLISH are taken together; any other packet after those before it."""
        self.put_in_row()
        run: list[p.PublishPacket] = []
        packets = iter(self.codec.feed(self.services.receive_view[:count], lambda: self._staging_limits(len(run))))
        is_run = False  # the last packets are a run of PUBLISH
        taken, packet = 0, None
        for packet in packets:
            taken += 1
            is_run = type(packet) in _PUBLISHES
            if type(packet) is p.PublishPacket and self.greeted:
                run.append(packet)
                continue
            if run:
                self._publish_run(run)
                run = []
            if not (self.closed or self.lingering_since_s):
                self._execute(packet)
            if self.closed or self.lingering_since_s:
                return
            if self.held_up:
                self.backlog.extend(packets)
                self.read_more(count, 0)
                return
        if run:
            self._publish_run(run)
        if not (self.closed or self.lingering_since_s):
            self.read_more(count, int(is_run))
            if taken == 1 and self.is_single(packet):
                self.mqtt.singles.add_packets(self)

    def _staging_limits(self, pending: int) -> StagingLimits | None:
        """For runs of PUBLISH and PUBACK behind this number of PUBLISHes that are not executed yet; None if packets
        have to come one by one.
        """
        if self.held_up or not self.greeted or not self.is_free or self.mark or not self.mqtt.stages:
            return None
        room = 1 << 30
        if self.version == p.MQTT_5:
            room = max(RECEIVE_MAXIMUM - self.unacknowledged - len(self.unreleased) - pending, 0)
        return StagingLimits(self.services.settings.max_message_bytes, room, self.mqtt.table)

    def _execute(self, packet: AnyPacket) -> None:
        """Anything but a run of PUBLISH."""
        self.packet_s = self.services.now_s
        if self.held_up:
            self.backlog.extend([packet])
            return
        if self.exchange is not None and not self.greeted and type(packet) not in _IN_LOGIN:
            packet = protocol_error("only AUTH and DISCONNECT may come before the end of the login")
        if type(packet) not in _CHEAP:
            self.services.router.flush()  # a subscription begins behind the messages published before it
            self.read_less()
        if isinstance(packet, PacketError):
            self.malformed(packet)
        elif type(packet) is p.PublishPacket:
            self._publish_run([packet])
        elif type(packet) is StagedPublishes:
            self._publish_staged(packet)
        else:
            _HANDLERS[type(packet)](self, packet)

    def go_on(self) -> None:
        """What waited is done: go on with the rest of the read, up to the next packet that has to wait."""
        self.held_up -= 1
        if self._going_on:  # the packet that has ended was begun in the loop below, which continues
            return
        self._going_on = True
        while self.backlog and not self.held_up and not (self.closed or self.lingering_since_s):
            packets = self.backlog.take()
            if type(packets[0]) is p.PublishPacket:
                self._publish_run(cast(list[p.PublishPacket], packets))
            else:
                self._execute(packets[0])
        self._going_on = False
        if not self.held_up and not self.closed:
            self.resume(Pause.WORK)
            self.services.note_answered(self)

    @property
    def pending_bytes(self) -> int:
        return self.codec.pending_bytes + (0 if self.exchange is None else self.exchange.held_bytes)

    def end_of_input(self) -> None:
        self.finish()

    def forget_input(self) -> None:
        self.codec.stop()
        self.backlog.clear()

    def has_unread(self) -> bool:
        return bool(self.backlog) or super().has_unread()

    @property
    def consumers(self) -> ConsumerSession:
        """For shared subscriptions."""
        if self._serving is None:
            self._serving = ConsumerSession(self)
        return self._serving

    @property
    def stays(self) -> bool:
        """A member of a group is one of its worker, and so is the exchange of a login; see `WideReading` too."""
        is_member = self.shared is not None and not self.shared.is_empty
        is_wide = any(each.is_wide for each in self.subscriptions.values())
        return super().stays or is_member or is_wide or self.exchange is not None

    # --- the end ----------------------------------------------------------------------------------------------------

    def malformed(self, error: PacketError) -> None:
        """End for a packet that is not as it must be."""
        version = error.version
        if isinstance(error, p.VersionUnknown):
            version = p.MQTT_5 if p.MQTT_5 < error.level < p.BRIDGE_LEVELS else p.MQTT_3_1_1
        if version:
            self._refuse_connection(version, opening.refusal_of(error.reason, error.code), error.text)
            self.end_reason = Reason.SUCCESS  # it has its answer
        self.end_for(error.reason, error.code, error.text)

    def end_for(self, reason: Reason, code: Code, text: str) -> None:
        """End, with this reason for a peer that speaks MQTT 5."""
        if self.end_reason is None:
            self.end_reason = reason
        self.end_with(code, text)

    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        """MQTT has no errors that do not end a connection, and MQTT 3.1.1 only those of CONNACK."""
        if not fatal or self.end_reason is Reason.SUCCESS:
            return
        reason = self._reason_for(code)
        if code is Code.CLOSING and self.end_reason is None and not has_delayed_will(self):
            self.will = None  # the standard lets a server that stops keep it back, and a worker has no place for it
        if self.greeted:
            made = fitting(partial(pack_disconnect, self.version, reason), text, self.packet_bytes_max)
            self.answer_in_order(made)  # the last packet of all
        else:
            version = self.version or opening.peeked_version(self)
            self._refuse_connection(version, opening.refusal_of(reason, code), text)

    def _reason_for(self, code: Code) -> Reason:
        reason = self.end_reason
        if reason is None:
            return reason_of(code)
        is_login = reason is Reason.BAD_USER_OR_PASSWORD
        return reason_of(code) if is_login and code is not Code.DENIED else reason

    def _refuse_connection(self, version: int, reason: Reason, text: str) -> None:
        """Nothing is sent to a peer whose version is not known."""
        if version in (p.MQTT_3_1_1, p.MQTT_5):
            made = fitting(partial(pack_refusal, version, reason), text, self.packet_bytes_max)
            self.send_packet(made)

    def send_fitting(self, data: bytes) -> bool:
        """Give an answer, or end the connection if its client does not take one so large; whether it goes on."""
        if len(data) > self.packet_bytes_max:
            text = f"an answer of {len(data)} bytes is larger than the Maximum Packet Size {self.packet_bytes_max}"
            self.end_for(Reason.PACKET_TOO_LARGE, Code.SIZE, text)
            return False
        self.send_packet(data)
        return True

    def hand_over_session(self) -> list[Any] | None:
        self.backlog.clear()
        if self.undecided:
            self.mqtt.durable.leave(self)
        handed = self.mqtt.durable.hand_over(self)
        return None if handed is None else [*handed]

    def all_decided(self) -> None:
        self.mqtt.durable.decided(self)

    def taken_over(self) -> None:
        self.end_for(Reason.SESSION_TAKEN_OVER, Code.CLOSING, "another connection has come with this client identifier")

    def drop_silent(self) -> None:
        text = f"nothing came for one and a half times the keep alive of {self.keep_alive_s} s"
        self.end_for(Reason.KEEP_ALIVE_TIMEOUT, Code.TIMEOUT, text)

    def disconnect(self, packet: p.DisconnectPacket) -> None:
        """The client ends its connection; only its success deletes the will."""
        expiry_s = packet.properties.get(PropertyId.SESSION_EXPIRY)
        if expiry_s and not self.asked_to_last:
            self.malformed(protocol_error("a session that ends with its connection cannot be given a longer time"))
            return
        if expiry_s is not None and self.session is not None:
            self.session.expiry_s = self.mqtt.durable.limited_s(expiry_s)
        if packet.reason == Reason.SUCCESS:
            self.will = None
        self.finish()

    def finish(self) -> None:
        if not (self.lingering_since_s or self.closed):
            self._end_session()
            self.mqtt.sessions.release(self)
        super().finish()

    def close(self, reason: str) -> None:
        if not self.closed:
            self._end_session()
        super().close(reason)

    def _end_session(self) -> None:
        self.backlog.clear()
        if self.session is not None and self.services.access.is_revoked(self.identity):
            self.will = None
        self.mqtt.durable.leave(self)
        self.mqtt.subscribing.end_shared(self)
        self._publish_will()

    def _publish_will(self) -> None:
        """A user that is revoked publishes nothing any more."""
        will, self.will = self.will, None
        if will is None or not self.greeted or self.services.access.is_revoked(self.identity):
            return
        packet = p.PublishPacket(will.topic, will.payload, will.qos, will.retain, False, 0, will.properties)
        row, groups = PublishRow(self), PublishGroups()
        stage_one(self, self.mqtt, row, packet, groups, answers=False)
        self.publish_groups(row, groups)

    def _release(self) -> None:
        super()._release()
        self.mqtt.singles.discard(self)
        self.will = self.exchange = None
        self.mqtt.keep_alives.discard(self)
        self.mqtt.sessions.release(self)
        self.mqtt.durable.release(self)
        self.mqtt.wildcards.release(self)
        self.mqtt.system.release(self)

    # --- acknowledgements -------------------------------------------------------------------------------------------

    @property
    def awaited(self) -> int:
        steps = (0 if self.session is None else self.session.unstored) + (self.withheld_bytes > 0)
        return self.under_way + len(self.answers) + self.held_up + len(self.backlog) + len(self.sendings) + steps

    # --- publishing -------------------------------------------------------------------------------------------------

    def _publish_run(self, run: list[p.PublishPacket]) -> None:
        self.packet_s = self.services.now_s
        if self.held_up:
            self.backlog.extend(run)
            return
        row, groups = PublishRow(self), PublishGroups()
        self.await_answer(row.pending)
        try:
            self.backlog.put_back(stage_run(self, self.mqtt, row, run, groups))
        except PacketError as error:
            if groups.are_numbered:  # the session does not have their numbers
                row.abandon()
            else:
                self.publish_groups(row, groups)  # those before it
            self.malformed(error)
        else:
            if groups.are_numbered:
                self.hold_up()
                self.mqtt.durable.step(self, partial(stepwise.publish, self, row, groups))
            else:
                self.publish_groups(row, groups)
        self.note_awaited()

    def _publish_staged(self, staged: StagedPublishes) -> None:
        """A run that the codec has made frames of."""
        row = PublishRow(self)
        row.add_staged(staged)
        self.await_answer(row.pending)
        row.begin(len(staged.groups))
        for key, (name, _count, frames) in enumerate(staged.groups):
            self.services.router.publish_group(self, row, key, frames, False, self.mqtt.replicas_of(name, row))
        self.note_awaited()

    def publish_groups(self, row: PublishRow, groups: PublishGroups) -> None:
        """Give the messages to the router. Those of a read are as safe as one of them that is acknowledged."""
        router, found = self.services.router, groups.groups
        for group in found:
            row.add(group.stream, len(group.frames), b"")
        row.begin(len(found))
        for key, group in enumerate(found):
            router.publish_group(self, row, key, group.joined(), False, self.mqtt.replicas_of(group.stream, row))

    def number(self, packet_id: int, stream: bytes) -> Numbering | None:
        if self.session is None:
            return None
        known = self.numbers.get(packet_id)
        if known is None or known.stream != stream:
            known = self.numbers[packet_id] = self.session.next_number(stream)
        return known

    def note_step(self) -> None:
        self.services.note_answered(self)
        self.note_awaited()

    def settle_stored(self, pending: Pending, text: bytes) -> None:
        self.mqtt.durable.step(self, lambda stored: pending.settle(text if stored else b""))

    def is_too_large(self, metadata: bytes, payload: bytes) -> bool:
        nbytes = len(metadata) + len(payload)
        return nbytes > self.services.settings.max_message_bytes or len(metadata) > MAX_METADATA_BYTES

    def group_done(self, run: RunPublication, key: int, first_seq: int, subscribers: int) -> None:
        """The messages of a run to one stream are in its log."""
        assert isinstance(run, PublishRow)
        run.settle_group(key, None, first_seq)

    def group_refused(self, run: RunPublication, key: int, code: Code, text: str, first_seq: int | None) -> None:
        assert isinstance(run, PublishRow)
        self.note_refused(code, text, run.counts[key])
        if self.session is not None:
            self.session.producers.pop(run.names[key], None)  # its next number may be missing
        run.settle_group(key, (code, text))

    # --- messages to the client -------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """For messages with QoS 1 or 2. None, while some wait until the session is stored."""
        return 0 if self.withheld_bytes else self.window.room

    def form_of(self, cursor: Cursor) -> PublishForm:
        return self.forms[cursor.key]

    def packets(self, cursor: Cursor, chunk: PublishChunk) -> bytes | bytearray:
        """A chunk with this client's packet identifiers."""
        if not chunk.id_count:
            return chunk.rendering.data
        return with_ids(chunk.rendering, chunk.id_count, self.half_id if cursor.skip else self.window.next_id)

    def send_chunk(self, cursor: Cursor, chunk: PublishChunk) -> int:
        """Send the packets from `cursor.skip` on; how many bytes the socket took."""
        data, skip = self.packets(cursor, chunk) if chunk.id_count else chunk.rendering.data, cursor.skip
        if not skip and (self.given_aliases is not None or (chunk.id_count and step_of(self) is not None)):
            self._send_whole(cursor, chunk, bytes(data[: chunk.nbytes]))
            return chunk.nbytes
        try:
            sent = self.sock.send(memoryview(data)[skip:] if skip else data)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = FAILED
        return self.chunk_sent(cursor, chunk, sent)

    def chunk_sent(self, cursor: Cursor, chunk: PublishChunk, sent: int) -> int:
        """The socket took `sent` bytes from `cursor.skip` on; how many that are, if it is not broken."""
        if sent == chunk.nbytes and self.layer is None:  # no place in it has to be remembered
            self.progress_s = self.services.now_s
            self._fill_window(cursor.feed.name, self.forms[cursor.key], chunk.rendering.id_seqs, chunk.id_count)
            return sent
        if sent == FAILED:
            self.close("reset")
            return 0
        sent, skip = max(sent, 0), cursor.skip
        if skip + sent < chunk.nbytes or (self.layer is not None and self.layer.unsent_bytes):
            self.block()
        if sent:
            self.progress_s = self.services.now_s
            if not skip and (chunk.id_count or sent < chunk.nbytes):
                self._note_sent(cursor, chunk)
        return sent

    def takes_alike(self, cursor: Cursor, form: PublishForm, chunk: PublishChunk) -> bool:
        """Whether the cursor's next chunk, in this form, may go out as it is, at once and before anything else."""
        if self.out or self.closed or self.blocked or self.layer is not None or self.given_aliases is not None:
            return False
        if self.forms[cursor.key] != form or (cursor.credit_bytes is not None and cursor.credit_bytes <= 0):
            return False
        return not chunk.id_count or (chunk.id_count <= self.room and step_of(self) is None)

    def _send_whole(self, cursor: Cursor, chunk: PublishChunk, data: bytes) -> None:
        """Take a chunk over that is not sent as it is, or not at once."""
        if self.given_aliases is not None:
            data = self.given_aliases.rewrite(data, self.packet_bytes_max)
        self.traffic.bytes_out -= chunk.nbytes  # fan-out counts it, and so does its sending
        if step_of(self) is None:
            self.send_packet(data)
        else:
            stepwise.withhold(self, data, cursor.feed.name, chunk.rendering.id_seqs[: chunk.id_count])
        self._note_sent(cursor, chunk)

    def _note_sent(self, cursor: Cursor, chunk: PublishChunk) -> None:
        """A chunk has begun to go out: all of its messages are under way."""
        self.half_id, self.rendered_us = self.window.next_id, chunk.rendered_us
        self._fill_window(cursor.feed.name, self.forms[cursor.key], chunk.rendering.id_seqs, chunk.id_count)

    def _fill_window(self, stream: bytes, form: PublishForm, seqs: array[int], count: int) -> None:
        if count:
            if self.session is not None and stream:
                self.session.in_flight.add(self.window.next_id, stream, form, seqs[:count])
                self.mqtt.durable.note(self)
            self.window.add(count)
            if self.withheld_bytes or not self.window.room:
                self.hold_cursors()

    def hold_cursors(self) -> None:
        """The window is full: send no more messages with QoS 1 or 2."""
        for cursor in self.awaiting_cursors():
            cursor.credit_bytes = 0

    def send_retained(self, stream: bytes, form: PublishForm, rendering: PublishRendering) -> None:
        """Messages of no cursor, whose identifiers have room. Without a `stream` no session sends them again."""
        count = len(rendering.id_places)
        data = bytes(with_ids(rendering, count, self.window.next_id)) if count else rendering.data
        if count and step_of(self) is not None:
            stepwise.withhold(self, data, stream, rendering.id_seqs)
        else:
            self.send_packet(data)
        self._fill_window(stream, form, rendering.id_seqs, count)

    def grant_room(self) -> None:
        if self.room:
            for cursor in self.awaiting_cursors():
                self.services.fanout.grant(cursor, 1 - (cursor.credit_bytes or 0))
        if self.sendings:
            self.sendings[0].go_on()

    def after_turn(self) -> None:
        self.mqtt.durable.store_steps(self)
        super().after_turn()
        if self.sendings:
            self.sendings[0].go_on()

    def awaiting_cursors(self) -> list[Cursor]:
        """Those whose messages the client acknowledges."""
        return [cursor for key, cursor in self.cursors.items() if self.forms[key].qos]

    def acknowledge(self, packet: p.AckPacket) -> None:
        """PUBACK or PUBCOMP, or a PUBREC that refuses a message."""
        self.acknowledge_run(AckRun(packet.packet_id, 1))

    def acknowledge_run(self, run: AckRun) -> None:
        was_full = self.withheld_bytes or not self.window.room
        self.window.acknowledge_run(*run)
        if self.session is not None:
            self.note_acknowledged()
        if was_full:
            self.grant_room()
        elif self.sendings:
            self.sendings[0].go_on()
        if self.shared is not None:
            self.shared.acknowledged(*run)

    def note_acknowledged(self) -> None:
        if self.session is not None:
            self.session.in_flight.forget_before(self.window.first_id)
            self.mqtt.durable.note(self)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, packet: p.SubscribePacket) -> None:
        self.mqtt.subscribing.subscribe(self, packet)

    def unsubscribe(self, packet: p.UnsubscribePacket) -> None:
        self.mqtt.subscribing.unsubscribe(self, packet)

    def resume_subscriptions(
        self, kept: Sequence[KeptSubscription], done: Callable[[list[Cursor], list[Refused]], None]
    ) -> None:
        self.mqtt.subscribing.resume(self, kept, done)

    def start_cursors(self, cursors: Sequence[Cursor]) -> None:
        self.mqtt.subscribing.start_those(self, cursors)
        self.mqtt.subscribing.reconcile(self)

    def join_streams(self, topic_filter: bytes, names: list[bytes]) -> None:
        self.mqtt.subscribing.join_later(self, self.subscriptions[topic_filter], names)

    @property
    def is_reading(self) -> bool:
        return bool(self.cursors or self.subscriptions)

    def drop_what_is_denied(self) -> None:
        super().drop_what_is_denied()
        figures = (each.topics for each in self.subscriptions.values() if each.is_system)
        if not all(may_read_figures(self, topics) for topics in figures):
            self.end_with(Code.DENIED, self.denial(Right.ADMIN).text)
        elif not all(self.may_read_all(each.topics) for each in self.subscriptions.values() if each.group):
            self.end_with(Code.DENIED, self.denial(Right.SUBSCRIBE).text)

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        """MQTT has no word for it: the messages are missing."""
        self.services.metrics.refused.add(Code.TRIMMED)

    def send_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        self.mqtt.subscribing.ended(self, cursor, code, text)

    def _end_subscriptions(self) -> None:
        super()._end_subscriptions()
        self.subscriptions.clear()
        self.sendings.clear()

    def chunk_ended(self) -> None:
        super().chunk_ended()
        for key in [key for key in self.forms if key not in self.cursors]:
            del self.forms[key]

    # --- moving -----------------------------------------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        return opening.export_state(self)

    def restore_state(self, state: dict[str, Any]) -> None:
        opening.restore_state(self, state)

    def take_over(self, *, eof: bool) -> None:
        super().take_over(eof=eof)
        if self.greeted and not self.closed:
            self.mqtt.keep_alives.add(self)
            self.mqtt.sessions.adopt(self)
            self.mqtt.durable.adopt(self)
            self.mqtt.subscribing.reconcile(self)

    def lose(self, key: Any, name: bytes, next_seq: int, why: str) -> None:
        self.end_with(Code.UNAVAILABLE, f"{name.decode()}: {why}")


def _ack(client: MqttClient, packet: p.AckPacket) -> None:
    _ACKS[packet.type](client, packet)


_ACKS: Final[Mapping[PacketType, Callable[[MqttClient, p.AckPacket], None]]] = {
    PacketType.PUBACK: MqttClient.acknowledge,
    PacketType.PUBCOMP: MqttClient.acknowledge,
    PacketType.PUBREC: stepwise.receive_pubrec,
    PacketType.PUBREL: stepwise.receive_pubrel,
}
_PUBLISHES: Final = frozenset({p.PublishPacket, StagedPublishes})
_CHEAP: Final = frozenset({p.AckPacket, p.PingPacket, p.PublishPacket, StagedPublishes, AckRun})
"""Packets that change nothing for the reads after them."""
_IN_LOGIN: Final = frozenset({p.AuthPacket, p.DisconnectPacket, PacketError})
_HANDLERS: Final[Mapping[type, Callable[[MqttClient, Any], None]]] = {
    p.ConnectPacket: opening.connect,
    AckRun: MqttClient.acknowledge_run,
    p.AckPacket: _ack,
    p.SubscribePacket: MqttClient.subscribe,
    p.UnsubscribePacket: MqttClient.unsubscribe,
    p.PingPacket: MqttClient.ping,
    p.DisconnectPacket: MqttClient.disconnect,
    p.AuthPacket: enhanced_login.proceed,
}
