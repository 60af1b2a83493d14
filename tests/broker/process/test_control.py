from __future__ import annotations

import os
import socket

import pytest

from tailrace.broker.process.control import ControlChannel, ControlClosed


def test_messages_keep_their_borders_and_descriptors_travel() -> None:
    left, right = ControlChannel.pair()
    assert right.receive() is None
    reader, writer = os.pipe()
    left.send("ready")
    left.send("link", (reader,), slot=2, generation=9)
    first, second = right.receive(), right.receive()
    assert first is not None and first.kind == "ready" and first.fields == {} and first.fds == []
    assert second is not None and second.fields == {"slot": 2, "generation": 9}
    os.write(writer, b"x")
    assert os.read(second.fds[0], 1) == b"x"
    assert not os.get_inheritable(second.fds[0])
    for fd in (reader, writer, second.fds[0]):
        os.close(fd)
    left.close()
    right.close()


def test_the_end_of_the_other_process_shows() -> None:
    left, right = ControlChannel.pair()
    left.close()
    with pytest.raises(ControlClosed):
        right.receive()
    with pytest.raises(ControlClosed):
        right.send("ready")
    right.close()


def test_an_unknown_kind_is_our_mistake() -> None:
    left, right = ControlChannel.pair()
    with pytest.raises(ValueError, match="frobnicate"):
        left.send("frobnicate")
    left.close()
    right.close()
    assert isinstance(left.sock, socket.socket)
