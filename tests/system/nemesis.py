"""A nemesis: faults and failovers come over trees of nodes under load, and then all promises of replication must hold.

    python -m tests.system.nemesis --minutes 60
    python -m tests.system.nemesis --rounds 1 --seed 1234     # the same faults again
    python -m tests.system.nemesis --plan failed-1234.json    # those of a file, which may be made shorter by hand

On a slow disk a node does more while a role is being written, so that faults meet it there:

    cc -shared -fPIC -o slow_flush.so bench/slow_flush.c
    SLOW_FLUSH_US=60000 LD_PRELOAD=./slow_flush.so python -m tests.system.nemesis --minutes 15

A round is a tree of 3 to 5 nodes, each on a machine of its own, and phases of faults: nodes are killed, stopped, cut
off both ways and one way, reloaded, and their disks filled, while an operator fails over, moves slaves, and deletes
streams, which the publishers make again. After each phase everything is healed. Then, as the documents promise:

- within 5 s each stream has one master, and every other node is its slave, also one that is made then;
- publishes go on;
- every message that was acknowledged as replicated is in the log at the seq in its acknowledgement, no message is there
  twice, none that was refused is there, and those of a connection are in their order;
- nothing is left of streams that were deleted (nemesis_deletions), and nothing of them is taken for what is new;
- all copies are equal, byte for byte, and `tailrace check` finds nothing;
- every node stops cleanly, and its log has no traceback.

The seed of round k is the first seed and k. It exits with 1 if a promise was broken; the plans and logs of such rounds
are kept in the folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace.protocol.messages import Ack
from tests.system.nemesis_deletions import DELETED, Deletions
from tests.system.nemesis_ground import Ground, ground
from tests.system.nemesis_operator import Failed, Operator
from tests.system.nemesis_plan import Event, Kind, Plan, make_plan, read_plan
from tests.system.standstill import Standstill
from tests.system.tree_check import assert_sound, differences, names_in, shown
from tests.system.tree_ledger import Fate, Sent, faults
from tests.system.tree_load import Load

STREAMS = ["s0", "s1", "s2"]
ONE_MASTER_S = 5.0
EQUAL_S = 30.0
PROGRESS_S = 40.0
FINISHED_S = 20.0  # for what an operator does again until it succeeds
LOOK_EVERY_S = 0.05
PHASES = 2
PHASE_S = 12.0
LINES = "lines"
KINDS = ("binary", "repeats", LINES)
PAUSE_S = 0.05
ANSWER_S = 3.0

Say = Callable[[str], None]


class Broken(Exception):
    """A broken promise; the text names it."""


class Outcome(NamedTuple):
    """`settled_s`: after each healing, until each stream had one master."""

    settled_s: list[float]
    acknowledged: int
    sent: int
    promoted: int
    deleted: int
    events: Counter[str]


class Round:
    """One plan, played on one tree."""

    def __init__(self, plan: Plan, place: Ground, folder: Path, say: Say) -> None:
        self.plan = plan
        self.place = place
        self.operator = Operator(place.tree, STREAMS, plan.replicas, DELETED)
        self.deletions = Deletions(self.operator, list)
        self.settled_s: list[float] = []
        self.promoted = 0
        self._folder = folder
        self._say = say

    def run(self) -> list[Sent]:
        """All phases under load, and the result of each message. Raises Broken."""
        addresses = [node.address for node in self.place.tree.nodes.values()]
        options = {"ack": Ack.REPLICATED, "replicas": self.plan.replicas}
        publishers = {f"p{number}": addresses for number in range(len(KINDS))}
        streams = [*STREAMS, *DELETED]
        with Load(
            publishers, streams, self._folder / "load", pause_s=PAUSE_S, kinds=KINDS, options=options, answer_s=ANSWER_S
        ) as load:
            self.deletions = Deletions(self.operator, load.sent)
            self._progress(load)
            for number, phase in enumerate(self.plan.phases, 1):
                self._say(f"phase {number}")
                self._play(phase)
                self._finish_failover()
                self.settled_s.append(self._settle(DELETED))
                self._settle_deleted()
                self._make_stream(f"new-{number}")
                self._progress(load)
            return load.finish()

    def _progress(self, load: Load) -> None:
        try:
            load.wait_for_progress(3, PROGRESS_S)
        except AssertionError as error:
            raise Broken(f"publishes do not go on: {error}") from None

    def _play(self, phase: Sequence[Event]) -> None:
        began_s = time.monotonic()
        steps = [(event.at_s, True, event) for event in phase]
        steps += [(event.end_s, False, event) for event in phase if event.lasts_s]
        for at_s, begins, event in sorted(steps, key=lambda step: step[:2]):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            if begins:
                self._say(f"{time.monotonic() - began_s:6.2f} s, planned for {event}{self._begin(event)}")
            else:
                self.place.end(event)
        self.place.heal()

    def _begin(self, event: Event) -> str:
        """Begin an event; returns its outcome, for the log."""
        if event.kind is Kind.RELOAD:
            return "" if self.place.reload(event.nodes[0]) else ": it does not run"
        if event.kind not in (Kind.PROMOTE, Kind.REPARENT, Kind.DELETE):
            self.place.begin(event)
            return ""
        reached = self.place.reached_from(event.nodes[0])
        try:
            if event.kind is Kind.PROMOTE:
                return ": " + self._fail_over(reached)
            if event.kind is Kind.DELETE:
                return ": " + self.deletions.delete(reached)
            return "" if self.operator.re_parent(event.nodes[0], event.nodes[1], reached) else ": not now"
        except Failed as error:
            return f": {error}"

    def _fail_over(self, reached: Sequence[str]) -> str:
        self.deletions.failing_over()
        done = self.operator.fail_over(reached)
        self.promoted += 1
        return done

    def _finish_failover(self) -> None:
        """What a fault has interrupted. A stream whose nodes were fenced has no master until then."""
        if self.operator.unfinished:
            self._patiently(lambda: self._say(self._fail_over(self.place.names)), "no node can be promoted")

    def _patiently(self, act: Callable[[], None], what: str) -> None:
        """Do it again while a command fails: the end of a stream may be being set aside. Raises Broken."""
        deadline_s = time.monotonic() + FINISHED_S
        while True:
            try:
                return act()
            except Failed as error:
                if time.monotonic() > deadline_s:
                    raise Broken(f"after {FINISHED_S:g} s {what}: {error}") from None
                time.sleep(LOOK_EVERY_S)

    def _settle(self, left_out: Sequence[str] = ()) -> float:
        """Wait for one master for each stream; how long that took. What the machine itself stood still is left out."""
        began_s = time.monotonic()
        with Standstill(self._folder) as still:
            while found := self._not_settled(left_out):
                if time.monotonic() - began_s > ONE_MASTER_S + still.seconds():
                    raise Broken(f"{ONE_MASTER_S:g} s after healing: {found}")
                time.sleep(LOOK_EVERY_S)
        took_s = time.monotonic() - began_s
        self._say(f"one master for each stream after {took_s:.2f} s")
        return took_s

    def _make_stream(self, stream: str) -> None:
        """Publish to a new stream at every node: it has one master like the others.

        If streams were promoted one by one, no rule places new ones. The same if failovers on both sides of a cut have
        left masters on several nodes: a master that follows another node for all streams gives up its own.
        """
        if not self.deletions.placed:  # as it was asked then: nobody has told the nodes since
            return
        for name in self.place.names:
            what = f"{name} takes no message for a new stream"
            self._patiently(lambda name=name: self.operator.publish(name, stream), what)  # type: ignore[misc]
        self._settle()

    def _settle_deleted(self) -> None:
        """Nothing is left of streams that were deleted. Raises Broken.

        They can be made again at any node, as other new streams can (`_make_stream`).
        """
        placed = self._is_placed()
        if placed:
            self._patiently(lambda: self.operator.tell_returned(self.place.names), "nodes that returned cannot be told")
            self._settle()
        self.deletions.healed(next(iter(self._masters())) if placed else "")
        if placed:
            self._patiently(self._look_for_deleted, "nobody says what is left of deleted streams")

    def _look_for_deleted(self) -> None:
        if wrong := self.deletions.faults(self.place.names):
            raise Broken(shown(wrong))

    def _is_placed(self) -> bool:
        """Whether one node is the master of all streams, but for one that another has made out of its sight."""
        masters = self._masters()
        deleted = [self._masters([stream]) for stream in DELETED]
        return not self.operator.is_split and len(masters) == 1 and all(not each or each & masters for each in deleted)

    def _masters(self, streams: Sequence[str] = STREAMS) -> set[str]:
        """The nodes that are the master of one of these streams."""
        roles = {name: self.operator.roles(name) for name in self.place.names}
        return {name for name, each in roles.items() if any(each.get(stream) == "master" for stream in streams)}

    def _not_settled(self, left_out: Sequence[str]) -> str:
        """The streams without exactly one master and else slaves; "" if all are right."""
        try:
            roles = {name: self.operator.roles(name) for name in self.place.names}
        except Failed as error:
            return str(error)
        found = []
        for stream in {stream for each in roles.values() for stream in each}.union(STREAMS).difference(left_out):
            of_stream = {name: each.get(stream, "nothing") for name, each in roles.items()}
            if sorted(of_stream.values()) != ["master", *["slave"] * (len(of_stream) - 1)]:
                found.append(f"{stream}: {of_stream}")
        return "; ".join(found)


def check_logs(plan: Plan, place: Ground, sent: Sequence[Sent], deletions: Deletions) -> None:
    """Whether the copies are equal, and have all acknowledged messages. Raises Broken."""
    data = place.tree.data()
    deadline_s = time.monotonic() + EQUAL_S
    left_out = tuple(f"stream {stream}: " for stream in (() if deletions.placed else DELETED))
    while found := [each for each in differences(data, place.names[0]) if not each.startswith(left_out)]:
        if time.monotonic() > deadline_s:
            raise Broken(f"{EQUAL_S:g} s after the last publish the copies differ:\n{shown(found)}")
        time.sleep(LOOK_EVERY_S)
    logs = {stream: log for stream, log in names_in(data[place.names[0]]).items() if stream in (*STREAMS, *DELETED)}
    wrong = deletions.faults_of_logs(place.names[0], logs)
    wrong += faults([deletions.as_promised(as_promised(message)) for message in sent], logs, may_be_late=True)
    if wrong:
        raise Broken(f"of {len(sent)} messages, with `replicated {plan.replicas}`:\n{shown(wrong)}")


def as_promised(message: Sent) -> Sent:
    """A message that was only appended may be lost with its master: that acknowledgement promises nothing here."""
    is_appended = message.fate is Fate.ACKNOWLEDGED and message.publisher.endswith(LINES)
    return message._replace(fate=Fate.UNKNOWN, seq=-1) if is_appended else message


def play_round(plan: Plan, folder: Path, say: Say) -> Outcome:
    """Play a plan in an empty folder. Raises Broken, and CannotMount or pytest's Skipped if it cannot be played."""
    with ground(folder, plan) as place:
        played = Round(plan, place, folder, say)
        try:
            sent = played.run()
            check_logs(plan, place, sent, played.deletions)
            place.tree.stop()
            assert_sound(place.tree.data())
        except AssertionError as error:
            raise Broken(str(error)) from None
    results = (played.deletions.as_promised(as_promised(message)) for message in sent)
    promised = [message for message in results if message.fate is Fate.ACKNOWLEDGED]
    events = Counter(event.kind.value for phase in plan.phases for event in phase)
    deleted = len(played.deletions.final)
    return Outcome(played.settled_s, len(promised), len(sent), played.promoted, deleted, events)


