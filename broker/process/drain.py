"""What is done to all connections of a worker at once, from the coarse timer or when the worker is to leave."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tailrace.broker.connection import handover
from tailrace.broker.connection.base import LINGER_S, Pause
from tailrace.broker.connection.client import Client
from tailrace.broker.delivery.cursor import Cursor, Park, Subscriber
from tailrace.broker.replication.downstream.ack_handover import PATIENCE_S
from tailrace.protocol.errors import Code

if TYPE_CHECKING:
    from tailrace.broker.worker import Worker

log = logging.getLogger(__name__)

HANDOVERS_A_TICK = 512
DRAIN_READ_S = 1.0  # how long a worker that is to end still reads what its clients go on sending
STOPPING_TEXT = "this node is stopping; nothing after this is taken, connect again later"
NODES_STAY_S = PATIENCE_S + 1.0  # how long other nodes stay at most where publishes wait for what they hold
REPLACED_TEXT = "this worker is being replaced; connect again"
DRAIN_LINGER_S = 0.5  # how long it then waits for them to see the end and close


# --- watching ---------------------------------------------------------------------------------------------------------


def drop_stalled(worker: Worker) -> None:
    """Close what takes nothing for `stall_timeout_s`, what lingers too long, and subscribers past `max_lag_bytes`.

    Who is caught up, or waits for nothing, is not looked at: there may be tens of thousands of them.
    """
    stalled_before_s = worker.now_s - worker.settings.stall_timeout_s
    for client in _clients(worker.fanout.blocked):
        if client.progress_s < stalled_before_s:
            log.info("dropping %s: it took nothing for %s s", client.peer, worker.settings.stall_timeout_s)
            client.close("stalled")
    if worker.settings.max_lag_bytes:
        for client in _clients(worker.fanout.behind()):
            _drop_slow(worker, client)
    for connection in list(worker.lingering):
        if connection.lingering_since_s < worker.now_s - LINGER_S:
            connection.close("lingered")


def _clients(subscribers: Iterable[Subscriber]) -> list[Client]:
    """All of them now: some may go while the others are seen to."""
    return [client for client in subscribers if isinstance(client, Client)]


def _drop_slow(worker: Worker, client: Client) -> None:
    limit = worker.settings.max_lag_bytes
    for cursor in () if client.bound else _sending(client):
        if lag_bytes(cursor) > limit:
            client.end_with(
                Code.SLOW, f"{cursor.feed.name.decode()}: more than {limit} bytes behind, at seq {cursor.seq}"
            )
            return


def _sending(client: Subscriber) -> Iterator[Cursor]:
    """The cursors of a client that have something to send and wait for nothing but their turn and its socket."""
    for cursor in (client.current, *client.ready):
        if cursor is not None and not cursor.done:
            yield cursor


def lag_bytes(cursor: Cursor) -> int:
    """Content bytes between a cursor and the end of its stream, as far as known here."""
    if cursor.seq >= cursor.feed.end_seq or cursor.offset < 0:
        return 0
    return max(cursor.feed.end_offset - cursor.offset, 0)


def measure(worker: Worker) -> None:
    """Write down what is so now: gauges of the metrics, cells of the board. Only who is behind is looked at."""
    metrics, fanout = worker.metrics, worker.fanout
    subscriptions = caught_up = in_socket = lag_bytes_max = 0
    for feed in fanout.feeds.values():
        subscriptions += feed.cursors
        caught_up += len(feed.caught_up)
    for client in fanout.behind():
        for cursor in _sending(client):
            in_socket += client.blocked
            lag_bytes_max = max(lag_bytes_max, lag_bytes(cursor))
    starved = len(fanout.starved)
    metrics.parked = {
        Park.CAUGHT_UP.value: caught_up,
        Park.TURN.value: max(subscriptions - caught_up - in_socket - starved, 0),
        Park.SOCKET.value: in_socket,
        Park.CREDIT.value: starved,
    }
    metrics.subscriptions = subscriptions
    metrics.lag_bytes_max = lag_bytes_max
    metrics.connections = len(worker.clients)
    metrics.partial_bytes = worker.partial_bytes
    metrics.producer_bytes = worker.owner.numbered.memory.bytes_held
    metrics.waiting_steps = len(worker.work)
    metrics.link_queue_bytes = worker.links.queued_bytes()
    metrics.streams = len(worker.owner.names)
    metrics.open_streams = len(worker.owner.open) + len(worker.readers)
    metrics.damaged_streams = len(worker.owner.damaged)
    metrics.sync_failed_streams = len(worker.owner.syncs.failed)
    slot = worker.board.slot(worker.slot)
    if worker.owner.owning:
        slot.streams = len(worker.owner.names)
        slot.subscriptions = subscriptions


def connections(worker: Worker) -> list[list[Any]]:
    """A row for each connection: worker, peer, age_s, subscriptions, unsent_bytes, lag_messages (of the furthest
    behind).
    """
    rows: list[list[Any]] = []
    for connection in worker.clients.values():
        cursors = connection.cursors.values() if isinstance(connection, Client) else ()
        lag = max((cursor.feed.end_seq - cursor.seq for cursor in cursors), default=0)
        age_s = round(worker.now_s - connection.accepted_s, 1)
        rows.append([worker.slot, connection.peer, age_s, len(cursors), len(connection.out), max(lag, 0)])
    return rows


# --- leaving ----------------------------------------------------------------------------------------------------------


def move_on(worker: Worker) -> None:
    """A tick of retiring or draining: see whether this worker's clients have what they are owed."""
    from tailrace.broker.worker import Phase  # the worker imports this module

    late = time.monotonic() > worker.drain_deadline_s
    if worker.phase is Phase.RETIRED:
        hand_all_over(worker)
        if late or (not worker.clients and worker.siblings.all_switched):
            finish_all(worker)
            worker.phase = Phase.LEAVING
    elif late or drained(worker):
        worker.phase = Phase.DRAINED
        worker.control.send("drained")


