from __future__ import annotations

from pathlib import Path

from bench.machine import describe_machine, file_system


def test_the_file_system_of_proc_is_proc() -> None:
    assert file_system(Path("/proc/self")) == "proc"


def test_a_reader_learns_what_it_ran_on(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert machine["python"].startswith("3.")
    assert int(machine["cores"]) >= 1
    assert str(tmp_path) in machine["file system"]
