"""A live query over very many streams: what a trigger costs in which little has changed, and what a batch puts into the
checkpoint. Without Spark: the calls that it makes, with offsets that go through JSON.

    python -m bench.load.many_live DIR [--streams 100000] [--triggers 8] [--random] [--checkpoint FOLDER] [--read]
    python -m bench.load.many_live DIR --brokers HOST:PORT [...]

DIR gets the data, and stays. Between two triggers ten of the streams grow. With --random names are random, of 128 bits;
with --checkpoint they are in a file of that folder. With --read all messages of each batch are read, too. With
--brokers the query is over a connection to a broker that runs on DIR.
"""

from __future__ import annotations

import hashlib
import json
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructType

import tailrace
from tailrace.shard.directory import DataDirectory, make_data_dir, open_data_dir
from tailrace.shard.frame import pack_frame
from tailrace.shard.header import read_boot_id
from tailrace.shard.log import StreamLog
from tailrace.spark.live import TailraceStreamReader
from tailrace.spark.options import parse_options
from tailrace.spark.scan import SETTLE_S

SHARDS: Final = 16
GROWN: Final = 10
SCHEMA: Final = StructType().add("stream", StringType()).add("seq", LongType())


def name_of(number: int, *, is_random: bool) -> str:
    return f"device.{hashlib.md5(b'%d' % number).hexdigest() if is_random else f'{number:06d}'}"


def grow(data: DataDirectory, name: str, messages: int) -> None:
    """Append to a stream, which is made if it is not there."""
    log = StreamLog.open(data.stream_directory(name), name, create=True, boot_id=read_boot_id())
    for _ in range(messages):
        log.append(bytearray(pack_frame(b"23.5")), 1, time.time_ns() // 1_000, 1)
    log.close()


def publish(brokers: str, names: Sequence[str]) -> None:
    with tailrace.connect(brokers) as client:
        for name in names:
            client.publish(name, b"23.5")


@contextmanager
def took(seconds: list[tuple[float, float]]) -> Iterator[None]:
    """By the clock, and of processor time."""
    begun_s, own_s = time.perf_counter(), time.process_time()
    yield
    seconds.append((time.perf_counter() - begun_s, time.process_time() - own_s))


def read_all(reader: TailraceStreamReader, tasks: list[InputPartition]) -> int:
    return sum(batch.num_rows for task in tasks for batch in reader.read(task))


def main(
    folder: Path,
    streams: int,
    triggers: int,
    *,
    is_random: bool = False,
    checkpoint: str = "",
    brokers: str = "",
    reads: bool = False,
) -> None:
    if not folder.exists():
        made = make_data_dir(folder, SHARDS)
        for number in range(streams):
            grow(made, name_of(number, is_random=is_random), 1 + number % 3)
        time.sleep(SETTLE_S)
    data = open_data_dir(folder)
    place = {"brokers": brokers} if brokers else {"path": str(folder)}
    reader = TailraceStreamReader(parse_options({**place, "checkpointLocation": checkpoint}), SCHEMA)
    done = json.dumps(reader.initialOffset())
    for trigger in range(triggers):
        seconds: list[tuple[float, float]] = []
        with took(seconds):
            end = json.dumps(reader.latestOffset(json.loads(done), ReadAllAvailable()))
        with took(seconds):
            tasks = reader.partitions(json.loads(done), json.loads(end)) if end != done else []
        with took(seconds):
            json.dumps(reader.reportLatestOffset())
        with took(seconds):
            rows = read_all(reader, tasks) if reads else 0
        calls = zip(("latestOffset", "partitions", "reportLatestOffset", f"{rows:,} rows read"), seconds, strict=True)
        times = ", ".join(f"{name} {clock_s:.2f} s ({own_s:.2f} s processor)" for name, (clock_s, own_s) in calls)
        print(f"trigger {trigger}: {times}, checkpoint {len(end):,} bytes, {len(tasks)} tasks", flush=True)
        done = end
        names = [name_of((trigger * 977 + number * 31) % streams, is_random=is_random) for number in range(GROWN)]
        if brokers:
            publish(brokers, names)
        for name in names if not brokers else ():
            grow(data, name, 1)
        time.sleep(SETTLE_S if trigger < 2 else 0)
    reader.stop()


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--triggers", type=int, default=8)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--brokers", default="")
    parser.add_argument("--read", action="store_true")
    given = parser.parse_args()
    main(
        given.directory,
        given.streams,
        given.triggers,
        is_random=given.random,
        checkpoint=given.checkpoint,
        brokers=given.brokers,
        reads=given.read,
    )
