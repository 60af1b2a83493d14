"""The collaborators of connections that speak MQTT, beyond those of all connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from tailrace.broker.connection.last import LastReader
from tailrace.broker.connection.login import Logins
from tailrace.broker.connection.mqtt.durable import DurableSessions
from tailrace.broker.connection.mqtt.keep_alive import KeepAlives
from tailrace.broker.connection.mqtt.publishing import Destination, PublishRow, destination_of
from tailrace.broker.connection.mqtt.retained import RetainedMessages
from tailrace.broker.connection.mqtt.sessions import MqttSessions
from tailrace.broker.connection.mqtt.shared import SharedGroups
from tailrace.broker.connection.mqtt.subscribing import TopicSubscriptions
from tailrace.broker.connection.mqtt.system_topics import SystemTopics
from tailrace.broker.connection.mqtt.wildcards import Wildcards
from tailrace.broker.connection.mqtt.wills import Wills
from tailrace.broker.connection.patterns import PatternSubscriptions
from tailrace.broker.connection.singles import Singles
from tailrace.broker.delivery.publish_chunks import PublishChunks
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.process.timers import now_us
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.services import Services
from tailrace.broker.sessions.record import HolderProcess

DESTINATIONS_KEPT: Final = 16_384
"""Topics whose place need not be computed again, of all connections of a worker."""


def replicas_of(replicas: int, is_in_memory: Callable[[bytes], bool], stream: bytes, row: PublishRow) -> int:
    """A stream in memory is on this node alone."""
    return replicas if replicas and row.is_answered and not is_in_memory(stream) else 0


@dataclass(frozen=True, slots=True)
class MqttServices:
    """One per worker. `table`: what the leaf places topics by; `stages`: it can place them. `replicas_of`: on how many
    other nodes the messages of a row for a stream are to be.
    """

    chunks: PublishChunks
    destination_of: Callable[[bytes], Destination]
    durable: DurableSessions
    keep_alives: KeepAlives
    logins: Logins
    replicas_of: Callable[[bytes, PublishRow], int]
    retained: RetainedMessages
    sessions: MqttSessions
    shared: SharedGroups
    singles: Singles
    stages: bool
    subscribing: TopicSubscriptions
    system: SystemTopics
    table: bytes
    wildcards: Wildcards
    wills: Wills

    @classmethod
    def build(
        cls,
        services: Services,
        subscribing: Subscriptions,
        patterns: PatternSubscriptions,
        calls: WorkerCalls,
        logins: Logins,
        last: LastReader,
        slots: int,
        holder: HolderProcess,
        node_id: str,
        stored: Callable[[bytes], bool],
        singles: Singles,
    ) -> MqttServices:
        rules = services.topic_rules
        wildcards = Wildcards(services, patterns, rules)
        retained = RetainedMessages(services, last, rules)
        durable = DurableSessions(services, holder)
        system = SystemTopics(patterns.board)
        shared = SharedGroups(services, calls, slots, node_id, holder, stored)
        return cls(
            PublishChunks(services.readers, services.settings.chunk_cache_bytes, now_us, services.fanout.walks.found),
            lru_cache(DESTINATIONS_KEPT)(partial(destination_of, rules)),
            durable,
            KeepAlives(time.monotonic),
            logins,
            partial(replicas_of, services.settings.mqtt_replicas, services.router.owner.catalog.directory.is_in_memory),
            retained,
            MqttSessions(calls, slots, durable),
            shared,
            singles,
            bool(rules.table) or not rules,
            TopicSubscriptions(services, subscribing, rules, wildcards, retained, shared, system),
            system,
            rules.table,
            wildcards,
            Wills(services.settings.max_will_bytes, services.metrics),
        )

    def tick(self, now_s: float) -> None:
        """Several times a second."""
        self.keep_alives.tick(now_s)
        self.wildcards.tick()
        self.durable.tick()
        self.shared.tick()
        self.system.tick(now_s)