class Run:
    """Round after round, and what all of them have shown."""

    def __init__(self, folder: Path, verbose: bool) -> None:
        self.folder = folder
        self.outcomes: list[Outcome] = []
        self.failed: dict[int, str] = {}
        self._verbose = verbose

    def play(self, plan: Plan) -> None:
        place, said = self.folder / f"round-{plan.seed}", [str(plan)]
        place.mkdir()

        def say(text: str) -> None:
            said.append(text)
            if self._verbose:
                print(text, flush=True)

        try:
            self.outcomes.append(play_round(plan, place, say))
            shutil.rmtree(place)
        except Broken as broken:
            self.failed[plan.seed] = str(broken)
            (self.folder / f"failed-{plan.seed}.json").write_text(plan.to_json() + "\n")
            (place / "played.txt").write_text("\n".join([*said, str(broken)]) + "\n")
            print(f"seed {plan.seed}: {broken}", flush=True)

    def summary(self) -> str:
        settled = sorted(each for outcome in self.outcomes for each in outcome.settled_s) or [0.0]
        events = sum((outcome.events for outcome in self.outcomes), Counter[str]())
        lines = [
            f"{len(self.outcomes)} rounds held, {len(self.failed)} failed: {list(self.failed)}",
            f"{sum(each.sent for each in self.outcomes):,} messages, "
            f"{sum(each.acknowledged for each in self.outcomes):,} acknowledged as replicated, none of them lost",
            f"{sum(each.promoted for each in self.outcomes)} failovers, "
            f"{sum(each.deleted for each in self.outcomes)} final deletions; planned: {dict(events)}",
            f"one master after {statistics.median(settled):.2f} s (median), {settled[-1]:.2f} s (most)",
        ]
        return "\n".join(lines)


