"""A connection as a value: what one worker must tell another so that the peer notices nothing.

A slow subscriber in the middle of a chunk moves too: a rendering is made again from the seq where the chunk began, and
`skip` says how much of it the peer has.
"""

from __future__ import annotations

from typing import Any

from broker.client import Client
from broker.fanout import Cursor
from shard.errors import StorageError


def possible(client: Client) -> bool:
    """Not while an answer is awaited, nor while the connection is ending."""
    return not client.answers and not client.lingering_since_s and not client.closed


def detach(client: Client) -> tuple[int, dict[str, Any]]:
    """Take a connection out of this worker: its descriptor, which is the caller's now, and its state for msgpack."""
    cursors = [_cursor_state(client, cursor) for cursor in client.cursors.values()]
    if client.current is not None and client.current.done:  # unsubscribed, but the chunk must be finished
        cursors.append(_cursor_state(client, client.current))
    state = {
        "peer": client.peer,
        "local": client.local,
        "codec": client.codec.export_state(),
        "sniffed": client.sniffed,
        "eof": client.eof,
        "out": bytes(client.out),
        "created": client.created,
        "cursors": cursors,
    }
    fd = client.leave()
    return fd, state


def _cursor_state(client: Client, cursor: Cursor) -> list[Any]:
    return [cursor.feed.name, cursor.seq, cursor.skip, cursor is client.current, cursor.done]


def restore(client: Client, state: dict[str, Any]) -> None:
    """Go on with a connection where its last worker left it."""
    client.codec.restore_state(state["codec"])
    client.sniffed = state["sniffed"]
    client.created = state["created"]
    client.moved_s = client.worker.now_s
    client.out += state["out"]
    for name, seq, skip, current, done in state["cursors"]:
        _restore_cursor(client, name, seq, skip, current=current, done=done)
    client.take_over(eof=state["eof"])


def _restore_cursor(client: Client, name: bytes, seq: int, skip: int, *, current: bool, done: bool) -> None:
    worker = client.worker
    try:
        cursor = worker.fanout.subscribe(client, name, seq, remote=worker.router.slot_of(name) in worker.routes)
    except (StorageError, OSError) as error:
        client.lose(name, str(error), in_chunk=bool(skip))
        return
    worker.fanout.look(cursor.feed)  # what was sent of a chunk may lie beyond the end that was known here
    cursor.skip = skip
    if not done:
        client.cursors[name] = cursor
    if current:
        client.current = cursor
        if done:
            worker.fanout.end(cursor)
    else:
        worker.fanout.start(cursor)

