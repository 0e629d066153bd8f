"""Named points where a test can stop the process, at every arrow of the batch ladder.

Inert unless the environment names one: ``CDC_FAULT=<point>[:<nth>]`` and ``CDC_FAULT_ACTION`` of
``kill`` (SIGKILL, the default), ``raise`` or ``stop`` (SIGSTOP: a paused runner). Just before it acts, the
point's name is appended to the file ``CDC_FAULT_LOG``, so that a test can assert that it was reached.

In Spark's workers, which a test does not start, there is another way: ``CDC_FAULT_FLAGS`` names a folder,
and the file ``<point>`` in it holds the action. Who reaches the point first takes the file away (it is then
called ``<point>.<process id>``), so that the next attempt is left in peace.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

POINTS = (
    "recovered",
    "released",
    "signals.answered",
    "snapshot.opened",
    "chunks.staged",
    "log.staged",
    "sealed",
    "bronze.appended.one",
    "bronze.appended",
    "committed",
    "silver.merged.one",
    "silver.merged",
    "reported",
)

WORKER_POINTS = ("piece.opened", "piece.written")

_hits: Counter[str] = Counter()


class FaultInjected(RuntimeError):
    """Raised at an armed point with ``CDC_FAULT_ACTION=raise``."""


def reach(point: str) -> None:
    """Mark that the ladder reached ``point``; act if a test armed it.

    :raises ValueError: the point is not in :data:`POINTS`, so that a test can never arm a name in vain.
    """
    armed = os.environ.get("CDC_FAULT")
    if armed is None:
        return
    if point not in POINTS:
        raise ValueError(f"unknown fault point {point!r}")
    name, _, nth = armed.partition(":")
    if name not in POINTS:
        raise ValueError(f"CDC_FAULT names no fault point: {name!r}")
    if name != point:
        return
    _hits[point] += 1
    if _hits[point] == int(nth or 1):
        _act(point)


def reach_in_worker(point: str) -> None:
    """Mark that a Spark task reached ``point``; act if a flag lies there.

    :raises ValueError: the point is not in :data:`WORKER_POINTS`.
    """
    folder = os.environ.get("CDC_FAULT_FLAGS")
    if folder is None:
        return
    if point not in WORKER_POINTS:
        raise ValueError(f"unknown fault point {point!r}")
    taken = Path(folder) / f"{point}.{os.getpid()}"
    try:
        os.rename(Path(folder) / point, taken)
    except FileNotFoundError:
        return
    _do(taken.read_text(encoding="utf-8").strip(), point)


def _act(point: str) -> None:
    log = os.environ.get("CDC_FAULT_LOG")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(point + "\n")
            file.flush()
            os.fsync(file.fileno())
    _do(os.environ.get("CDC_FAULT_ACTION", "kill"), point)


def _do(action: str, point: str) -> None:
    if action == "raise":
        raise FaultInjected(point)
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)