def drained(worker: Worker) -> bool:
    """Whether every client has what it is owed: what it had sent is read and answered, and it has been told the end."""
    read_on = worker.now_s < worker.drain_began_s + DRAIN_READ_S
    for client in list(worker.clients.values()):
        if not client.bound and not client.lingering_since_s and not (read_on and client.has_unread()):
            client.end_with(Code.CLOSING, STOPPING_TEXT)
    let_nodes_go(worker, STOPPING_TEXT)
    waiting_since_s = worker.now_s - DRAIN_LINGER_S
    waiting = any(
        client.owed or client.lingering_since_s > waiting_since_s or not client.lingering_since_s
        for client in worker.clients.values()
    )
    return not waiting and not any(route.bytes_held for route in worker.routes.values())


def hand_all_over(worker: Worker) -> None:
    """Give the successor every connection that is between two answers. The others are read no more, so that they soon
    are; they follow at a later tick.
    """
    route = worker.routes[worker.slot]
    link = route.link
    if link is None:
        return  # the successor does not own the shards yet
    given = 0
    for client in list(worker.clients.values()):
        if client.bound:
            continue
        if not handover.possible(client):
            client.pause(Pause.LEAVING)
        elif given < HANDOVERS_A_TICK:
            worker.links.hand_over(link, *handover.detach(client))
            worker.metrics.handed_over += 1
            given += 1
    let_nodes_go(worker, REPLACED_TEXT)


def let_nodes_go(worker: Worker, text: str) -> None:
    """Other nodes go last: what they say they hold is what publishes wait for. From now on they have their own
    publishes back, to be sent to whoever comes next; `closing` says to them that all the others are answered.
    """
    waiting = any(not each.bound and (each.awaited or not each.lingering_since_s) for each in worker.clients.values())
    late = worker.now_s > worker.drain_began_s + NODES_STAY_S
    for client in list(worker.clients.values()):
        if client.bound and not client.lingering_since_s:
            client.take_no_more()
            if late or not (waiting or client.awaited):
                client.end_with(Code.UNAVAILABLE if client.awaited else Code.CLOSING, text)


def finish_all(worker: Worker) -> None:
    for client in list(worker.clients.values()):
        client.end_with(Code.UNAVAILABLE if client.bound and client.awaited else Code.CLOSING, REPLACED_TEXT)
        client.after_turn()  # sends, unless a chunk is half out
        client.close("replaced")
