from __future__ import annotations

import os
from pathlib import Path

from bench.machine import build_under, describe_machine, file_system, mapped_leaves, running_build
from tailrace.shard.leaves import INTERPRETED_VARIABLE, LEAF_MODULES, build


def test_the_file_system_of_proc_is_proc() -> None:
    assert file_system(Path("/proc/self")) == "proc"


def test_a_reader_learns_what_it_ran_on(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert machine["python"].startswith("3.")
    assert int(machine["cores"]) >= 1
    assert str(tmp_path) in machine["file system"]


TAG = "cpython-311-x86_64-linux-gnu.so"


def test_leaves_are_known_by_folder_and_name() -> None:
    ours = [f"/srv/{name.replace('.', '/')}.{TAG}" for name in LEAF_MODULES]
    assert mapped_leaves(ours) == set(LEAF_MODULES)
    assert mapped_leaves(["/usr/lib/libc.so", f"/srv/other/frame_cy.{TAG}", "/srv/shard/frame_cy.py"]) == set()


def test_a_fresh_process_says_what_it_loads() -> None:
    assert build_under({INTERPRETED_VARIABLE: "1"}) == "interpreted"
    assert build_under({}) == build()


def test_a_running_process_is_seen_through_its_maps() -> None:
    loaded = build()
    expected = loaded if Path("/proc/self/maps").exists() else "interpreted"
    assert running_build(os.getpid()) == expected
