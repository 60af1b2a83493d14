"""Faults of a cluster of three nodes and three members of etcd under load: for how long no publish at REPLICATED is
acknowledged, and whether all that was acknowledged is there, once.

    python -m tests.system.cluster_kills --rounds 100 --kinds kill
    python -m tests.system.cluster_kills --rounds 20                       # of all kinds, one after another
    python -m tests.system.cluster_kills --kinds etcd-away --seconds 600   # etcd away for ten minutes

kill: a leader, its node and its agent, by SIGKILL; kill-any: any node; stop: a leader by SIGSTOP, for 30 s; cut: a
leader from all others both ways; cut-out, cut-in: nothing goes from it, or to it; cut-etcd: from etcd only; etcd-away:
all members of etcd stand still; etcd-leader: etcd's leader is killed; agent: a leader's agent stands still beyond its
lease; agent-kill: it is killed, and started again; two: a leader is killed, and a few seconds later the next one.

Exits with 1 if something was lost, doubled, left out for a reader or a consumer, or resumed too late.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import tailrace
from tests.system.cluster_ground import MEMBERS, NODES, ClusterGround, cluster_ground, until
from tests.system.cluster_load import ClusterConsumer, ClusterPublisher, ClusterReader

STREAM: Final = "orders"
OTHERS: Final = ("clicks", "payments")
"""Streams that there are too if the cluster has several groups."""
CALM_S: Final = 1.5
CUT_S: Final = 12.0
STOP_S: Final = 30.0
AGENT_S: Final = 12.0
RESUMED_MAX_S: Final = 60.0
LIMITS_S: Final = {
    "kill": 3.0, "kill-any": 3.0, "stop": 8.0, "cut": 8.0, "cut-out": 8.0, "cut-in": 8.0, "cut-etcd": 2.0,
    "etcd-away": 2.0, "etcd-leader": 2.0, "agent": 8.0, "agent-kill": 8.0, "two": 60.0,
}  # fmt: skip
"""How long publishes may stand still."""


class Clients:
    """Those of one stream."""

    def __init__(self, ground: ClusterGround, stream: str) -> None:
        self._ground = ground
        self._stream = stream
        addresses = [node.address for node in ground.tree.nodes.values()]
        self.publisher = ClusterPublisher(addresses, stream)
        until(lambda: bool(self.publisher.acknowledged), RESUMED_MAX_S)
        self.reader = ClusterReader(addresses, stream)
        self.consumer = ClusterConsumer(addresses, stream)

    def finish(self) -> list[str]:
        """The faults that were found."""
        acknowledged = self.publisher.acknowledged
        found = [] if self.reader.wait_for(acknowledged[-1]) else ["the reader does not come to the end"]
        missing = self.consumer.wait_all(set(acknowledged))
        found += [f"the consumer has not had {sorted(missing, key=int)[:5]}"] if missing else []
        self.reader.finish()
        self.consumer.finish()
        for name in NODES:
            found += [f"{name}: {each}" for each in self._faults_of(self.log_of(name))]
        found += [f"the reader: {each}" for each in (*self.reader.faults, *self._faults_of(self.reader.payloads))]
        return [f"{self._stream}: {each}" for each in found]

    def log_of(self, name: str) -> list[bytes]:
        """All messages, once this node has the last one that was acknowledged; none if it does not run."""
        log: list[bytes] = []

        def is_whole() -> bool:
            try:
                with tailrace.connect(self._ground.tree.nodes[name].address) as client:
                    log[:] = [each.payload for each in client.subscribe(self._stream, start=0, end=tailrace.NOW)]
            except tailrace.TailraceError:
                return False
            return self.publisher.acknowledged[-1] in log

        until(is_whole, RESUMED_MAX_S)
        return log

    def _faults_of(self, log: Sequence[bytes]) -> list[str]:
        counted, known = Counter(log), self.publisher.unknown
        lost = [each for each in self.publisher.acknowledged if each not in counted]
        doubled = [each for each, times in counted.items() if times > 1]
        order = [each for each in log if each not in known]
        faults = [f"{len(lost)} lost: {lost[:5]}"] if lost else []
        faults += [f"{len(doubled)} doubled: {doubled[:5]}"] if doubled else []
        return faults + ([] if order == sorted(order, key=int) else ["out of order"])


class Scene:
    """A cluster with its clients. Each method that is named like a kind is one fault, until it is healed."""

    def __init__(self, ground: ClusterGround, seconds: float, dice: random.Random, streams: Sequence[str]) -> None:
        self.ground = ground
        self._seconds = seconds
        self._dice = dice
        self.took_s: dict[str, list[float]] = defaultdict(list)
        self.clients = [Clients(ground, stream) for stream in streams]

    def play(self, kind: str) -> float:
        """One fault; how long no publish was acknowledged."""
        began_s = time.monotonic()
        act: Callable[[str, str], None] = getattr(self, f"_{kind.replace('-', '_')}")
        act(self.ground.leader(STREAM), self._dice.choice(NODES))
        took_s = max(each.publisher.gaps_s(began_s) for each in self.clients)
        self.took_s[kind].append(took_s)
        self.ground.wait_in_sync()
        self._resume()
        time.sleep(CALM_S)
        return took_s

    def _resume(self) -> None:
        """Wait until publishes go on, and all has settled."""
        counts = [len(each.publisher.acknowledged) for each in self.clients]

        def go_on() -> bool:
            now = (len(each.publisher.acknowledged) for each in self.clients)
            return all(after > before + 5 for after, before in zip(now, counts, strict=True))

        if not until(go_on, RESUMED_MAX_S):
            raise AssertionError("publishes do not go on")

    # --- kinds --------------------------------------------------------------------------------------------------------

    def _kill(self, leader: str, _any: str) -> None:
        print(f"  {time.strftime('%H:%M:%S')}: {leader} is killed", file=sys.stderr)
        self.ground.kill(leader)
        self._resume()
        self.ground.restart(leader)

    def _kill_any(self, _leader: str, name: str) -> None:
        self._kill(name, name)

    def _stop(self, leader: str, _any: str) -> None:
        self.ground.pause(leader)
        time.sleep(STOP_S)
        self.ground.resume(leader)

    def _blocked(self, some: list[str], others: list[str], *, both: bool) -> None:
        self.ground.block(some, others, both=both)
        time.sleep(CUT_S)
        self.ground.net.heal()

    def _cut(self, leader: str, _any: str) -> None:
        self._blocked([leader], self.ground.others(leader), both=True)

    def _cut_out(self, leader: str, _any: str) -> None:
        self._blocked([leader], self.ground.others(leader), both=False)

    def _cut_in(self, leader: str, _any: str) -> None:
        self._blocked(self.ground.others(leader), [leader], both=False)

    def _cut_etcd(self, leader: str, _any: str) -> None:
        self._blocked([leader], list(MEMBERS), both=True)

    def _etcd_away(self, _leader: str, _any: str) -> None:
        for member in self.ground.members.values():
            member.signal(signal.SIGSTOP)
        time.sleep(self._seconds)
        for member in self.ground.members.values():
            member.signal(signal.SIGCONT)
        self._resume()

    def _etcd_leader(self, _leader: str, _any: str) -> None:
        member = self.ground.members[self.ground.etcd_leader()]
        member.kill()
        time.sleep(CUT_S)
        member.start()

    def _agent(self, leader: str, _any: str) -> None:
        self.ground.pause_agent(leader)
        time.sleep(AGENT_S)
        self.ground.resume_agent(leader)

    def _agent_kill(self, leader: str, _any: str) -> None:
        self.ground.kill_agent(leader)
        self.ground.start_agent(leader)
        self._resume()

    def _two(self, leader: str, _any: str) -> None:
        self.ground.kill(leader)
        self._resume()
        time.sleep(self._dice.uniform(0.0, 3.0))
        second = self.ground.leader(STREAM) or next(name for name in NODES if name != leader)
        self.ground.kill(second)
        time.sleep(self._dice.uniform(0.0, 3.0))
        self.ground.restart(leader)
        self._resume()
        self.ground.restart(second)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """The faults that were found."""
        for each in self.clients:
            each.publisher.finish()
        return [fault for each in self.clients for fault in each.finish()]


def summary(scene: Scene, wrong: list[str]) -> str:
    lines = []
    for kind, times_s in scene.took_s.items():
        ordered = sorted(times_s)
        late = sum(each > LIMITS_S[kind] for each in ordered)
        p99 = ordered[max(0, -(-99 * len(ordered) // 100) - 1)]
        lines.append(
            f"{kind:12} {len(ordered):4} rounds, no acknowledgement for {ordered[len(ordered) // 2]:6.2f} s (median), "
            f"{p99:6.2f} s (p99), {ordered[-1]:6.2f} s (most); {late} above {LIMITS_S[kind]:g} s"
        )
    for each in scene.clients:
        again, publisher = sum(times - 1 for times in each.consumer.times.values()), each.publisher
        lines.append(
            f"{publisher.stream}: {len(publisher.acknowledged):,} acknowledged as replicated, {len(publisher.unknown)}"
            f" without; delivered again to the consumer: {again}; told to the reader: {len(each.reader.told)}"
        )
        lines += [f"unknown {number.decode()}: {why}" for number, why in list(publisher.unknown.items())[:5]]
    return "\n".join([*lines, *(wrong or ["nothing lost, nothing doubled, nothing left out"])])


def run(
    folder: Path, kinds: Sequence[str], rounds: int, seconds: float, seed: int, workers: int = 1, groups: int = 1
) -> list[str]:
    """Plays `rounds` faults of each kind, and prints the outcome; returns the faults that were found."""
    with cluster_ground(folder, workers, groups=groups) as ground:
        scene = Scene(ground, seconds, random.Random(seed), (STREAM, *OTHERS) if groups > 1 else (STREAM,))
        wrong: list[str] = []
        try:
            for number in range(rounds):
                for kind in kinds:
                    print(f"round {number + 1}: {kind} {scene.play(kind):.2f} s", file=sys.stderr, flush=True)
        except AssertionError as error:
            wrong.append(f"stopped: {error}")
        wrong += scene.finish()
        print(summary(scene, wrong), flush=True)
        if wrong:
            (folder / "agents.txt").write_text(ground.logs() + "\n" + ground.tree.logs())
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--kinds", default=",".join(LIMITS_S), help="with commas between")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long etcd is away")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--groups", type=int, default=1, help="of streams")
    parser.add_argument("--folder", type=Path, help="an empty one for data and logs (default: a new one)")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all child processes are ended
    folder = words.folder or Path(tempfile.mkdtemp(prefix="tailrace-cluster-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"results: {folder}, --seed {words.seed}", flush=True)
    kinds = words.kinds.split(",")
    wrong = run(folder, kinds, words.rounds, words.seconds, words.seed, words.workers, words.groups)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
