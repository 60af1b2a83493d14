"""The commands that an agent gives its node, over the node's socket of administration, and the answers."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tailrace.cluster import decide as d
from tailrace.cluster.view import BrokerReport, BrokerRole, GroupView
from tailrace.protocol.address import split_address
from tailrace.protocol.names import StreamGroup
from tailrace.shard.names import group_key
from tailrace.shard.unix_socket import connect_unix

TIMEOUT_S: Final = 5.0
ROLES_TIMEOUT_S: Final = 30.0
"""A promotion of very many streams takes longer, and is then asked for again."""
RECEIVE_BYTES: Final = 64 << 10
ANSWER_BYTES_MAX: Final = 16 << 20
LAG_MAX_S: Final = 1.5
JOIN_LAG_MESSAGES_MAX: Final = 10_000
"""A replica comes into the set if it is not further behind in the stream that is looked at."""
STATS_A_REPORT: Final = 32
"""Groups of which a stream is looked at for one report; the others have their turn in the next ones."""
STREAMS_TRIED_MAX: Final = 8
"""Of a group, to find one that is not in memory, at one time."""
LISTED_EVERY_S: Final = 2.0
"""While a group has no stream that is known, the streams are listed this often."""

StatFields: TypeAlias = Mapping[str, str]
GroupAction: TypeAlias = tuple[int, d.BrokerAction]


class NodeAway(Exception):
    """The node does not answer."""


class PromiseWish(NamedTuple):
    """The nodes at these addresses should promise not to lead a group in a later term."""

    group: int
    term: int
    addresses: tuple[str, ...]


class NodeSocket:
    """A connection to the node's socket of administration, made when it is needed."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._received = b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def ask(self, line: str, *, is_table: bool) -> list[str]:
        """The lines of one answer. Raises NodeAway, and is closed then."""
        return self.ask_all([line], are_tables=is_table)[0]

    def ask_all(self, lines: Sequence[str], *, are_tables: bool) -> list[list[str]]:
        """The answers to commands that are sent at once. Raises NodeAway, and is closed then."""
        if not lines:
            return []
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(self._timeout_s)
                connect_unix(self._socket, self._path)
            self._socket.sendall(b"".join(line.encode() + b"\r\n" for line in lines))
            return [self._answer(is_table=are_tables) for _ in lines]
        except OSError as error:
            self.close()
            raise NodeAway(f"{self._path}: {error}") from None

    def _answer(self, *, is_table: bool) -> list[str]:
        lines = [self._line()]
        while is_table and lines[-1] != "." and not lines[0].startswith("err "):
            lines.append(self._line())
        return lines

    def promises(self, requests: Sequence[PromiseWish], length_s: float, groups: int) -> list[set[str]]:
        """For each of these the ids of the nodes that promise to lead in no later term for a while. Raises NodeAway."""
        lines = [
            f"promises {StreamGroup(group, groups)} {term} {int(length_s * 1000)} {','.join(addresses)}"
            for group, term, addresses in requests
        ]
        tables = self.ask_all(lines, are_tables=True)
        return [{row[1] for row in _rows(table) if row[2] == "1"} for table in tables]

    def _line(self) -> str:
        assert self._socket is not None
        while b"\r\n" not in self._received:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data or len(self._received) > ANSWER_BYTES_MAX:
                raise ConnectionError("the node closed the connection, or its answer is too long")
            self._received += data
        line, _, self._received = self._received.partition(b"\r\n")
        return line.decode("utf-8", "replace")


@dataclass(slots=True)
class GroupDoor:
    """What an agent has made of its node in a group, and how the node's stream of that group stood last.

    stream: that is looked at; "" if none is known. fields: of its `stat`.
    """

    role: BrokerRole = BrokerRole.FENCED
    term: int = 0
    began_s: float = -math.inf
    isr: frozenset[str] = frozenset()
    upstream: str = ""
    followed_s: float = -math.inf
    was_up: bool = False
    lease: d.SetLease | None = None
    promised_s: float = 0.0
    stream: str = ""
    fields: StatFields = field(default_factory=dict)

    @property
    def messages(self) -> int:
        return int(self.fields.get("next_seq", "0"))

    def lead_again(self, term: int, isr: str) -> None:
        self.role, self.term, self.isr = BrokerRole.LEADER, term, frozenset(isr.split(","))

    def done(self, action: d.BrokerAction, now_s: float) -> None:
        """The node has done it."""
        match action:
            case d.SetLease():
                self.lease = action
            case d.SetIsr(nodes):
                self.isr = nodes
            case d.TakeLead(term):
                self.role, self.term, self.upstream, self.began_s = BrokerRole.LEADER, term, "", now_s
            case d.FollowLeader(leader, term):
                self.role, self.term, self.upstream = BrokerRole.FOLLOWER, term, leader
                self.followed_s, self.was_up, self.lease = now_s, False, None
                self.fields = {}  # they are about the former leader
            case d.Observe(leader, term, _):
                self.role, self.term, self.upstream, self.lease = BrokerRole.OBSERVER, term, leader, None
                self.fields = {}
            case d.StepDown():
                self.role, self.lease = BrokerRole.FENCED, None

    def silent_s(self, link: str, now_s: float) -> float:
        """A link that has never been up since the node follows is given some time for that. `link`: "" if unknown."""
        if self.role is not BrokerRole.FOLLOWER or not link:
            return 0.0
        if link == "up":
            self.was_up = True
            return 0.0
        return math.inf if self.was_up else now_s - self.followed_s


