"""A node under load for hours: nothing lost, nothing twice, no error in its log, and no memory that grows.

    python -m tests.system.soak --minutes 120 --rate 5000

Publishers write to 50 streams. Subscribers and members of durable consumers come and go, some of them over connections
that are cut half-way, and others drop their connections in the middle of a line. The node is reloaded every
`--reload-every` seconds for the first `--reload-minutes` (half of the time unless given), then never. The streams keep
`--keep` bytes each. If memory is to be flat at the end, the publishers begin with small publishes until the
state of producers (`shard.producers`, 24 bytes a publish, up to 1,024 of a publisher in a stream) reaches its bound:
otherwise that takes more than an hour, and looks like a growth.

It prints its findings, writes them and the samples of memory to a folder, and exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.shard.producers import RUNS_MAX
from tests.system.node import Node
from tests.system.proxy import Proxy
from tests.system.soak_memory import Memory, growths

ROOT = Path(__file__).resolve().parents[2]
PUBLISHERS = 2
READERS = ("auditor", "visitors", "consumers", "droppers")
CUT_MEAN_BYTES = 1 << 20
# About half of the publishes to a stream come behind one of the other publisher, and so are runs of their own.
FILL = 9 * RUNS_MAX // 4
END_S = 180.0  # for each process to read the rest
WORK = ("published", "delivered", "finished", "visits", "dropped")
"""What the clients count. A run goes on until each was done once, up to END_S: on a loaded machine a minute may go by
before the first message."""
STOP_S = 30.0
GROWTH_MAX_PERCENT = 1.0
LEVELS = re.compile(r" (WARNING|ERROR|CRITICAL) +\[\d+\] ")
LOG_LINES = 10
PROGRESS_S = 1.0
PROGRESS_PLAIN_S = 30.0  # without a terminal

# A small cache is full within seconds. One with room takes a burst of chunks at some time, and what the allocator got
# for the largest burst stays: a late one would look like a growth. Small chunks, since the heap ends a chunk earlier or
# later each minute, by what lies in the cache when it is trimmed: 256 KiB are more than the growth that is looked for.
CONFIG = """
[limits]
chunk_bytes = 65536
chunk_cache_bytes = 1048576

