"""What a process tree used: CPU seconds and peak memory, read from /proc.

A tree is a process and all its descendants, since the work of a Spark job is spread over a Python process, a
JVM and the JVM's Python workers, and that of a PostgreSQL server over its backends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.1
"""Often enough for JVM and workers, and cheap: each sample reads all of /proc, on the measured cores."""
ROLES = ("python", "workers", "jvm")
"""Whose memory: the process itself, the JVM's Python workers, the JVM."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One line of /proc: ``ticks`` of CPU include those of children that have ended and were waited for."""

    pid: int
    parent: int
    command: str
    ticks: int
    rss: int


def processes() -> dict[int, Process]:
    """All processes that run now."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (process := _process(int(entry.name))):
            found[process.pid] = process
    return found


def _process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command stands in parentheses and may hold any character (proc(5)); fields are counted after it.
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    ticks = sum(int(field) for field in fields[11:15])
    return Process(pid, int(fields[1]), head.partition("(")[2], ticks, int(fields[21]) * _PAGE)


def tree(root: int) -> list[tuple[str, Process]]:
    """A process and its descendants, each with its role."""
    every = processes()
    children: dict[int, list[Process]] = {}
    for process in every.values():
        children.setdefault(process.parent, []).append(process)
    found: list[tuple[str, Process]] = []
    waiting = [("python", every[root])] if root in every else []
    while waiting:
        role, process = waiting.pop()
        role = "jvm" if process.command == "java" else role
        found.append((role, process))
        below = "workers" if role == "jvm" else role
        waiting += [(below, child) for child in children.get(process.pid, [])]
    return found


def cpu_seconds(root: int) -> float:
    """CPU that a tree has used since it began."""
    return sum(process.ticks for _, process in tree(root)) / _TICKS


def memory(root: int) -> dict[str, int]:
    """Resident bytes of a tree by role. Pages that forked workers share are counted once for each."""
    found = dict.fromkeys(ROLES, 0)
    for role, process in tree(root):
        found[role] += process.rss
    return found


def high_water(pid: int) -> int:
    """The most resident bytes that one process ever had (VmHWM in proc(5)); 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


class Peak:
    """The highest memory of a tree by role: sampled by a thread, and for the root what the kernel kept, which
    no short peak escapes."""

    def __init__(self, root: int) -> None:
        self.bytes = dict.fromkeys(ROLES, 0)
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="bench-memory", daemon=True)

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.look()

    def look(self) -> None:
        for role, used in memory(self._root).items():
            self.bytes[role] = max(self.bytes[role], used)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self.look()
            self.bytes["python"] = max(self.bytes["python"], high_water(self._root))
