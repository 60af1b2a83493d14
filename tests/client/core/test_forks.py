"""Severing: what stands in for a parent's things, and descriptors that are let go."""

from __future__ import annotations

import os
import socket

import pytest

from tailrace.core import forks
from tailrace.errors import ClientClosed


def test_every_use_of_what_is_severed_is_told() -> None:
    with pytest.raises(ClientClosed, match="connect again in the child"):
        forks.SEVERED.anything()
    with pytest.raises(ClientClosed, match="before a fork"), forks.SEVERED:
        pass


def test_a_descriptor_that_is_let_go_keeps_its_number_and_its_peer_hears_nothing() -> None:
    """As in a child, another descriptor of the same socket stays open."""
    near, far = socket.socketpair()
    copy = os.dup(near.fileno())
    before = len(os.listdir("/proc/self/fd"))
    forks.close_copies([copy, -1])
    assert os.readlink(f"/proc/self/fd/{copy}") == os.devnull and not os.get_inheritable(copy)
    assert len(os.listdir("/proc/self/fd")) == before
    far.setblocking(False)
    with pytest.raises(BlockingIOError):
        far.recv(1)
    os.close(copy)
    near.close()
    far.close()
