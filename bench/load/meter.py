"""Wall time, and processor time of a server's processes, between two moments."""

from __future__ import annotations

import glob
import time
from dataclasses import dataclass

import psutil

from bench.load.limits import LoadError


@dataclass(frozen=True, slots=True)
class Spent:
    """`busy_s`: as `cpu_s`, to the nanosecond, without processes and threads that have ended."""

    wall_s: float
    cpu_s: float
    busy_s: float = 0.0


class ProcessTree:
    """A process and its descendants as they were when this was made. LoadError if the process has ended."""

    def __init__(self, pid: int) -> None:
        try:
            root = psutil.Process(pid)
            if root.status() == psutil.STATUS_ZOMBIE:
                raise psutil.NoSuchProcess(pid)
            self.processes = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess as error:
            raise LoadError(f"the server (process {pid}) has ended") from error

    def cpu_s(self) -> float:
        """User and system time of all living processes, and of their reaped children."""
        total = 0.0
        for process in self.processes:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def busy_s(self) -> float:
        """The same without ended processes, to the nanosecond: for very small loads."""
        return sum(_on_processor_ns(process.pid) for process in self.processes) / 1e9

    def rss_bytes(self) -> int:
        """The sum of each process's resident memory; pages they share count once for each."""
        return sum(_status_kib(process.pid, "VmRSS") for process in self.processes) * 1024

    def peak_rss_bytes(self) -> int:
        """The sum of each process's greatest resident memory; pages they share count once for each."""
        return sum(_status_kib(process.pid, "VmHWM") for process in self.processes) * 1024

    def private_bytes(self) -> int:
        """Memory that would be free if the processes ended: pages shared among them count once."""
        return sum(_smaps_kib(process.pid, "Pss_Anon", "Pss_Shmem") for process in self.processes) * 1024

    def open_files(self) -> list[int]:
        """Open descriptors of each process."""
        return [process.num_fds() for process in self.processes]


class Meter:
    """Starts when made; `stop` returns the time spent since. The sampling itself lies outside the wall time."""

    def __init__(self, pid: int) -> None:
        self._tree = ProcessTree(pid)
        self._cpu_s, self._busy_s = self._tree.cpu_s(), self._tree.busy_s()
        self._start = time.perf_counter()

    def stop(self) -> Spent:
        wall_s = time.perf_counter() - self._start
        return Spent(wall_s, self._tree.cpu_s() - self._cpu_s, self._tree.busy_s() - self._busy_s)


def _on_processor_ns(pid: int) -> int:
    """All threads; 0 for a process that has gone."""
    return sum(int(_first_line(path).partition(" ")[0] or 0) for path in glob.glob(f"/proc/{pid}/task/*/schedstat"))


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.readline()
    except OSError:
        return ""


def _status_kib(pid: int, field: str) -> int:
    return _fields_kib(f"/proc/{pid}/status", (field,))


def _smaps_kib(pid: int, *fields: str) -> int:
    return _fields_kib(f"/proc/{pid}/smaps_rollup", fields)


def _fields_kib(path: str, fields: tuple[str, ...]) -> int:
    """The sum of the `Name:  123 kB` lines that are wanted; 0 for a process that has gone."""
    try:
        with open(path, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return 0
    return sum(int(row[1]) for row in rows if row and row[0].rstrip(":") in fields)
