from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench import ports
from bench.ports import BLOCK_PORTS, PORTS, PortBlock, free_port, reserve

ASK = "from bench.ports import free_port; print(free_port(), flush=True); input()"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> range:
    """Ports for two blocks, beyond those that anybody has."""
    monkeypatch.setattr(ports, "PORTS", few := range(PORTS.stop, PORTS.stop + 2 * BLOCK_PORTS + 10))
    monkeypatch.setattr(ports, "_ports", lambda: few)
    return few


def test_two_blocks_have_nothing_in_common_and_there_are_no_more(few: range) -> None:
    with reserve() as one, reserve() as other:
        assert not set(one.ports) & set(other.ports)
        with pytest.raises(
            OSError, match=f"all ports from {few[0]} to {few[-1]} are taken, in blocks of {BLOCK_PORTS}"
        ):
            reserve()


def test_a_block_is_free_when_its_holder_is_gone(few: range) -> None:
    with reserve():
        with reserve() as second:
            pass
        with reserve() as third:
            assert third.ports == second.ports


def test_what_is_in_use_is_passed_over_and_each_has_its_turn() -> None:
    with reserve() as block, PortBlock(first_of(block, 3), unmarked()) as short:
        with socket.create_server(("127.0.0.1", block.ports[1])):
            assert [short.free_port() for _ in range(4)] == [block.ports[0], block.ports[2]] * 2
        assert [short.free_port(), short.free_port()] == [block.ports[0], block.ports[1]]


def test_none_is_left() -> None:
    with (
        reserve() as block,
        PortBlock(first_of(block, 1), unmarked()) as short,
        socket.create_server(("127.0.0.1", block.ports[0])),
        pytest.raises(OSError, match=f"no port from {block.ports[0]} to {block.ports[0]} is free"),
    ):
        short.free_port()


def first_of(block: PortBlock, count: int) -> range:
    return block.ports[:count]


def unmarked() -> socket.socket:
    return socket.socket(socket.AF_UNIX)


def test_another_process_has_others() -> None:
    mine = {free_port() for _ in range(BLOCK_PORTS)}
    with subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        process.communicate(b"\n")
    assert port not in mine and port in PORTS


def test_connections_that_have_all_ports_leave_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "_CONNECTIONS_FILE", file := tmp_path / "range")
    for first, expected in ((1_024, PORTS), (32_768, PORTS), (20_000, range(PORTS.start, 20_000))):
        file.write_text(f"{first}\t60999\n")
        assert ports._ports() == expected
