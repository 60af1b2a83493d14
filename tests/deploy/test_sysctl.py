"""The kernel settings: known to the kernel, in its order, each with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.supervisor import listeners

CONF = Path(__file__).resolve().parents[2] / "deploy" / "sysctl.d" / "90-tailrace.conf"
PROC = Path("/proc/sys")


def settings() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9_.-]+) = (.+)$", CONF.read_text(), re.MULTILINE))


def test_every_line_is_a_comment_or_a_setting() -> None:
    for line in CONF.read_text().splitlines():
        assert not line or line.startswith("# ") or re.fullmatch(r"[a-z0-9_.-]+ = [0-9 ]+", line), line


@pytest.mark.parametrize("name", sorted(settings()))
def test_the_kernel_knows_it(name: str) -> None:
    path = PROC.joinpath(*name.split("."))
    if not path.parent.is_dir() or not path.exists():
        pytest.skip(f"this kernel or container has no {path}")
    assert len(path.read_text().split()) == len(settings()[name].split())


def test_every_group_has_its_reason() -> None:
    for group in CONF.read_text().split("\n\n"):
        assert group.startswith("# "), group


def test_the_backlog_is_granted() -> None:
    assert int(settings()["net.core.somaxconn"]) >= listeners.BACKLOG


def test_the_ports_are_not_lent_out() -> None:
    low, _high = settings()["net.ipv4.ip_local_port_range"].split()
    assert int(low) > 5_051


def test_writeback_starts_before_writers_wait() -> None:
    found = settings()
    assert int(found["vm.dirty_background_bytes"]) < int(found["vm.dirty_bytes"])


def test_a_peer_that_never_reads_takes_no_more_kernel_memory_than_by_the_kernels_own_default() -> None:
    assert int(settings()["net.ipv4.tcp_wmem"].split()[2]) <= 4 << 20
