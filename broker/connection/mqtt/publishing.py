"""The messages of one read of an MQTT connection: their streams, and the acknowledgements in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from tailrace.broker.routing.batch import Pending, RunPublication, RunPublisher
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import Placed, TopicRules
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.codec import StagedPublishes
from tailrace.protocol.mqtt.metadata import PLAIN_QOS, pack_metadata
from tailrace.protocol.mqtt.packets import MQTT_5, PublishPacket
from tailrace.protocol.mqtt.properties import PacketType, PropertyId
from tailrace.protocol.mqtt.reasons import FAILURE, PacketError, Reason, protocol_error, reason_of
from tailrace.protocol.mqtt.responses import pack_ack
from tailrace.protocol.topics import TOPIC_BYTES_MAX, topic_fault
from tailrace.shard.frame import HEADER_BYTES, pack_frame, unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.names import base_of, is_reserved
from tailrace.shard.numbering import write_numbering

if TYPE_CHECKING:
    from tailrace.broker.connection.mqtt.retained import RetainedMessages
    from tailrace.broker.connection.mqtt.session_state import Numbering
    from tailrace.broker.services import Services

RECEIVE_MAXIMUM: Final = 100
"""Messages with QoS 1 or 2 of a client that it may have under way; MQTT 5 clients are held to it."""
UNRELEASED_MAX: Final = 4_096
"""Messages with QoS 2 that a client of MQTT 3.1.1 may leave without PUBREL."""
ALIASES_MAX: Final = 32
"""Topic aliases of a client."""
NOWHERE: Final = Placed(b"", b"")
RESERVED_TEXT: Final = "topics that begin with $ belong to the broker"
REFUSED_TEXT: Final = "a message was refused, which MQTT 3.1.1 has no other answer for"
NO_ROOM_TEXT: Final = "a message is published and not retained: max_last_values or max_last_value_bytes is met"
ID_BYTES: Final = 2
"""Of a packet identifier."""
ACKS: Final = {1: PacketType.PUBACK, 2: PacketType.PUBREC}
"""By QoS, the answer to a PUBLISH."""


_UNCERTAIN: Final = frozenset({Code.UNAVAILABLE, Code.TIMEOUT, Code.CLOSING, Code.UNREPLICATED})
"""Of a numbered message: it may be logged. The client sends it again on its next connection, under its number."""
_RENUMBERED: Final = frozenset({Code.GAP, Code.PRODUCER})
"""It is not logged, and its number is no longer good. Sent again, it gets another one."""

_pack_acks = load("tailrace.protocol.mqtt.stage_cy").pack_acks
_mark_run = load("tailrace.shard.run_cy").mark_run

Keep: TypeAlias = Callable[[bytes, Callable[[Refused | None], None]], None]
"""See `RetainedMessages.keep`."""
Missed: TypeAlias = Callable[[bytes, list[tuple[bytes, int]], Callable[[list[int] | Refused], None]], None]
"""See `RetainedMessages.missed`."""


class Destination(NamedTuple):
    """Where the messages of a topic lie. `metadata`: of one with QoS 1 and without properties; `refusal`: None, or why
    the topic takes no message.
    """

    placed: Placed
    metadata: bytes
    refusal: tuple[Code, str] | None


def topic_of(aliases: dict[int, bytes], packet: PublishPacket) -> bytes:
    """The topic that the packet has or its alias stands for. Raises PacketError."""
    alias = packet.properties.get(PropertyId.TOPIC_ALIAS)
    if alias is None:
        return packet.topic
    if not 0 < alias <= ALIASES_MAX:
        raise PacketError(Reason.TOPIC_ALIAS_INVALID, f"the topic alias {alias} is not one of 1 to {ALIASES_MAX}")
    if packet.topic:
        aliases[alias] = packet.topic[: TOPIC_BYTES_MAX + 1]  # a longer one is refused
    elif alias not in aliases:
        raise protocol_error(f"the topic alias {alias} stands for no topic")
    return aliases[alias]


def destination_of(rules: TopicRules, topic: bytes) -> Destination:
    """The place of a topic, which is UTF-8 without wildcards."""
    fault = topic_fault(topic)
    if fault:
        return Destination(NOWHERE, b"", (Code.TOPIC, fault))
    if is_reserved(topic) or base_of(topic) != topic:
        return Destination(NOWHERE, b"", (Code.RESERVED, RESERVED_TEXT))
    placed = rules.place_topic(topic)
    return Destination(placed, pack_metadata(placed.topic, PLAIN_QOS), None)


class _Answer(NamedTuple):
    """One acknowledgement. `group`: of the run, whose outcome it gives; -1 if `reason` is known already. `retained_in`:
    the stream of a message that is to be retained, else b"".
    """

    qos: int
    packet_id: int
    group: int
    reason: Reason
    retained_in: bytes


class _Retained(NamedTuple):
    """A message that is to be retained: its topic, its place in its group, and that of its answer in the row."""

    topic: bytes
    place: int
    answer: int


class PublishGroup:
    """Messages of one read for one stream, one after the other. `numbering`: of the first, if they are numbered."""

    __slots__ = ("frames", "numbering", "stream")

    def __init__(self, stream: bytes, numbering: Numbering | None) -> None:
        self.stream = stream
        self.numbering = numbering
        self.frames: list[bytes] = []

    def is_followed_by(self, numbering: Numbering | None) -> bool:
        first = self.numbering
        if first is None or numbering is None:
            return first is numbering
        return numbering == first._replace(number=first.number + len(self.frames))

    def joined(self) -> bytearray:
        """The frames as the router takes them."""
        frames = bytearray(b"").join(self.frames)
        if self.numbering is None:
            return frames
        _stream, producer, number = self.numbering
        metadata = bytes(frames[HEADER_BYTES : HEADER_BYTES + unpack_header(frames).metadata_bytes])
        marked: bytearray = _mark_run(frames, write_numbering(metadata, producer, number))
        return marked


class PublishGroups:
    """The messages of one read, by stream."""

    __slots__ = ("_latest", "groups")

    def __init__(self) -> None:
        self.groups: list[PublishGroup] = []
        self._latest: dict[bytes, int] = {}

    @property
    def are_numbered(self) -> bool:
        return any(group.numbering is not None for group in self.groups)

    def add(self, stream: bytes, frame: bytes, numbering: Numbering | None) -> tuple[int, int]:
        """Returns the key of the message's group, and its place there."""
        key = self._latest.get(stream, -1)
        if key < 0 or not self.groups[key].is_followed_by(numbering):
            key = self._latest[stream] = len(self.groups)
            self.groups.append(PublishGroup(stream, numbering))
        frames = self.groups[key].frames
        frames.append(frame)
        return key, len(frames) - 1


