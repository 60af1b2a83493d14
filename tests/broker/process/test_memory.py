"""Freed memory: kept for reuse, and its pages given back once in a while."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.broker.process.memory import TRIM_EVERY_S, TRIM_PAUSE, HeapTrimmer

# Prints the resident memory with 300 blocks of 100 kB, without every other one, and after each of two ticks.
PROGRAM = f"""
from tailrace.broker.process.memory import HeapTrimmer, keep_freed_memory
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
assert keep_freed_memory()
now_s = 0.0
trimmer = HeapTrimmer(lambda: now_s)
blocks = [b"x" * 100_000 for _ in range(300)]
print(resident())
blocks[::2] = [None] * 150
print(resident())
for now_s in {TRIM_EVERY_S} - 1, {TRIM_EVERY_S}:
    trimmer.tick()
    print(resident())
"""
FREED_BYTES = 15_000_000


def test_free_pages_are_given_back_after_a_while() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    full, freed, early, trimmed = map(int, done.stdout.split())
    assert abs(full - freed) < FREED_BYTES / 10 and abs(early - freed) < FREED_BYTES / 10
    assert freed - trimmed > FREED_BYTES / 2


def test_a_trim_that_takes_long_is_done_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, took_s, trims = 0.0, 0.05, list[float]()

    def trim(_kept: int) -> None:
        nonlocal now_s
        trims.append(now_s)
        now_s += took_s

    trimmer = HeapTrimmer(lambda: now_s)
    monkeypatch.setattr(trimmer, "_trim", trim)
    for _ in range(1_200):
        trimmer.tick()
        now_s += 1.0
    assert len(trims) == 3 and trims[0] == TRIM_EVERY_S and trims[1] - trims[0] >= TRIM_PAUSE * took_s
    monkeypatch.setattr(trimmer, "_trim", None)  # musl
    now_s = 1e9
    trimmer.tick()
