"""The contestants; `make_peers` returns them all, in the order of the report."""

from __future__ import annotations

from bench.peers.base import Contestant
from bench.peers.jetstream import JetStream, JetStreamCluster
from bench.peers.kafka import Kafka, KafkaCluster
from bench.peers.mqtt import Mosquitto, NatsMqtt, Rumqttd
from bench.peers.nats import Nats
from bench.peers.plain import BareSendfile, Plain
from bench.peers.redis import Redis, RedisPubSub
from bench.peers.secure import BareTLS, secure_peers
from bench.peers.spark import SparkSession
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.peers.tailrace_cluster import TailraceCluster
from bench.peers.tailrace_mqtt import TailraceMqtt
from bench.peers.tailrace_nodes import TailraceNodes
from bench.peers.udp import PlainUdp, TailraceUdp
from tailrace.shard.frame import HEADER_BYTES

SPARK_STREAMS = 8
SPARK_KINDS = {
    "files": frozenset({"spark-scan", "rollup"}),
    "parquet": frozenset({"spark-scan", "rollup"}),
    "polars": frozenset({"rollup"}),
}


def make_peers(
    *, interpreted: bool, workers: int, payload_bytes: int, replay_messages: int, spark_messages: int
) -> list[Contestant]:
    """Every contestant, ours first and the generator's ceilings last."""
    kinds: tuple[type[Tailrace], ...] = (Tailrace, TailraceBinary)
    return [
        *(kind(acked=acked, interpreted=interpreted, workers=workers) for kind in kinds for acked in (False, True)),
        *(
            TailraceBinary(acked=acked, interpreted=interpreted, workers=workers, single=True)
            for acked in (False, True)
        ),
        *(TailraceMqtt(qos=qos, interpreted=interpreted, workers=workers) for qos in (0, 1)),
        *(TailraceNodes(replicas=replicas, interpreted=interpreted, workers=workers) for replicas in (0, 1)),
        TailraceCluster(interpreted=interpreted, workers=workers),
        TailraceUdp(interpreted=interpreted, workers=workers),
        *secure_peers(interpreted=interpreted, workers=workers),
        Nats(),
        JetStream(),
        JetStreamCluster(),
        Redis(),
        Redis(acked=False),
        RedisPubSub(),
        *(kind(qos=qos) for kind in (Mosquitto, Rumqttd, NatsMqtt) for qos in (0, 1)),
        Kafka(),
        KafkaCluster(),
        Plain(payload_bytes),
        Plain(payload_bytes, acked=True),
        PlainUdp(payload_bytes),
        *(BareSendfile(replay_messages * (HEADER_BYTES + payload_bytes), copied=copied) for copied in (False, True)),
        BareTLS(replay_messages * (HEADER_BYTES + payload_bytes)),
        *(
            SparkSession(kind, rows, (SPARK_STREAMS, spark_messages, payload_bytes))
            for kind, rows in SPARK_KINDS.items()
        ),
    ]
