"""Operations on all connections of a worker at once, from the coarse timer or when the worker is to leave."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tailrace.broker.access.renewal import PolicyChange, read_change
from tailrace.broker.connection import handover
from tailrace.broker.connection.base import LINGER_S, Connection, Pause
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.login import REVOKED_TEXT
from tailrace.broker.delivery.cursor import Cursor, Park, Subscriber
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.replication.downstream.ack_handover import PATIENCE_S
from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.routing.route import Route
from tailrace.broker.services import Services
from tailrace.broker.streams.owner import Owner
from tailrace.protocol.errors import Code

log = logging.getLogger(__name__)

HANDOVERS_A_TICK = 512
DRAIN_READ_S = 1.0  # how long a worker that is to end still reads while its clients go on sending
REVOKED_S = 2.0
RENEWAL_S = 0.002
RENEWAL_PAUSE_S = 0.002
STOPPING_TEXT = "this node is stopping; nothing after this is taken, connect again later"
NODES_STAY_S = PATIENCE_S + 1.0  # how long other nodes stay at most if publishes wait for their acknowledgements
REPLACED_TEXT = "this worker is being replaced; connect again"
DRAIN_LINGER_S = 0.5  # how long it then waits for them to see the end and close


# --- watching ---------------------------------------------------------------------------------------------------------


def drop_stalled(services: Services) -> None:
    """Close what takes nothing for `stall_timeout_s`, what lingers too long, and subscribers past `max_lag_bytes`.

    Who is caught up, or waits for nothing, is not looked at: there may be tens of thousands of them.
    """
    stalled_before_s = services.now_s - services.settings.stall_timeout_s
    for client in _clients(services.fanout.blocked):
        if client.progress_s < stalled_before_s:
            log.info("dropping %s: it took nothing for %s s", client.peer, services.settings.stall_timeout_s)
            client.close("stalled")
    if services.settings.max_lag_bytes:
        for client in _clients(services.fanout.behind()):
            _drop_slow(client, services.settings.max_lag_bytes)
    for connection in list(services.lingering):
        if connection.lingering_since_s < services.now_s - LINGER_S:
            connection.close("lingered")


def _clients(subscribers: Iterable[Subscriber]) -> list[ClientConnection]:
    """All of them now: some may go while the others are seen to."""
    return [client for client in subscribers if isinstance(client, ClientConnection)]


def _drop_slow(client: ClientConnection, limit: int) -> None:
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


def take_rights(services: Services, fd: int) -> None:
    """Go by the change in this file."""
    renew_rights(services, read_change(fd))


def renew_rights(services: Services, change: PolicyChange) -> None:
    """Go by another configuration: the connections that are here, a few at a time, since those that cannot be handed
    over may stay for as long as `drain_timeout_s`.
    """
    waiting = deque((each, _must_log_in(each)) for each in services.clients.values())
    services.access.renew(change)
    _renew_some(services, waiting)


def _must_log_in(connection: Connection) -> bool:
    return connection.must_log_in if isinstance(connection, ClientConnection) else True


def _renew_some(services: Services, waiting: deque[tuple[Connection, bool]]) -> None:
    end_s = time.monotonic() + RENEWAL_S
    while waiting and time.monotonic() < end_s:
        connection, must_log_in = waiting.popleft()
        if not connection.closed:
            _renew(services, connection, must_log_in=must_log_in)
    if waiting:
        services.delays.at(services.now_s + RENEWAL_PAUSE_S, partial(_renew_some, services, waiting))


def _renew(services: Services, connection: Connection, *, must_log_in: bool) -> None:
    """As a worker that takes the connection over does. One that is denied has REVOKED_S to take the reason, also from a
    peer that does not read.
    """
    known = services.access.renewed(connection.identity)
    if known is None or not (must_log_in or services.access.admits(known)):
        connection.end_with(Code.DENIED, REVOKED_TEXT)
        services.delays.at(services.now_s + REVOKED_S, partial(connection.close, "revoked"))
    elif isinstance(connection, ClientConnection):
        connection.become_user(known)
        if not connection.is_free:
            connection.drop_what_is_denied()
    else:
        connection.identity = known


def measure(services: Services, owner: Owner, links: LinkTable, work: WorkQueue) -> None:
    """Store the present figures: gauges of the metrics, cells of the board. Only clients behind are looked at."""
    metrics, fanout = services.metrics, services.fanout
    subscriptions = caught_up = in_socket = lag_bytes_max = 0
    for feed in fanout.feeds.values():
        subscriptions += feed.cursors
        caught_up += len(feed.caught_up) + feed.filtered.count
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
    metrics.topic_filters, metrics.filter_wakes = len(fanout.walks.filters), fanout.walks.woken
    metrics.topic_scanned_bytes, metrics.topic_skipped_bytes = fanout.skips.looked_bytes, fanout.skips.skipped_bytes
    metrics.connections = len(services.clients)
    metrics.user_connections = services.accounts.connections_by_user()
    metrics.partial_bytes = services.partial_bytes
    metrics.producer_bytes = owner.numbered.memory.bytes_held
    metrics.waiting_steps = len(work)
    metrics.link_queue_bytes = links.queued_bytes()
    metrics.streams = len(owner.catalog.names)
    metrics.open_streams = len(owner.catalog.open) + len(services.readers)
    metrics.damaged_streams = len(owner.catalog.damaged)
    metrics.sync_failed_streams = len(owner.syncs.failed)
    if owner.catalog.owning:
        services.cells.streams = len(owner.catalog.names)
        services.cells.names_version = owner.catalog.names_version
        services.cells.subscriptions = subscriptions


def connections(services: Services, slot: int) -> list[list[Any]]:
    """A row for each connection: worker, peer, age_s, subscriptions, unsent_bytes, lag_messages (of the furthest
    behind).
    """
    rows: list[list[Any]] = []
    for connection in services.clients.values():
        cursors = connection.cursors.values() if isinstance(connection, ClientConnection) else ()
        lag = max((cursor.feed.end_seq - cursor.settled_seq for cursor in cursors), default=0)
        age_s = round(services.now_s - connection.accepted_s, 1)
        rows.append([slot, connection.peer, age_s, len(cursors), connection.unsent_bytes, max(lag, 0)])
    return rows


# --- leaving ----------------------------------------------------------------------------------------------------------


def drained(services: Services, routes: Mapping[int, Route], began_s: float) -> bool:
    """Whether each client has all it is owed: its input is read and answered, and the end has been sent to it."""
    read_on = services.now_s < began_s + DRAIN_READ_S
    for client in list(services.clients.values()):
        if not client.bound and not client.lingering_since_s and not (read_on and client.has_unread()):
            client.end_with(Code.CLOSING, STOPPING_TEXT)
    let_nodes_go(services, STOPPING_TEXT, began_s)
    waiting_since_s = services.now_s - DRAIN_LINGER_S
    waiting = any(
        client.owed or client.lingering_since_s > waiting_since_s or not client.lingering_since_s
        for client in services.clients.values()
    )
    return not waiting and not any(route.bytes_held for route in routes.values())


def hand_all_over(services: Services, links: LinkTable, slot: int, began_s: float) -> None:
    """Give the successor in `slot` every connection that is between two answers. The others are read no more, so that
    they soon are; they follow at a later tick.
    """
    route = links.routes[slot]
    link = route.link
    if link is None:
        return  # the successor does not own the shards yet
    given = 0
    for client in list(services.clients.values()):
        if client.bound:
            continue
        if client.stays:
            _end_when_answered(client, read_on=services.now_s < began_s + DRAIN_READ_S)
        elif not handover.possible(client):
            client.pause(Pause.LEAVING)
        elif given < HANDOVERS_A_TICK:
            links.hand_over(link, *handover.detach(client))
            services.metrics.handed_over += 1
            given += 1
    let_nodes_go(services, REPLACED_TEXT, began_s)


def _end_when_answered(client: Connection, *, read_on: bool) -> None:
    """End a connection that cannot be handed over, as one of TLS, once its input is read and answered."""
    if not client.lingering_since_s and not client.awaited and not (read_on and client.has_unread()):
        client.end_with(Code.CLOSING, REPLACED_TEXT)


def let_nodes_go(services: Services, text: str, began_s: float) -> None:
    """Other nodes go last: publishes wait for their acknowledgements. From now on they get their own publishes back, to
    be sent to the next worker; `closing` means to them that all the others are answered.
    """
    waiting = any(not each.bound and (each.awaited or not each.lingering_since_s) for each in services.clients.values())
    late = services.now_s > began_s + NODES_STAY_S
    for client in list(services.clients.values()):
        if client.bound and not client.lingering_since_s:
            client.take_no_more()
            if late or not (waiting or client.awaited):
                client.end_with(Code.UNAVAILABLE if client.awaited else Code.CLOSING, text)


def finish_all(services: Services) -> None:
    for client in list(services.clients.values()):
        client.end_with(Code.UNAVAILABLE if client.bound and client.awaited else Code.CLOSING, REPLACED_TEXT)
        client.after_turn()  # sends, unless a chunk is half out
        client.close("replaced")
