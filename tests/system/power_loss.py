"""A node whose machine loses power under load, round after round: no message acknowledged under `always` may be lost,
and no stream refused.

    sudo .venv/bin/python -m tests.system.power_loss --rounds 300 --seed 1

A round publishes to 18 streams of all three policies, and to new ones, writes some pages back in any order, and shuts
the file system down without flushing its log. The image is mounted again, under another boot id or (a volume that was
lost and came back) under the same. The node that starts on it must take a message for each stream, have every message
that was acknowledged under `always`, and have files without damage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.broker.streams.failed_syncs import WRITING_TEXT
from tailrace.shard.catalog import all_streams
from tailrace.shard.check import check_data
from tailrace.shard.directory import DataDirectory, open_data_dir
from tailrace.shard.errors import StorageError
from tailrace.shard.frame import HEADER_BYTES, unpack_header
from tailrace.shard.journal import journal_files, read_journal
from tailrace.shard.names import file_stem
from tailrace.shard.reader import StreamReader
from tests.system.mounts import CannotMount
from tests.system.node import Node
from tests.system.power_load import CONFIG, POLICIES, Publisher
from tests.system.volumes import BootId, LoopVolume, with_own_mounts, write_back

EXIT_CANNOT_MOUNT: Final = 77
IMAGE_BYTES: Final = 512 << 20
ROUNDS_OF_A_VOLUME: Final = 20
"""Then a new one is made, so that a round does not cost more the more there were before."""
LOAD_S: Final = (0.05, 0.6)
LONG_LOAD_S: Final = (
    0.6,
    1.5,
)  # of every other round, so that the workers have their journals, and free halves of them
WRITTEN_BACK_MAX: Final = 40  # files
PAGE_BYTES: Final = 4096
PAGES_MAX: Final = 4
REFUSAL_BYTES: Final = 250
FAULTS_SHOWN: Final = 40  # of one volume
WRITTEN_AGAIN_S: Final = 10.0
WRITTEN_AGAIN_POLL_S: Final = 0.1


class Result(NamedTuple):
    acknowledged: int
    owed: int
    put_back: int
    streams: int
    faults: list[str]


class Machine:
    """One volume, the node on it, and what the node owes its publishers."""

    def __init__(self, volume: LoopVolume, boot: BootId, rng: random.Random) -> None:
        self.faults: list[str] = []
        self.acknowledged = 0
        self.put_back = 0  # records that only the journals had
        self.streams: set[str] = set()
        self.owed: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self._volume, self._boot, self._rng = volume, boot, rng
        self._boot_id = ""
        config = volume.path.parent / "node.toml"
        config.write_text(CONFIG)
        self._node = Node(volume.path / "data", "--config", str(config))
        self._node.log_path = volume.path.parent / "node.log"

    def round(self, what: str) -> None:
        """Starts the node, checks the messages it kept, loads it, and takes its power away."""
        self.start(what)
        try:
            self._load(what)
        finally:
            self._node.kill()
            self._volume.unmount()

    def start(self, what: str) -> None:
        """Begin another boot, or the same one again, and see what the last loss of power has left."""
        same_boot = self._boot_id != "" and self._rng.random() < 0.5
        if not same_boot:
            self._boot_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
            self._boot.set(self._boot_id)
        self._volume.mount()
        self.put_back += _only_in_journals(self._node.data)
        try:
            self._node.start()
            data = open_data_dir(self._node.data)
            faults = [*self._refused(data), *self._missing(data), *self._damaged(data)]
        except BaseException:
            self._node.kill()
            self._volume.unmount()
            raise
        boot = "the same boot" if same_boot else "another boot"
        self._note(f"{what}, {boot}: {fault}" for fault in faults)

    def stop(self) -> None:
        self._node.stop()
        self._volume.unmount()

    def _note(self, faults: Iterable[str]) -> None:
        """Print the first ones at once: a long run can be ended then."""
        for fault in faults:
            self.faults.append(fault)
            if len(self.faults) <= FAULTS_SHOWN:
                print(fault, flush=True)

    def _load(self, what: str) -> None:
        over: list[bool] = []
        seeds = [self._rng.random() for _ in POLICIES]
        publishers = [
            Publisher(self._node, policy, what.split()[1], random.Random(seed), lambda: bool(over))
            for policy, seed in zip(POLICIES, seeds, strict=True)
        ]
        for publisher in publishers:
            publisher.start()
        time.sleep(self._rng.uniform(*self._rng.choice((LOAD_S, LONG_LOAD_S))))
        self._write_some_back()
        over.append(True)  # before it is true: later refusals are not a fault
        self._volume.lose_power()
        self._node.kill()
        for publisher in publishers:
            publisher.join()
            self._note(f"{what}: {text}" for text in publisher.failures)
            self.acknowledged += len(publisher.acknowledged)
            self.streams.update(message.stream for message in publisher.acknowledged)
        for stream, seq, payload in publishers[POLICIES.index("always")].acknowledged:
            self.owed[stream][seq] = payload

    def _write_some_back(self) -> None:
        """As the kernel does: pages of some files in any order, and sometimes all that is in the log."""
        files = sorted((self._volume.path / "data").glob("shard-*/*.*"))
        for file in self._rng.sample(files, min(len(files), self._rng.randrange(WRITTEN_BACK_MAX))):
            with contextlib.suppress(FileNotFoundError):
                first = self._rng.randrange(file.stat().st_size // PAGE_BYTES + 1)
                write_back(file, first * PAGE_BYTES, self._rng.randint(1, PAGES_MAX) * PAGE_BYTES)
                if self._rng.randrange(4) == 0:
                    _sync(file)

    def _refused(self, data: DataDirectory) -> list[str]:
        """Streams that take no message. One after a failed sync may refuse while its messages are written again."""
        names = {name for _, name in all_streams(data)} | self.streams
        deadline_s = time.monotonic() + WRITTEN_AGAIN_S
        while refusals := self._publish_to(names):
            if time.monotonic() > deadline_s or not all(WRITING_TEXT in answer for answer in refusals):
                break
            time.sleep(WRITTEN_AGAIN_POLL_S)
        return [f"refused: {answer[:REFUSAL_BYTES]}" for answer in refusals]

    def _publish_to(self, names: set[str]) -> list[str]:
        """Publish a message to each stream, all at once; return the refusals. Streams that take it leave `names`."""
        with self._node.client() as client:
            client.send("ack on", *(b"pub %s |after" % name.encode() for name in sorted(names)))
            answers = client.read_answers(len(names) + 1)[1:]
        refusals = [answer for answer in answers if not answer.startswith("ok pub ")]
        names -= {answer.split()[2] for answer in answers if answer not in refusals}
        return refusals

    def _missing(self, data: DataDirectory) -> list[str]:
        """Messages that were acknowledged under `always` and are not in the log."""
        missing: list[str] = []
        for stream, owed in self.owed.items():
            try:
                found = self._payloads(data, stream)
            except (StorageError, OSError) as error:
                missing.append(f"lost: {stream}, {len(owed)} messages: {error}")
                continue
            seqs = [seq for seq, payload in owed.items() if found.get(seq) != payload]
            if seqs:
                missing.append(f"lost: {stream}, {len(seqs)} of {len(owed)} messages, the first is {min(seqs)}")
        return missing

    def _payloads(self, data: DataDirectory, stream: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        with StreamReader.open(data.stream_directory(stream), stream, boot_id=self._boot_id) as reader:
            place, end = reader.offset_of(reader.first_seq()), reader.offset_of(reader.next_seq())
            content = bytearray(end - place)
            reader.read_into(memoryview(content), place)
        place = 0
        while place < len(content):
            header = unpack_header(content, place)
            start = place + HEADER_BYTES + header.metadata_bytes
            found[header.seq] = bytes(content[start : place + header.length])
            place += header.length
        return found

    def _damaged(self, data: DataDirectory) -> list[str]:
        reports = check_data(data, boot_id=self._boot_id)
        return [f"damaged: {report.name}: {fault}" for report in reports for fault in report.faults]


def lose_power(kind: str, rounds: int, seed: int, directory: Path) -> Result:
    """In a mount namespace of its own. Raises CannotMount."""
    rng, boot = random.Random(seed), BootId(directory)
    machines: list[Machine] = []
    try:
        for first in range(0, rounds, ROUNDS_OF_A_VOLUME):
            machine = Machine(LoopVolume(kind, directory, IMAGE_BYTES), boot, rng)
            machines.append(machine)
            for number in range(first, min(rounds, first + ROUNDS_OF_A_VOLUME)):
                machine.round(f"round {number}")
            machine.start("the end")
            machine.stop()
            _report(f"{kind}: {min(rounds, first + ROUNDS_OF_A_VOLUME)} rounds", machines)
    finally:
        boot.close()
    return _sum(machines)


def _sum(machines: list[Machine]) -> Result:
    return Result(
        sum(machine.acknowledged for machine in machines),
        sum(len(owed) for machine in machines for owed in machine.owed.values()),
        sum(machine.put_back for machine in machines),
        sum(len(machine.streams) for machine in machines),
        [fault for machine in machines for fault in machine.faults],
    )


def _report(what: str, machines: list[Machine]) -> None:
    acknowledged, owed, put_back, streams, faults = _sum(machines)
    only = f"{put_back} records only in journals"
    print(f"{what}, {streams} streams, {acknowledged} acknowledged, {owed} under always, {only}, {len(faults)} faults")
    sys.stdout.flush()


def _only_in_journals(data: Path) -> int:
    """Records of journals whose frames are not in the content of their stream."""
    if not data.exists():
        return 0
    found = 0
    for record in (record for file in journal_files(data) for record in read_journal(file)):
        for content in data.glob(f"shard-*/{file_stem(record.name)}.content"):
            with content.open("rb") as file:
                found += os.pread(file.fileno(), len(record.frames), record.offset) != record.frames
    return found


def _sync(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def command(kind: str, rounds: int, seed: int) -> list[str]:
    """The command line of some rounds, in a mount namespace of their own. Raises CannotMount."""
    options = ["--file-system", kind, "--rounds", str(rounds), "--seed", str(seed), "--mounts-are-private"]
    return with_own_mounts(sys.executable, "-m", "tests.system.power_loss", *options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file-system", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--mounts-are-private", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if not options.mounts_are_private:
            own = command(options.file_system, options.rounds, options.seed)
            os.execvp(own[0], own)
        with tempfile.TemporaryDirectory(prefix="tailrace-power-") as directory:
            print(f"seed {options.seed}")
            result = lose_power(options.file_system, options.rounds, options.seed, Path(directory))
    except CannotMount as error:
        print(error)
        return EXIT_CANNOT_MOUNT
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
