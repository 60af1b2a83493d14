"""The script against a PATH of stand-ins: the commands it would run, and that it never fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "install-system-packages"
COMMANDS = [
    *("chromium", "etcd", "fish", "ip", "mkfs.xfs", "mosquitto", "mosquitto_pub", "nc", "nft", "openssl"),
    *("promtool", "redis-server", "systemd-analyze", "telnet", "tmux", "zsh"),
]


class Machine:
    """A folder of commands, each of which writes its arguments to a file `calls`."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.calls = root / "calls"
        self.policy = root / "policy-rc.d"
        for tool in ("bash", "cat", "chmod", "echo", "rm", "sh", "timeout", "touch", "test"):
            found = subprocess.run(["which", tool], capture_output=True, text=True, check=False).stdout.strip()
            if found:
                (self.bin / tool).symlink_to(found)
        self.user(0)

    def command(self, name: str, body: str = "exit 0") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.calls}"\n{body}\n')
        path.chmod(0o755)

    def user(self, number: int) -> None:
        self.command("id", f"echo {number}")

    def run(self) -> list[str]:
        """Runs the script, which must succeed; returns its output."""
        # The script adds the system's own folders to PATH, so they are taken out of it.
        text = SCRIPT.read_text().replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
        done = subprocess.run(
            [str(self.bin / "bash"), "-c", text],
            env={"PATH": str(self.bin), "POLICY_RC_D": str(self.policy)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def called(self, name: str) -> list[str]:
        if not self.calls.exists():
            return []
        return [line for line in self.calls.read_text().splitlines() if line.split()[0] == name]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_missing(machine: Machine) -> None:
    for name in COMMANDS:
        machine.command(name)
    machine.command("apt-get")
    assert machine.run() == ["system packages: all 16 are here"]
    assert machine.called("apt-get") == []


def test_only_the_missing_are_installed_and_started_by_nobody(machine: Machine) -> None:
    for name in ("nft", "promtool"):
        machine.command(name)
    installs = " ".join(f'echo x >"{machine.bin}/{name}"; chmod +x "{machine.bin}/{name}";' for name in COMMANDS)
    machine.command(
        "apt-get", f'test "$(cat "{machine.policy}")" = "$(printf "#!/bin/sh\\nexit 101\\n")" || exit 1; {installs}'
    )
    machine.command("systemctl")
    packages = (
        "chromium etcd-server fish iproute2 xfsprogs mosquitto mosquitto-clients netcat-openbsd openssl redis-server "
        "systemd telnet tmux zsh"
    )
    assert machine.run() == [
        f"system packages: installing {packages}",
        "system packages: installed",
    ]
    assert machine.called("apt-get")[0].endswith(f"install --yes --no-install-recommends {packages}")
    assert not machine.policy.exists()
    assert machine.called("systemctl") == [
        "systemctl --quiet disable etcd.service",
        "systemctl --quiet disable mosquitto.service",
        "systemctl --quiet disable redis-server.service",
    ]


def test_a_policy_of_the_machine_stays(machine: Machine) -> None:
    machine.policy.write_text("#!/bin/sh\nexit 0\n")
    machine.command("apt-get")
    machine.run()
    assert machine.policy.read_text() == "#!/bin/sh\nexit 0\n"


def test_a_failure_is_told_after_a_second_try(machine: Machine) -> None:
    for name in COMMANDS[:-1]:
        machine.command(name)
    machine.command("apt-get", "exit 100")
    assert machine.run()[-1] == "system packages: could not install zsh; their tests are skipped"
    assert [line.split()[-1] for line in machine.called("apt-get")] == ["zsh", "update"]


def test_without_root_nothing_is_tried(machine: Machine) -> None:
    machine.user(1_000)
    machine.command("apt-get")
    missing = "chromium etcd-server fish iproute2 xfsprogs mosquitto mosquitto-clients netcat-openbsd"
    assert machine.run()[0].startswith(f"system packages: missing {missing}")
    assert machine.called("apt-get") == []


def test_without_apt_nothing_is_tried(machine: Machine) -> None:
    assert "there is no apt-get here" in machine.run()[0]
