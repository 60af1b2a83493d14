"""Measures by hand what a replay of one rare topic of a long stream costs, without and with the stream's topic index.

    python -m tests.system.topic_replay --directory /var/tmp/replay --bytes 10000000000 --topics 10000

makes a stream of messages of 100 bytes, on topics in random order, and prints for each replay its time and the bytes of
the log and the index that the broker has looked at, as it counts them in /metrics. The directory is removed at the end.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path
from typing import Final

import msgpack

from tailrace.shard.directory import make_data_dir
from tailrace.shard.frame import pack_frame
from tailrace.shard.log import StreamLog
from tests.system.node import Node, wait_for

STREAM: Final = "d"
BOOT: Final = "another boot"
BATCH_MESSAGES: Final = 20_000
BATCHES_MADE: Final = 40
"""Different ones; then they are used again, in random order."""
PATIENCE_S: Final = 100.0


def fill(directory: Path, nbytes: int, topics: int, wanted: str) -> tuple[int, int]:
    """Gives how many messages there are of the wanted topic, and how many bytes of frames in all."""
    chance, data = random.Random(18), make_data_dir(directory, 1)
    batches: list[tuple[bytes, int]] = []
    for _ in range(BATCHES_MADE):
        names = [f"{STREAM}/{chance.randrange(topics)}" for _ in range(BATCH_MESSAGES)]
        packed = [pack_frame(bytes(100), metadata=msgpack.packb({"t": name})) for name in names]
        batches.append((b"".join(packed), names.count(wanted)))
    log = StreamLog.open(data.stream_directory(STREAM), STREAM, create=True, boot_id=BOOT)
    found = 0
    while log.end_offset < nbytes:
        frames, count = chance.choice(batches)
        log.append(bytearray(frames), BATCH_MESSAGES, time.time_ns() // 1_000, 1)
        found += count
    log.sync()
    log.close()
    return found, log.end_offset


def replay(node: Node, topic_filter: str, count: int, text: str) -> None:
    before = [node.metric(f"tailrace_topic_{name}_bytes_total") for name in ("scanned", "skipped")]
    with node.client() as client:
        begin_s = time.monotonic()
        client.send(f"sub {STREAM} 0 topics {topic_filter}")
        client.read_messages(count, PATIENCE_S)
        took_s = time.monotonic() - begin_s
        time.sleep(2.5)  # until the counters are stored
        assert len(client.messages) == count
    after = [node.metric(f"tailrace_topic_{name}_bytes_total") for name in ("scanned", "skipped")]
    looked, skipped = (new - old for new, old in zip(after, before, strict=True))
    print(
        f"{text}: {took_s:.3f} s, {count:,} messages, {looked:,.0f} bytes looked at, {skipped:,.0f} passed over",
        flush=True,
    )


def wait_for_index(directory: Path, node: Node) -> None:
    """Until it has not grown for a while."""
    sizes: list[int] = []

    def is_still() -> bool:
        found = list(directory.glob("shard-*/*.topics"))
        sizes.append(found[0].stat().st_size if found else 0)
        time.sleep(1.0)
        return len(sizes) > 4 and sizes[-1] > 0 and len(set(sizes[-4:])) == 1

    begin_s = time.monotonic()
    wait_for(is_still, "the index", PATIENCE_S)
    print(f"the index: {sizes[-1]:,} bytes, made in about {time.monotonic() - begin_s - 4:.0f} s more", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--topics", type=int, default=10_000)
    given = parser.parse_args()
    wanted, data = f"{STREAM}/77", given.directory / "data"
    try:
        given.directory.mkdir(parents=True)
        begin_s = time.monotonic()
        count, nbytes = fill(data, given.bytes, given.topics, wanted)
        print(f"{nbytes:,} bytes of log, made in {time.monotonic() - begin_s:.0f} s", flush=True)
        node = Node(data, workers=1).start()
        try:
            replay(node, wanted, count, "without an index")
            wait_for_index(data, node)
            for _ in range(3):
                replay(node, wanted, count, "with it")
            replay(node, f"{wanted}/#", count, "with it, of all below the topic")
        finally:
            node.stop()
    finally:
        shutil.rmtree(given.directory)


if __name__ == "__main__":
    main()
