"""tailrace: publish to a broker, and read streams from it.

    import tailrace

    with tailrace.connect("127.0.0.1:5050") as client:
        client.publish("greetings", b"hello")
        for message in client.subscribe("greetings", end=tailrace.NOW):
            print(message.seq, message.time, message.payload)

`connect_async` gives the same for asyncio. docs/client.md has the details.

The names below are imported from their modules when they are first used, so that `import tailrace` costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.version import VERSION as __version__

if TYPE_CHECKING:
    from tailrace.aio.batcher import AsyncBatcher
    from tailrace.aio.client import AsyncClient, connect_async
    from tailrace.aio.consumer import AsyncConsumer
    from tailrace.aio.subscription import AsyncSubscription
    from tailrace.core.batch import BatchResult
    from tailrace.core.consumed_message import ConsumedMessage
    from tailrace.core.consumer_calls import ConsumerInfo
    from tailrace.core.listing import StreamInfo
    from tailrace.core.message import Message, Receipt
    from tailrace.core.places import NEW, NOW, START, Last, Seq, Time
    from tailrace.errors import (
        AlreadySubscribed,
        BadRequest,
        BrokerClosing,
        BrokerError,
        BrokerFault,
        ClientClosed,
        ConnectFailed,
        ConnectionLost,
        DamagedMessage,
        DeadlineExceeded,
        Denied,
        DiskFull,
        IncompleteRequest,
        InvalidArgument,
        InvalidStart,
        InvalidStreamName,
        InvalidTopic,
        LineTooLong,
        MessageTooLarge,
        NodeBehind,
        NoSuchConsumer,
        NotReplicated,
        NotSubscribed,
        NumbersMissing,
        OperationTimeout,
        Overloaded,
        PartlyPublished,
        ProducerUnknown,
        ProtocolRefused,
        ReplicationCycle,
        ReservedName,
        SeqFault,
        StaleAck,
        StreamBehind,
        StreamDamaged,
        StreamDeleted,
        StreamDisabled,
        StreamDiverged,
        StreamUnavailable,
        TailraceError,
        TooManyConnections,
        TooManyHandles,
        TooManyNodeStreams,
        TooManyStreams,
        TooManySubscriptions,
        TooSlow,
        Trimmed,
        UnknownCommand,
        UnknownStream,
        Unsupported,
    )
    from tailrace.protocol.messages import Ack
    from tailrace.sync.batcher import Batcher
    from tailrace.sync.client import Client, connect
    from tailrace.sync.consumer import Consumer
    from tailrace.sync.subscription import Subscription
    from tailrace.tls import tls_context
    from tailrace.transactional import Once

__all__ = [
    "NEW",
    "NOW",
    "START",
    "Ack",
    "AlreadySubscribed",
    "AsyncBatcher",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncSubscription",
    "BadRequest",
    "BatchResult",
    "Batcher",
    "BrokerClosing",
    "BrokerError",
    "BrokerFault",
    "Client",
    "ClientClosed",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumedMessage",
    "Consumer",
    "ConsumerInfo",
    "DamagedMessage",
    "DeadlineExceeded",
    "Denied",
    "DiskFull",
    "IncompleteRequest",
    "InvalidArgument",
    "InvalidStart",
    "InvalidStreamName",
    "InvalidTopic",
    "Last",
    "LineTooLong",
    "Message",
    "MessageTooLarge",
    "NoSuchConsumer",
    "NodeBehind",
    "NotReplicated",
    "NotSubscribed",
    "NumbersMissing",
    "Once",
    "OperationTimeout",
    "Overloaded",
    "PartlyPublished",
    "ProducerUnknown",
    "ProtocolRefused",
    "Receipt",
    "ReplicationCycle",
    "ReservedName",
    "Seq",
    "SeqFault",
    "StaleAck",
    "StreamBehind",
    "StreamDamaged",
    "StreamDeleted",
    "StreamDisabled",
    "StreamDiverged",
    "StreamInfo",
    "StreamUnavailable",
    "Subscription",
    "TailraceError",
    "Time",
    "TooManyConnections",
    "TooManyHandles",
    "TooManyNodeStreams",
    "TooManyStreams",
    "TooManySubscriptions",
    "TooSlow",
    "Trimmed",
    "UnknownCommand",
    "UnknownStream",
    "Unsupported",
    "__version__",
    "connect",
    "connect_async",
    "tls_context",
]

_HOMES = {
    "Ack": "tailrace.protocol.messages",
    "AsyncBatcher": "tailrace.aio.batcher",
    "AsyncClient": "tailrace.aio.client",
    "AsyncConsumer": "tailrace.aio.consumer",
    "AsyncSubscription": "tailrace.aio.subscription",
    "BatchResult": "tailrace.core.batch",
    "Batcher": "tailrace.sync.batcher",
    "Client": "tailrace.sync.client",
    "ConsumedMessage": "tailrace.core.consumed_message",
    "Consumer": "tailrace.sync.consumer",
    "ConsumerInfo": "tailrace.core.consumer_calls",
    "Last": "tailrace.core.places",
    "Message": "tailrace.core.message",
    "NEW": "tailrace.core.places",
    "NOW": "tailrace.core.places",
    "Once": "tailrace.transactional",
    "Receipt": "tailrace.core.message",
    "START": "tailrace.core.places",
    "StreamInfo": "tailrace.core.listing",
    "Seq": "tailrace.core.places",
    "Subscription": "tailrace.sync.subscription",
    "Time": "tailrace.core.places",
    "connect": "tailrace.sync.client",
    "connect_async": "tailrace.aio.client",
    "tls_context": "tailrace.tls",
}
"""Where a name is defined that is not in `tailrace.errors`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "tailrace.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
