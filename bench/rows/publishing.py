"""Rows of publishers: one connection or many, one stream or many, plain or numbered, and very many streams."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial

from bench.load.base import Stop
from bench.load.clients import TASKS, publish_by_client
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Spent
from bench.load.publishing import Pushed, ingest_feeds, turns
from bench.peers.base import RequestFeed, stream_names, topic_names
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import STREAM, BenchRow, Measurement, RowRun, cpu_us, total, with_topics
from bench.server import START_TIMEOUT_S, PeerServer

_BATCH_MESSAGES = 100  # of the round-robin
_ROUND_ROBIN_TURNS = 2  # one stream, many streams, one stream, many streams: the machine's changes affect both alike
_NUMBERING_TURNS = 4  # plain, numbered, plain, numbered, ...
_REQUESTS_PER_S = 40_000  # roughly, of one message; of larger requests fewer are sent
_FEED_REQUESTS = 500
_COMPARED_MESSAGES = 5_000  # at least, whose processor time is some of the kernel's steps of 10 ms
_PROBE_S = 0.02
_HOW = {
    "wait": "a thread that waits for each answer",
    "tasks": f"{TASKS} tasks of asyncio that wait for their answers",
    "silent": "no answers",
}


def ingest_row(streams: int) -> BenchRow:
    """One connection publishes as fast as it can, to one stream or round-robin over many."""
    where = "1 stream" if streams == 1 else f"{streams:,} streams in turn"
    measure = partial(_measure_ingest, streams=streams)
    return BenchRow(f"ingest-{streams}", f"ingest, 1 connection, {where}", "ingest", "msg/s", measure)


def _measure_ingest(run: RowRun, streams: int) -> Measurement:
    names = stream_names(streams)
    pushed = run.ingest(names, run.full_feed(names), Stop(seconds=run.scale.seconds), warm=run.feed(names))
    return _measured(run, names, pushed)


def _measured(run: RowRun, names: list[str], pushed: Pushed) -> Measurement:
    run.check_stored(names[-1], pushed.stored // len(names))
    return run.measured(_per_s([pushed]), pushed.spent, pushed.messages)


def turns_row(name: str, connections: int, streams: int) -> BenchRow:
    """Connections publish one message each in turn, all to one stream or each to its own.

    The name is that of a full run, so that --rows takes the same names for a quick one.
    """
    where = "1 stream" if streams == 1 else "a stream each"
    title = f"ingest, {connections:,} connections, one message each in turn, {where}"
    return BenchRow(name, title, "turns", "msg/s", partial(_measure_turns, connections=connections, streams=streams))


def _measure_turns(run: RowRun, connections: int, streams: int) -> Measurement:
    names = stream_names(streams)
    return _measured(run, names, run.generate(turns, names, connections, Stop(seconds=run.scale.seconds)))


def ingest_topics_row(topics: int) -> BenchRow:
    """One connection publishes to very many topics of one stream in turn, one message a request."""
    measure = partial(_measure_ingest_topics, topics=topics)
    title = f"ingest, 1 connection, {topics:,} topics of one stream in turn"
    return BenchRow("ingest-topics", title, "ingest-topics", "msg/s", measure, suited=with_topics)


def _measure_ingest_topics(run: RowRun, topics: int) -> Measurement:
    names = topic_names(topics)
    feed = run.feed(names, run.scale.feed_bytes, 0, 1)
    pushed = run.ingest(names, feed, Stop(seconds=run.scale.seconds), warm=feed)
    run.check_stored("b", pushed.stored)
    return run.measured(_per_s([pushed]), pushed.spent, pushed.messages)


def topics_turns_row(connections: int) -> BenchRow:
    """Connections publish one message each in turn, to a topic each of one stream; the same without topics before."""
    title = f"ingest, {connections:,} connections, one message each in turn, a topic each of one stream"
    measure = partial(_measure_topics_turns, connections=connections)
    return BenchRow("topics-turns-1000", title, "topics-turns", "msg/s", measure, suited=with_topics)


def _measure_topics_turns(run: RowRun, connections: int) -> Measurement:
    stop = Stop(seconds=run.scale.seconds, messages=_COMPARED_MESSAGES)
    plain = run.generate(turns, [STREAM], connections, stop)
    pushed = run.generate(turns, topic_names(connections), connections, stop)
    run.check_stored("b", pushed.stored)
    times = cpu_us(pushed.spent, pushed.messages) / max(cpu_us(plain.spent, plain.messages), 1e-3)
    return run.measured(_per_s([pushed]), pushed.spent, pushed.messages, {"times_one_stream": times})


def client_row(how: str) -> BenchRow:
    """Publishing to one stream by each broker's own Python client; `how` as for `publish_by_client`."""
    title = f"Python clients, {_HOW[how]}"
    return BenchRow(f"client-{how}", title, f"client-{how}", "msg/s", partial(_measure_client, how=how))


def _measure_client(run: RowRun, how: str) -> Measurement:
    pushed, client_cpu_s = run.generate(publish_by_client, how, STREAM, Stop(seconds=run.scale.seconds))
    run.check_stored(STREAM, pushed.stored)
    extras = {"client_cpu_us": client_cpu_s / pushed.messages * 1e6}
    return run.measured(_per_s([pushed]), pushed.spent, pushed.messages, extras)


def round_robin_row(streams: int) -> BenchRow:
    """The cost of publishing to many streams in turn instead of to one.

    Peers that take one message at a time get one message per stream in turn; those that take batches get one batch per
    stream in turn, of the same size as the one stream does.
    """
    title = f"ingest, 1 connection, {streams:,} streams in turn against 1 stream"
    measure = partial(_measure_round_robin, streams=streams)
    return BenchRow("streams-1000", title, "round-robin", "times slower than 1 stream", measure, lower_is_better=True)


