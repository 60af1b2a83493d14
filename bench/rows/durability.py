"""What durability costs with many streams: a group of them should share what the disk takes for one."""

from __future__ import annotations

from functools import partial

from bench.figures import median
from bench.load.durability import acknowledged, disk_sync_s, synced
from bench.load.limits import LoadError
from bench.peers.base import Contestant, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import BenchRow, Measurement, RowRun

ROUNDS = 20
SHARES = (1, 10, 200)
FLUSHES_MS = (4, 10)  # a fast disk of a data centre without protection against power loss, and a slow one
STREAMS = 400
INTERVAL_MS = 10
_CONFIG = '[[stream]]\npattern = "*"\n'
_ALWAYS = f'{_CONFIG}durability = "always"\n'
_INTERVAL = f'{_CONFIG}durability = "interval"\ninterval_ms = {INTERVAL_MS}\n'


def always_row(flush_ms: int = 0) -> BenchRow:
    """With `flush_ms` on an emulated disk (`bench.peers.programs`), otherwise on the real one."""
    name = f"always-{SHARES[-1]}" + (f"-flush-{flush_ms}ms" if flush_ms else "")
    disk = f", emulated disk with a flush of {flush_ms} ms" if flush_ms else ""
    title = f"durability always{disk}: one publish to each of {SHARES[-1]} streams until all are acknowledged"
    measure, suited = partial(_measure_always, flush_ms=flush_ms), partial(_configured, _ALWAYS, flush_ms)
    return BenchRow(name, title, "durability", "ms", measure, lower_is_better=True, suited=suited)


def _configured(config: str, flush_ms: int, peer: Contestant) -> Contestant:
    return peer.changed(config=config, flush_ms=flush_ms) if isinstance(peer, Tailrace) else peer


def _measure_always(run: RowRun, flush_ms: int) -> Measurement:
    run.generate(acknowledged, stream_names(SHARES[-1]), ROUNDS)  # the workers make their journals meanwhile
    found_ms = {}
    for streams in SHARES:
        names = [f"{streams}.{name}" for name in stream_names(streams)]
        rounds_ms = [1e3 * seconds for seconds in run.generate(acknowledged, names, ROUNDS)]
        if min(rounds_ms) < flush_ms:
            raise LoadError(f"a round took {min(rounds_ms):.2f} ms, less than a flush of {flush_ms} ms")
        found_ms[streams] = median(rounds_ms)
    value = found_ms[SHARES[-1]]
    extras = {f"{streams}_streams_ms": found_ms[streams] for streams in SHARES}
    extras |= {"times_one_stream": value / found_ms[SHARES[0]], "disk_sync_ms": flush_ms + _disk_sync_ms(run)}
    if not flush_ms:  # appends to as many files and one sync, without a broker, and without a journal
        extras["bare_ms"] = 1e3 * disk_sync_s(run.server.site.directory, ROUNDS, SHARES[-1])
    return Measurement(value, 0.0, run.server.peak_rss_bytes(), extras)


def _disk_sync_ms(run: RowRun) -> float:
    return 1e3 * disk_sync_s(run.server.site.directory, ROUNDS)


def interval_row() -> BenchRow:
    title = f"durability interval, interval_ms = {INTERVAL_MS}: age of the oldest unsynced message of {STREAMS} streams"
    suited = partial(_configured, _INTERVAL, 0)
    return BenchRow(
        f"interval-{STREAMS}", title, "durability", "ms", _measure_interval, lower_is_better=True, suited=suited
    )


def _measure_interval(run: RowRun) -> Measurement:
    seconds = run.generate(synced, run.server.site.directory / "data", stream_names(STREAMS), ROUNDS)
    extras = {"median_ms": 1e3 * median(seconds), "disk_sync_ms": _disk_sync_ms(run)}
    return Measurement(1e3 * max(seconds), 0.0, run.server.peak_rss_bytes(), extras)
