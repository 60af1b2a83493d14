"""A connection as a value: the state that one worker sends to another so that the peer notices nothing.

A slow subscriber in the middle of a chunk moves too: the chunk is made again from the place where it began, and `skip`
is the part of it that the peer has.
"""

from __future__ import annotations

from typing import Any

from tailrace.broker.connection.base import Connection
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.topics.trie import TooManyFilters
from tailrace.shard.errors import StorageError, peer_text


def possible(connection: Connection) -> bool:
    """Not for another node, which connects again."""
    return is_settled(connection) and not connection.bound


def is_settled(connection: Connection) -> bool:
    """Not while an answer is awaited, nor while the connection is ending, nor if it has to stay in its worker, as one
    that speaks TLS.
    """
    ending = connection.lingering_since_s or connection.closed or connection.stays
    return not connection.awaited and not ending


def detach(connection: Connection) -> tuple[int, dict[str, Any]]:
    """Take a connection out of this worker: its descriptor, which is the caller's now, and its state for msgpack. One
    that has sent nothing yet has only the identity of its peer.
    """
    state: dict[str, Any] = {"peer": connection.peer, "identity": connection.identity.export_state()}
    if isinstance(connection, ClientConnection):
        state |= _client_state(connection)
    return connection.leave(), state


def _client_state(client: ClientConnection) -> dict[str, Any]:
    cursors = [_cursor_state(client, cursor) for cursor in client.cursors.values()]
    if client.current is not None and client.current.done:  # unsubscribed, but the chunk must be finished
        cursors.append(_cursor_state(client, client.current))
    return {
        "protocol": client.protocol,
        "must_log_in": client.must_log_in,
        "eof": client.eof,
        "out": bytes(client.out),
        "created": client.created,
        "cursors": cursors,
        **client.export_state(),
    }


def _cursor_state(client: ClientConnection, cursor: Cursor) -> dict[str, Any]:
    return {
        "name": cursor.feed.name,
        "key": cursor.key,
        "seq": cursor.settled_seq,
        "offset": cursor.offset if cursor.settled_seq == cursor.seq else -1,
        "skip": cursor.skip,
        "cut": cursor.cut,
        "until_seq": cursor.until_seq,
        "credit_bytes": cursor.credit_bytes,
        "topics": cursor.topics,
        "current": cursor is client.current,
        "done": cursor.done,
    }


def restore(client: ClientConnection, state: dict[str, Any]) -> None:
    """Continue a connection in the state in which its last worker left it."""
    client.restore_state(state)
    client.created = state["created"]
    client.moved_s = client.services.now_s
    client.out += state["out"]
    for cursor_state in state["cursors"]:
        _restore_cursor(client, cursor_state)
    client.take_over(eof=state["eof"])


def _restore_cursor(client: ClientConnection, state: dict[str, Any]) -> None:
    services, name, key, seq = client.services, state["name"], state["key"], state["seq"]
    try:
        remote, may_wait = services.is_remote(name), not seq
        topics = state.get("topics", b"")  # a worker of an earlier release does not send it
        cursor = services.fanout.subscribe(client, name, seq, remote=remote, key=key, may_wait=may_wait, topics=topics)
    except (StorageError, OSError, TooManyFilters) as error:
        if state["skip"]:
            client.close("damaged")
        else:
            client.lose(key, name, seq, peer_text(error))
        return
    services.fanout.refresh(cursor.feed)  # the sent part of a chunk may lie beyond the end known here
    cursor.offset, cursor.skip = state["offset"], state["skip"]
    cursor.cut = None if state["cut"] is None else tuple(state["cut"])
    cursor.credit_bytes = state["credit_bytes"]
    services.fanout.limit(cursor, state["until_seq"])
    if not state["done"]:
        client.cursors[key] = cursor
    if state["current"]:
        client.current = cursor
        if state["done"]:
            services.fanout.end(cursor)
    else:
        services.fanout.start(cursor)
