"""Rows of latency at a steady rate: alone, beside noisy clients, and what publishers lose beside a rollup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from bench.figures import median, quantile
from bench.load.base import Stop
from bench.load.connecting import connecting, timed_connects
from bench.load.latency import Timed, latency
from bench.load.limits import Deadline, LoadError
from bench.load.noise import Script, claim, come_and_go, fill_streams, flooding, follow, make_streams, replaying
from bench.load.publishing import Pushed
from bench.load.rollups import Rollups
from bench.load.sockets import take_steps
from bench.peers.base import Contestant, RequestStep, stream_names
from bench.peers.tailrace import Tailrace
from bench.rows.base import BenchRow, Measurement, RowRun, replay_messages, total

WARM_MESSAGES = 50  # at the beginning of each pair, sent but not counted: the stream's making is not its latency
CONNECTS_PER_S, TIMED_CONNECTS_PER_S, CONNECTS_LEAST = 1_000, 100, 200
TIMED_FROM, CONNECTING_FROM = "127.0.0.3", "127.0.0.2"
NEIGHBOUR_RATE, FLOODED_RATE = 1_000, 500
# New pairs of connections one after the other: as many alone, and at least as many beside the noise.
NEIGHBOUR_SLICES, NEIGHBOUR_SLICES_MAX = 6, 500
FLOODED_SLICES = 3
STREAMS_PART = 10  # of the row of very many streams: these are closed and opened again and again
ROLLUP_SLICES_MIN, ROLLUP_SLICES_MAX = 4, 12  # of each kind, in turn; more of them until a rollup has ended
_ROLLUP_PARTS = 3  # of the time that an ingest takes in other rows
FLOODS: dict[str, tuple[str, Script]] = {
    "making": ("makes streams as fast as it can", make_streams),
    "subscribing": ("subscribes and unsubscribes over 10,000 closed streams", come_and_go),
    "claims": ("sends CLAIM as fast as it can", claim),
    "follows": ("sends FOLLOW over 10,000 streams as fast as it can", follow),
}


def latency_row(rate: int) -> BenchRow:
    """From `send` to `recv`, one publisher and one subscriber, several pairs of connections one after the other."""
    title, measure = f"latency end to end, 1 to 1, {rate:,} msg/s", partial(_measure_latency, rate=rate)
    return BenchRow(f"latency-{rate}", title, "latency", "median µs", measure, lower_is_better=True)


def _measure_latency(run: RowRun, rate: int) -> Measurement:
    pairs = [_slice(run, name, rate, run.scale.latency_pairs) for name in stream_names(run.scale.latency_pairs)]
    spent = total([pair.spent for pair in pairs])
    medians = [_quantile_us([pair], 0.5) for pair in pairs]
    count = sum(len(pair.latencies_ns) + WARM_MESSAGES for pair in pairs)
    extras = {
        "p99_us": _quantile_us(pairs, 0.99),
        "p99_9_us": _quantile_us(pairs, 0.999),
        "best_pair_us": min(medians),
        "worst_pair_us": max(medians),
        "max_us": _quantile_us(pairs, 1.0),
        "reached_per_s": count / spent.wall_s,
    }
    return run.measured(_quantile_us(pairs, 0.5), spent, count, extras)


def _slice(run: RowRun, name: str, rate: int, slices: int) -> Timed:
    """Time one of `slices` pairs of connections on a new stream; the first messages are not counted."""
    messages = WARM_MESSAGES + round(rate * run.scale.latency_seconds / slices)
    timed = run.generate(latency, name, rate, messages)
    return Timed(timed.latencies_ns[WARM_MESSAGES:], timed.spent)


def _quantile_us(slices: Sequence[Timed], share: float) -> float:
    return quantile([*chain.from_iterable(part.latencies_ns for part in slices)], share) / 1e3


def neighbour_row() -> BenchRow:
    """One subscriber is timed, alone and beside another that replays gigabytes, both on the only worker of a node."""
    title = f"latency of a subscriber at {NEIGHBOUR_RATE:,} msg/s beside one that replays without end, 1 worker"
    return BenchRow(
        "neighbour", title, "neighbour", "p99 µs", _measure_neighbour, lower_is_better=True, suited=_one_worker
    )


def _one_worker(peer: Contestant) -> Contestant:
    return peer.changed(workers=1) if isinstance(peer, Tailrace) else peer


def _measure_neighbour(run: RowRun) -> Measurement:
    noisy, *names = stream_names(1 + NEIGHBOUR_SLICES + NEIGHBOUR_SLICES_MAX)
    messages, load = replay_messages(run.scale), run.load
    run.fill(noisy, messages)
    alone = [_slice(run, name, NEIGHBOUR_RATE, NEIGHBOUR_SLICES) for name in names[:NEIGHBOUR_SLICES]]
    beside: list[Timed] = []
    with replaying(load, noisy, messages) as noise:
        for name in names[NEIGHBOUR_SLICES:]:
            beside.append(_slice(run, name, NEIGHBOUR_RATE, NEIGHBOUR_SLICES))
            if len(beside) >= NEIGHBOUR_SLICES and noise.nbytes >= run.scale.noise_bytes:
                break
            load.deadline.check(f"{noise.nbytes} of {run.scale.noise_bytes} bytes of noise")
        else:
            raise LoadError(f"the noise was not over after {NEIGHBOUR_SLICES_MAX} slices")
        noise_bytes, noise_per_s = noise.nbytes, noise.per_s()
    extras = _beside_extras(alone, beside, noise_per_s)
    extras |= {"p99_raised_us": _quantile_us(beside, 0.99) - extras["p99_alone_us"], "noise_bytes": noise_bytes}
    return _measured_beside(run, beside, alone, extras)


def _beside_extras(alone: list[Timed], beside: list[Timed], noise_per_s: float) -> dict[str, float]:
    return {
        "p50_us": _quantile_us(beside, 0.5),
        "p50_alone_us": _quantile_us(alone, 0.5),
        "p99_alone_us": _quantile_us(alone, 0.99),
        "noise_bytes_per_s": noise_per_s,
    }


def _measured_beside(run: RowRun, beside: list[Timed], metered: list[Timed], extras: dict[str, float]) -> Measurement:
    """The p99 beside the noise; the processor time of the slices `metered`."""
    spent, count = total([part.spent for part in metered]), sum(len(part.latencies_ns) for part in metered)
    return run.measured(_quantile_us(beside, 0.99), spent, count, extras)


def flooded_row(flood: str) -> BenchRow:
    """One subscriber is timed beside a client that makes the broker do expensive things without end."""
    what, _ = FLOODS[flood]
    title = f"latency of a subscriber at {FLOODED_RATE:,} msg/s beside a client that {what}"
    measure = partial(_measure_flooded, flood=flood)
    return BenchRow(f"beside-{flood}", title, "flooded", "p99 µs", measure, lower_is_better=True)


def _measure_flooded(run: RowRun, flood: str) -> Measurement:
    if not isinstance(run.peer, Tailrace):
        raise LoadError(f"{run.peer.name} does not take part in this")
    port, deadline = run.server.target.port, Deadline(run.scale.timeout_s)
    streams = run.scale.many_streams // STREAMS_PART
    if flood != "making":
        take_steps(port, [RequestStep(fill_streams(streams) + b"ping\r\n", b"ok pong\r\n")], deadline)

    def slices(names: Iterable[str]) -> list[Timed]:
        return [_slice(run, name, FLOODED_RATE, FLOODED_SLICES) for name in names]

    names = stream_names(2 * FLOODED_SLICES)
    alone = slices(names[:FLOODED_SLICES])
    with flooding(port, FLOODS[flood][1], streams, deadline) as noise:
        beside = slices(names[FLOODED_SLICES:])
        noise_per_s = noise.per_s()
    return _measured_beside(run, beside, beside, _beside_extras(alone, beside, noise_per_s))


def connecting_row() -> BenchRow:
    """Connecting from one address is timed, alone and while another address connects CONNECTS_PER_S times a second."""
    title = f"connecting from one address, while another makes {CONNECTS_PER_S:,} connections a second"
    return BenchRow(
        "beside-connecting", title, "flooded", "p99 µs", _measure_connecting, lower_is_better=True, suited=_bounded
    )


def _bounded(peer: Contestant) -> Contestant:
    return peer.changed(bounds_addresses=True) if isinstance(peer, Tailrace) else peer


def _measure_connecting(run: RowRun) -> Measurement:
    if not isinstance(run.peer, Tailrace):
        raise LoadError(f"{run.peer.name} does not take part in this")
    port, deadline = run.server.target.port, Deadline(run.scale.timeout_s)
    count = max(round(run.scale.latency_seconds * TIMED_CONNECTS_PER_S), CONNECTS_LEAST)

    def timed() -> list[float]:
        times_ns = run.generate(timed_connects, TIMED_FROM, count, TIMED_CONNECTS_PER_S)
        return [each / 1e3 for each in times_ns]

    alone = timed()
    meter = run.load.meter()
    with connecting(port, CONNECTING_FROM, CONNECTS_PER_S, deadline) as noise:
        beside = timed()
        made_per_s = noise.per_s()
    extras = {
        "p50_us": quantile(beside, 0.5),
        "p50_alone_us": quantile(alone, 0.5),
        "p99_alone_us": quantile(alone, 0.99),
        "connects_per_s": made_per_s,
    }
    return run.measured(quantile(beside, 0.99), meter.stop(), count, extras)


def beside_rollup_row() -> BenchRow:
    """Ingest in slices, in turn beside rollups of the same node's data and while these are suspended."""
    title = "acknowledged ingest beside a rollup of the same node, against alone"
    return BenchRow("beside-rollup", title, "beside-rollup", "% slower", _measure_beside_rollup, lower_is_better=True)


