"""A node that the nursery starts is what one started by exec is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tailrace.cli.ending import NO_CONNECTION, OK
from tests.system.node import PATIENCE_S, Node, running
from tests.system.nursery import nursery


class Started(Node):
    """Started by exec."""

    by_exec = True


@contextmanager
def both(folder: Path) -> Iterator[tuple[Node, Node]]:
    """A node that is forked, and one that is not."""
    forked, started = Node(folder / "forked"), Started(folder / "started")
    try:
        yield forked.start(), started.start()
    finally:
        for node in (forked, started):
            node.kill()


def look(node: Node) -> dict[str, object]:
    """The system's view of a node's supervisor, without the values that differ between nodes."""
    assert node.process is not None
    process = psutil.Process(node.process.pid)
    own = Path(f"/proc/{process.pid}")
    status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
    return {
        "session": os.getsid(process.pid) == process.pid,
        "group": os.getpgid(process.pid) == process.pid,
        "folder": process.cwd(),
        "titles": [first_words(each) for each in [process, *process.children()]],
        "descriptors": sorted(re.sub(r".*[/.]|:.*", "", os.readlink(each)) for each in (own / "fd").iterdir()),
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "limits": (own / "limits").read_text(),
        "network": os.readlink(own / "ns/net"),
    }


def first_words(process: psutil.Process) -> str:
    return " ".join(process.cmdline()[0].split()[:2])


def test_a_forked_node_looks_like_one_that_was_started(tmp_path: Path) -> None:
    with both(tmp_path) as (forked, started):
        assert look(forked) == look(started)
        for node in (forked, started):
            assert node.process is not None and node.process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                node.process.wait(0.01)
        assert (forked.stop(), started.stop()) == (0, 0)


def test_that_it_was_killed_is_known(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        assert node.process is not None
        node.process.kill()
        assert node.process.wait() == node.process.poll() == -signal.SIGKILL
        node.kill()
        node.start()


def test_it_has_the_environment_and_the_folder_of_this_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = nursery(os.environ)
    assert asked is not None
    monkeypatch.setenv("TAILRACE_SERVER", "127.0.0.1:1")
    (tmp_path / "empty.toml").touch()
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "said").open("wb") as output:
        assert asked.start(["pub", "a"], output.fileno(), os.environ).wait(PATIENCE_S) == NO_CONNECTION
        command = ["serve", "--check-config", "--config", "empty.toml"]
        assert asked.start(command, output.fileno(), os.environ).wait(PATIENCE_S) == OK
    said = (tmp_path / "said").read_text()
    assert "127.0.0.1:1" in said and "empty.toml: valid" in said, said


def test_what_is_read_at_the_start_of_a_process_asks_for_a_new_one() -> None:
    assert nursery({**os.environ, "TAILRACE_BOOT_ID": "another"}) is not None
    for name in ("TAILRACE_INTERPRETED", "LD_PRELOAD", "PYTHONOPTIMIZE"):
        assert nursery({**os.environ, name: "another"}) is None


def test_a_node_can_be_killed_as_soon_as_it_is_started(tmp_path: Path) -> None:
    """Its process group is there at once: a kill that came before would be lost, and be waited for without end."""
    nodes = nursery(os.environ)
    assert nodes is not None
    with (tmp_path / "log").open("wb") as log:
        for _ in range(20):
            forked = nodes.start(["--version"], log.fileno(), os.environ)
            os.killpg(forked.pid, signal.SIGKILL)
            assert forked.wait(PATIENCE_S) in (-signal.SIGKILL, OK)
