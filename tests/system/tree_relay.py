"""Stands between two network interfaces, and delays and loses what goes through, for kernels without netem.

    python tree_relay.py INTERFACE INTERFACE DELAY_MS LOSS_PERCENT

Prints a line when it is there; ends when its input does.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
FRAME_BYTES_MAX = 1 << 17  # the kernel gives data not yet cut into packets
QUEUE_MAX = 10_000  # frames on their way; those beyond are lost


def tap(interface: str) -> socket.socket:
    """A socket that sees and sends whole frames, each with what the kernel must know of its checksum and segments."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    sock.bind((interface, 0))
    sock.setblocking(False)
    return sock


def receive(sock: socket.socket) -> bytes:
    """A frame, b"" for none."""
    try:
        return sock.recv(FRAME_BYTES_MAX)
    except OSError:  # nothing there, or the interface is down
        return b""


def relay(first: socket.socket, second: socket.socket, delay_s: float, loss: float) -> None:
    """Until standard input ends."""
    other = {first: second, second: first}
    on_way: deque[tuple[float, socket.socket, bytes]] = deque()
    chance = random.Random()
    while True:
        left_s = max(0.0, on_way[0][0] - time.monotonic()) if on_way else None
        ready, _, _ = select.select([first, second, sys.stdin], [], [], left_s)
        if sys.stdin in ready and not os.read(0, 1):
            return
        for sock in other:
            frame = receive(sock) if sock in ready else b""
            if frame and chance.random() >= loss and len(on_way) < QUEUE_MAX:
                on_way.append((time.monotonic() + delay_s, other[sock], frame))
        while on_way and on_way[0][0] <= time.monotonic():
            _due, towards, frame = on_way.popleft()
            with contextlib.suppress(OSError):  # the interface is down, or full: lost
                towards.send(frame)


def main() -> None:
    first, second, delay_ms, loss_percent = sys.argv[1:]
    sockets = tap(first), tap(second)
    print("ready", flush=True)
    relay(*sockets, float(delay_ms) / 1000, float(loss_percent) / 100)


if __name__ == "__main__":
    main()