def _measure_beside_rollup(run: RowRun) -> Measurement:
    if not isinstance(run.peer, Tailrace):
        raise LoadError(f"{run.peer.name} has no files that Spark could read")
    filled, *names = stream_names(1 + 2 * ROLLUP_SLICES_MAX)
    run.ingest([filled], run.feed([filled], run.scale.feed_bytes), Stop(messages=replay_messages(run.scale)))
    alone: list[Pushed] = []
    beside: list[Pushed] = []
    deadline, fresh, directory = Deadline(run.scale.timeout_s), iter(names), run.server.site.directory
    with Rollups(directory / "data", directory / "rollups") as rollups:
        while len(beside) < ROLLUP_SLICES_MIN or (not rollups.finished and len(beside) < ROLLUP_SLICES_MAX):
            deadline.check("a rollup is to end")
            beside.append(_ingest_slice(run, next(fresh)))
            with rollups.suspended():
                alone.append(_ingest_slice(run, next(fresh)))
            rollups.go_on()
        finished = rollups.finished
    alone_per_s, beside_per_s = _median_per_s(alone), _median_per_s(beside)
    extras = {"alone_per_s": alone_per_s, "beside_per_s": beside_per_s, "rollups": float(finished)}
    spent, count = total([part.spent for part in beside]), sum(part.messages for part in beside)
    return run.measured(100 * (1 - beside_per_s / alone_per_s), spent, count, extras)


def _median_per_s(parts: Sequence[Pushed]) -> float:
    return median([part.messages / part.spent.wall_s for part in parts])


def _ingest_slice(run: RowRun, name: str) -> Pushed:
    stop = Stop(seconds=run.scale.seconds / _ROLLUP_PARTS)
    pushed = run.ingest([name], run.feed([name], run.scale.feed_bytes), stop)
    run.check_stored(name, pushed.stored)
    return pushed
