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
    from tailrace.aio import AsyncClient, connect_async
    from tailrace.aio_batcher import AsyncBatcher
    from tailrace.aio_consumer import AsyncConsumer
    from tailrace.aio_subscription import AsyncSubscription
    from tailrace.batch import BatchResult
    from tailrace.batcher import Batcher
    from tailrace.client import Client, connect
    from tailrace.consumed import ConsumedMessage
    from tailrace.consumer import Consumer
    from tailrace.consumer_calls import ConsumerInfo
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
        Denied,
        DiskFull,
        IncompleteRequest,
        InvalidArgument,
        InvalidStart,
        InvalidStreamName,
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
    from tailrace.message import Message, Receipt
    from tailrace.once import Once
    from tailrace.places import NEW, NOW, START, Seq, Time
    from tailrace.protocol.messages import Ack
    from tailrace.subscription import Subscription

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
    "Denied",
    "DiskFull",
    "IncompleteRequest",
    "InvalidArgument",
    "InvalidStart",
    "InvalidStreamName",
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
    "StreamDisabled",
    "StreamDiverged",
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
]

_HOMES = {
    "Ack": "tailrace.protocol.messages",
    "AsyncBatcher": "tailrace.aio_batcher",
    "AsyncClient": "tailrace.aio",
    "AsyncConsumer": "tailrace.aio_consumer",
    "AsyncSubscription": "tailrace.aio_subscription",
    "BatchResult": "tailrace.batch",
    "Batcher": "tailrace.batcher",
    "Client": "tailrace.client",
    "ConsumedMessage": "tailrace.consumed",
    "Consumer": "tailrace.consumer",
    "ConsumerInfo": "tailrace.consumer_calls",
    "Message": "tailrace.message",
    "NEW": "tailrace.places",
    "NOW": "tailrace.places",
    "Once": "tailrace.once",
    "Receipt": "tailrace.message",
    "START": "tailrace.places",
    "Seq": "tailrace.places",
    "Subscription": "tailrace.subscription",
    "Time": "tailrace.places",
    "connect": "tailrace.client",
    "connect_async": "tailrace.aio",
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
