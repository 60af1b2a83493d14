"""The unit under a real systemd, with every protection it asks for: started, used, reloaded, killed, stopped.

systemd runs as process 1 of a container that systemd_box.sh makes; nothing of it is left when the test ends. The unit
runs as it is, but for the path of the command, which is this environment's and may be below /root or /tmp, so it is
made reachable in the container.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.shard.leaves import interpreted_wanted

ROOT = Path(__file__).resolve().parents[2]
BOX = Path(__file__).with_name("systemd_box.sh")
COMMAND = Path(sys.executable).with_name("tailrace")
TEXT = Path(__file__).with_name("rules_test.yml")  # some lines to publish
WAIT_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.system]

# What the unit needs of this environment: the checkout with its .venv, and the Python that the .venv is made of.
NEEDED = [str(ROOT), *({sys.base_prefix} - {"/usr"})]

DROP_IN = f"""
[Service]
ExecStart=
ExecStart={COMMAND} serve --config /etc/tailrace/tailrace.toml --data /var/lib/tailrace --workers 2
ExecReload=
ExecReload={COMMAND} serve --config /etc/tailrace/tailrace.toml --check-config
ExecReload=/bin/kill -HUP $MAINPID
ProtectHome=read-only
BindReadOnlyPaths={" ".join(NEEDED)}
"""

# Runs with $ROOT, the container's root, before systemd does. The steps are those of README.md.
INSTALL = f"""
cd {shlex.quote(str(ROOT))}
install -D -m 644 deploy/sysusers.d/tailrace.conf "$ROOT/etc/sysusers.d/tailrace.conf"
systemd-sysusers --root="$ROOT" "$ROOT/etc/sysusers.d/tailrace.conf"
install -D -m 644 deploy/tailrace.toml "$ROOT/etc/tailrace/tailrace.toml"
install -D -m 644 deploy/tailrace.service "$ROOT/etc/systemd/system/tailrace.service"
mkdir "$ROOT/etc/systemd/system/tailrace.service.d"
cat >"$ROOT/etc/systemd/system/tailrace.service.d/test.conf" <<'END'
{DROP_IN}
END
cat >"$ROOT/etc/systemd/system/box.target" <<'END'
[Unit]
Wants=systemd-journald.service tailrace.service
END
rm -rf "$ROOT/var/lib/tailrace"
for path in {" ".join(map(shlex.quote, NEEDED))}; do
    # A file system of its own is not part of the layer.
    [ "$(stat -c %d "$path")" = "$(stat -c %d /)" ] || mount --rbind "$path" "$ROOT$path"
    while [ "$path" != / ]; do
        chmod a+rx "$ROOT$path"
        path=$(dirname "$path")
    done
done
"""


class Box:
    """A container with systemd in it."""

    def __init__(self, outer: subprocess.Popen[bytes], pid: int) -> None:
        self.outer = outer
        self.pid = pid

    def run(self, *command: str, stdin: bytes = b"") -> str:
        """Runs a command in it as root and returns its output; asserts success."""
        done = self.try_run(*command, stdin=stdin)
        assert done.returncode == 0, f"{command}: {done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode()

    def try_run(self, *command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        enter = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd"]
        return subprocess.run([*enter, *command], input=stdin, capture_output=True, timeout=WAIT_S, check=False)

    def show(self, field: str) -> str:
        return self.run("systemctl", "show", "--value", f"--property={field}", "tailrace").strip()

    def log(self) -> str:
        return self.try_run("journalctl", "--no-pager", "--unit=tailrace").stdout.decode()

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, self.log()
            assert self.outer.poll() is None, "systemd has gone"
            time.sleep(0.1)

    def workers(self) -> list[str]:
        rows = self.run(str(COMMAND), "admin", "workers").splitlines()
        return [row.split()[1] for row in rows if row.split()[0].isdigit()]

    def read(self, stream: str) -> bytes:
        return self.run(str(COMMAND), "tail", stream, "--from", "0", "--no-follow").encode()


def start_box(folder: Path, script: str) -> subprocess.Popen[bytes]:
    install = folder / "install"
    install.write_text(script)
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup"]
    command = ["unshare", *namespaces, str(BOX), str(folder), str(install), "box.target"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def find_child(pid: int) -> int:
    """The process that `unshare` has forked, 0 when it has not yet."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


def reason_not_to_run() -> str:
    if interpreted_wanted():
        return "nothing here depends on which build is loaded; the other run has it"
    if os.geteuid() != 0:
        return "only root can make the container"
    missing = [tool for tool in ("unshare", "nsenter", "systemd-sysusers", "ip") if shutil.which(tool) is None]
    if missing or not Path("/lib/systemd/systemd").exists():
        return f"not installed: {' '.join(missing) or 'systemd'}"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "--net", "--cgroup", "true"], check=False).returncode:
        return "this machine makes no namespaces"
    return ""


@contextmanager
def running_box(folder: Path, script: str) -> Iterator[Box]:
    """A container in which the script has installed what systemd is to start."""
    outer = start_box(folder, script)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            ended = outer.poll() is not None
            assert not ended, f"the container cannot be made: {(folder / 'log').read_text()}"
            pid = find_child(outer.pid)
            if pid and Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                break
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield Box(outer, pid)
    finally:
        outer.kill()  # and with it, by --kill-child, everything in the container
        outer.wait()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    reason = reason_not_to_run()
    if reason:
        pytest.skip(reason)
    with running_box(tmp_path, INSTALL) as found:
        yield found


@pytest.mark.thorough
def test_the_unit_under_systemd(box: Box) -> None:
    text = TEXT.read_bytes()
    box.wait(lambda: box.try_run("systemctl", "is-active", "tailrace").stdout == b"active\n")
    assert box.show("StatusText") == "serving with 2 workers"
    box.run(str(COMMAND), "pub", "lines", stdin=text)
    assert box.read("lines") == text
    assert box.run("stat", "--format=%U %G %a", "/var/lib/tailrace").split() == ["tailrace", "tailrace", "750"]

    before = box.workers()
    box.run("systemctl", "reload", "tailrace")
    box.wait(lambda: not set(before) & set(box.workers()))
    assert box.read("lines") == text

    before = box.workers()
    box.run("sh", "-c", "cp /etc/tailrace/tailrace.toml /root/good; echo 'colour = 1' >>/etc/tailrace/tailrace.toml")
    assert box.try_run("systemctl", "reload", "tailrace").returncode != 0, "a configuration with a fault"
    assert (box.workers(), box.show("ActiveState")) == (before, "active")
    box.run("cp", "/root/good", "/etc/tailrace/tailrace.toml")

    box.run("kill", "-KILL", box.show("MainPID"))
    box.wait(lambda: box.show("NRestarts") == "1" and box.show("ActiveState") == "active")
    assert box.read("lines") == text

    box.run("systemctl", "stop", "tailrace")
    assert (box.show("Result"), box.show("ActiveState")) == ("success", "inactive")
    assert "no damage" in box.run(str(COMMAND), "check", "/var/lib/tailrace")

    box.run("sh", "-c", "echo 'colour = 1' >>/etc/tailrace/tailrace.toml")
    assert box.try_run("systemctl", "start", "tailrace").returncode != 0
    box.wait(lambda: box.show("ActiveState") == "failed")
    assert (box.show("ExecMainStatus"), box.show("NRestarts")) == ("2", "0"), "a wrong configuration is final"
    assert "colour" in box.log()
