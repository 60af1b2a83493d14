"""A node that follows streams of this one, as the worker sees it that serves its connection.

FOLLOW is a subscription whose subscriber sends the end of its copy. If that agrees with the stream here, frames follow;
else the follower is sent how the two stand and mends its copy. Reports of the messages that it and the nodes below it
hold go on to the streams' owners.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.rules import Right
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.subscribe import Subscriptions, storage_refusals
from tailrace.broker.replication.downstream import replica_state
from tailrace.broker.replication.downstream.calls import CALLS_MAX, MemberRequest, pack_value, read_request
from tailrace.broker.replication.downstream.catalog import NameCatalog
from tailrace.broker.replication.downstream.registry import FollowerRegistry
from tailrace.broker.replication.downstream.replica_acks import NODES_MAX
from tailrace.broker.replication.downstream.replica_state import ReplicaState
from tailrace.broker.replication.roles.peers import may_lead
from tailrace.broker.sharing.sender import PeerSender, SharingServices
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.protocol import replication as r
from tailrace.protocol.address import split_address
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ended, pack
from tailrace.protocol.opcodes import Op
from tailrace.protocol.places import From
from tailrace.protocol.sharing import Interest
from tailrace.shard.epochs import History, epoch_at
from tailrace.shard.errors import StorageError
from tailrace.shard.frame import IndexEntry

if TYPE_CHECKING:
    from tailrace.broker.connection.binary import BinaryClient

log = logging.getLogger(__name__)

ENDS_A_TICK = 64
"""Streams of one connection, of those that are behind, whose end is told at a time."""
WATCHES_MAX = 1_024
"""Prefixes that one connection watches."""
UNTRUSTED_TEXT = (
    "only nodes on this machine, at an address in [replication] peers of this node's configuration, or with its"
    " [replication] token may do this"
)
NO_RIGHT_TEXT = "this needs the right node to the stream, and a login with SCRAM or a certificate"
ASK_TEXT = "this needs the right node or the right admin"
LEAVING_TEXT = "the worker that was asked is leaving; this may or may not be done, ask again"


@dataclass(frozen=True, slots=True)
class NodeServices:
    """What connections of other nodes need beyond what all need. gather: answers ASK once all workers have. place:
    moves that of a worker of another node, with its number and the number of workers, to where its streams are.
    """

    node_id: str
    owner: Owner
    followers: FollowerRegistry
    catalog: NameCatalog
    subscribing: Subscriptions
    gather: Callable[[r.Ask, Callable[[r.Told | Refused], None], Sequence[Any]], None]
    sharing: SharingServices
    place: Callable[[BinaryClient, int, int], None]


class StreamSource(Protocol):
    """The part used of the reader of the stream here, a `shard.reader.StreamReader`."""

    def first_seq(self) -> int: ...

    def next_seq(self) -> int: ...

    def entry(self, seq: int) -> IndexEntry: ...

    def frame_crc(self, seq: int) -> int: ...

    def seq_at(self, timestamp_us: int, skip: int = 0) -> int: ...


class ReplicaFeed:
    """A stream that is followed. rows: by node, its last report of the messages it holds (next seq, synced seq)."""

    __slots__ = ("cursor", "follower", "lineage", "name", "number", "rows")

    def __init__(
        self, follower: FollowerSession, number: int, name: bytes, cursor: Cursor, lineage: ReplicaState
    ) -> None:
        self.follower = follower
        self.number = number
        self.name = name
        self.cursor = cursor
        self.lineage = lineage
        self.rows: dict[str, tuple[int, int]] = {}


class FollowerSession:
    """`node` and `address` as in its HELLO; `connection`: its number, unique in this worker. here: this node."""

    __slots__ = (
        "_called",
        "_followed",
        "address",
        "awaited",
        "client",
        "connection",
        "followings",
        "here",
        "node",
        "sender",
        "trusted",
        "watches",
    )

    def __init__(self, client: BinaryClient, here: NodeServices, node: str, address: str) -> None:
        """`address` may be without a host, which is then where the connection comes from.

        `trusted`: the connection has proven that it is another node's. No other statement of it is believed.
        """
        self.client = client
        self.here = here
        self.node = node
        self.address = f"{client.peer.rpartition(':')[0]}{address}" if address.startswith(":") else address
        self.trusted = client.services.access.is_node(client.identity)
        self.connection = here.followers.admit(self)
        self.followings: dict[int, ReplicaFeed] = {}
        self._followed: set[bytes] = set()  # their streams
        self.watches: set[bytes] = set()
        self.sender: PeerSender | None = None  # of streams in memory
        self.awaited = 0  # answers to CLAIM and ASK that are not known yet
        self._called: dict[int, None] = {}  # CALLs that have no answer yet

    def export_state(self) -> list[Any]:
        """For the constructor, in another worker. A peer with a node's privileges is moved only while it `is_new`."""
        return [self.node, self.address]

    @property
    def is_new(self) -> bool:
        """Whether it has asked for nothing yet."""
        return not (self.followings or self.watches or self.sender or self.awaited or self._called)

    # --- who is believed --------------------------------------------------------------------------------------------

    def _admits(self, op: Op, number: int, name: bytes) -> bool:
        """Whether the peer may do this with a stream; the answer is given if not."""
        if self.trusted and self.client.may(Right.NODE, name):
            return True
        self.here.followers.complain(f"{self.client.peer} may not {op.name} here: it is not one of the peers")
        self.client.refuse_request(op, number, Code.DENIED, self._untrusted_text)
        return False

    def leave_if_denied(self) -> None:
        """The rights have changed: end the connection if the peer has lost one to something that it follows."""
        client = self.client
        self.trusted = client.services.access.is_node(client.identity)
        if not (self.trusted and all(client.may(Right.NODE, name) for name in self._followed)):
            client.end_with(Code.DENIED, self._untrusted_text)

    @property
    def _untrusted_text(self) -> str:
        return NO_RIGHT_TEXT if self.client.services.access.has_users else UNTRUSTED_TEXT

    @property
    def claimed_address(self) -> tuple[()] | tuple[str, int]:
        """The address of the node, if it sent one and may be followed there."""
        return split_address(self.address) if self.address and self._may_be_followed() else ()

    def _may_be_followed(self) -> bool:
        """Whether the address that the peer gives may be the one that streams follow from now on."""
        client, host, peers = self.client, _host_of(self.address), self.here.owner.roles.peers
        user = client.services.access.users.get(client.identity.user)
        if user is not None and self.address in user.addresses:
            return True
        return self.client.identity.proof is Proof.PEER_TOKEN or may_lead(peers, self.client.host, host)

    # --- following --------------------------------------------------------------------------------------------------

    def follow(self, message: r.Follow) -> None:
        client, number = self.client, message.id
        if not self._admits(Op.FOLLOW, number, message.stream):
            return
        if not self.node:
            client.refuse_request(Op.FOLLOW, number, Code.USAGE, "who follows says in HELLO which node it is")
            return
        if number in client.cursors or number in client.asked:
            text = f"subscription {number} is in use; choose another id"
            client.refuse_request(Op.FOLLOW, number, Code.USAGE, text)
            return
        client.asked[number] = message
        args = [message.stream, message.term, message.term_master]
        services, name = client.services, message.stream

        def ask() -> None:
            with suppress(StorageError, OSError):  # it may have to be made first; the call below reports errors
                services.readers.get(name)
            # The owner's answer is taken at once: news of later changes come to those that follow.
            services.router.call(name, "follow", args, lambda value: self._answered(message, value), client)

        self.here.subscribing.after_opening(client, name, ask)
        client.note_awaited()

    def _answered(self, message: r.Follow, value: Any) -> None:
        """The owner has answered with the state of the stream, or why it cannot be followed."""
        client, number = self.client, message.id
        if client.closed or client.asked.get(number) is not message:
            return  # closed, or unsubscribed, meanwhile
        del client.asked[number]
        if isinstance(value, Refused):
            client.refuse_request(Op.FOLLOW, number, value.code, value.text)
            return
        try:
            found = replica_state.unpack(value)
            replica_state.require_no_cycle(self.node, found.path)
            self._place(message, found)
        except Refused as refused:
            client.refuse_request(Op.FOLLOW, number, refused.code, refused.text)

    def _place(self, message: r.Follow, found: ReplicaState) -> None:
        """Answer, and let frames follow if they can. Raises Refused."""
        client, services, name = self.client, self.client.services, message.stream
        if client.lingering_since_s:
            raise Refused(Code.CLOSING, "CLOSE has come before this was answered")
        if name in self._followed:  # so that there is never more to keep than there are streams
            raise Refused(Code.USAGE, "this connection follows the stream already; end that first")
        with storage_refusals(name):
            state, seq = compare(message, services.readers.get(name), found.history, found.next_seq)
            if state == "following":
                remote = services.is_remote(name)
                cursor = services.fanout.subscribe(client, name, seq, remote=remote, key=message.id)
        self._send_followed(message.id, state, seq, found)
        if state != "following":
            return
        client.cursors[message.id] = cursor
        following = self.followings[message.id] = ReplicaFeed(self, message.id, name, cursor, found)
        self._followed.add(name)
        self.here.followers.add(following)
        services.fanout.start(cursor)

    def on_news(self, following: ReplicaFeed, found: ReplicaState) -> None:
        """The stream's role, its terms or the way to its master may be others now."""
        known, following.lineage = following.lineage, found
        if known.reported() == found.reported():
            return
        try:
            replica_state.require_no_cycle(self.node, found.path)
        except Refused as refused:
            self.end(following, refused.code, refused.text)
            return
        self._send_followed(following.number, "news", 0, found)

    def send_ends(self) -> None:
        """Send the ends of some streams that are still behind. A node that does not read gets nothing for now."""
        client = self.client
        if client.out:
            return
        for cursor in islice((client.current, *client.ready), ENDS_A_TICK):
            following = None if cursor is None else self.followings.get(cursor.key)
            if following is not None and following.cursor is cursor:
                self._send_followed(
                    following.number, "news", 0, following.lineage._replace(next_seq=cursor.feed.end_seq)
                )

    def _send_followed(self, number: int, state: r.FollowState, start_seq: int, found: ReplicaState) -> None:
        role, history, path, first_seq, next_seq, _line, contacts, awaited = found
        self.client.send_envelope(
            pack(r.Followed(number, state, start_seq, first_seq, next_seq, role, history, path, contacts, awaited))
        )

    # --- reports from below -----------------------------------------------------------------------------------------

    def on_held(self, message: r.Held) -> None:
        """Rows of streams that are followed no more were on their way when that ended."""
        if not self.trusted:
            self.client.end_with(Code.DENIED, self._untrusted_text)
            return
        followers = self.here.followers
        for number, node in message.gone:
            following = self.followings.get(number)
            if following is not None and following.rows.pop(node, None) is not None:
                followers.send_gone(following, node)
        for number, node, next_seq, synced_seq in message.rows:
            following = self.followings.get(number)
            if following is None:
                continue
            problem = self._wrong_row(following, node, next_seq, synced_seq)
            if problem:
                log.warning("closing the connection of node %s: %s", self.node, problem)
                self.client.end_with(Code.PROTOCOL, problem)
                return
            if node in following.rows or len(following.rows) <= NODES_MAX:  # the follower, and those that it knows
                following.rows[node] = next_seq, synced_seq
                followers.send_held(following, node)

    def _wrong_row(self, following: ReplicaFeed, node: str, next_seq: int, synced_seq: int) -> str:
        """Why a HELD cannot be true; "" if it can."""
        name, sent_seq = following.name.decode(), following.cursor.seq
        if next_seq > sent_seq or synced_seq > next_seq:
            what = f"{node} held messages before {next_seq} and had those before {synced_seq} on its disk"
            return f"HELD: {name}: it says that {what}; those before {sent_seq} were sent"
        if node == self.here.node_id:
            return f"HELD: {name}: it says that {node}, which is this node, follows it"
        return ""

    # --- other messages of nodes --------------------------------------------------------------------------------------

    def watch(self, message: r.Watch) -> None:
        if not self.trusted:
            self.client.refuse_request(Op.WATCH, message.id, Code.DENIED, self._untrusted_text)
            return
        if len(self.watches) >= WATCHES_MAX and message.prefix not in self.watches:
            text = f"this connection watches {WATCHES_MAX} prefixes, which is its limit; watch shorter ones"
            self.client.refuse_request(Op.WATCH, message.id, Code.SUBSCRIPTIONS, text)
            return
        self.watches.add(message.prefix)
        self.here.catalog.watch(self.client, message.id, message.prefix)

    def claim(self, message: r.Claim) -> None:
        """The peer is the master of a stream now, or follows the master; the former master gives in, and follows
        the peer at its address.
        """
        client, number = self.client, message.id
        if not self._admits(Op.CLAIM, number, message.stream):
            return
        if not self.node or not self.address:
            text = "who claims a stream says in HELLO which node it is, and where it listens"
            client.refuse_request(Op.CLAIM, number, Code.USAGE, text)
            return

        if not self._may_be_followed():
            text = f"{self.address} is not one of the peers of this node; no stream may follow it"
            self.here.followers.complain(f"{client.peer} claims a stream: {text}")
            client.refuse_request(Op.CLAIM, number, Code.DENIED, text)
            return

        def answer(value: Any) -> None:
            if isinstance(value, Refused):
                client.refuse_request(Op.CLAIM, number, value.code, value.text)
            else:
                client.send_envelope(pack(r.Claimed(number, *value)))

        args = [message.stream, message.history, *split_address(self.address), message.only_related]
        client.services.router.call(message.stream, "claim", args, self._awaiting(answer), client)

    def fence(self, message: r.Fence) -> None:
        """The peer has begun, or is about to begin, a term of a stream: nothing is acknowledged in an earlier one."""
        client, number = self.client, message.id
        if not self._admits(Op.FENCE, number, message.stream):
            return

        def answer(value: Any) -> None:
            if isinstance(value, Refused):
                client.refuse_request(Op.FENCE, number, value.code, value.text)
            else:
                client.send_envelope(pack(r.Fenced(number, *value)))

        args = [message.stream, message.epoch]
        client.services.router.call(message.stream, "fence", args, self._awaiting(answer))

    def interest(self, message: Interest) -> None:
        """The peer wants messages of a stream in memory, or others than before."""
        if self._admits(Op.INTEREST, message.id, message.stream):
            if self.sender is None:
                self.sender = PeerSender(self.client, self.address, self.here.sharing)
            self.sender.take(message)

    def ask(self, message: r.Ask) -> None:
        """Every worker is asked; one that is down makes the answer an error, not one that is wrong."""
        client, number = self.client, message.id
        if message.promise is not None and not (self.trusted and client.may(Right.NODE, b"")):
            client.refuse_request(Op.ASK, number, Code.DENIED, self._untrusted_text)
            return
        if client.services.access.has_users and not self._may_ask(message):
            client.refuse_request(Op.ASK, number, Code.DENIED, ASK_TEXT)
            return

        def answer(outcome: r.Told | Refused) -> None:
            if isinstance(outcome, Refused):
                client.refuse_request(Op.ASK, number, outcome.code, outcome.text)
            else:
                client.send_envelope(pack(outcome))

        self.here.gather(message, self._awaiting(answer), () if self._sees_all() else client.identity.export_state())

    def _may_ask(self, message: r.Ask) -> bool:
        """Whether the peer may know all that it asks for: about streams, by a right to each of them."""
        may, names = self.client.may, message.streams or (() if message.stream is None else (message.stream,))
        if not names:
            return self.trusted or may(Right.ADMIN)  # TOLD leaves out the rest
        return all(may(Right.ADMIN, name) or (self.trusted and may(Right.NODE, name)) for name in names)

    def _sees_all(self) -> bool:
        """Whether it may know of all streams."""
        client = self.client
        return not client.services.access.has_users or any(
            client.may_all(right, b"") for right in (Right.NODE, Right.ADMIN)
        )

    def call(self, message: r.Call) -> None:
        """The owner's answer is sent when it comes; until then the connection may end all the same."""
        number = message.id
        try:
            if not (self.trusted and self.client.may(Right.NODE, message.stream)):
                raise Refused(Code.DENIED, self._untrusted_text)
            if not self.node:
                raise Refused(Code.USAGE, "who calls says in HELLO which node it is")
            if self.client.leaving:
                raise Refused(Code.UNAVAILABLE, LEAVING_TEXT)
            if number in self._called:
                raise Refused(Code.USAGE, f"call {number} has no answer yet; choose another id")
            if len(self._called) >= CALLS_MAX:
                raise Refused(Code.OVERLOADED, f"{CALLS_MAX} calls of this connection have no answer yet")
            request = read_request(message.stream, message.verb, message.args)
        except Refused as refused:
            self._return_refusal(number, refused)
            return
        self._called[number] = None

        def done(value: Any) -> None:
            if number in self._called:
                del self._called[number]
                self._return(number, request, value)

        self.client.services.router.call(message.stream, message.verb, [message.stream, request], done, self.client)

    def _return(self, number: int, request: MemberRequest, value: Any) -> None:
        if isinstance(value, Refused):  # raised here, its traceback would hold this frame, and that holds it
            self._return_refusal(number, value)
            return
        try:
            self.client.send_envelope(pack(r.Returned(number, pack_value(request, value))))
        except Refused as refused:
            self._return_refusal(number, refused)

    def _return_refusal(self, number: int, refused: Refused) -> None:
        self.client.services.metrics.refused.add(refused.code)
        self.client.send_envelope(pack(r.Returned(number, None, refused.code, refused.text)))

    def end_calls(self) -> None:
        """The connection is to end: the callers ask the next worker, which may be sent the same request."""
        called, self._called = self._called, {}
        for number in called:
            self._return_refusal(number, Refused(Code.UNAVAILABLE, LEAVING_TEXT))

    def _awaiting(self, answer: Callable[[Any], None]) -> Callable[[Any], None]:
        """`answer`, while the connection is open to take it."""
        self.awaited += 1
        self.client.note_awaited()

        def done(value: Any) -> None:
            self.awaited -= 1
            if not self.client.closed:
                answer(value)

        return done

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, following: ReplicaFeed, code: Code, text: str) -> None:
        """This stream cannot be followed any more; its follower gets the reason."""
        client, cursor = self.client, following.cursor
        client.cursors.pop(following.number, None)
        client.services.fanout.end(cursor)
        seq = cursor.seq if cursor.cut is None else cursor.cut[0]
        client.send_envelope(pack(Ended(following.number, seq, code, f"{following.name.decode()}: {text}")))
        self.ended(following.number)

    def ended(self, number: int) -> None:
        """A subscription has ended; it may have been a following."""
        following = self.followings.pop(number, None)
        if following is not None:
            self._followed.discard(following.name)
            self.here.followers.remove(following)

    def close(self) -> None:
        """All of them have ended."""
        if self.client.closed:
            self._called.clear()
        self.end_calls()
        followings, self.followings = self.followings, {}
        self._followed.clear()
        self.here.followers.remove_all(self, list(followings.values()))
        sender, self.sender = self.sender, None
        if sender is not None:
            sender.close()
        self.here.catalog.forget(self.client)


