"""Rows of subscribers and readers: fan-out, replay, durable consumers, and crowds of quiet connections."""

from __future__ import annotations

from functools import partial

from bench.figures import median
from bench.load.base import Stop
from bench.load.crowd import gather, quiet_after_s, settled_share
from bench.load.fanout import fan_out
from bench.load.limits import LoadError
from bench.load.reading import consume, consume_many, replay
from bench.load.tls import cipher_bytes_per_s
from bench.load.topics import one_of_many
from bench.peers.consuming import BATCH
from bench.peers.plain import BareSendfile
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import FILL_MESSAGES, STREAM, BenchRow, Measurement, RowRun, cpu_us, replay_messages, with_topics

_FEW_SUBSCRIBERS = 10
_CONSUMED_PART = 5  # of a gigabyte
QOS_1 = "-qos1"
"""In the name of a row whose subscribers acknowledge each message, by MQTT."""
_MESSAGES_LEAST = 1_000
"""To one of many subscribers, however long they take: of fewer the time shows what follows the joining of so many."""
_SMALL_BATCH, _SMALL_BATCHES = 50, 2  # messages; of each of many consumers


def fan_out_row(subscribers: int, qos: str = "") -> BenchRow:
    """One publisher, many subscribers of its stream, everything delivered to each. qos: QOS_1 or nothing."""
    measure, unit = partial(_measure_fan_out, subscribers=subscribers), "deliveries/s"
    title = f"fan-out, 1 to {subscribers:,}{qos and ', QoS 1'}"
    return BenchRow(f"fanout-{subscribers}{qos}", title, f"fanout{qos}", unit, measure, "delivery")


def _measure_fan_out(run: RowRun, subscribers: int) -> Measurement:
    done = run.generate(fan_out, STREAM, subscribers, Stop(seconds=run.scale.seconds))
    extras = {"published_per_s": done.messages / done.spent.wall_s}
    return run.measured(done.deliveries / done.spent.wall_s, done.spent, done.deliveries, extras)


def topics_row(subscribers: int, share: float = 1.0) -> BenchRow:
    """Many subscribers of a topic each, of one stream: a message is for one of them, and the next one waits for it.

    The figure is the processor time of a message, so that rows of different sizes can be compared.
    """
    measure = partial(_measure_topics, subscribers=max(1, int(subscribers * share)))
    title = f"topics, {subscribers:,} subscribers of one each, one message at a time"
    return BenchRow(f"topics-{subscribers}", title, "topics", "msg/s", measure, suited=with_topics)


def _measure_topics(run: RowRun, subscribers: int) -> Measurement:
    stop = Stop(seconds=run.scale.seconds, messages=_MESSAGES_LEAST)
    few = run.generate(one_of_many, _FEW_SUBSCRIBERS, stop, "few")
    done = run.generate(one_of_many, subscribers, stop, "many")
    times = cpu_us(done.spent, done.messages) / max(cpu_us(few.spent, few.messages), 1e-3)
    return run.measured(done.messages / done.spent.wall_s, done.spent, done.messages, {"times_10": times})


def replay_row(readers: int) -> BenchRow:
    """A stored stream is read from its beginning by one reader or several at once."""
    title = f"replay, {readers} reader{'s' if readers > 1 else ''}, all readers together, on the wire"
    return BenchRow(f"replay-{readers}", title, "replay", "MB/s", partial(_measure_replay, readers=readers))


def _measure_replay(run: RowRun, readers: int) -> Measurement:
    messages = replay_messages(run.scale, run.peer.replay_part)
    if not isinstance(run.peer, BareSendfile):
        run.fill(STREAM, messages)
    done = run.generate(replay, STREAM, messages, readers)
    extras = {"messages_per_s": done.messages / done.spent.wall_s}
    if run.peer.tls is not None:
        seconds_at_its_rate = done.wire_bytes / cipher_bytes_per_s()
        extras["cipher_rate_percent"] = 100 * seconds_at_its_rate / done.spent.wall_s
        if done.spent.cpu_s:  # it is counted in hundredths of a second
            extras["cipher_percent"] = 100 * seconds_at_its_rate / done.spent.cpu_s
    return run.measured(done.wire_bytes / done.spent.wall_s / 1e6, done.spent, done.messages, extras)


def consume_row() -> BenchRow:
    """A durable consumer acknowledges each batch together with its request for the next."""
    title = f"a durable consumer, batches of {BATCH:,}, finished one by one"
    return BenchRow("consume", title, "consume", "msg/s", _measure_consume)


def _measure_consume(run: RowRun) -> Measurement:
    messages = replay_messages(run.scale, _CONSUMED_PART * run.peer.replay_part)
    run.fill(STREAM, messages)
    spent = run.generate(consume, STREAM, messages)
    return run.measured(messages / spent.wall_s, spent, messages)


def many_consumers_row(consumers: int, share: float = 1.0) -> BenchRow:
    """Many durable consumers each take a few small batches of the same messages."""
    count = max(10, round(consumers * share))
    title = f"{count:,} durable consumers of one stream, batches of {_SMALL_BATCH}"
    measure = partial(_measure_many_consumers, consumers=count)
    return BenchRow(f"consumers-{consumers}", title, "consumers", "msg/s of all together", measure)


def _measure_many_consumers(run: RowRun, consumers: int) -> Measurement:
    if not isinstance(run.peer, TailraceBinary):
        raise LoadError(f"{run.peer.name} has no consumers here")
    run.fill(STREAM, FILL_MESSAGES)
    done = run.generate(consume_many, STREAM, consumers, _SMALL_BATCH * _SMALL_BATCHES, _SMALL_BATCH)
    per_s = done.messages / done.spent.wall_s
    extras = {"made_per_s": consumers / done.made_s, "gets_per_s": per_s / _SMALL_BATCH}
    return run.measured(per_s, done.spent, done.messages, extras)


def connections_row(connections: int, share: float = 1.0, *, long: bool = False, qos: str = "") -> BenchRow:
    """Very many connections subscribe to one stream and receive next to nothing.

    The name is that of a full run, so that --rows takes the same names for a quick one.
    """
    count = max(20, round(connections * share))
    measure = partial(_measure_connections, connections=count, long=long)
    title, unit = f"{count:,} quiet subscribers{qos and ', QoS 1'}", "ms until all have one message"
    name, kind = f"connections-{connections}{qos}", f"connections{qos}"
    return BenchRow(name, title, kind, unit, measure, "delivery", lower_is_better=True)


def _measure_connections(run: RowRun, connections: int, *, long: bool) -> Measurement:
    messages = run.scale.crowd_messages
    idle_s = run.scale.long_idle_seconds if long else run.scale.idle_seconds
    done = run.generate(gather, STREAM, connections, messages, idle_s)
    extras = {
        "slowest_ms": max(done.heard_s) * 1e3,
        "joined_per_s": done.joined_per_s,
        "resident_bytes_per_connection": done.resident_bytes,
        "idle_cpu_percent": 100 * settled_share(done.idle_shares),
        "quiet_after_s": quiet_after_s(done.idle_shares),
    }
    return run.measured(median(done.heard_s) * 1e3, done.spent, connections * messages, extras)