class NodeDoor:
    """The broker of this node. Its role is the one it was commanded to have; if the connection breaks, it is fenced.

    Whether a follower has contact, and which followers there are, is looked up for one stream of each group.
    """

    def __init__(self, path: Path, node: str = "") -> None:
        """`node`: its id."""
        self._node = node
        self._socket = NodeSocket(path)
        self._commands = NodeSocket(path, ROLES_TIMEOUT_S)
        self._is_known = False
        self.starts = 0  # how many times the node may have been started again
        self.groups: dict[int, GroupDoor] = {}
        self._count = 0
        self._listed_s = -math.inf
        self._next = 0
        self.since_s = math.inf  # when the node started; promises from before are not known

    def close(self) -> None:
        self._socket.close()
        self._commands.close()

    def forget(self) -> None:
        """The node may have been started again."""
        self._is_known = False
        self.starts += 1
        self.groups = {group: GroupDoor(stream=door.stream) for group, door in self.groups.items()}
        self.since_s = math.inf

    def _ask_all(self, lines: Sequence[str], *, are_tables: bool) -> list[list[str]]:
        """Raises NodeAway, and then forgets the roles of the node."""
        try:
            return self._socket.ask_all(lines, are_tables=are_tables)
        except NodeAway:
            self.forget()
            raise

    def _name(self, group: int) -> StreamGroup:
        return StreamGroup(group, self._count)

    # --- commands ---------------------------------------------------------------------------------------------------

    def obey(self, actions: Sequence[GroupAction], now_s: float) -> list[bool]:
        """Whether the node has done each of these, which take no time. Raises NodeAway."""
        new = [each for each in actions if self.groups[each[0]].lease != each[1]]
        answers = self._ask_all([self._line(*each) for each in new], are_tables=False)
        for (group, action), answer in zip(new, answers, strict=True):
            if answer[0].startswith("ok "):
                self.groups[group].done(action, now_s)
            elif isinstance(action, d.SetLease):
                self.groups[group].lease = None
        refused = {each for each, answer in zip(new, answers, strict=True) if not answer[0].startswith("ok ")}
        return [each not in refused for each in actions]

    def _line(self, group: int, action: d.BrokerAction) -> str:
        name = self._name(group)
        match action:
            case d.SetLease(term, until_s):
                return f"lease {name} {term} {int(until_s * 1000)}"
            case d.SetIsr(nodes):
                return f"isr {name} {','.join(sorted(nodes))}"
            case d.TakeLead(term):
                return f"promote {name} {term} force"
            case d.FollowLeader(_, term) | d.Observe(_, term, _):
                return f"lease {name} {term} 0"
            case d.StepDown():
                return f"lease {name} {max(self.groups[group].term, 1)} 0"

    def change_roles(self, actions: Sequence[GroupAction], addresses: Mapping[str, str]) -> list[bool]:
        """Whether the node has done each of these, which take the longer the more streams there are. For a thread of
        its own; `roles_changed` is to know the outcome. Raises NodeAway.
        """
        firsts = self._commands.ask_all([self._line(*each) for each in actions], are_tables=False)
        done = [answer[0].startswith("ok ") for answer in firsts]
        follow = [
            (place, f"slave {host} {port} {self._name(group)} 0{_option(action)}")
            for place, (group, action) in enumerate(actions)
            if done[place] and isinstance(action, d.FollowLeader | d.Observe)
            for host, port in [split_address(addresses[action.leader])]
        ]
        seconds = self._commands.ask_all([line for _, line in follow], are_tables=False)
        for (place, _), answer in zip(follow, seconds, strict=True):
            done[place] = answer[0].startswith("ok ")
        return done

    def roles_changed(self, actions: Iterable[GroupAction], done: Iterable[bool], now_s: float) -> None:
        for (group, action), is_done in zip(actions, done, strict=True):
            if is_done:
                self.groups[group].done(action, now_s)

    # --- reports ----------------------------------------------------------------------------------------------------

    def report(self, now_s: float, views: Mapping[int, GroupView]) -> dict[int, BrokerReport]:
        """For each group. Raises NodeAway."""
        if len(views) != self._count:
            self._count = len(views)
            self.groups = {group: GroupDoor() for group in views}
        self._look()
        self._stat(now_s)
        rows = [row for row in _rows(self._ask_all(["isr *"], are_tables=True)[0]) if len(row) > 4]
        links = {
            door.upstream: door.fields["link"]
            for door in self.groups.values()
            if door.role is BrokerRole.FOLLOWER and "link" in door.fields
        }
        reports = {}
        for group, door in self.groups.items():
            own = [row for row in rows if row[4] == str(self._name(group))]
            reports[group] = BrokerReport(
                door.role,
                door.term,
                door.isr,
                frozenset(row[0] for row in own if row[3] == "1"),
                _in_step(door, own, views[group], now_s),
                door.upstream,
                door.silent_s(door.fields.get("link", links.get(door.upstream, "")), now_s),
                door.promised_s,
                any(row[0] == self._node and row[3] == "0" for row in own),
            )
        return reports

    def _look(self) -> None:
        """The leases and promises of the node. The first time since the connection was made, a node that has a lease
        is known as a leader again. Raises NodeAway.
        """
        table = self._ask_all(["groups"], are_tables=True)[0]
        if table[0].startswith("err "):
            raise NodeAway("it is of an earlier version, without the command groups; upgrade the node")
        rows = [dict(zip(table[0].split(" ")[1:], row, strict=True)) for row in _rows(table)]
        self.since_s = int(rows[0]["since_ms"]) / 1000
        if len(rows) != self._count:  # it does not know of the groups yet
            rows = [{**rows[0], "state": "over", "promised_ms": "0"}] * self._count
        for door, row in zip(self.groups.values(), rows, strict=True):
            door.promised_s = int(row["promised_ms"]) / 1000
            if not self._is_known and row["state"] == "held":
                door.lead_again(int(row["epoch"]), row["isr"])
        self._is_known = True

    def _stat(self, now_s: float) -> None:
        """Look at a stream of each group, or of some of them."""
        if now_s - self._listed_s >= LISTED_EVERY_S and not all(door.stream for door in self.groups.values()):
            self._listed_s = now_s
            self._choose_streams()
        known = [door for door in self.groups.values() if door.stream]
        turn = [known[(self._next + place) % len(known)] for place in range(min(len(known), STATS_A_REPORT))]
        self._next += len(turn)
        for door, fields in zip(turn, self._fields_of([door.stream for door in turn]), strict=True):
            door.fields, door.stream = fields, door.stream if fields else ""

    def _choose_streams(self) -> None:
        """For groups without one: one that is not in memory, which no node copies."""
        names: dict[int, list[str]] = {}
        for row in _rows(self._ask_all(["streams"], are_tables=True)[0]):
            group = group_key(row[0].encode()) % self._count
            if not self.groups[group].stream and len(tried := names.setdefault(group, [])) < STREAMS_TRIED_MAX:
                tried.append(row[0])
        for place in range(STREAMS_TRIED_MAX):
            tries = [(group, each[place]) for group, each in names.items() if place < len(each)]
            tries = [(group, name) for group, name in tries if not self.groups[group].stream]
            for (group, name), fields in zip(tries, self._fields_of([name for _, name in tries]), strict=True):
                if fields and fields.get("durability") != "memory":
                    self.groups[group].stream = name

    def _fields_of(self, streams: Sequence[str]) -> list[dict[str, str]]:
        """Those of `stat`; none for a stream that is not there."""
        tables = self._ask_all([f"stat {stream}" for stream in streams], are_tables=True)
        return [
            {} if table[0].startswith("err ") else dict(line.split(" ", 1) for line in table[1:-1]) for table in tables
        ]


def _option(action: d.FollowLeader | d.Observe) -> str:
    return " on-demand" if isinstance(action, d.Observe) and action.on_demand else ""


def _rows(table: Sequence[str]) -> list[list[str]]:
    """The rows of a table, without its head; none if the command was refused."""
    return [row.split(" ") for row in table[1:-1]]


def _in_step(door: GroupDoor, rows: Sequence[Sequence[str]], view: GroupView, now_s: float) -> frozenset[str]:
    """The followers that are caught up; of a group without streams those that live."""
    found = {row[0] for row in rows if float(row[1]) < LAG_MAX_S}
    found |= {node for node, lag in _followers(door.fields).items() if lag <= JOIN_LAG_MESSAGES_MAX} - door.isr
    if not door.fields:
        found = set(view.live.intersection(view.state.replicas))
    if now_s - door.began_s < LAG_MAX_S:
        found |= door.isr
    return frozenset(found)


def _followers(fields: StatFields) -> dict[str, int]:
    """How many messages each node below lacks of the stream."""
    found = {}
    for name, text in fields.items():
        if name.startswith("slave:"):
            values = dict(each.split("=") for each in text.split(","))
            found[name.removeprefix("slave:")] = int(values["lag_messages"])
    return found
