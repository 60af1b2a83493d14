"""The way of a worker's numbers into prometheus's text, through the shared files."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from tailrace.broker.process import metrics_export
from tailrace.broker.process.metrics import MAX_LABEL_VALUES, MAX_NODES, OTHER, SlaveMeasures, WorkerMetrics
from tailrace.broker.process.metrics_export import (
    FILE_BYTES,
    LANES_MAX,
    PrometheusSink,
    make_directory,
    open_metrics,
    remove_directory,
    sweep_dead_gauges,
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Mapped(MmapedDict):
    """One that can be found again: the library keeps its files to itself, until the process ends."""

    opened: ClassVar[list[Mapped]] = []

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)  # type: ignore[no-untyped-call]
        self.opened.append(self)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a sink sets for its process, and close its files."""
    monkeypatch.setenv(metrics_export.DIRECTORY_VARIABLE, "/nonexistent")
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    monkeypatch.setattr(values, "MmapedDict", Mapped)
    yield
    while Mapped.opened:
        Mapped.opened.pop().close()  # type: ignore[no-untyped-call]


@pytest.fixture
def open_worker(tmp_path: Path) -> Iterator[Callable[[int], WorkerMetrics]]:
    opened: list[WorkerMetrics] = []

    def open_one(slot: int) -> WorkerMetrics:
        opened.append(open_metrics(tmp_path, slot, ("name", "size")))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def text(directory: Path) -> str:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
    return generate_latest(registry).decode()


def scrape(directory: Path) -> Samples:
    sweep_dead_gauges(directory)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text(directory))
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[(name, tuple(sorted(labels.items())))]


def test_every_number_reaches_the_text(tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]) -> None:
    metrics = open_worker(0)
    expected: dict[tuple[str, str], float] = {}
    traffic = [
        (f"{name}_total", protocol, getattr(metrics, protocol), attribute)
        for name, attribute, _ in metrics_export.TRAFFIC
        for protocol in metrics_export.PROTOCOLS
    ]
    tables = (
        [(f"{name}_total", "", metrics, attribute) for name, attribute, _ in metrics_export.COUNTERS]
        + traffic
        + [(name, "", metrics, attribute) for name, attribute, _, _ in metrics_export.GAUGES]
    )
    for number, (name, protocol, holder, attribute) in enumerate(tables, start=100):
        setattr(holder, attribute, number)
        expected[name, protocol] = number
    metrics.flush()
    shown = {(name, dict(labels).get("protocol", "")): number for (name, labels), number in scrape(tmp_path).items()}
    assert expected.items() <= shown.items()


def test_every_field_of_a_worker_is_published() -> None:
    """A number that is counted and never shown is a number nobody sees."""
    published = {row[1] for row in (*metrics_export.COUNTERS, *metrics_export.TALLIES, *metrics_export.TIMINGS)}
    published |= {row[1] for row in (*metrics_export.GAUGES, *metrics_export.LABELLED_GAUGES)}
    published |= {*metrics_export.PROTOCOLS, "slaves"}
    assert {row[1] for row in metrics_export.SLAVE_GAUGES} == set(SlaveMeasures.__slots__)
    assert published == {name for name in WorkerMetrics.__slots__ if not name.startswith("_")}


def test_counters_grow_by_what_was_added_since_the_last_flush(
    tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]
) -> None:
    metrics = open_worker(0)
    for _ in range(3):
        metrics.line.messages_in += 5
        metrics.refused.add("size", 2)
        metrics.flush()
        metrics.flush()
    samples = scrape(tmp_path)
    assert value(samples, "tailrace_received_messages_total", protocol="line") == 15
    assert value(samples, "tailrace_refused_commands_total", code="size") == 6
    assert value(samples, "tailrace_refused_commands_total", code="name") == 0


