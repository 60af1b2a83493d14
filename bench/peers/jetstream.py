"""JetStream: the same server with file storage, each publish acknowledged; subjects of one stream that holds them all.

One stream with many subjects is what its makers advise and the cheapest way for it; a stream of its own for every
subject would cost it more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bench.peers.base import PAYLOAD_MARK, Puller, Site, Step, digits_total
from bench.peers.consuming import BATCH, JetStreamConsumer
from bench.peers.nats import Nats

STREAM = "BENCH"
PULL_BATCH = 10_000
PULL_AHEAD = 2  # requests for a batch that stand at the server at one time
_API_CLIENT = 999_999  # whose inbox the answers to a subscriber's requests go to, apart from every publisher's
_PULL_EXPIRES_NS = 60_000_000_000


class JetStream(Nats):
    name = "jetstream"
    title = "JetStream file, acks"
    acked = True
    # Without a window its inbound queue grows to hundreds of megabytes and it stores a third less; from 1,000 to 50,000
    # there is no difference beyond the noise. Its own clients take 4,000.
    window_requests = 10_000
    replay_part = 5
    kinds = frozenset({"ingest", "turns", "latency", "replay", "consume"})

    def configuration(self, site: Site) -> list[str]:
        """Its inbound queue is made longer than the default 10,000 messages, so that it never refuses a publish."""
        room = "max_file_store: 100GB, max_memory_store: 1GB, max_buffered_msgs: 10000000, max_buffered_size: 2GB"
        return [*super().configuration(site), f'jetstream {{ store_dir: "{site.directory / "store"}", {room} }}']

    def prepare(self) -> list[Step]:
        stream = {"name": STREAM, "subjects": ["b.*"], "storage": "file", "num_replicas": 1}
        inbox = subscribe_to(inbox_of(0), b"1")
        return [*self.ready(), inbox, api_call(f"$JS.API.STREAM.CREATE.{STREAM}", stream, b'"did_create":true')]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[Step]:
        return [*super().publisher(client), subscribe_to(inbox_of(client), b"1")]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return b"PUB %s %s %d\r\n%s\r\n" % (name.encode(), inbox_of(client), len(payload), payload)

    def answers_bytes(self, names: Sequence[str], requests: int) -> int:
        """One sequence, from 1, over all subjects."""
        around = len(b'{"stream":"","seq":}') + len(STREAM)
        # The length of the body is said in two digits whatever the sequence number.
        each = len(b"MSG  1 00\r\n") + len(inbox_of(0)) + around + len(b"\r\n")
        return requests * each + digits_total(1, requests)

    def subscriber(self, name: str, client: int) -> list[Step]:
        """A push consumer without acknowledgements, the quickest kind."""
        config = {"ack_policy": "none", "deliver_policy": "new", "filter_subject": name, "deliver_subject": "_IN.d"}
        body = {"stream_name": STREAM, "config": config}
        create = api_call(f"$JS.API.CONSUMER.CREATE.{STREAM}", body, b'"num_pending"', _API_CLIENT)
        inboxes = [subscribe_to(b"_IN.d", b"2"), subscribe_to(inbox_of(_API_CLIENT), b"3")]
        return [*super().publisher(client), *inboxes, create]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        raise NotImplementedError("JetStream's deliveries have no known length: each tells how many wait behind it")

    def replayer(self, name: str, client: int) -> list[Step]:
        config = {"durable_name": f"r{client}", "ack_policy": "none", "deliver_policy": "all"}
        body = {"stream_name": STREAM, "config": config}
        create = api_call(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.r{client}", body, b'"num_pending"', client)
        return [*self.ready(), subscribe_to(inbox_of(client), b"1"), create]

    def replay_puller(self, name: str, client: int, messages: int) -> Puller:
        return JetStreamPuller(client)

    def consumer(self, name: str, client: int) -> list[Step]:
        """`all`: one acknowledgement stands for those before it too. As many may be open as a batch has, twice over."""
        config = {"durable_name": f"r{client}", "ack_policy": "all", "deliver_policy": "all"}
        body = {"stream_name": STREAM, "config": {**config, "max_ack_pending": 2 * BATCH}}
        create = api_call(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.r{client}", body, b'"num_pending"', client)
        return [*self.ready(), subscribe_to(inbox_of(client), b"1"), create]

    def consuming_puller(self, name: str, client: int, messages: int) -> Puller:
        def request(count: int) -> bytes:
            body = {"batch": count, "expires": _PULL_EXPIRES_NS}
            return api_call(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.r{client}", body, b"", client).send

        return JetStreamConsumer(request, messages)


class JetStreamPuller(Puller):
    """A pull consumer that keeps PULL_AHEAD requests for a batch at the server."""

    def __init__(self, client: int) -> None:
        body = {"batch": PULL_BATCH, "expires": _PULL_EXPIRES_NS}
        self._request = api_call(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.r{client}", body, b"", client).send
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


def inbox_of(client: int) -> bytes:
    return b"_IN.%06d" % client


def subscribe_to(subject: bytes, sid: bytes) -> Step:
    return Step(b"SUB %s %s\r\nPING\r\n" % (subject, sid), b"PONG\r\n")


def api_call(subject: str, body: Mapping[str, object], until: bytes, client: int = 0) -> Step:
    """A request to the server's API, its answer to the inbox of `client`."""
    text = json.dumps(body).encode()
    return Step(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox_of(client), len(text), text), until)
