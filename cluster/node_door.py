"""The commands that an agent gives its node, over the node's socket of administration, and the answers."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tailrace.cluster import decide as d
from tailrace.cluster.view import BrokerReport, BrokerRole
from tailrace.protocol.address import split_address

TIMEOUT_S: Final = 5.0
"""A promotion of many streams takes longer, and is then asked for again."""
RECEIVE_BYTES: Final = 64 << 10
ANSWER_BYTES_MAX: Final = 16 << 20
LAG_MAX_S: Final = 1.5
JOIN_LAG_MESSAGES_MAX: Final = 10_000
"""A replica comes into the set if it is not further behind in the stream that is looked at."""


STREAMS_TRIED_MAX: Final = 32
"""To find one that is not in memory, at one time."""


class NodeAway(Exception):
    """The node does not answer."""


class NodeSocket:
    """A connection to the node's socket of administration, made when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._received = b""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def ask(self, line: str, *, is_table: bool) -> list[str]:
        """The lines of one answer. Raises NodeAway, and is closed then."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(TIMEOUT_S)
                self._socket.connect(str(self._path))
            self._socket.sendall(line.encode() + b"\r\n")
            lines = [self._line()]
            while is_table and lines[-1] != "." and not lines[0].startswith("err "):
                lines.append(self._line())
        except OSError as error:
            self.close()
            raise NodeAway(f"{self._path}: {error}") from None
        return lines

    def rows(self, line: str) -> list[list[str]]:
        """The rows of a table, without its head; none if the command is refused. Raises NodeAway."""
        return [row.split(" ") for row in self.ask(line, is_table=True)[1:-1]]

    def promises(self, term: int, length_s: float, addresses: Sequence[str]) -> set[str]:
        """The ids of those of these nodes that promise to lead in no later term for a while. Raises NodeAway."""
        rows = self.rows(f"promises * {term} {int(length_s * 1000)} {','.join(addresses)}")
        return {row[1] for row in rows if row[2] == "1"}

    def _line(self) -> str:
        assert self._socket is not None
        while b"\r\n" not in self._received:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data or len(self._received) > ANSWER_BYTES_MAX:
                raise ConnectionError("the node closed the connection, or its answer is too long")
            self._received += data
        line, _, self._received = self._received.partition(b"\r\n")
        return line.decode("utf-8", "replace")


class NodeDoor:
    """The broker of this node. Its role is the one it was commanded to have; if the connection breaks, it is fenced.

    Whether a follower has contact, and which followers there are, is looked up for one stream of the node.
    """

    def __init__(self, path: Path) -> None:
        self._socket = NodeSocket(path)
        self._stream = ""
        self._is_known = False
        self._forget()

    def _forget(self) -> None:
        self.role = BrokerRole.FENCED
        self._term = 0
        self._began_s = -math.inf
        self._isr: frozenset[str] = frozenset()
        self._upstream = ""
        self._followed_s = -math.inf
        self._was_up = False
        self._lease: d.SetLease | None = None
        self.messages = 0
        self.since_s = math.inf  # when the node started; promises from before are not known

    def close(self) -> None:
        self._socket.close()

    def _ask(self, line: str, *, is_table: bool) -> list[str]:
        """Raises NodeAway, and then forgets the role of the node."""
        try:
            return self._socket.ask(line, is_table=is_table)
        except NodeAway:
            self._is_known = False
            self._forget()
            raise

    def look(self) -> float:
        """Until when the node has promised to lead in no later term. The first time since the connection was made, a
        node that has a lease is known as a leader again. Raises NodeAway.
        """
        fields = dict(line.split(" ", 1) for line in self._ask("lease *", is_table=True)[1:-1])
        if not self._is_known:
            self._is_known = True
            if fields.get("state") == "held":
                self.role, self._term = BrokerRole.LEADER, int(fields["epoch"])
                self._isr = frozenset(fields["isr"].split(","))
        try:
            self.since_s = int(fields["since_ms"]) / 1000
            return int(fields["promised_ms"]) / 1000
        except KeyError as missing:  # it may have forgotten promises when it started, and nobody knows when that was
            raise NodeAway(f"it is of an earlier version, without {missing} of its lease; upgrade the node") from None

    # --- commands ---------------------------------------------------------------------------------------------------

    def obey(self, action: d.BrokerAction, addresses: dict[str, str], now_s: float) -> bool:
        """Whether the node has done it. Raises NodeAway."""
        match action:
            case d.SetLease(term, until_s):
                if self._lease == action:
                    return True
                self._lease = action if self._ok(f"lease * {term} {int(until_s * 1000)}") else None
                return self._lease is not None
            case d.SetIsr(nodes):
                done = self._ok(f"isr * {','.join(sorted(nodes))}")
                self._isr = nodes if done else self._isr
                return done
            case d.TakeLead(term):
                done = self._ok(f"promote * {term} force")
                if done:
                    self.role, self._term, self._upstream, self._began_s = BrokerRole.LEADER, term, "", now_s
                return done
            case d.FollowLeader(leader, term):
                self._followed_s, self._was_up = now_s, False
                return self._follow(leader, term, addresses.get(leader, ""))
            case d.StepDown():
                self.role, self._lease = BrokerRole.FENCED, None
                return self._ok(f"lease * {max(self._term, 1)} 0")

    def _follow(self, leader: str, term: int, address: str) -> bool:
        if not address or not self._ok(f"lease * {term} 0"):
            return False
        self._lease = None
        host, port = split_address(address)
        done = self._ok(f"slave {host} {port} * 0")
        if done:
            self.role, self._term, self._upstream = BrokerRole.FOLLOWER, term, leader
        return done

    def _ok(self, line: str) -> bool:
        return self._ask(line, is_table=False)[0].startswith("ok ")

    # --- reports ----------------------------------------------------------------------------------------------------

    def report(self, now_s: float, replicas: tuple[str, ...]) -> BrokerReport:
        """`replicas`: they are in step of a node without streams. Raises NodeAway."""
        promised_s = self.look()
        fields = self._stat()
        self.messages = int(fields.get("next_seq", "0"))
        rows = [line.split() for line in self._ask("isr *", is_table=True)[1:-1]]
        settled = {row[0] for row in rows if row[3] == "1"}
        in_step = {row[0] for row in rows if float(row[1]) < LAG_MAX_S}
        in_step |= {node for node, lag in _followers(fields).items() if lag <= JOIN_LAG_MESSAGES_MAX} - self._isr
        if not fields:
            in_step |= frozenset(replicas)
        if now_s - self._began_s < LAG_MAX_S:
            in_step |= self._isr
        return BrokerReport(
            self.role,
            self._term,
            self._isr,
            frozenset(settled),
            frozenset(in_step),
            self._upstream,
            self._silent_s(fields, now_s),
            promised_s,
        )

    def _silent_s(self, fields: dict[str, str], now_s: float) -> float:
        """A link that has never been up since the node follows is given some time for that."""
        if self.role is not BrokerRole.FOLLOWER or "link" not in fields:
            return 0.0
        if fields["link"] == "up":
            self._was_up = True
            return 0.0
        return math.inf if self._was_up else now_s - self._followed_s

    def _stat(self) -> dict[str, str]:
        """The fields of the stream that is looked at; none if the node has none that nodes copy."""
        if self._stream and (fields := self._fields_of(self._stream)):
            return fields
        self._stream = ""
        rows = self._ask("streams", is_table=True)[1:-1]
        for name in (row.split()[0] for row in rows[:STREAMS_TRIED_MAX]):
            fields = self._fields_of(name)
            if fields and fields.get("durability") != "memory":
                self._stream = name
                return fields
        return {}

    def _fields_of(self, name: str) -> dict[str, str]:
        lines = self._ask(f"stat {name}", is_table=True)
        return {} if lines[0].startswith("err ") else dict(line.split(" ", 1) for line in lines[1:-1])


def _followers(fields: dict[str, str]) -> dict[str, int]:
    """How many messages each node below lacks of the stream."""
    found = {}
    for name, text in fields.items():
        if name.startswith("slave:"):
            values = dict(each.split("=") for each in text.split(","))
            found[name.removeprefix("slave:")] = int(values["lag_messages"])
    return found
