"""Every setting of a node, with its default, its range and one sentence for the operator.

`Settings` is what the rest of the program reads: frozen, flat, already validated. The table that the configuration
file, the flags of `tailrace serve` and the documented example are made from is the metadata of its fields, so that a
setting is described in one place. Loading and validating is the supervisor's (`supervisor.config`); a `Settings` made
directly, as tests do, is taken as it is.

Units stand at the end of each name: `_bytes`, `_s`, `_ms`. Zero means "off" or "choose for me" only if documented so.
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tailrace.broker.access.rules import AccessRule
from tailrace.broker.access.users import User
from tailrace.broker.process.setting_specs import DAY_S, GIB, HOUR_S, KIB, MIB, YEAR_S, Kind, setting, spec_of
from tailrace.broker.process.setting_specs import ClientCertificates as ClientCertificates
from tailrace.broker.process.setting_specs import Durability as Durability
from tailrace.broker.process.stream_policies import DEFAULT_POLICY as DEFAULT_POLICY
from tailrace.broker.process.stream_policies import SlaveRule as SlaveRule
from tailrace.broker.process.stream_policies import StreamPolicy as StreamPolicy
from tailrace.broker.process.udp_settings import UDP_POLICY, UdpPeer, UdpSettings
from tailrace.broker.topics.rules import TopicRule
from tailrace.shard.frame import MAX_FRAME_BYTES
from tailrace.shard.names import CURSOR_PREFIX, LAST_PREFIX, SESSIONS_PREFIX

# `pub NAME |` + payload + CRLF: what a line takes beyond its payload, with the longest name and some blanks; and what
# the default gives it, so that a message just over its limit gets the error about a message, not the one about a line.
LINE_OVERHEAD_MIN_BYTES = 256
ENVELOPE_OVERHEAD_MIN_BYTES = 4_096  # the heads of a PUBLISH and of its frame, and some handles
LINE_OVERHEAD_BYTES = 4_096

# As the example file has them.
_DOORS = ("listen", "udp", "mqtt", "tls", "access")
SECTIONS = ("node", *_DOORS, "replication", "cluster", "metrics", "log", "limits", "timing")

USERS_FILE = Path("/etc/tailrace/users.toml")

_LIKE_THEIR_STREAM = (CURSOR_PREFIX.decode(), LAST_PREFIX.decode())
_UNCUT = (*_LIKE_THEIR_STREAM, SESSIONS_PREFIX.decode())


@dataclass(frozen=True, slots=True)
class Settings(UdpSettings):
    """One node. Within a section the order of the fields is that of the documented example file."""

    data: Path = setting("node", "data", Kind.PATH, Path("data"), "the data directory, created if it is missing")
    node_name: str = setting(
        "node", "name", Kind.NAME, "", "the name that the command shutdown asks for; empty: that of the machine"
    )
    workers: int = setting(
        "node", "workers", Kind.COUNT, 0, "worker processes", low=1, high=256, zero="one per processor"
    )
    shards: int = setting(
        "node",
        "shards",
        Kind.COUNT,
        64,
        "parts the streams are spread over; used only when a data directory is created, fixed from then on",
        low=1,
        high=4_096,
    )
    auto_master: bool = setting(
        "node",
        "auto_master",
        Kind.FLAG,
        True,
        "whether the first publish to an unknown stream creates it; otherwise only the command master does",
    )

    affinity: bool = setting(
        "node",
        "affinity",
        Kind.FLAG,
        True,
        "whether to move a connection to the worker that owns its streams, which saves its messages a hop",
    )
    node_max_bytes: int = setting(
        "node",
        "max_bytes",
        Kind.BYTES,
        0,
        "refuse publishes with err full while the files of all streams take more than this together",
        low=16 * MIB,
        high=1 << 60,
        zero="no bound",
    )
    reserve_bytes: int = setting(
        "node",
        "reserve_bytes",
        Kind.BYTES,
        0,
        "refuse publishes with err full while less than this is free on the disk of the data directory",
        low=MIB,
        high=1 << 60,
        zero="until the disk is full",
    )

    host: str = setting("listen", "host", Kind.HOST, "127.0.0.1", "address the broker listens on")
    port: int = setting(
        "listen", "port", Kind.COUNT, 5_050, "TCP port for everything", low=1, high=65_535, zero="any free port"
    )

    token: str = setting(
        "listen",
        "token",
        Kind.SECRET,
        "",
        "token required of binary clients from other machines; lines are then for this machine only; empty: none",
    )
    mqtt: bool = setting(
        "listen", "mqtt", Kind.FLAG, True, "whether MQTT clients are served, of version 3.1.1 and 5, on the same port"
    )
    websocket: bool = setting("listen", "websocket", Kind.FLAG, True, "whether MQTT is also served over WebSocket")
    websocket_origins: tuple[str, ...] = setting(
        "listen",
        "websocket_origins",
        Kind.ORIGINS,
        (),
        'origins of the web pages that may connect by WebSocket, such as "https://app.example"; "*" allows all;'
        " programs that are not browsers need none",
    )
    advertise: str = setting(
        "listen",
        "advertise",
        Kind.ADDRESS,
        "",
        "HOST:PORT at which other nodes reach this one, as tailrace tree shows it; empty: the address it connects from",
    )

    tls_certificate: str = setting(
        "tls",
        "certificate",
        Kind.FILE,
        "",
        "PEM file with this node's certificate, then those of its issuers, for TLS on the same port; empty: no TLS",
    )
    tls_key: str = setting(
        "tls", "key", Kind.FILE, "", "PEM file with its private key, which only its owner and group may be able to read"
    )
    tls_required: bool = setting(
        "tls",
        "required",
        Kind.FLAG,
        False,
        "whether to refuse connections without TLS, but for those from this machine",
    )
    tls_client_ca: str = setting(
        "tls", "client_ca", Kind.FILE, "", "PEM file with the CAs whose client certificates are accepted"
    )
    tls_client_certificates: ClientCertificates = setting(
        "tls",
        "client_certificates",
        Kind.CHOICE,
        ClientCertificates.NONE,
        "whether clients show a certificate: none (it is not asked for), optional (verified if there is one), required",
        choices=tuple(ClientCertificates),
    )
    tls_upstream: bool = setting(
        "tls",
        "upstream",
        Kind.FLAG,
        False,
        "whether to connect to other nodes with TLS, showing them the certificate above if there is one",
    )
    tls_upstream_ca: str = setting(
        "tls",
        "upstream_ca",
        Kind.FILE,
        "",
        "PEM file with the CAs of other nodes' certificates; empty: those of the system",
    )

    mqtt_replicas: int = setting(
        "mqtt",
        "replicas",
        Kind.COUNT,
        0,
        "acknowledge messages with QoS 1 and 2, and store durable sessions, on this number of other nodes; in a cluster"
        " on all in-sync replicas, at least this number",
        low=1,
        high=255,
        zero="on this node alone",
    )

    users_file: Path = setting(
        "access",
        "users_file",
        Kind.PATH,
        USERS_FILE,
        "the file of users, if there is one; tailrace user edits it, and from then on everybody must log in",
    )
    allow_anonymous: bool = setting(
        "access",
        "allow_anonymous",
        Kind.FLAG,
        False,
        "whether connections from other machines need no login: they may read and write all streams, or with users"
        " configured what the rules give to anonymous",
    )

    replication_peers: tuple[str, ...] = setting(
        "replication",
        "peers",
        Kind.PEERS,
        (),
        "machines whose nodes may follow and claim streams here: IP addresses, networks, or IP:PORT of nodes; list"
        " every node of the tree, with its port, on each; this machine is always one of them",
    )
    share_memory: bool = setting(
        "replication",
        "share_memory",
        Kind.FLAG,
        False,
        "whether subscribers of streams in memory also get the messages that are published at the nodes of peers, those"
        " with a port",
    )
    replication_token: str = setting(
        "replication",
        "token",
        Kind.SECRET,
        "",
        "the secret that lets nodes from any other address do so too, the same on all nodes, and not that of"
        " clients; empty: none may",
    )

    replication_user: str = setting(
        "replication",
        "user",
        Kind.NAME,
        "",
        "the user as which this node logs in to other nodes, by SCRAM-SHA-256; there it needs the right node; empty:"
        " it shows no password",
    )
    replication_password_file: str = setting(
        "replication",
        "password_file",
        Kind.FILE,
        "",
        "file with the password of that user, which only its owner and group may be able to read",
    )

    start_fenced: bool = setting(
        "cluster",
        "start_fenced",
        Kind.FLAG,
        False,
        "whether the node starts without a lease: it takes and acknowledges no message before the command lease",
    )
    copy_idle_s: float = setting(
        "cluster",
        "copy_idle_s",
        Kind.SECONDS,
        60.0,
        "how long a copy that was made for readers stays after the last of them has left",
        low=1,
        high=DAY_S,
    )

    metrics_host: str = setting("metrics", "host", Kind.HOST, "127.0.0.1", "address of /metrics, /healthz and /readyz")
    metrics_port: int = setting(
        "metrics", "port", Kind.COUNT, 5_051, "its TCP port", low=1, high=65_535, zero="any free port"
    )
    metrics_textfile: Path = setting(
        "metrics",
        "textfile",
        Kind.PATH,
        Path("/var/lib/tailrace-rollup/metrics.prom"),
        "a metrics file to include in /metrics if it exists, as written by tailrace rollup --metrics",
    )
    metrics_streams: tuple[str, ...] = setting(
        "metrics",
        "streams",
        Kind.PATTERNS,
        (),
        "patterns of the streams that /metrics shows one by one, with their consumers; at most 128 streams and 128"
        " consumers of a worker",
    )

    max_line_bytes: int = setting(
        "limits",
        "max_line_bytes",
        Kind.BYTES,
        8 * MIB + LINE_OVERHEAD_BYTES,
        "longest command line, including its payload and line end",
        low=KIB,
        high=GIB,
    )
    max_message_bytes: int = setting(
        "limits",
        "max_message_bytes",
        Kind.BYTES,
        8 * MIB,
        "largest payload of a message",
        low=1,
        high=MAX_FRAME_BYTES - MIB,  # its header and metadata fit beside it
    )
    max_envelope_bytes: int = setting(
        "limits",
        "max_envelope_bytes",
        Kind.BYTES,
        16 * MIB,
        "longest request of the binary protocol: a whole batch of messages",
        low=64 * KIB,
        high=GIB,
    )
    max_partial_bytes: int = setting(
        "limits",
        "max_partial_bytes",
        Kind.BYTES,
        256 * MIB,
        "memory of a worker for incomplete requests, over all its connections",
        low=64 * KIB,
        high=64 * GIB,
    )
    max_producer_bytes: int = setting(
        "limits",
        "max_producer_bytes",
        Kind.BYTES,
        64 * MIB,
        "memory of a worker for the state of producers that number their messages, over all streams",
        low=MIB,
        high=64 * GIB,
    )
    max_unsent_bytes: int = setting(
        "limits",
        "max_unsent_bytes",
        Kind.BYTES,
        256 * MIB,
        "memory of a worker for answers that its clients have not read; a connection that exceeds it is closed",
        low=MIB,
        high=64 * GIB,
    )
    max_connections: int = setting(
        "limits", "max_connections", Kind.COUNT, 65_536, "client connections of the node", low=1, high=1_000_000
    )
    max_subscriptions: int = setting(
        "limits", "max_subscriptions", Kind.COUNT, 1_024, "subscriptions of one connection", low=1, high=1_000_000
    )
    max_handles: int = setting(
        "limits",
        "max_handles",
        Kind.COUNT,
        65_536,
        "streams one binary connection may publish to",
        low=1,
        high=1_000_000,
    )
    max_streams_connection: int = setting(
        "limits",
        "max_streams_connection",
        Kind.COUNT,
        100_000,
        "streams one connection may create",
        low=1,
        high=100_000_000,
    )
    max_streams: int = setting(
        "limits", "max_streams", Kind.COUNT, 1_000_000, "streams of the node", low=1, high=100_000_000
    )
    max_open_streams: int = setting(
        "limits",
        "max_open_streams",
        Kind.COUNT,
        1_024,
        "streams a worker keeps open (a few descriptors each); the least recently used are closed",
        low=8,
        high=1_000_000,
    )
    max_lag_bytes: int = setting(
        "limits",
        "max_lag_bytes",
        Kind.BYTES,
        0,
        "disconnect a subscriber that is further behind than this",
        low=MIB,
        high=1 << 50,
        zero="never; it continues from the file",
    )
    chunk_bytes: int = setting(
        "limits",
        "chunk_bytes",
        Kind.BYTES,
        256 * KIB,
        "the most that is sent to one subscription before the next one has its turn",
        low=4 * KIB,
        high=64 * MIB,
    )
    chunk_cache_bytes: int = setting(
        "limits",
        "chunk_cache_bytes",
        Kind.BYTES,
        64 * MIB,
        "memory of a worker, for each protocol, for chunks that several subscribers share",
        low=MIB,
        high=64 * GIB,
    )
    max_filter_bytes: int = setting(
        "limits",
        "max_filter_bytes",
        Kind.BYTES,
        64 * MIB,
        "memory of a worker for the topic filters of its subscriptions, and again for those of the other workers",
        low=64 * KIB,
        high=64 * GIB,
    )
    topic_cache_bytes: int = setting(
        "limits",
        "topic_cache_bytes",
        Kind.BYTES,
        16 * MIB,
        "memory of a worker for the latest topics, each with the filters that match it",
        low=64 * KIB,
        high=64 * GIB,
    )
    max_last_values: int = setting(
        "limits",
        "max_last_values",
        Kind.COUNT,
        2_000_000,
        "topics of a worker that may have a last value",
        low=1,
        high=1_000_000_000,
    )
    max_last_value_bytes: int = setting(
        "limits",
        "max_last_value_bytes",
        Kind.BYTES,
        384 * MIB,
        "memory of a worker for the topics that have a last value; the values are on the disk",
        low=64 * KIB,
        high=64 * GIB,
    )
    max_will_bytes: int = setting(
        "limits",
        "max_will_bytes",
        Kind.BYTES,
        64 * MIB,
        "memory of a worker for the wills of its MQTT connections",
        low=64 * KIB,
        high=64 * GIB,
    )
    max_sessions: int = setting(
        "limits",
        "max_sessions",
        Kind.COUNT,
        100_000,
        "durable MQTT sessions of a worker",
        low=1,
        high=100_000_000,
        zero="none, each session ends with its connection",
    )
    link_window_bytes: int = setting(
        "limits",
        "link_window_bytes",
        Kind.BYTES,
        16 * MIB,
        "publishes a worker queues for one sibling worker; above it, their publishers wait",
        low=64 * KIB,
        high=4 * GIB,
    )

    heartbeat_s: float = setting(
        "timing",
        "heartbeat_s",
        Kind.SECONDS,
        30.0,
        "ping a binary peer that was silent for this long, and again after the same time",
        low=0.05,
        high=DAY_S,
    )
    heartbeats_max: int = setting(
        "timing",
        "heartbeats_max",
        Kind.COUNT,
        3,
        "disconnect a binary peer that answered none of this many pings",
        low=1,
        high=1_000,
    )
    stall_timeout_s: float = setting(
        "timing",
        "stall_timeout_s",
        Kind.SECONDS,
        20.0,
        "disconnect a peer that has not read pending data for this long",
        low=0.1,
        high=DAY_S,
    )
    unavailable_timeout_s: float = setting(
        "timing",
        "unavailable_timeout_s",
        Kind.SECONDS,
        10.0,
        "how long a publish waits for a worker that is down before it fails with err unavailable",
        low=0.1,
        high=HOUR_S,
    )
    max_session_expiry_s: int = setting(
        "timing",
        "max_session_expiry_s",
        Kind.SECONDS,
        7 * DAY_S,
        "drop an MQTT session whose client has been away for this long, even if it has asked for longer",
        low=1,
        high=100 * YEAR_S,
    )
    max_keep_alive_s: int = setting(
        "timing",
        "max_keep_alive_s",
        Kind.SECONDS,
        0,
        "the longest keep alive of an MQTT 5 client; one that asks for more, or for none, is given this",
        low=1,
        high=65_535,
        zero="clients have the keep alive that they ask for",
    )
    upstream_timeout_s: float = setting(
        "timing",
        "upstream_timeout_s",
        Kind.SECONDS,
        10.0,
        "reconnect to an upstream node that was silent for this long",
        low=0.1,
        high=HOUR_S,
    )
    upstream_switch_s: float = setting(
        "timing",
        "upstream_switch_s",
        Kind.SECONDS,
        5.0,
        "follow the next node in [[slave]] upstream when the present one has been away for this long",
        low=0.1,
        high=HOUR_S,
    )
    replication_timeout_s: float = setting(
        "timing",
        "replication_timeout_s",
        Kind.SECONDS,
        10.0,
        "how long a publish waits for its replicas before it fails with err unreplicated",
        low=0.1,
        high=HOUR_S,
    )
    producer_expiry_s: float = setting(
        "timing",
        "producer_expiry_s",
        Kind.SECONDS,
        float(DAY_S),
        "forget a producer that has published nothing to a stream for this long",
        low=60,
        high=YEAR_S,
    )
    drain_timeout_s: float = setting(
        "timing",
        "drain_timeout_s",
        Kind.SECONDS,
        10.0,
        "how long a stopping worker may take to finish its requests",
        low=0.1,
        high=HOUR_S,
    )
    beat_timeout_s: float = setting(
        "timing",
        "beat_timeout_s",
        Kind.SECONDS,
        15.0,
        "dump the stacks of a worker whose loop is silent for this long, and kill it",
        low=1,
        high=HOUR_S,
    )
    trim_grace_s: float = setting(
        "timing",
        "trim_grace_s",
        Kind.SECONDS,
        5.0,
        "time between dropping messages and freeing their space",
        low=2,
        high=DAY_S,
    )
    retention_interval_s: float = setting(
        "timing",
        "retention_interval_s",
        Kind.SECONDS,
        10.0,
        "time between two checks of max_age_s and max_bytes",
        low=0.1,
        high=DAY_S,
    )
    clock_jump_wait_s: float = setting(
        "timing",
        "clock_jump_wait_s",
        Kind.SECONDS,
        float(HOUR_S),
        "how long a forward jump of the clock must last before max_age_s uses the new time",
        low=0,
        high=YEAR_S,
    )
    async_sync_s: float = setting(
        "timing",
        "async_sync_s",
        Kind.SECONDS,
        30.0,
        "sync a stream with durability async at most this long after a write",
        low=0.1,
        high=DAY_S,
    )

    streams: tuple[StreamPolicy, ...] = ()
    slaves: tuple[SlaveRule, ...] = ()
    users: tuple[User, ...] | None = None  # None: without a file of users
    rules: tuple[AccessRule, ...] = ()
    topics: tuple[TopicRule, ...] = ()
    own_levels: tuple[str, ...] | None = None  # of the data directory: see TopicRules
    udp_peers: tuple[UdpPeer, ...] = ()
    replication_password: str = field(default="", repr=False)  # the content of the file

    def policy(self, name: str) -> StreamPolicy:
        """The policy of the stream `name`: the first [[stream]] section that matches, else the defaults. The stream of
        UDP is in memory unless a section has its very name. A name with a `$` never is: companions and the broker's own
        streams have one.

        Logs of the broker's own are not cut. Those of consumers and last values are kept as safely as their stream.
        """
        found = self._matching_policy(name)
        if "$" not in name:
            return found
        if found.durability is Durability.MEMORY:
            found = replace(found, durability=Durability.ASYNC)
        return replace(found, max_age_s=0, max_bytes=0) if name.startswith(_UNCUT) else found

    def _matching_policy(self, name: str) -> StreamPolicy:
        for prefix in _LIKE_THEIR_STREAM:
            if name.startswith(prefix):
                return self._matching_policy(name.removeprefix(prefix))
        if self.udp and name == self.udp_stream:
            return next((each for each in self.streams if each.pattern == name), UDP_POLICY)
        return next((each for each in self.streams if each.matches(name)), DEFAULT_POLICY)


def described_fields() -> tuple[Field[Any], ...]:
    """The fields of `Settings` that are keys of the file, in its order: all but [[stream]] and its like."""
    described = [each for each in fields(Settings) if "spec" in each.metadata]
    return tuple(sorted(described, key=lambda each: SECTIONS.index(spec_of(each).section)))