def parse_words(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, help="so many, whatever --minutes says")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--plan", type=Path, help="play this plan only")
    parser.add_argument("--phases", type=int, default=PHASES, help="of a round")
    parser.add_argument("--phase-seconds", type=float, default=PHASE_S)
    parser.add_argument("--folder", type=Path, help="an empty one for data and results (default: a new one)")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    return parser.parse_args(words)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all child processes are ended
    words = parse_words()
    folder = words.folder or Path(tempfile.mkdtemp(prefix="tailrace-nemesis-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"results: {folder}, --seed {words.seed}", flush=True)
    run = Run(folder, words.verbose)
    if words.plan:
        run.play(read_plan(words.plan.read_text()))
    else:
        play_rounds(run, words)
    print(run.summary())
    return 1 if run.failed else 0


def play_rounds(run: Run, words: argparse.Namespace) -> None:
    end_s, seed = time.monotonic() + words.minutes * 60, words.seed
    while seed - words.seed < words.rounds if words.rounds else time.monotonic() < end_s:
        run.play(make_plan(seed, words.phases, words.phase_seconds))
        seed += 1
        left_min = max(0.0, end_s - time.monotonic()) / 60
        left = f"{words.rounds - (seed - words.seed)} rounds" if words.rounds else f"{left_min:.1f} min"
        print(f"{left} left, {len(run.outcomes)} rounds held, {len(run.failed)} failed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