def _measure_round_robin(run: RowRun, streams: int) -> Measurement:
    *many, one = stream_names(streams + 1)
    pushed: dict[str, list[Pushed]] = {"one": [], "many": []}
    both = (("one", [one]), ("many", many))
    for _ in range(_ROUND_ROBIN_TURNS):
        for key, names in both:
            feed = run.feed(names, 0, min(_BATCH_MESSAGES, run.peer.batch_max) * len(names), _BATCH_MESSAGES)
            stop = Stop(seconds=run.scale.seconds / _ROUND_ROBIN_TURNS)
            pushed[key].append(run.ingest(names, feed, stop, warm=run.feed(names)))
    for key, names in both:
        run.check_stored(names[-1], sum(part.stored for part in pushed[key]) // len(names))
    one_per_s, many_per_s = _per_s(pushed["one"]), _per_s(pushed["many"])
    extras = {"one_per_s": one_per_s, "many_per_s": many_per_s}
    return run.measured(one_per_s / many_per_s, *_spent(pushed["many"]), extras)


def idempotence_row(batch_messages: int) -> BenchRow:
    """The cost of numbered publishes: numbers let the broker recognise repeats.

    Requests of `batch_messages`, all acknowledged, to a new stream in each turn.
    """
    title = f"acknowledged ingest, {batch_messages} to a request, numbered against plain"
    measure, unit = partial(_measure_idempotence, batch_messages=batch_messages), "times slower than plain"
    return BenchRow(f"idempotence-{batch_messages}", title, "idempotence", unit, measure, lower_is_better=True)


def _measure_idempotence(run: RowRun, batch_messages: int) -> Measurement:
    if not isinstance(run.peer, TailraceBinary):
        raise LoadError(f"{run.peer.name} has no numbers here")
    pushed: dict[bool, list[Pushed]] = {False: [], True: []}
    for turn, name in enumerate(stream_names(2 * _NUMBERING_TURNS)):
        numbered = turn % 2 == 1
        feeds = _numbered_feeds(run, run.peer, name, batch_messages, numbered=numbered)
        pushed[numbered].append(run.generate(ingest_feeds, [name], feeds))
        run.check_stored(name, pushed[numbered][-1].stored)
    plain_per_s, numbered_per_s = _per_s(pushed[False]), _per_s(pushed[True])
    extras = {"plain_per_s": plain_per_s, "numbered_per_s": numbered_per_s}
    extras["plain_cpu_us"] = cpu_us(*_spent(pushed[False]))
    return run.measured(plain_per_s / numbered_per_s, *_spent(pushed[True]), extras)


def _numbered_feeds(run: RowRun, peer: TailraceBinary, name: str, count: int, *, numbered: bool) -> list[RequestFeed]:
    """All requests, made before they are timed: each has numbers of its own."""
    payload = run.payload
    requests = int(run.scale.seconds / _NUMBERING_TURNS * _REQUESTS_PER_S / count**0.5) // _FEED_REQUESTS + 1
    feeds = []
    for first in range(0, requests * _FEED_REQUESTS, _FEED_REQUESTS):
        numbers = range(first * count, (first + _FEED_REQUESTS) * count, count)
        if numbered:
            data = b"".join(peer.publish_numbered(name, payload, count, number) for number in numbers)
        else:
            data = peer.publish_many(name, payload, count) * _FEED_REQUESTS
        feeds.append(RequestFeed(data, _FEED_REQUESTS * count, _FEED_REQUESTS))
    return feeds


def streams_row(streams: int) -> BenchRow:
    """Very many streams on one node: publishing to all of them, what an idle one costs, and starting again."""
    title = f"ingest, 1 connection, {streams:,} streams in turn"
    return BenchRow("streams", title, "streams", "msg/s", partial(_measure_streams, streams=streams))


def _measure_streams(run: RowRun, streams: int) -> Measurement:
    names, server = stream_names(streams), run.server
    feed = run.feed(names)
    before_bytes = server.tree().private_bytes()
    created = run.ingest(names, feed, Stop(messages=streams))
    idle_bytes = server.tree().private_bytes() - before_bytes
    extras = {"created_per_s": _per_s([created]), "private_bytes_per_stream": idle_bytes / streams}
    pushed = run.ingest(names, feed, Stop(seconds=run.scale.seconds))
    run.check_stored(names[-1], (created.messages + pushed.messages) // streams)
    extras["open_files_max"] = max(server.tree().open_files())
    measured = run.measured(_per_s([pushed]), pushed.spent, pushed.messages, extras)
    extras["stop_s"] = server.stop()
    extras["ready_clean_s"] = _start(server)
    run.ingest(names, feed, Stop(messages=streams))
    server.stop(signal.SIGKILL)
    extras["ready_unclean_s"] = _start(server)
    return measured


def _start(server: PeerServer) -> float:
    """Return the seconds from the start until connections are served and /readyz answers 200."""
    begin = time.monotonic()
    server.start()
    deadline = Deadline(START_TIMEOUT_S)
    while not _is_ready(f"http://127.0.0.1:{server.site.spare_port}/readyz"):
        deadline.check("waiting for /readyz")
        time.sleep(_PROBE_S)
    return time.monotonic() - begin


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _per_s(parts: Sequence[Pushed]) -> float:
    return sum(part.messages for part in parts) / sum(part.spent.wall_s for part in parts)


def _spent(parts: Sequence[Pushed]) -> tuple[Spent, int]:
    """What all of them took together, and their messages."""
    return total([part.spent for part in parts]), sum(part.messages for part in parts)
