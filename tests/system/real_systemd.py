"""The unit's start, reload and stop under a real systemd, which is process 1 of namespaces of its own.

    sudo .venv/bin/python -m tests.system.real_systemd

The unit has the type, the commands and the kill mode of deploy/tailrace.service. A reload with a faulty file must fail
and replace nothing. The suite has a stand-in for systemd's socket instead (test_lifecycle.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_S: Final = 300.0
KEPT: Final = r"^(Type|NotifyAccess|KillMode|TimeoutStopSec|WatchdogSec|ExecStart|ExecReload)=.*$"
BOOT: Final = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
for each in /run /etc/systemd/system /lib/systemd/system-generators; do mount -t tmpfs tmpfs $each; done
umount -R /sys/fs/cgroup || true
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /run/lock /sys/fs/cgroup/unified /sys/fs/cgroup/systemd
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
ip link set lo up
cp {folder}/*.service {folder}/*.target /etc/systemd/system/
exec env container=other /usr/lib/systemd/systemd --system --unit=walk.target --log-target=null
"""
WALK: Final = """
unit() {{ systemctl show tr -p ActiveState,Result,MainPID,StatusText --value | tr '\\n' ' '; }}
begin() {{ printf '%s\\n' "$1" > {folder}/t.toml; }}
begin ''
systemctl start tr; echo "start $? $(unit)"
begin '[limits]'
systemctl reload tr; echo "reload $?"
for _ in $(seq 600); do case "$(unit)" in *serving*" active "*) break ;; esac; sleep 0.1; done; echo "replaced $(unit)"
begin 'nothing = ['
systemctl reload tr; echo "faulty $? $(unit)"
{command} pub after faulty; echo "publish $?"
systemctl stop tr; echo "stop $? $(unit)"
"""
SERVICE: Final = "[Unit]\nDefaultDependencies=no\n[Service]\n"
TARGET: Final = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants=walk.service\n"
EXPECTED: Final = (
    r"start 0 .*serving.* active ",
    r"reload 0",
    r"replaced .*serving.* active ",
    r"faulty 1 .*serving.* active ",
    r"publish 0",
    r"stop 0 .*inactive",
)


def main() -> int:
    command = f"{sys.prefix}/bin/tailrace"
    with tempfile.TemporaryDirectory(prefix="systemd-") as made:
        folder = Path(made)
        unit = (ROOT / "deploy" / "tailrace.service").read_text()
        lines = "\n".join(found[0] for found in re.finditer(KEPT, unit, re.MULTILINE))
        lines = lines.replace("/opt/tailrace/venv/bin/tailrace", command)
        lines = lines.replace("/etc/tailrace/tailrace.toml", f"{folder}/t.toml")
        lines = lines.replace("/var/lib/tailrace", f"{folder}/data")
        (folder / "tr.service").write_text(SERVICE + lines + "\n")
        walk = f"Type=oneshot\nExecStart=/bin/bash {folder}/walk.sh\nStandardOutput=append:{folder}/walk.log\n"
        (folder / "walk.service").write_text(SERVICE + walk + "ExecStopPost=/bin/kill -RTMIN+14 1\n")
        (folder / "walk.target").write_text(TARGET)
        values = {"folder": folder, "command": command}
        (folder / "walk.sh").write_text(WALK.format(**values))
        boot = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--cgroup", "--uts", "--net", "--ipc"]
        subprocess.run([*boot, "bash", "-c", BOOT.format(**values)], timeout=PATIENCE_S, check=False)
        shown = (folder / "walk.log").read_text() if (folder / "walk.log").exists() else "systemd has not begun\n"
    print(shown, end="")
    found = [line for line in shown.splitlines() if re.match(r"(start|reload|replaced|faulty|publish|stop) ", line)]
    kept = len(found) == len(EXPECTED) and all(map(re.match, EXPECTED, found))
    pids = {pid for line in found for pid in re.findall(r" (\d{2,}) ", line)}
    print("it holds" if kept and len(pids) == 1 else f"it does not hold: main processes {sorted(pids)}")
    return 0 if kept and len(pids) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
