"""What a forked worker is given, and the phases of its life."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import Enum

from tailrace.broker.process.control import ControlChannel
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.tls_contexts import TLSContexts
from tailrace.shard.directory import DataDirectory


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """All that a forked worker is given."""

    settings: Settings
    directory: DataDirectory
    slot: int
    slots: int
    generation: int
    boot_id: str
    own: bool  # take the shards at once, or stand by until ordered
    control: ControlChannel
    listener: socket.socket
    board: Board
    tls: TLSContexts
    admin_listener: socket.socket | None = None
    udp_socket: socket.socket | None = None


class WorkerPhase(Enum):
    """The phases of a worker's life; the control channel moves it on, never back."""

    STANDBY = "standby"
    SERVING = "serving"
    RETIRED = "retired"  # a successor owns the shards; connections follow
    DRAINING = "draining"  # the node stops; requests under way are finished
    DRAINED = "drained"  # nothing of this worker's clients is under way; siblings may still ask
    LEAVING = "leaving"
