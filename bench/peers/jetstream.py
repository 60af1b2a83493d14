"""JetStream: the same server with file storage, each publish acknowledged; subjects of one stream that holds them all.

Its makers advise one stream with many subjects, the cheapest way for it; a stream of its own for every
subject would cost it more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from bench.peers.base import PAYLOAD_MARK, Puller, RequestStep, Site, digits_total
from bench.peers.consuming import AHEAD, BATCH
from bench.peers.nats import Nats
from bench.peers.programs import OWN_MODULES, find_program, run_together

STREAM = "BENCH"
NODES = 3
_LEADER = "n1"
PULL_BATCH = 10_000
PULL_AHEAD = 2  # requests for a batch that stand at the server at one time
_API_CLIENT = 999_999  # whose inbox the answers to a subscriber's requests go to, apart from every publisher's
_PULL_EXPIRES_NS = 60_000_000_000
_HEAD = re.compile(rb"MSG b\.\S+ \d+ (\S+) \d+\r\n")
_HEAD_BYTES_MAX = 1_024  # and a message with it: these bytes contain the last whole head
_PONG = b"PONG\r\n"


class JetStream(Nats):
    name = "jetstream"
    title = "JetStream file, acks"
    acked = True
    # Without a window its inbound queue grows to hundreds of megabytes and it stores a third less; from 1,000 to 50,000
    # the difference is noise. Its own clients take 4,000.
    window_requests = 10_000
    replay_part = 5
    kinds = frozenset({"ingest", "turns", "latency", "replay", "consume", "client-tasks"})

    def configuration(self, site: Site) -> list[str]:
        """Its inbound queue is made longer than the default 10,000 messages, so that it never refuses a publish."""
        room = "max_file_store: 100GB, max_memory_store: 1GB, max_buffered_msgs: 10000000, max_buffered_size: 2GB"
        return [*super().configuration(site), f'jetstream {{ store_dir: "{site.directory / "store"}", {room} }}']

    def prepare(self) -> list[RequestStep]:
        stream = {"name": STREAM, "subjects": ["b.*"], "storage": "file", "num_replicas": 1}
        inbox = subscribe_to(inbox_of(0), b"1")
        return [*self.ready(), inbox, api_call(f"$JS.API.STREAM.CREATE.{STREAM}", stream, b'"did_create":true')]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        return [*super().publisher(client), subscribe_to(inbox_of(client), b"1")]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return b"PUB %s %s %d\r\n%s\r\n" % (name.encode(), inbox_of(client), len(payload), payload)

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        """One sequence, from 1, over all subjects."""
        around = len(b'{"stream":"","seq":}') + len(STREAM)
        # The length of the body has two digits for every sequence number.
        each = len(b"MSG  1 00\r\n") + len(inbox_of(0)) + around + len(b"\r\n")
        return requests * each + digits_total(1, requests)

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        """A push consumer without acknowledgements, the quickest kind."""
        config = {"ack_policy": "none", "deliver_policy": "new", "filter_subject": name, "deliver_subject": "_IN.d"}
        body = {"stream_name": STREAM, "config": config}
        create = api_call(f"$JS.API.CONSUMER.CREATE.{STREAM}", body, b'"num_pending"', _API_CLIENT)
        inboxes = [subscribe_to(b"_IN.d", b"2"), subscribe_to(inbox_of(_API_CLIENT), b"3")]
        return [*super().publisher(client), *inboxes, create]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        raise NotImplementedError("JetStream's deliveries have no known length: each tells how many wait behind it")

    def replayer(self, name: str, client: int) -> list[RequestStep]:
        return self._durable(client, {"ack_policy": "none"})

    def replay_puller(self, name: str, client: int, messages: int) -> Puller:
        return JetStreamPuller(client)

    def consumer(self, name: str, client: int) -> list[RequestStep]:
        """`all`: one acknowledgement stands for those before it too. As many may be open as a batch has, twice over."""
        return self._durable(client, {"ack_policy": "all", "max_ack_pending": 2 * BATCH})

    def _durable(self, client: int, config: Mapping[str, object]) -> list[RequestStep]:
        """Makes a durable pull consumer from the beginning of the stream."""
        config = {"durable_name": f"r{client}", "deliver_policy": "all", **config}
        body = {"stream_name": STREAM, "config": config}
        create = api_call(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.r{client}", body, b'"num_pending"', client)
        return [*self.ready(), subscribe_to(inbox_of(client), b"1"), create]

    def consuming_puller(self, name: str, client: int, messages: int) -> Puller:
        return JetStreamConsumer(lambda count: _pull(client, count), messages)


class JetStreamCluster(JetStream):
    """Three servers, each with a file of its own; a publish is answered once two have it."""

    name = "jetstream-r3"
    title = "JetStream R3 file, acks"
    kinds = frozenset({"replicated", "cluster"})

    def command(self, site: Site) -> list[str]:
        ports = (site.port, *site.further[: NODES - 1])
        cluster_ports = site.further[NODES - 1 : 2 * NODES - 1]
        commands = []
        for number, (port, cluster_port) in enumerate(zip(ports, cluster_ports, strict=True), 1):
            path = site.directory / f"n{number}.conf"
            node_site = Site(site.directory / f"n{number}", port, cluster_port)
            routes = ", ".join(f'"nats-route://127.0.0.1:{each}"' for each in cluster_ports)
            cluster = f'cluster {{ name: bench, listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}'
            lines = [line for line in self.configuration(node_site) if not line.startswith("server_name")]
            path.write_text("\n".join([f"server_name: n{number}", *lines, cluster]) + "\n")
            commands.append([find_program("nats-server"), "-c", str(path)])
        return run_together(site, commands)

    def environment(self) -> Mapping[str, str]:
        return OWN_MODULES

    def ready(self) -> list[RequestStep]:
        """Once the cluster has made the stream, led by the server that is published to: no message goes a way round."""
        stream = {"name": STREAM, "subjects": ["b.*"], "storage": "file", "num_replicas": NODES}
        preferred = {"placement": {"preferred": _LEADER}}
        return [
            *super().ready(),
            subscribe_to(inbox_of(0), b"1"),
            api_call(f"$JS.API.STREAM.CREATE.{STREAM}", stream, b'"num_replicas":3'),
            api_call(f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}", preferred, b"stepdown_response"),
            api_call(f"$JS.API.STREAM.INFO.{STREAM}", {}, b'"leader":"%s"' % _LEADER.encode()),
        ]

    def prepare(self) -> list[RequestStep]:
        return []


class JetStreamConsumer(Puller):
    """A pull consumer whose acknowledgement of a message is one of all before it, which is the cheapest for it."""

    def __init__(self, request: Callable[[int], bytes], due: int) -> None:
        self._request = request
        self._due = due
        self._got = self._asked = self._acked = 0
        self._tail = b""  # the end of the received data, with the head of the last message

    def open(self) -> bytes:
        return b"".join(self._ask() for _ in range(AHEAD))

    def feed(self, data: bytes) -> bytes:
        self._tail += data
        if self._got == self._due:
            if _PONG in self._tail:  # the acknowledgement before the PING has been taken
                self.messages = self._got
            return b""
        self._got += data.count(PAYLOAD_MARK)
        if self._got < min(self._acked + BATCH, self._due) or not (heads := _HEAD.findall(self._tail)):
            self._tail = self._tail[-_HEAD_BYTES_MAX:]
            return b""
        self._tail = self._tail[-_HEAD_BYTES_MAX:]
        said = b"PUB %s 4\r\n+ACK\r\n" % heads[-1]
        while self._acked + BATCH <= self._got:
            self._acked += BATCH
            said += self._ask()
        return said + (b"PING\r\n" if self._got == self._due else b"")

    def _ask(self) -> bytes:
        count = min(BATCH, self._due - self._asked)
        self._asked += count
        return self._request(count) if count else b""


class JetStreamPuller(Puller):
    """A pull consumer that keeps PULL_AHEAD requests for a batch at the server."""

    def __init__(self, client: int) -> None:
        self._request = _pull(client, PULL_BATCH)
        self._asked = 0

    def open(self) -> bytes:
        self._asked = PULL_AHEAD * PULL_BATCH
        return self._request * PULL_AHEAD

    def feed(self, data: bytes) -> bytes:
        self.messages += data.count(PAYLOAD_MARK)
        standing = -(-(self._asked - self.messages) // PULL_BATCH)
        batches = PULL_AHEAD - standing
        self._asked += batches * PULL_BATCH
        return self._request * batches


def _pull(client: int, count: int) -> bytes:
    """A request for the next `count` messages of the client's consumer."""
    body = {"batch": count, "expires": _PULL_EXPIRES_NS}
    return api_call(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.r{client}", body, b"", client).send


def inbox_of(client: int) -> bytes:
    return b"_IN.%06d" % client


def subscribe_to(subject: bytes, sid: bytes) -> RequestStep:
    return RequestStep(b"SUB %s %s\r\nPING\r\n" % (subject, sid), b"PONG\r\n")


def api_call(subject: str, body: Mapping[str, object], until: bytes, client: int = 0) -> RequestStep:
    """A request to the server's API, its answer to the inbox of `client`."""
    text = json.dumps(body).encode()
    return RequestStep(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox_of(client), len(text), text), until)