def test_histogram_through_the_librarys_own_exposition(
    tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]
) -> None:
    metrics = open_worker(0)
    for _ in range(2):
        metrics.append.observe(0.000_02)
        metrics.append.observe(0.3)
        metrics.append.observe(99.0)
        metrics.flush()
    samples = scrape(tmp_path)
    assert value(samples, "tailrace_append_seconds_count") == 6
    assert value(samples, "tailrace_append_seconds_sum") == pytest.approx(2 * 99.300_02)
    assert value(samples, "tailrace_append_seconds_bucket", le="1e-05") == 0
    assert value(samples, "tailrace_append_seconds_bucket", le="2.5e-05") == 2
    assert value(samples, "tailrace_append_seconds_bucket", le="0.5") == 4
    assert value(samples, "tailrace_append_seconds_bucket", le="10.0") == 4
    assert value(samples, "tailrace_append_seconds_bucket", le="+Inf") == 6
    assert value(samples, "tailrace_commit_seconds_count") == 0


def test_workers_add_up_and_the_greatest_lag_is_the_greatest(
    tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]
) -> None:
    for slot, lag in enumerate((7, 900, 0)):
        metrics = open_worker(slot)
        metrics.connections = 10
        metrics.lag_bytes_max = lag
        metrics.appended_messages += 1
        metrics.flush()
    samples = scrape(tmp_path)
    assert value(samples, "tailrace_connections") == 30
    assert value(samples, "tailrace_lag_bytes") == 900
    assert value(samples, "tailrace_appended_messages_total") == 3


def test_a_parked_reason_that_is_gone_goes_to_zero(tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]) -> None:
    metrics = open_worker(0)
    metrics.parked = {"caught_up": 4, "socket_full": 1}
    metrics.flush()
    metrics.parked = {"caught_up": 5}
    metrics.flush()
    samples = scrape(tmp_path)
    assert value(samples, "tailrace_parked_cursors", reason="caught_up") == 5
    assert value(samples, "tailrace_parked_cursors", reason="socket_full") == 0


def test_other_nodes_are_shown_by_their_ids_and_bounded(
    tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]
) -> None:
    workers = []
    for slot, lag_s in ((0, 1.5), (1, 2.5)):
        workers.append(open_worker(slot))  # what has a label is made at the first flush, by the last that was opened
        workers[slot].slaves = {"b": SlaveMeasures(3, 2, 5, 500, lag_s)}
        workers[slot].flush()
    samples = scrape(tmp_path)
    names = ("streams", "caught_up_streams", "lag_messages", "lag_bytes", "lag_seconds")
    shown = [value(samples, f"tailrace_slave_{name}", node="b") for name in names]
    assert shown == [6, 4, 10, 1_000, 2.5]
    workers[1].slaves = {f"n{number}": SlaveMeasures(1) for number in range(MAX_NODES + 3)}
    workers[1].flush()
    samples = scrape(tmp_path)
    assert value(samples, "tailrace_slave_streams", node="b") == 3, "it is gone from one of the two"
    assert value(samples, "tailrace_slave_streams", node=OTHER) == 4
    assert len([name for name, _labels in samples if name == "tailrace_slave_streams"]) == MAX_NODES + 1


def test_a_restarted_worker_continues_its_counters_and_not_its_gauges(
    tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]
) -> None:
    first = open_worker(3)
    first.appended_messages = 10
    first.connections = 5
    first.close()
    gone = scrape(tmp_path)
    assert value(gone, "tailrace_appended_messages_total") == 10
    assert ("tailrace_connections", ()) not in gone

    second = open_worker(3)
    second.appended_messages += 1
    second.connections = 2
    second.flush()
    samples = scrape(tmp_path)
    assert value(samples, "tailrace_appended_messages_total") == 11
    assert value(samples, "tailrace_connections") == 2
    assert len(list(tmp_path.glob("counter_*.db"))) == 1


def test_two_workers_of_one_slot_never_share_files(tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]) -> None:
    """A rolling replacement: the new worker is proven ready while the old one still serves."""
    old, new = open_worker(1), open_worker(1)
    for _ in range(5):
        old.appended_messages += 1
        old.flush()
        new.appended_messages += 1
        new.flush()
    assert value(scrape(tmp_path), "tailrace_appended_messages_total") == 10


def test_a_killed_workers_gauges_are_swept(tmp_path: Path) -> None:
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        metrics = open_metrics(tmp_path, 0)
        metrics.connections = 9
        metrics.appended_messages = 4
        metrics.flush()
        os.write(ready_write, b"!")
        os.read(os.pipe()[0], 1)  # for ever
        os._exit(1)
    try:
        assert os.read(ready_read, 1) == b"!"
        assert value(scrape(tmp_path), "tailrace_connections") == 9
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready_read)
        os.close(ready_write)
    samples = scrape(tmp_path)
    assert ("tailrace_connections", ()) not in samples
    assert value(samples, "tailrace_appended_messages_total") == 4


