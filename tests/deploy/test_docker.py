"""The container's files: the files they copy exist, and they run the same command as the unit of systemd."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tailrace.broker.process.settings import Settings
from tests.cli.process import tailrace

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "docker"
DOCKERFILE = (FOLDER / "tailrace.Dockerfile").read_text()
COMPOSE = (FOLDER / "compose.yml").read_text()
UNIT = (ROOT / "deploy" / "tailrace.service").read_text()


def test_every_line_is_an_instruction() -> None:
    lines = re.sub(r"\\\n", " ", DOCKERFILE).splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith("#")]
    known = ["FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"]
    assert set(words) <= set(known) and words[0] == "FROM" and words[-1] == "ENTRYPOINT"


def test_what_is_copied_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    assert copied and all((ROOT / each).exists() for each in copied)
    mounted = re.findall(r"^ +- (\.\./[^:]+):", COMPOSE, re.MULTILINE)
    assert mounted and all((FOLDER / each).exists() for each in mounted)
    assert "context: ../..\n" in COMPOSE and "dockerfile: deploy/docker/tailrace.Dockerfile\n" in COMPOSE


def test_it_runs_what_the_unit_runs() -> None:
    settings = Settings()
    assert f"EXPOSE {settings.port} {settings.metrics_port}\n" in DOCKERFILE
    assert f":{settings.metrics_port}/readyz" in DOCKERFILE
    entry = re.search(r'ENTRYPOINT \["(.*)"\]', DOCKERFILE)
    started = re.search(r"^ExecStart=\S+/(tailrace .*)$", UNIT, re.MULTILINE)
    assert entry is not None and started is not None
    assert entry[1].split('", "') == started[1].split()
    grace = re.search(r"TimeoutStopSec=(\S+)", UNIT)
    assert grace is not None and f"stop_grace_period: {grace[1]}\n" in COMPOSE


def test_the_data_directory_is_made_empty() -> None:
    """The node does not start in a directory with other files, such as those of /etc/skel."""
    made = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line.startswith("RUN useradd ")]
    assert len(made) == 1 and "--no-create-home" in made[0]
    assert re.search(r"&& install -d -o tailrace -g tailrace -m 750 /var/lib/tailrace$", made[0])


def test_the_ports_are_for_this_machine() -> None:
    published = re.findall(r'^ +- "(.*:[0-9]+)"$', COMPOSE, re.MULTILINE)
    assert len(published) == 3 and all(port.startswith("127.0.0.1:") for port in published)


def test_the_configuration_is_valid() -> None:
    config = FOLDER / "tailrace-docker.toml"
    assert tomllib.loads(config.read_text())["listen"]["host"] == "0.0.0.0"
    done = tailrace("serve", "--config", str(config), "--check-config")
    assert done.returncode == 0, done.stderr
