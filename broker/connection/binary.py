"""A connection that speaks the binary protocol: its handles, its publishes under way, its subscriptions by their ids.

Answers go out as they are known, each with the number of its request; only the publishes to one stream keep their
order. A run of publishes costs a few Python statements for each of its streams; a chunk one or two system calls.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.broker.access.identity import Identity, LoginFailure, Proof
from tailrace.broker.access.rules import Right
from tailrace.broker.connection import handles, hello_login
from tailrace.broker.connection.client import READ_BYTES_MAX
from tailrace.broker.connection.collecting import SUBSCRIPTIONS_TEXT, CollectingClient, Collections
from tailrace.broker.connection.heartbeat import Heartbeats
from tailrace.broker.connection.hello_login import ANOTHERS_TEXT
from tailrace.broker.connection.last import LastReader, recall
from tailrace.broker.connection.listing import Listings
from tailrace.broker.connection.login import NO_LOGIN_TEXT, Logins
from tailrace.broker.connection.named import subscribe_by_name
from tailrace.broker.connection.refused_publishes import RefusedRequests, answer_some, failed_publish
from tailrace.broker.connection.singles import SINGLE_ACK_MAX, SINGLE_HEAD_BYTES, Singles
from tailrace.broker.connection.transport import AnySocket, Layer, send_file
from tailrace.broker.consumers.edge import binary
from tailrace.broker.consumers.edge.session import ConsumerSession
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.frame_chunks import FrameChunk, FrameChunks, head_fields
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.process.event_log import Event
from tailrace.broker.process.version import program_version
from tailrace.broker.replication.downstream.session import FollowerSession, NodeServices
from tailrace.broker.routing.batch import FramePublication, RunPublication
from tailrace.broker.routing.route import Route
from tailrace.broker.services import Services
from tailrace.broker.streams.owner import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol import listing, recalling, sharing
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import PlacedHandle, ServerCodec
from tailrace.protocol.collecting import Collect
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import Code
from tailrace.protocol.features import FILTERS, PATTERNS
from tailrace.protocol.messages import CHUNK_HEAD, Ack, Op, pack
from tailrace.protocol.places import FROM_THE_END
from tailrace.protocol.recalling import Recall
from tailrace.protocol.sharing import Interest
from tailrace.shard.leaves import load

OF_DATA = frozenset({c.FEATURE, FILTERS, recalling.FEATURE, m.PRODUCERS_FEATURE, m.TOPICS_FEATURE, PATTERNS})
FEATURES = OF_DATA | {listing.FEATURE, r.FEATURE, sharing.FEATURE}  # of this broker
NODE_PENDING_MAX = 1 << 16  # answers to another node that are not known yet; it is read no more above it
CREDIT_MAX_BYTES = 1 << 62  # of one subscription; more is as good as none
LEAVING_TEXT = "this worker is being replaced; send this to its successor"
TOKEN_TEXT = "this broker wants its token in HELLO; this one is missing or wrong"
PEER_TOKEN_TEXT = "this is not the [replication] token of this node"

_publish_cy = load("tailrace.protocol.publish_cy")
pack_answers = _publish_cy.pack_answers
REQUEST_BYTES: int = _publish_cy.REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class BinaryServices:
    """What connections that speak the binary protocol need beyond what all need."""

    chunks: FrameChunks
    heartbeats: Heartbeats
    subscribing: Subscriptions
    node: NodeServices
    slot: int
    logins: Logins
    listings: Listings
    last: LastReader
    singles: Singles
    collecting: Collections


class BinaryClient(CollectingClient):
    protocol = "binary"
    __slots__ = ("binary", "follower", "last_word", "leaving", "listing", "pings")

    def __init__(
        self, services: Services, binary: BinaryServices, sock: AnySocket, peer: str, identity: Identity
    ) -> None:
        super().__init__(services, sock, peer, identity)
        self.binary = binary
        self.delivery = binary.chunks
        self.traffic = services.metrics.binary
        self.handles: dict[int, bytes] = {}
        self.placed: dict[int, PlacedHandle] = {}  # the handles of topics
        settings = services.settings
        self.codec = ServerCodec(settings.max_envelope_bytes, settings.max_message_bytes, self.placed)
        self.revoked: dict[int, bytes] = {}  # handles whose right has gone since they were opened
        self.follower: FollowerSession | None = None  # when the peer is a node, or speaks as nodes do
        self.asked: dict[int, m.Subscribe | r.Follow] = {}  # those whose stream's owner has not answered yet
        self.collections, self.joined = {}, 0
        self.under_way = 0  # publishes whose outcome is not known yet
        self.last_word = b""  # a fatal error, which comes after every answer
        self.leaving = False  # publishes are given back to the node that sends them
        self.listing = 0  # lists that are not answered yet
        self.login = None  # that waits for the client's proof
        self.pings = 0  # the heartbeat's
        binary.heartbeats.add(self)

    # --- reading ----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> None:
        if count == HEAD_BYTES and self._is_pong():
            self.services.pongs += 1
            return
        streams = 0  # of the publishes that the read ends with
        for message in self.codec.feed(self.services.receive_view, count):
            streams = 0
            if type(message) is m.PublishRun:
                streams = 1 if message.ack else len(message.groups)  # else the answers would be too many at once
                self._publish_run(message)
            elif type(message) is m.Publish:
                streams = 1
                self._publish(message)
                if message.count == 1 and count == SINGLE_HEAD_BYTES + len(message.frames) and self._is_single(message):
                    self.binary.singles.add(self)
            elif type(message) is r.Held:  # comes among publishes, and has nothing to do with them
                self.replication.on_held(message)
            else:
                self._execute(message)
                if self.closed or self.lingering_since_s or self.barred:
                    return
        if count >= self.read_bytes < READ_BYTES_MAX or self.codec.pending_bytes != self.held_bytes:
            self.read_more(count, streams)

    def _execute(self, message: object) -> None:
        """Anything but a publish, after everything this connection published before it."""
        self.services.router.flush()
        self.read_less()
        _HANDLERS[type(message)](self, message)

    @property
    def pending_bytes(self) -> int:
        return self.codec.pending_bytes

    def end_of_input(self) -> None:
        """The same as after CLOSE: a peer that wants further messages does not end its output."""
        for malformed in self.codec.feed_eof():
            self.malformed(malformed)
        self.finish()

    def forget_input(self) -> None:
        self.codec.feed_eof()

    @property
    def awaited(self) -> int:
        replicating = 0 if self.follower is None else self.follower.awaited
        consuming = 0 if self._serving is None else self._serving.awaited
        asked = len(self.asked) + self.listing
        return self.under_way + asked + replicating + consuming + self.barred + self.codec.waits

    @property
    def consumers(self) -> ConsumerSession:
        if self._serving is None:
            self._serving = ConsumerSession(self)
        return self._serving

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_envelope(self, envelope: bytes) -> None:
        self.services.answered_bytes += len(envelope)
        self.out += envelope
        self.services.note_answered(self)

    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        self._fail(m.Failed(code, text, fatal))

    def _fail(self, failed: m.Failed) -> None:
        """A fatal error waits for the publishes under way: a peer that has got it reads no more. All of them have an
        outcome within `replication_timeout_s`. A worker that leaves does not wait for those of a node.
        """
        leaves = self.bound and failed.code == Code.UNAVAILABLE
        if failed.fatal and self.under_way and not leaves:
            self.last_word = pack(failed)
        else:
            self.send_envelope(pack(failed))

    def refuse_request(self, op: int, number: int, code: Code, text: str) -> None:
        self.note_refused(code, text)
        self.send_envelope(pack(m.Failed(code, text, False, op, number)))

    @property
    def must_log_in(self) -> bool:
        return not self.codec.welcomed or not self.services.access.admits(self.identity)

    # --- the beginning ----------------------------------------------------------------------------------------------

    def hello(self, message: m.Hello) -> None:
        if message.mechanism is not None:
            hello_login.begin(self, message)
            self.codec.waits = bool(self.held_up)
            return
        access = self.services.access
        self.become_user(access.greeted(self.identity, message.token))
        if access.is_token_wrong(self.identity, message.token):
            self._fail_token(TOKEN_TEXT)
        else:
            self.greet(message)

    def _fail_token(self, text: str) -> None:
        """A wrong token is a failed login: it is answered late, counted, and logged with the peer."""
        self.logins.fail(self, "", LoginFailure.SECRET, text)
        self.codec.waits = True

    @property
    def logins(self) -> Logins:
        return self.binary.logins

    def greet(self, message: m.Hello, proof: bytes | None = None) -> None:
        access = self.services.access
        if not access.admits(self.identity):
            self.end_with(Code.DENIED, NO_LOGIN_TEXT if access.has_users else TOKEN_TEXT)
            return
        self.codec.features = features = FEATURES.intersection(message.features)
        if r.FEATURE in features:
            self.become_user(access.greeted_by_node(self.identity, self.host, message.peer_token))
            if access.is_peer_token_wrong(self.identity, message.peer_token):
                self._fail_token(PEER_TOKEN_TEXT)
                return
            self._replicate(message.node or "", message.address or "")
        self.services.deadlines.login.stop(self)
        if self.identity.proof in (Proof.TOKEN, Proof.PEER_TOKEN):
            self.services.events.write(Event.LOGIN, self)
        self.send_envelope(pack(self._welcome(features, proof)))
        if message.worker is not None and self.bound:
            self.binary.node.place(self, *message.worker)
        self.take_rest()

    def rest(self) -> None:
        if not self.codec.waits:
            self.codec.waits = True
            self.services.work.later(b"", (self,), self.take_rest)

    def take_rest(self) -> None:
        if rest := self.codec.take_rest():
            self.services.receive_view[: len(rest)] = rest
            self.take(len(rest))

    def _replicate(self, node: str, address: str) -> None:
        self.follower = FollowerSession(self, self.binary.node, node, address)

    @property
    def bound(self) -> bool:
        """Whether the peer is a node of the tree, and has its privileges."""
        return self.follower is not None and bool(self.follower.node) and self.follower.trusted

    @property
    def rooted(self) -> bool:
        return self.bound and not self.replication.is_new

    # Publishes wait for the reports of what a node below holds, its own publishes and those of others. So it is read on
    # while they wait, and bounded by its own publishes under way: the windows of its routes.

    def pause_for(self, route: Route) -> None:
        if not self.bound:
            super().pause_for(route)

    def take_no_more(self) -> None:
        self.leaving = self.bound
        self.binary.singles.discard(self)
        if self.follower is not None:
            self.follower.end_calls()

    def note_awaited(self) -> None:
        if not self.bound or self.awaited > NODE_PENDING_MAX:
            super().note_awaited()

    @property
    def replication(self) -> FollowerSession:
        """For the messages that the codec takes only from who has agreed on them."""
        assert self.follower is not None
        return self.follower

    def may_create(self, name: bytes) -> bool:
        return self.is_node_of(name) or super().may_create(name)

    @property
    def is_node(self) -> bool:
        return self.follower is not None

    def is_node_of(self, name: bytes) -> bool:
        """Whether the peer is a node that has the right to this stream."""
        return self.bound and self.may(Right.NODE, name)

    def _welcome(self, features: frozenset[str], proof: bytes | None) -> m.Welcome:
        settings = self.services.settings
        limits = {
            "max_message_bytes": settings.max_message_bytes,
            "max_envelope_bytes": settings.max_envelope_bytes,
            "max_handles": settings.max_handles,
            "max_subscriptions": settings.max_subscriptions,
        }
        node, slot, software = self.binary.node.node_id, self.binary.slot, f"tailrace/{program_version()}"
        spoken, prefix = tuple(sorted(features)), self.producer_prefix or None
        return m.Welcome(m.VERSION, spoken, software, node, slot, limits, proof, prefix)

    def malformed(self, message: m.Malformed) -> None:
        self.services.metrics.refused.add(message.error.code)
        self._fail(message.answer())
        if message.error.fatal:
            self.finish()

    def on_ping(self, _message: m.Ping) -> None:
        self.send_envelope(_PONG)

    def on_pong(self, _message: m.Pong) -> None:
        pass  # that it came is all its information

    def on_close(self, _message: m.Close) -> None:
        self.finish()

    # --- publishing -------------------------------------------------------------------------------------------------

    def _publish(self, message: m.Publish) -> None:
        if self.leaving:
            self.refuse_request(Op.PUBLISH, message.request, Code.CLOSING, LEAVING_TEXT)
            return
        names: list[bytes] = []
        for handle in message.handles:
            name = self.handles.get(handle)
            if name is None:
                handles.publish_apart(self, message)
                return
            names.append(name)
        if self.is_by_another(message.frames):
            self.refuse_request(Op.PUBLISH, message.request, Code.PRODUCER, ANOTHERS_TEXT)
            return
        frames = message.frames if message.owned and len(names) == 1 else bytearray(message.frames)
        self.under_way += 1
        publication = FramePublication(self, message.request, message.ack != Ack.NONE, names, message.count)
        self.services.router.publish_frames(
            self, publication, names, frames, message.ack == Ack.SYNCED, message.replicas
        )
        self.note_awaited()

    def _publish_run(self, message: m.PublishRun) -> None:
        run, sync = RunPublication(self, message.ack != Ack.NONE), message.ack == Ack.SYNCED
        names, publish_group = self.handles, self.services.router.publish_group
        for handle, messages, frames, requests in message.groups:
            name = names.get(handle) or handles.stream_of(self, handle)
            self.under_way += len(requests) // REQUEST_BYTES
            if not name or self.leaving:
                refused = Refused(Code.CLOSING, LEAVING_TEXT) if self.leaving else handles.handle_refusal(self, handle)
                self._refuse_requests(RefusedRequests(requests, messages, refused.code, refused.text))
                continue
            publish_group(self, run, run.add(name, messages, requests), frames, sync)
        self.note_awaited()
        if len(message.groups) == 1 == messages and message.ack <= SINGLE_ACK_MAX and self._is_plain:
            self.binary.singles.add(self)

    def _is_single(self, message: m.Publish) -> bool:
        """Whether a read that was one numbered message may come again, to be read together with those of others."""
        is_taken = message.ack <= SINGLE_ACK_MAX and not message.replicas
        return is_taken and self._is_plain and not self.services.access.has_users

    @property
    def _is_plain(self) -> bool:
        """Whether its bytes are those of the socket, in any number, and it gives no publishes back."""
        return self.layer is None and not (self.rates or self.leaving)

    def group_done(self, run: RunPublication, key: int, first_seq: int, subscribers: int) -> None:
        """The requests of a run to one stream are in its log."""
        requests = run.requests[key]
        self.under_way -= len(requests) // REQUEST_BYTES
        if self.closed:
            return
        if run.wants_answers:
            self.send_envelope(pack_answers(requests, first_seq, subscribers))
        self.outcome_known()

    def group_refused(self, run: RunPublication, key: int, code: Code, text: str, first_seq: int | None) -> None:
        self.requests_refused(run.names[key], run.requests[key], run.counts[key], code, text, first_seq)

    def requests_refused(
        self, name: bytes, requests: bytes, count: int, code: Code, text: str, first_seq: int | None
    ) -> None:
        """A stream has refused these requests of `count` messages; `first_seq` if those are in its log all the same."""
        self._refuse_requests(RefusedRequests(requests, count, code, f"{name.decode()}: {text}", first_seq))

    def _refuse_requests(self, refused: RefusedRequests) -> None:
        """They count as under way until they are answered."""
        if self.closed:
            self.under_way -= refused.number
        else:
            self.note_refused(refused.code, refused.text, refused.messages)
            answer_some(self, refused)

    def publish_done(self, publication: FramePublication) -> None:
        """Every stream of a publish has its outcome."""
        self.under_way -= 1
        if self.closed:
            return
        if publication.refusals:
            for code, text in publication.refusals.values():
                self.note_refused(code, text, publication.count)
            self.send_envelope(pack(failed_publish(publication)))
        elif publication.wants_answer:
            self.send_envelope(m.pack_published(publication.request, publication.results))
        self.outcome_known()

    def outcome_known(self) -> None:
        if not self.under_way and (self.paused or self.lingering_since_s):
            self.send_envelope(self.last_word)  # or at least what waited for this may go on
            self.last_word = b""

    # --- subscribing ------------------------------------------------------------------------------------------------

    def subscribe(self, message: m.Subscribe) -> None:
        number = message.id
        if number in self.cursors or number in self.asked or number in self.collections:
            text = f"subscription {number} is in use; choose another id"
            self.refuse_request(Op.SUBSCRIBE, number, Code.USAGE, text)
            return
        if not self.cursor_room:
            text = SUBSCRIPTIONS_TEXT.format(limit=self.services.settings.max_subscriptions)
            self.refuse_request(Op.SUBSCRIBE, number, Code.SUBSCRIPTIONS, text)
            return
        named = subscribe_by_name(self, message, has_topics=m.TOPICS_FEATURE in self.codec.features)
        if isinstance(named, Refused):
            self.refuse_request(Op.SUBSCRIBE, number, named.code, named.text)
            return
        self.asked[number] = message = named
        ask_end = message.start.kind in FROM_THE_END or (message.end is not None and message.end[0] == "now")
        self.binary.subscribing.find(self, message, lambda value: self._found(message, value), ask_end=ask_end)
        self.note_awaited()

    def _found(self, message: m.Subscribe, value: int | Refused) -> None:
        """The stream is there, and its owner may have given its end; or the reason why it cannot be read."""
        if self.closed or self.asked.get(message.id) is not message:
            return  # closed, or unsubscribed, meanwhile
        del self.asked[message.id]
        if isinstance(value, Refused):
            self.refuse_request(Op.SUBSCRIBE, message.id, value.code, value.text)
            return
        try:
            cursor, answer = self.place(message, value)
        except Refused as refused:
            self.refuse_request(Op.SUBSCRIBE, message.id, refused.code, refused.text)
            return
        self.send_envelope(pack(answer))
        if self.lingering_since_s:  # CLOSE has come meanwhile, and has ended the others
            self._end_subscriptions()
        else:
            self.binary.subscribing.start(self, cursor)

    def place(self, message: m.Subscribe, value: int) -> tuple[Cursor, m.Subscribed]:
        """The cursor of a subscription, not started yet, and the answer. `value` is `find`'s. Raises Refused."""
        first_seq, until_seq = self.binary.subscribing.bounds(message.stream, message.end, value)
        cursor = self.binary.subscribing.place(self, message, message.id, value)
        self.cursors[message.id] = cursor
        if message.credit is not None:
            cursor.credit_bytes = min(message.credit, CREDIT_MAX_BYTES)
        if until_seq is not None:
            until_seq = max(until_seq, cursor.seq)
            self.services.fanout.limit(cursor, until_seq)
        stream = message.stream.decode() if message.topics else None
        return cursor, m.Subscribed(message.id, cursor.seq, first_seq, until_seq, stream)

    def unsubscribe(self, message: m.Unsubscribe) -> None:
        number = message.id
        if number in self.collections:
            self.binary.collecting.end(self, number)
            return
        if number in self.asked:
            del self.asked[number]
            self.send_envelope(pack(m.Ended(number, 0)))
            return
        cursor = self.cursors.pop(number, None)
        if cursor is None:
            text = f"there is no subscription {number} on this connection"
            self.refuse_request(Op.UNSUBSCRIBE, number, Code.UNSUBSCRIBED, text)
            return
        self.services.fanout.end(cursor)
        if self.follower is not None:
            self.follower.ended(number)
        self.binary.collecting.member_ended(self, number, cursor.feed.name, None)
        # Behind the chunk that is half out, if there is one: it is a part of what the peer gets.
        self.send_envelope(pack(m.Ended(number, cursor.seq if cursor.cut is None else cursor.cut[0])))

    def credit(self, message: m.Credit) -> None:
        cursor = self.cursors.get(message.id)
        if cursor is None:
            return  # it has ended while this was on its way
        room = CREDIT_MAX_BYTES - (cursor.credit_bytes or 0)
        self.services.fanout.grant(cursor, min(message.nbytes, room))

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        name = cursor.feed.name.decode()
        text = f"{name}: messages {cursor.seq} to {first_seq - 1} were trimmed before they were sent"
        self.refuse_request(Op.SUBSCRIBE, cursor.key, Code.TRIMMED, text)

    def send_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        if self.follower is not None:
            self.follower.ended(cursor.key)
        if code is None:
            self.send_envelope(pack(m.Ended(cursor.key, cursor.seq)))
        else:
            self.services.metrics.refused.add(code)
            self.send_envelope(pack(m.Ended(cursor.key, cursor.seq, code, f"{cursor.feed.name.decode()}: {text}")))
        self.binary.collecting.member_ended(self, cursor.key, cursor.feed.name, code)

    def _end_subscriptions(self) -> None:
        super()._end_subscriptions()
        if self.follower is not None:
            self.follower.close()

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_chunk(self, cursor: Cursor, chunk: FrameChunk) -> int:
        """Send the chunk from `cursor.skip` on; how many bytes the socket took."""
        try:
            sent = self._send_chunk(cursor, chunk)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close("reset")
            return 0
        if cursor.skip + sent < chunk.nbytes or (self.layer is not None and self.layer.unsent_bytes):
            self.block()
        if sent:
            self.progress_s = self.life_s = self.services.now_s
        return sent

    def _send_chunk(self, cursor: Cursor, chunk: FrameChunk) -> int:
        sock = self.sock
        if self.layer is not None:
            return self._send_encrypted(self.layer, cursor, chunk)
        assert isinstance(sock, socket.socket)
        skip = cursor.skip
        if chunk.frames is not None:
            if not skip:
                return sock.sendmsg((CHUNK_HEAD.pack(*head_fields(cursor, chunk)), chunk.frames))
            if skip >= CHUNK_HEAD.size:
                return sock.send(memoryview(chunk.frames)[skip - CHUNK_HEAD.size :])
        sent = 0
        if skip < CHUNK_HEAD.size:
            head = CHUNK_HEAD.pack(*head_fields(cursor, chunk))[skip:]
            sent = sock.send(head, socket.MSG_MORE)
            if sent < len(head):
                return sent
            skip += sent
        return sent + self._send_file(sock, cursor, chunk, skip - CHUNK_HEAD.size)

    def _send_encrypted(self, tls: Layer, cursor: Cursor, chunk: FrameChunk) -> int:
        """As `_send_chunk`, where the frames have to come here: batch by batch, until the socket is full."""
        done = cursor.skip - CHUNK_HEAD.size
        head = CHUNK_HEAD.pack(*head_fields(cursor, chunk))[done:] if done < 0 else b""
        done = max(done, 0)
        if chunk.frames is not None:
            return tls.sendmsg((head, chunk.frames)) if head else tls.send(memoryview(chunk.frames)[done:])
        reader, sent, ahead = self.services.readers.get(cursor.feed.name), 0, len(head)
        while done < chunk.size and not tls.unsent_bytes:
            batch = tls.batch_room(ahead + chunk.size - done)
            batch[:ahead] = head
            count = os.preadv(reader.content_fd, (batch[ahead:],), chunk.offset + done)
            if ahead + count < len(batch) or not reader.is_current:  # see `_send_file`
                raise OSError(f"the content of {cursor.feed.name.decode()!r} ends before its messages, or was cut")
            sent += tls.send(batch)
            done, head, ahead = done + count, b"", 0
        return sent

    def _send_file(self, sock: socket.socket, cursor: Cursor, chunk: FrameChunk, done: int) -> int:
        """The frames from byte `done` on, straight from the file; 0 where the socket is full."""
        reader = self.services.readers.get(cursor.feed.name)
        # Where the stream was cut, other messages may have come to this place before or while it was sent.
        sent = 0
        try:
            if reader.is_current:
                sent = send_file(sock, reader.content_fd, chunk.offset + done, chunk.size - done)
        except BlockingIOError:
            return 0
        if not sent or not reader.is_current:
            raise OSError(f"the content of {cursor.feed.name.decode()!r} ends before its messages, or was cut")
        return sent

    # --- the heartbeat (see `broker.connection.heartbeat`) ------------------------------------------------------------

    def send_ping(self) -> None:
        """Send it at once, if nothing is half out: with many quiet peers this is most of the work of an idle worker."""
        if self.current is not None or self.out or self.blocked:
            self.send_envelope(_PING)
            return
        try:
            sent = self.sock.send(_PING)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close("reset")
            return
        self.traffic.bytes_out += sent
        if sent < len(_PING):
            self.send_envelope(_PING[sent:])
        elif self.layer is not None and self.layer.unsent_bytes:
            self.block()

    def _is_pong(self) -> bool:
        """Whether a read of the length of a PONG is one, and nothing else: all there is to do then has been done."""
        return not self.held_bytes and self.services.receive_buffer[:HEAD_BYTES] == _PONG

    def drop_silent(self) -> None:
        self.close("silent")

    def _release(self) -> None:
        super()._release()
        self.binary.heartbeats.discard(self)
        self.binary.singles.discard(self)
        handles.release_all(self)

    # --- moving -----------------------------------------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        return {
            "codec": self.codec.export_state(),
            "handles": handles.names_by_handle(self),
            "collections": self.export_collections(),
            "follower": None if self.follower is None else self.follower.export_state(),
            "consumers": None if self._serving is None else self._serving.export_state(),
        }

    def drop_what_is_denied(self) -> None:
        if self.bound:
            self.replication.leave_if_denied()
        else:
            super().drop_what_is_denied()
            handles.revoke_denied(self)

    def restore_state(self, state: dict[str, Any]) -> None:
        self.codec.restore_state(state["codec"])
        self.restore_collections(state.get("collections", ()))  # a worker of an earlier release does not send it
        self.binary.collecting.adopt(self)
        if state["follower"] is not None:
            self._replicate(*state["follower"])
        for number, name in state["handles"]:
            handles.hold(self, number, name)
        if state["consumers"] is not None:
            self.consumers.restore_state(state["consumers"])

    def lose(self, key: int, name: bytes, next_seq: int, why: str) -> None:
        self.services.metrics.refused.add(Code.UNAVAILABLE)
        self.send_envelope(pack(m.Ended(key, next_seq, Code.UNAVAILABLE, f"{name.decode()}: {why}")))
        self.binary.collecting.member_ended(self, key, name, Code.UNAVAILABLE)


