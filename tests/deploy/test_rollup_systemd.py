"""The rollup under a real systemd, with every protection that its unit asks for, beside the broker's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.deploy.test_systemd import COMMAND, INSTALL, NEEDED, TEXT, Box, reason_not_to_run, running_box

pytest.importorskip("pyarrow", reason="needs the extra `rollup` (pip install -e '.[rollup]')")

pytestmark = [pytest.mark.slow, pytest.mark.system]

UNITS = ("tailrace-rollup.service", "tailrace-rollup.timer", "tailrace-rollup-failed.service")
OUT = "/var/lib/tailrace-rollup"
WAIT_S = 180.0
INSTALL_ROLLUP = "\n".join(f'install -D -m 644 deploy/{unit} "$ROOT/etc/systemd/system/{unit}"' for unit in UNITS)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    reason = reason_not_to_run()
    if reason:
        pytest.skip(reason)
    with running_box(tmp_path, f"{INSTALL}\n{INSTALL_ROLLUP}\n") as found:
        yield found


def set_day(box: Box, day: str) -> None:
    """The unit as shipped, except the path of the command, its dependencies, and the day."""
    unit = (Path(__file__).parents[2] / "deploy" / UNITS[0]).read_text()
    start = unit.index("ExecStart=")
    command = unit[start : unit.index("\n#", start)].replace("/opt/tailrace/venv/bin/tailrace", str(COMMAND))
    lines = ["[Service]", "ExecStart=", f"{command} --day {day}"]
    lines += ["CPUWeight=100", "IOWeight=100", "Nice=0"]  # machines that run tests are busy
    lines += ["ProtectHome=read-only", f"BindReadOnlyPaths={' '.join(NEEDED)}", ""]
    place = f"/etc/systemd/system/{UNITS[0]}.d"
    box.run("mkdir", "-p", place)
    box.run("tee", f"{place}/test.conf", stdin="\n".join(lines).encode())
    box.run("systemctl", "daemon-reload")


def run_once(box: Box) -> str:
    """Start the rollup and wait until it has ended; gives how, as systemd calls it."""
    before = ended(box)
    box.run("systemctl", "start", "--no-block", "tailrace-rollup")
    deadline_s = time.monotonic() + WAIT_S
    while ended(box) == before:
        assert time.monotonic() < deadline_s, journal(box, "tailrace-rollup")
        time.sleep(0.2)
    return show(box, "Result")


def ended(box: Box) -> int:
    """How often the rollup has run, from the journal; the unit itself keeps nothing after a success."""
    return len(
        re.findall(r"Finished tailrace-rollup|rollup\.service: Failed with result", journal(box, "tailrace-rollup"))
    )


def show(box: Box, field: str) -> str:
    return box.run("systemctl", "show", "--value", f"--property={field}", "tailrace-rollup").strip()


def journal(box: Box, unit: str) -> str:
    return box.try_run("journalctl", "--no-pager", f"--unit={unit}").stdout.decode()


@pytest.mark.thorough
def test_a_night_under_systemd(box: Box) -> None:
    box.wait(lambda: box.try_run("systemctl", "is-active", "tailrace").stdout == b"active\n")
    box.run(str(COMMAND), "pub", "lines", stdin=TEXT.read_bytes())
    day = str(datetime.now(UTC).date())
    set_day(box, day)
    assert run_once(box) == "success", journal(box, "tailrace-rollup")
    found = box.run("find", OUT, "-printf", "%u %g %m %P\n")
    assert f"tailrace-rollup tailrace 640 reports/{day}.html\n" in found
    assert re.search(f"minutes/day={day}/node=[0-9a-f]{{16}}/part-", found)
    metrics = "http://127.0.0.1:5051/metrics"
    ask = f"import urllib.request; print(urllib.request.urlopen({metrics!r}).read().decode())"
    shown = box.run(str(COMMAND.with_name("python")), "-c", ask)
    assert "tailrace_rollup_last_run_success 1.0" in shown
    assert "tailrace_textfile_error 0.0" in shown

    set_day(box, "never")
    assert run_once(box) == "exit-code"
    # By its tag: of a process that lives so shortly the journal may not learn the unit.
    told = ("journalctl", "--no-pager", "--identifier=tailrace-rollup", "--priority=err")
    box.wait(lambda: b"it has failed" in box.try_run(*told).stdout)