[[stream]]
pattern = "*"
max_bytes = {keep_bytes}
spare_consumers = true
"""


class Options(NamedTuple):
    seconds: float
    rate: float
    reload_every_s: float
    reload_s: float
    flat_s: float
    sample_every_s: float
    streams: int
    workers: int
    keep_bytes: int
    seed: int
    folder: Path


class Client:
    """A process of soak_load, and the latest that it has reported."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.name: str = spec["name"]
        self.report: dict[str, Any] = {}
        self._errors = folder / f"{self.name}.errors"
        command = [sys.executable, "-m", "tests.system.soak_load", json.dumps(spec)]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        known = 0
        for line in self.process.stdout:
            self.report = json.loads(line)
            texts = self.report.get("faults", [])
            for text in texts[known:]:  # at once: nobody wants to wait two hours for it
                print(f"\n{time.strftime('%X')} {self.name}: {text}", file=sys.stderr, flush=True)
            known = len(texts)

    def end(self, ends: dict[str, int]) -> None:
        """Makes it read to these ends and leave."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(ends) + "\n")
        self.process.stdin.flush()

    def wait(self) -> list[str]:
        """Until it has left; what went wrong."""
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return [f"{self.name} has not finished within {END_S:g} s: {self.report.get('counts')}"]
        self._reading.join()
        faults = [f"{self.name}: {text}" for text in self.report.get("faults", [])]
        return faults + ([f"{self.name} failed: {self._errors.read_text()[-2000:]}"] if code else [])

    def kill(self) -> None:
        """Also of one that has left: its pipes are closed."""
        self.process.kill()
        self.process.wait()
        self._reading.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Soak:
    """One run. `faults` are the broken promises."""

    def __init__(self, options: Options, node: Node, proxy: Proxy) -> None:
        self.options = options
        self.node = node
        self.memory = Memory(node)
        self.faults: list[str] = []
        self.reloads = 0
        self.proxy = proxy
        self.streams = [f"soak-{number}" for number in range(options.streams)]
        cut_port = proxy.cutting_port(random.Random(options.seed), CUT_MEAN_BYTES)
        self._addresses = f"127.0.0.1:{node.port}", f"127.0.0.1:{cut_port}"
        self.clients: dict[str, Client] = {}

    def start(self) -> None:
        """The streams, which no reader makes; then the readers, so that retention drops nothing before them."""
        with self.node.client() as client:
            for stream in self.streams:
                assert client.ask(f"master {stream}").startswith("ok")
        for name in (*READERS, *(f"publisher-{number}" for number in range(PUBLISHERS))):
            address, cut_address = self._addresses
            role, _dash, number = name.partition("-")
            spec = {
                "name": name,
                "role": role,
                "seed": self.options.seed,
                "streams": self.streams,
                "address": cut_address if number == "1" else address,
                "cut_address": cut_address,
                "rate": self.options.rate / PUBLISHERS,
                "fill": FILL if self.options.flat_s else 0,
            }
            self.clients[name] = Client(spec, self.options.folder)

    def count(self, what: str) -> int:
        return sum(client.report.get("counts", {}).get(what, 0) for client in self.clients.values())

    def run(self) -> None:
        """Reload, sample and show progress until the time is over, and everybody has done something."""
        options, began_s = self.options, time.monotonic()
        next_reload_s, next_sample_s = options.reload_every_s, 0.0
        with progress(options.seconds) as show:
            while self._goes_on(at_s := time.monotonic() - began_s) and self._all_run():
                if next_reload_s <= at_s < options.reload_s:
                    self.node.signal(signal.SIGHUP)
                    self.reloads += 1
                    next_reload_s += options.reload_every_s
                if at_s >= next_sample_s:
                    self.memory.take()
                    next_sample_s += options.sample_every_s
                show(at_s, self._state())
                time.sleep(0.1)
        self.memory.take()

    def _goes_on(self, at_s: float) -> bool:
        seconds = self.options.seconds
        return at_s < seconds or (at_s < seconds + END_S and not (self.proxy.cuts and all(map(self.count, WORK))))

    def _all_run(self) -> bool:
        return all(client.process.poll() is None for client in self.clients.values())

    def _state(self) -> str:
        newest = self.memory.samples[-self.options.workers :]
        sizes = " ".join(f"{sample.own_bytes / 1e6:.1f}" for sample in newest)
        faults = sum(client.report.get("fault_count", 0) for client in self.clients.values())
        return (
            f"{self.count('published'):,} published, {self.count('delivered'):,} delivered, "
            f"{self.count('finished'):,} finished, {self.reloads} reloads, workers {sizes} MB, {faults} faults"
        )

    def finish(self) -> None:
        """End the publishers, then the readers at the ends of the streams, and compare their records."""
        publishers = [client for name, client in self.clients.items() if name.startswith("publisher")]
        self._end(publishers, {})
        published = {client.name: client.report.get("published", {}) for client in publishers}
        ends = {stream: sum(each.get(stream, 0) for each in published.values()) for stream in self.streams}
        self._end([self.clients[name] for name in READERS], ends)
        for stream, read in self.clients["auditor"].report.get("read", {}).items():
            sent = {name: each[stream] for name, each in published.items() if each.get(stream)}
            if read != sent:
                self.faults.append(f"{stream}: acknowledged {sent}, in the log {read}")
        self.faults += self._wrong_ends(ends)

    def _end(self, clients: list[Client], ends: dict[str, int]) -> None:
        for client in clients:
            client.end(ends)
        for client in clients:
            self.faults += client.wait()

    def _wrong_ends(self, ends: dict[str, int]) -> Iterator[str]:
        with self.node.client() as client:
            for stream, end in ends.items():
                client.answers.clear()
                fields = dict(line.split(maxsplit=1) for line in client.ask_table(f"stat {stream}")[1:-1])
                if int(fields["next_seq"]) != end:
                    yield f"{stream}: {end} messages were acknowledged, the log ends at {fields['next_seq']}"

    def kill(self) -> None:
        for client in self.clients.values():
            client.kill()


@contextmanager
def progress(seconds: float) -> Iterator[Callable[[float, str], None]]:
    """A function that shows how far it is: on a terminal in one line each second, else in a new line now and then."""
    terminal = sys.stderr.isatty()
    every_s, end = (PROGRESS_S, "") if terminal else (PROGRESS_PLAIN_S, "\n")
    due_s = 0.0

    def show(at_s: float, state: str) -> None:
        nonlocal due_s
        if at_s >= due_s:
            due_s = at_s + every_s
            text = f"{at_s / 60:6.1f} of {seconds / 60:g} min: {state}"
            print(f"\r{text}\x1b[K" if terminal else text, end=end, file=sys.stderr, flush=True)

    yield show
    if terminal:
        print(file=sys.stderr)


def log_faults(text: str) -> Iterator[str]:
    """What must not be in a node's log. Raises nothing for warnings, which clients may cause."""
    wrong = [line for line in text.splitlines() if "Traceback" in line or level_of(line) in ("ERROR", "CRITICAL")]
    if wrong:
        yield f"{len(wrong)} errors in the log, such as " + "\n".join(wrong[:LOG_LINES])