def _answers_of(staged: StagedPublishes) -> list[_Answer]:
    ids = staged.ids
    owners = staged.owners or [0] * (len(ids) // ID_BYTES)
    return [
        _Answer(1, int.from_bytes(ids[ID_BYTES * place : ID_BYTES * (place + 1)], "big"), owner, Reason.SUCCESS, b"")
        for place, owner in enumerate(owners)
    ]


class MqttPublisher(RunPublisher, Protocol):
    """What a row needs of its client. `unreleased`: its QoS 2 messages that it has not released, and `undecided`: those
    of them whose outcome is not known; `numbers`: those that are numbered and may not be logged; `unacknowledged`: how
    many of its messages with QoS 1 are not acknowledged.
    """

    numbers: dict[int, Numbering]
    undecided: set[int]
    unreleased: set[int]
    unacknowledged: int

    @property
    def version(self) -> int: ...

    def answers_ready(self) -> None: ...

    def all_decided(self) -> None:
        """Nothing is undecided any more."""

    def settle_stored(self, pending: Pending, text: bytes) -> None:
        """Give an answer once the session is stored without the messages that it refuses."""

    def end_with(self, code: Code, text: str, *, is_logged: bool = False) -> None: ...


class PublishRow(RunPublication):
    """The messages of a read, by stream, and their acknowledgements. `pending`: their place in the client's row."""

    __slots__ = (
        "_answers",
        "_ask_missed",
        "_kept",
        "_missed",
        "_open",
        "_publisher",
        "_refusals",
        "_retained",
        "_staged",
        "_unkept",
        "_waiting",
        "pending",
    )

    def __init__(self, publisher: MqttPublisher) -> None:
        super().__init__(publisher, True)
        self.pending = Pending(publisher.answers_ready)
        self._publisher = publisher
        self._answers: list[_Answer] = []
        self._staged: StagedPublishes | None = None
        self._refusals: dict[int, tuple[Code, str]] = {}
        self._waiting = 1  # until `begin`
        self._kept: set[bytes] = set()
        self._unkept: dict[bytes, tuple[Code, str]] = {}
        self._retained: dict[int, list[_Retained]] = {}  # by group
        self._missed: dict[int, tuple[Code, str]] = {}  # by answer
        self._open: set[int] = set()  # answers that cannot be given: the client has to send these messages again
        self._ask_missed: Missed | None = None

    def add_answer(
        self, qos: int, packet_id: int, group: int, reason: Reason = Reason.SUCCESS, retained_in: bytes = b""
    ) -> None:
        self._publisher.unacknowledged += qos == 1
        self._answers.append(_Answer(qos, packet_id, group, reason, retained_in))

    @property
    def is_answered(self) -> bool:
        """Whether a message of it is acknowledged."""
        return bool(self._answers or (self._staged is not None and self._staged.ids))

    def keep(self, stream: bytes, keep: Keep) -> None:
        """A message is to be retained in this stream: the answers wait until it is certain that it will be."""
        if stream not in self._kept:
            self._kept.add(stream)
            self._waiting += 1
            keep(stream, partial(self._kept_or_not, stream))

    def _kept_or_not(self, stream: bytes, refused: Refused | None) -> None:
        if refused is not None:
            self._unkept[stream] = refused.code, refused.text
        self._count_down()

    def add_retained(self, group: int, topic: bytes, place: int, ask_missed: Missed) -> None:
        """The next answer is for a message that is to be retained, and waits until it is known whether it is."""
        self._ask_missed = ask_missed
        self._retained.setdefault(group, []).append(_Retained(topic, place, len(self._answers)))

    def add_staged(self, staged: StagedPublishes) -> None:
        """All of a run, whose groups are those of this row."""
        for name, count, _frames in staged.groups:
            self.add(name, count, b"")
        self._staged = staged
        self._publisher.unacknowledged += len(staged.ids) // ID_BYTES

    def abandon(self) -> None:
        """Nothing of this is published now, or answered: the connection ends, and the client sends it again."""
        publisher = self._publisher
        publisher.unacknowledged -= sum(answer.qos == 1 for answer in self._answers)
        publisher.undecided.difference_update(answer.packet_id for answer in self._answers if answer.qos == 2)
        if not publisher.undecided:
            publisher.all_decided()
        self.pending.settle(b"")

    def begin(self, groups: int) -> None:
        """All messages are here, and the outcomes of this number of groups are to come."""
        self._waiting += groups
        self._count_down()

    def settle_group(self, key: int, refusal: tuple[Code, str] | None, first_seq: int = 0) -> None:
        if refusal is not None:
            self._refusals[key] = refusal
        elif key in self._retained and self._ask_missed is not None:
            retained = self._retained[key]
            messages = [(topic, first_seq + place) for topic, place, _answer in retained]
            self._ask_missed(
                self._answers[retained[0].answer].retained_in, messages, partial(self._on_missed, retained)
            )
            return
        self._count_down()

    def _on_missed(self, retained: list[_Retained], places: list[int] | Refused) -> None:
        if isinstance(places, Refused):
            self._missed.update((each.answer, (places.code, places.text)) for each in retained)
        else:
            self._missed.update((retained[place].answer, (Code.OVERLOADED, NO_ROOM_TEXT)) for place in places)
        self._count_down()

    def _count_down(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._settle()

    def _settle(self) -> None:
        staged = self._staged
        if staged is not None and not self._refusals:
            self._publisher.unacknowledged -= len(staged.ids) // ID_BYTES
            self.pending.settle(_pack_acks(staged.ids))
            return
        if staged is not None:
            self._answers = _answers_of(staged)
        publisher, texts = self._publisher, []
        version = publisher.version
        publisher.unacknowledged -= sum(answer.qos == 1 for answer in self._answers)
        self._decide()
        is_stored = True
        for number, answer in enumerate(self._answers):
            qos, packet_id, _group, known, _retained_in = answer
            refusal = self._refusal_of(number, answer)
            reason = known if refusal is None else reason_of(refusal[0])
            if reason >= FAILURE:
                is_open = number in self._open
                if qos == 2 and not is_open:
                    publisher.unreleased.discard(packet_id)
                    is_stored = False
                if version != MQTT_5 or is_open:
                    self._end_behind(*(refusal or (Code.DENIED, REFUSED_TEXT)))
                    break
            texts.append(pack_ack(ACKS[qos], version, packet_id, reason))
        if is_stored:
            self.pending.settle(b"".join(texts))
        else:
            publisher.settle_stored(self.pending, b"".join(texts))

    def _decide(self) -> None:
        """The outcomes of these messages are known: a repeat of one that was refused is a new message."""
        publisher, undecided = self._publisher, self._publisher.undecided
        if not undecided:
            return
        for number, answer in enumerate(self._answers):
            if answer.qos == 2 and answer.packet_id in undecided and answer.group >= 0:
                undecided.discard(answer.packet_id)
                self._decide_one(number, answer)
        if not undecided:
            publisher.all_decided()

    def _decide_one(self, number: int, answer: _Answer) -> None:
        publisher, packet_id = self._publisher, answer.packet_id
        refusal = self._refusal_of(number, answer)
        is_numbered = packet_id in publisher.numbers
        if is_numbered and refusal is not None and refusal[0] in _UNCERTAIN:
            self._open.add(number)
            return
        publisher.numbers.pop(packet_id, None)
        if refusal is not None:
            publisher.unreleased.discard(packet_id)
            if is_numbered and refusal[0] in _RENUMBERED:
                self._open.add(number)

    def _refusal_of(self, number: int, answer: _Answer) -> tuple[Code, str] | None:
        refusal = self._refusals.get(answer.group) or self._unkept.get(answer.retained_in)
        return refusal or self._missed.get(number)

    def _end_behind(self, code: Code, text: str) -> None:
        """MQTT 3.1.1 can only close; the messages before this one are acknowledged first."""
        is_logged = code is Code.DENIED  # with its topic
        self.pending.after = lambda: self._publisher.end_with(code, text, is_logged=is_logged)


# --- the messages of a read -------------------------------------------------------------------------------------------


class StagingClient(MqttPublisher, Protocol):
    """The side of a client that `stage_one` uses: see `MqttClient`."""

    aliases: dict[int, bytes]
    held_up: int
    is_free: bool
    mark: bytes
    services: Services

    def number(self, packet_id: int, stream: bytes) -> Numbering | None:
        """The number of a QoS 2 message; None if its session ends with its connection."""

    def note_refused(self, code: Code, text: str) -> None: ...

    def publish_refusal(self, placed: Placed) -> Refused | None: ...

    def is_too_large(self, metadata: bytes, payload: bytes) -> bool: ...


class StagingServices(Protocol):
    """The collaborators that `stage_one` uses: see `MqttServices`."""

    @property
    def destination_of(self) -> Callable[[bytes], Destination]: ...

    @property
    def retained(self) -> RetainedMessages: ...


def stage_run(
    client: StagingClient,
    mqtt: StagingServices,
    row: PublishRow,
    run: Sequence[PublishPacket],
    groups: PublishGroups,
) -> Sequence[PublishPacket]:
    """Make frames of the messages of a read. Returns the rest if the client has to wait for its turn behind many that
    are refused. Raises PacketError.
    """
    for place, packet in enumerate(run, start=1):
        stage_one(client, mqtt, row, packet, groups, answers=True)
        if client.held_up:
            return run[place:]
    return ()


def stage_one(
    client: StagingClient,
    mqtt: StagingServices,
    row: PublishRow,
    packet: PublishPacket,
    groups: PublishGroups,
    *,
    answers: bool,
) -> None:
    """Make a frame of a message, in the group of its stream. Raises PacketError."""
    topic, payload, qos, retain, _dup, packet_id, properties = packet
    if properties or not topic:
        topic = topic_of(client.aliases, packet)
    if qos and answers and _is_repeated(client, packet):
        row.add_answer(qos, packet_id, -1)
        return
    placed, metadata, refusal = mqtt.destination_of(topic)
    if refusal is None and not client.is_free:
        denied = client.publish_refusal(placed)
        refusal = None if denied is None else (denied.code, denied.text)
    stream, kept = placed
    if refusal is None and (properties or qos != PLAIN_QOS or client.mark or retain):
        metadata = pack_metadata(kept, qos, properties, client.mark, retain=retain)
    if refusal is None and client.is_too_large(metadata, payload):
        refusal = Code.SIZE, "the message is larger than max_message_bytes"
    if refusal is not None:
        client.note_refused(refusal[0], f"{topic.decode(errors='replace')}: {refusal[1]}")
        if qos and answers:
            client.unreleased.discard(packet_id)
            row.add_answer(qos, packet_id, -1, _refusal_reason(refusal[0]))
        return
    if retain and payload:
        row.keep(stream, mqtt.retained.keep)
    numbering = client.number(packet_id, stream) if qos > 1 and answers else None
    key, place = groups.add(stream, pack_frame(payload, metadata=metadata), numbering)
    if qos and answers:
        if retain:
            row.add_retained(key, kept or stream, place, mqtt.retained.missed)
        if qos > 1:
            client.undecided.add(packet_id)
        row.add_answer(qos, packet_id, key, retained_in=stream if retain else b"")


def _is_repeated(client: StagingClient, packet: PublishPacket) -> bool:
    """Whether a QoS 2 message has come before, and is logged or about to be. Raises PacketError if too many are under
    way.
    """
    if packet.qos == 2 and packet.packet_id in client.unreleased:
        return packet.packet_id in client.undecided or packet.packet_id not in client.numbers
    if client.version == MQTT_5:
        if client.unacknowledged + len(client.unreleased) >= RECEIVE_MAXIMUM:
            text = f"more than the Receive Maximum of {RECEIVE_MAXIMUM} messages are not acknowledged"
            raise PacketError(Reason.RECEIVE_MAXIMUM_EXCEEDED, text)
    elif len(client.unreleased) >= UNRELEASED_MAX:
        raise protocol_error(f"more than {UNRELEASED_MAX} messages with QoS 2 are not released")
    if packet.qos == 2:
        client.unreleased.add(packet.packet_id)
    return False


def _refusal_reason(code: Code) -> Reason:
    """In PUBACK or PUBREC, which have no reason for a message that is too large."""
    return Reason.QUOTA_EXCEEDED if code is Code.SIZE else reason_of(code)
