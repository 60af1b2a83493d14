from __future__ import annotations

import socket

import pytest

from tailrace.supervisor.listeners import CannotListen, open_listeners, open_metrics_listener


def test_all_listen_on_one_port() -> None:
    listeners = open_listeners("127.0.0.1", 0, 3)
    ports = {listener.getsockname()[1] for listener in listeners}
    assert len(ports) == 1
    with socket.create_connection(("127.0.0.1", ports.pop()), timeout=60):
        pass
    for listener in listeners:
        listener.close()


def test_a_second_node_on_the_port_is_refused_although_the_kernel_would_share_it() -> None:
    listeners = open_listeners("127.0.0.1", 0, 1)
    port = listeners[0].getsockname()[1]
    with pytest.raises(CannotListen, match=f"port {port}: Address already in use"):
        open_listeners("127.0.0.1", port, 1)
    listeners[0].close()


def test_a_host_that_is_none() -> None:
    with pytest.raises(CannotListen, match=r"no-such-host\.invalid"):
        open_listeners("no-such-host.invalid", 0, 1)


def test_an_address_of_somebody_else() -> None:
    with pytest.raises(CannotListen, match="Cannot assign"):
        open_listeners("192.0.2.1", 0, 1)


def test_the_port_for_metrics_is_shared_with_nobody() -> None:
    with open_metrics_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} for metrics: Address already in use"):
            open_metrics_listener("127.0.0.1", port)
        with pytest.raises(CannotListen, match=f"port {port}: Address already in use"):
            open_listeners("127.0.0.1", port, 1)