def level_of(line: str) -> str:
    found = LEVELS.search(line)
    return found[1] if found else ""


def check_files(data: Path) -> Iterator[str]:
    """What `tailrace check` finds."""
    command = [sys.executable, "-m", "tailrace.cli.main", "check", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"tailrace check says {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def soak(options: Options) -> dict[str, Any]:
    """Run it; returns counts and findings. `faults` is empty when every promise was kept."""
    data = options.folder / "data"
    config = CONFIG.format(keep_bytes=options.keep_bytes)
    node = Node(data, workers=options.workers, config=config).start()
    try:
        with Proxy(node.port) as proxy:
            run = Soak(options, node, proxy)
            try:
                run.start()
                run.run()
                run.finish()
            finally:
                run.kill()
        code = node.stop(STOP_S)
    finally:
        node.kill()
    faults = [*run.faults, *log_faults(node.log()), *check_files(data)]
    if code:
        faults.append(f"the node's exit code is {code}")
    return summary(run, faults)


def summary(run: Soak, faults: list[str]) -> dict[str, Any]:
    options = run.options
    grown = growths(run.memory.samples, options.flat_s)
    if options.flat_s:
        faults += [f"memory grows: {each}" for each in grown if each.percent >= GROWTH_MAX_PERCENT]
        if not grown:
            faults.append("no worker was measured for long enough to say whether its memory is flat")
    run.memory.write(options.folder / "memory.csv")
    counts: Counter[str] = Counter()
    for client in run.clients.values():
        counts.update(client.report.get("counts", {}))
    levels = Counter(filter(None, map(level_of, run.node.log().splitlines())))
    found = {
        "options": {**options._asdict(), "folder": str(options.folder)},
        "counts": dict(counts),
        "reloads": run.reloads,
        "cut_connections": run.proxy.cuts,
        "log": dict(levels),
        "memory": [str(each) for each in grown],
        "faults": faults,
    }
    (options.folder / "summary.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def parse_options(words: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=5_000.0, help="messages a second in all; 0: as fast as it goes")
    parser.add_argument("--reload-every", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--reload-minutes", type=float, help="reload in the first ones (default: half of the time)")
    parser.add_argument("--flat-minutes", type=float, help="no growth in the last ones (default: 3/8 of the time)")
    parser.add_argument("--sample-every", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=int, default=16 << 20, metavar="BYTES", help="of each stream")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, help="an empty one for data and results (default: a new one)")
    found = parser.parse_args(words)
    seconds = found.minutes * 60
    reload_s = seconds / 2 if found.reload_minutes is None else found.reload_minutes * 60
    flat_s = seconds * 3 / 8 if found.flat_minutes is None else found.flat_minutes * 60
    folder = found.folder or Path(tempfile.mkdtemp(prefix="tailrace-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    timing = (seconds, found.rate, found.reload_every, reload_s, flat_s, found.sample_every)
    return Options(*timing, found.streams, found.workers, found.keep, found.seed, folder)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all child processes are ended
    options = parse_options()
    print(f"results and data: {options.folder}, --seed {options.seed}", flush=True)
    found = soak(options)
    print(json.dumps({key: value for key, value in found.items() if key != "options"}, indent=2))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
