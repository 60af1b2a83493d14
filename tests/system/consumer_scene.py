"""One cell of the crash matrix: a publisher and a subscriber of a stream, one call, one fall; then the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tailrace.shard.names import cursor_name
from tests.system.consumer_cells import DELAY_MOST_S, ON_NODE, Call, Cell, Point, Victim
from tests.system.consumer_ground import CALL_S, Ground
from tests.system.consumer_ledger import faults, read
from tests.system.consumer_party import Died, Party, Spec, Told
from tests.system.consumer_proxy import CrashProxy, Line, Trap
from tests.system.node import wait_for
from tests.system.proxy import Cut, Way
from tests.system.tree_check import read_log
from tests.system.tree_ledger import MARK, Fate, Sent, name_in
from tests.system.tree_ledger import faults as faults_of_log

SLACK_S = 3.0  # beyond its time-out a call may take so much, on a machine that is busy
HEARTBEAT_S = 0.4  # four of them until a connection counts as dead
BILLING, AUDIT, EXTRA, DOOMED = "billing", "audit", "extra", "doomed"
FIRST = 2  # messages before anything else
MORE = 2  # messages behind the one of the cell


class Scene:
    """Its steps are called in this order, each once: prepare, fall, go_on, settle."""

    def __init__(self, cell: Cell, ground: Ground, proxy: CrashProxy, stream: str, folder: Path) -> None:
        self.cell = cell
        self.stream = stream
        self.told: list[Told] = []
        self.faults: list[str] = []
        self.failed = False
        self._ground = ground
        self._books = folder / f"{stream}.db"
        self._lines: dict[Victim, list[Line]] = {
            who: [proxy.line(port) for port in ground.ports] for who in (Victim.PUBLISHER, Victim.SUBSCRIBER)
        }
        self._parties: dict[Victim, Party] = {}
        self._sent: list[Sent] = []
        self._lives = 0
        self._trap: Trap | None = None
        self._asked: list[Victim] = []  # who owes an answer

    # --- before the fall --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Until the call is at its point."""
        client, level = self._ground.client, self._ground.level
        for number in range(FIRST):
            message = Sent("first", 1, number, self.stream, Fate.ACKNOWLEDGED, number)
            assert client.publish(self.stream, message.name.encode() + MARK, **level).seq == number
            self._sent.append(message)
        for name in (BILLING, AUDIT, DOOMED):
            client.create_consumer(self.stream, name, deliveries_max=0, **level)
        for who in self._lines:
            self._start(who)
        self._lead_up()
        if self.cell.point is not Point.BEFORE:
            self._reach()

    def _start(self, who: Victim) -> None:
        addresses = tuple(line.address for line in self._lines[who])
        spec = Spec(addresses, self.stream, self._books, "member", CALL_S, HEARTBEAT_S, **self._ground.level)
        self._parties[who] = Party(spec)

    def _lead_up(self) -> None:
        """What must have been for the call to be made."""
        subscriber = self._parties[Victim.SUBSCRIBER]
        if self.cell.call in (Call.GET, Call.ACK):  # a get also reports finished messages
            subscriber.do("get", BILLING)
            subscriber.do("effect", BILLING)
        elif self.cell.call is Call.PUT:
            subscriber.do("drain", BILLING, FIRST - 1)
            self._ask(Victim.SUBSCRIBER, "get", BILLING)  # it waits for the next put

    def _reach(self) -> None:
        cell, before = self.cell, self._logged()
        if cell.point in (Point.SENT, Point.LOGGED):
            way = Way.TO_BROKER if cell.point is Point.SENT else Way.TO_CLIENT
            self._trap = self._lines[cell.call.caller][0].arm(cell.call.request, way)
        self._call()
        if self._trap is None:
            self._hear(cell.call.caller)
            return
        wait_for(self._trap.reached.is_set, f"{cell}: the envelope is held")
        if cell.point is Point.LOGGED:
            wait_for(lambda: self._logged() > before, f"{cell}: it is in the log")
        else:
            assert self._logged() == before, f"{cell}: the request is held, and in the log all the same"

    def _logged(self) -> int:
        """The records of what the cell's call leaves behind."""
        stream = self.stream if self.cell.call is Call.PUT else cursor_name(self.stream.encode()).decode()
        return self._ground.next_seq(stream)

    # --- the call ---------------------------------------------------------------------------------------------------

    def _call(self) -> None:
        CALLS[self.cell.call](self)

    def _put(self) -> None:
        number = len(self._sent)
        self._sent.append(Sent("publisher", self._lives, number, self.stream, Fate.UNKNOWN))
        self._ask(Victim.PUBLISHER, "put", self._sent[-1].name.encode() + MARK)

    def _ask(self, who: Victim, call: str, *words: object) -> None:
        self._parties[who].ask(call, *words)
        self._asked.append(who)

    def _hear(self, who: Victim) -> None:
        """Take the outcome of the call that was asked for. A killed party may not have sent one."""
        self._asked.remove(who)
        try:
            told = self._parties[who].hear(CALL_S + 2 * SLACK_S)
        except Died:
            return
        self.told.append(told)
        if told.error:
            self.faults.append(f"{told.call}: {told.error}")
        elif told.call == "get" and self.cell.call is Call.GET and not self._lives and told.value != 1:
            self.faults.append(f"the get gave message {told.value}: what it repeats must give the same one")
        elif told.call == "put":
            self._sent[-1] = self._sent[-1]._replace(fate=Fate.ACKNOWLEDGED, seq=told.value)

    # --- the fall ---------------------------------------------------------------------------------------------------

    def fall(self) -> None:
        """Carry out the cell's fall: the rest of the way to the moment, and its victim, if that is its own."""
        cell = self.cell
        if cell.victim in ON_NODE:
            time.sleep(DELAY_MOST_S - cell.delay_s)  # it falls for all cells at once, when all of them are through
        if self._trap is not None and (cell.point is Point.SENT or cell.part < 1.0):
            self._trap.let(cell.part)
        if cell.victim is Victim.PUBLISHER and cell.call is not Call.PUT:
            self._put()
        if cell.victim not in ON_NODE:
            time.sleep(cell.delay_s)
            FALLS[cell.victim](self)

    def _kill(self) -> None:
        self._parties[self.cell.victim].kill()

    def _cut(self) -> None:
        for line in self._all_lines():
            line.cut(Cut.RESET)

    def _silence(self) -> None:
        for line in self._all_lines():
            line.silence()

    def _all_lines(self) -> Iterator[Line]:
        return (line for lines in self._lines.values() for line in lines)

    # --- afterwards -------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """The living parties call, while the fallen one may still be down."""
        if self._trap is not None:
            if self.cell.victim in ON_NODE and self.cell.point is Point.LOGGED:
                self._cut()  # the answer was never sent
            self._trap.let()
        if self.cell.point is Point.BEFORE and not self.cell.kills_caller:
            self._call()

    def settle(self) -> None:
        """Everything is done to its end, and everything that must not be is in `faults`."""
        self._bring_back()
        if self.cell.call.caller in self._asked:
            self._hear(self.cell.call.caller)
        if self.cell.kills_caller and self.cell.call is not Call.PUT:
            self._again()
        for _ in range(MORE):
            self._put()
            self._hear(Victim.PUBLISHER)
        self._finish_reading()
        self.faults += self._found()

    def close(self) -> None:
        for party in self._parties.values():
            party.close()

    def _bring_back(self) -> None:
        """Start the killed party again, after reading its last output."""
        victim = self.cell.victim
        if victim not in self._parties:
            return
        if victim in self._asked:
            self._hear(victim)
        self._parties[victim].close()
        self._lives += 1
        self._start(victim)

    def _again(self) -> None:
        """What a program does that does not know whether it had done it."""
        if self.cell.call is Call.ACK:
            return  # it asks for the next message, and sees
        self._call()
        self._hear(self.cell.call.caller)

    def _finish_reading(self) -> None:
        if Victim.SUBSCRIBER in self._asked:
            self._hear(Victim.SUBSCRIBER)  # the get that has waited
        last_seq = self._ground.next_seq(self.stream) - 1
        for consumer in self._consumers():
            self._ask(Victim.SUBSCRIBER, "drain", consumer, last_seq)
            self._hear(Victim.SUBSCRIBER)

    def _consumers(self) -> list[str]:
        """Who must have everything in the end."""
        more = {Call.CREATE: [EXTRA], Call.DELETE: []}.get(self.cell.call, [DOOMED])
        return [BILLING, AUDIT, *more]

    def _found(self) -> Iterator[str]:
        log = {message.seq: name_in(message.payload) for message in read_log(self._ground.master.data, self.stream)}
        yield from faults_of_log(self._sent, {self.stream: log})
        for consumer in self._consumers():
            yield from (f"{consumer}: {fault}" for fault in faults(log, read(self._books, self.stream, consumer)))
        listed = {standing.name for standing in self._ground.client.consumers(self.stream)}
        wanted = {BILLING, AUDIT, DOOMED, EXTRA} if self.cell.call is Call.CREATE else set(self._consumers())
        if listed != wanted:
            yield f"there are the consumers {sorted(listed)}, not {sorted(wanted)}"
        for told in self.told:
            if told.seconds > CALL_S + SLACK_S:
                yield f"{told.call} took {told.seconds:.1f} s, with a time-out of {CALL_S:g} s"


CALLS: dict[Call, Callable[[Scene], None]] = {
    Call.PUT: Scene._put,
    Call.GET: lambda scene: scene._ask(Victim.SUBSCRIBER, "get", BILLING),
    Call.ACK: lambda scene: scene._ask(Victim.SUBSCRIBER, "ack", BILLING),
    Call.CREATE: lambda scene: scene._ask(Victim.SUBSCRIBER, "create", EXTRA),
    Call.DELETE: lambda scene: scene._ask(Victim.SUBSCRIBER, "delete", DOOMED),
}
FALLS: dict[Victim, Callable[[Scene], None]] = {
    Victim.PUBLISHER: Scene._kill,
    Victim.SUBSCRIBER: Scene._kill,
    Victim.CUT: Scene._cut,
    Victim.SILENT: Scene._silence,
}