def test_lanes_run_out_with_a_clear_error(tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]) -> None:
    for _ in range(LANES_MAX):
        open_worker(0)
    with pytest.raises(RuntimeError, match=r"all 8 metrics lanes of slot 0 .* are taken"):
        open_worker(0)


def test_a_full_set_of_values_fits_the_preallocated_files(tmp_path: Path) -> None:
    """Beyond the preallocated bytes the library would grow a sparse file, where a full tmpfs is a SIGBUS."""
    metrics = open_metrics(tmp_path, 0)
    for number in range(MAX_LABEL_VALUES + 1):
        metrics.refused.add(f"unavailable{number:04}")
        metrics.dropped.add(f"unavailable{number:04}")
        metrics.parked[f"unavailable{number:04}"] = 1
        metrics.copies[f"setting aside{number:04}"] = 1
        metrics.upstream_links[f"broker-{number:04}.example.com:5050"] = 1
        metrics.upstream_links_up[f"broker-{number:04}.example.com:5050"] = 1
        metrics.slaves[f"{number:016x}"] = SlaveMeasures(1, 1, 1, 1, 1.0)
    metrics.close()
    for path in tmp_path.glob("*.db"):
        assert path.stat().st_size == FILE_BYTES
        assert path.stat().st_blocks * 512 >= FILE_BYTES
        assert struct.unpack_from("i", path.read_bytes())[0] < FILE_BYTES - mmap.PAGESIZE


def test_no_memory_is_an_error_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        PrometheusSink(tmp_path, 0)
    monkeypatch.undo()
    assert PrometheusSink(tmp_path, 0).lane == "0.0"  # the lane of the failed one was given back


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say(tmp_path: Path, open_worker: Callable[[int], WorkerMetrics]) -> None:
    metrics = open_worker(0)
    metrics.parked = {"caught_up": 1}
    metrics.dropped.add("stalled")
    metrics.flush()
    told = subprocess.run(
        ["promtool", "check", "metrics"], input=text(tmp_path), capture_output=True, text=True, timeout=30, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_the_directory_is_wiped_private_and_the_same_for_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    first = make_directory(tmp_path / "data")
    (first / "counter_0.0.db").write_bytes(b"old")
    again = make_directory(tmp_path / "data")
    assert again == first
    assert [path.name for path in again.iterdir()] == [metrics_export.OWNER_LOCK]
    assert again.stat().st_mode & 0o777 == 0o700
    assert make_directory(tmp_path / "other") != first
    remove_directory(first)
    remove_directory(first)
    assert not first.exists()


def test_a_planted_name_is_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    expected = make_directory(tmp_path / "data")
    remove_directory(expected)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("keep")
    expected.symlink_to(victim)
    assert make_directory(tmp_path / "data") != expected
    assert (victim / "precious").read_text() == "keep"


def test_what_killed_nodes_left_is_swept_and_what_others_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    in_use = make_directory(tmp_path / "in use")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(0 if make_directory(tmp_path / "abandoned").exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.glob("tailrace-*"))) == 2
    mine = make_directory(tmp_path / "mine")
    assert set(tmp_path.glob("tailrace-*")) == {in_use, mine}


def test_a_directory_that_is_swept_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    real_flock = fcntl.flock
    swept: list[Path] = []

    def flock(fd: int, operation: int) -> None:
        """Another node's sweep comes between the making and the locking, twice."""
        if len(swept) < 2 and not operation & fcntl.LOCK_NB:
            (path,) = tmp_path.glob("tailrace-*")
            shutil.rmtree(path)
            swept.append(path)
        real_flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    made = make_directory(tmp_path / "data")
    assert made.exists()
    assert swept == [made, made]


def test_a_directory_that_is_always_swept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(metrics_export, "_claim", lambda _directory: False)
    with pytest.raises(OSError, match="swept away by another node each time"):
        make_directory(tmp_path / "data")