def _host_of(address: str) -> str:
    """The host of HOST:PORT or [V6]:PORT, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def compare(copy: r.Follow, original: StreamSource, history: History, end_seq: int) -> tuple[r.FollowState, int]:
    """How a copy stands to the stream here, and the seq from which it goes on, 0 if it does not.

    `history`, `end_seq`: from the owner. Raises what the original raises.
    """
    first_seq, next_seq = original.first_seq(), original.next_seq()
    if copy.last is None:
        return "following", _start_seq(copy.start or From("seq", 0), original, end_seq)
    if copy.next_seq > next_seq:
        return "behind", 0
    last_seq = copy.next_seq - 1
    if last_seq >= first_seq:
        same = (original.entry(last_seq).epoch, original.frame_crc(last_seq)) == copy.last
    else:  # that message is not kept here: only its term is known
        same = epoch_at(history, last_seq) in (0, copy.last[0])
    return ("following", max(copy.next_seq, first_seq)) if same else ("parted", 0)


def _start_seq(start: From, original: StreamSource, end_seq: int) -> int:
    """The seq at which a copy without a message begins."""
    if start.kind == "new":
        return max(end_seq, original.first_seq())
    if start.kind == "seq":
        return min(max(start.value, original.first_seq()), original.next_seq())
    return original.seq_at(start.value)
