"""The doors of a node that nobody has configured: what lies on the disk, who administers, what strangers meet."""

from __future__ import annotations

from pathlib import Path

from tests.system.node import running


def test_nothing_on_the_disk_is_open_to_other_users(tmp_path: Path) -> None:
    """Whatever the umask of the shell that starts it; systemd's was right before."""
    with running(tmp_path / "data") as node:
        with node.client() as client:
            assert client.ask("ack on") == "ok ack on"
            assert client.ask("pub a |x").startswith("ok pub a")
        found = [path for path in (node.data, *node.data.rglob("*")) if path.lstat().st_mode & 0o027]
        assert not found, found