_PING, _PONG = pack(m.Ping()), pack(m.Pong())

_HANDLERS: Mapping[type, Callable[[BinaryClient, Any], None]] = {
    m.Hello: BinaryClient.hello,
    m.Prove: hello_login.finish,
    m.Open: handles.open_handle,
    m.Subscribe: BinaryClient.subscribe,
    m.Unsubscribe: BinaryClient.unsubscribe,
    m.Credit: BinaryClient.credit,
    m.Ping: BinaryClient.on_ping,
    m.Pong: BinaryClient.on_pong,
    m.Close: BinaryClient.on_close,
    m.Malformed: BinaryClient.malformed,
    c.Consume: binary.consume,
    c.Get: binary.get,
    listing.List: lambda client, message: client.binary.listings.list(client, message),
    Collect: lambda client, message: client.binary.collecting.begin(client, message),
    Recall: lambda client, message: recall(client.binary.last, client, client, message),
    r.Follow: lambda client, message: client.replication.follow(message),
    r.Watch: lambda client, message: client.replication.watch(message),
    r.Claim: lambda client, message: client.replication.claim(message),
    r.Fence: lambda client, message: client.replication.fence(message),
    r.Ask: lambda client, message: client.replication.ask(message),
    r.Call: lambda client, message: client.replication.call(message),
    Interest: lambda client, message: client.replication.interest(message),
}
