"""What a run tells the person who watches it: rows, rates, position, lag and time left.

The runner calls :class:`Progress`. On a terminal :class:`LiveProgress` redraws a table; elsewhere (job logs)
:class:`LogProgress` writes a line every few seconds, without colours or escape codes. Calls may come
from several threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

Stage = Literal["snapshot", "log", "bronze", "silver"]
STAGES: tuple[Stage, ...] = ("snapshot", "log", "bronze", "silver")

WINDOW = 10.0
"""Seconds over which a rate is taken: short enough to show a stall, long enough not to flicker."""

log = logging.getLogger("cdc_lib.progress")


class Progress:
    """The calls a runner makes; this class ignores them all. A context manager that closes itself."""

    def phase(self, name: str) -> None:
        """The runner enters a step of the ladder (``recover``, ``snapshot``, ``capture``, ``apply``, ...)."""

    def snapshot_planned(self, table: str, rows: int | None, chunks: int) -> None:
        """A table will be read in ``chunks`` pieces, ``rows`` in all as far as the source knows."""

    def rows(self, table: str, stage: Stage, count: int) -> None:
        """``count`` more rows of ``table`` have passed ``stage``."""

    def position(self, at: str, behind_bytes: int | None, behind_seconds: float | None) -> None:
        """The log has been read up to ``at``; that is so far behind the source's end."""

    def batch(self, number: int, rows: int, seconds: float) -> None:
        """A batch has been committed."""

    def note(self, text: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """Show the last state and leave the screen clean. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class Meter:
    """A count with its rate over the last :data:`WINDOW` seconds; times are the caller's, in seconds."""

    total: int = 0
    started: float | None = None
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, count: int, now: float) -> None:
        if self.started is None:
            self.started = now
        self.total += count
        self._samples.append((now, count))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Rows a second. Before a whole window has passed: over the time since the first row."""
        self._forget(now)
        if self.started is None:
            return 0.0
        seconds = min(WINDOW, now - self.started)
        # The first rows arrive all at once; a rate over no time at all would be nonsense.
        return sum(count for _, count in self._samples) / seconds if seconds >= 0.5 else 0.0

    def _forget(self, now: float) -> None:
        while self._samples and self._samples[0][0] < now - WINDOW:
            self._samples.popleft()


@dataclass
class TableProgress:
    """How far one table is; ``planned`` is the source's estimate of the rows to snapshot."""

    planned: int | None = None
    chunks: int = 0
    meters: dict[Stage, Meter] = field(default_factory=lambda: {stage: Meter() for stage in STAGES})

    def seconds_left(self, now: float) -> float | None:
        """Time to the end of the snapshot at the present rate; None where there is nothing to tell from."""
        meter = self.meters["snapshot"]
        rate = meter.rate(now)
        if self.planned is None or rate == 0 or meter.total >= self.planned:
            return None
        return (self.planned - meter.total) / rate

    def busiest(self, now: float) -> float:
        """The rate of the stage that moves fastest now."""
        return max(meter.rate(now) for meter in self.meters.values())


class Tally(Progress):
    """Keeps the figures; subclasses show them. ``clock`` counts seconds and only ever rises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.tables: dict[str, TableProgress] = {}
        self.step = "starting"
        self.at = ""
        self.behind_bytes: int | None = None
        self.behind_seconds: float | None = None
        self.batches = 0
        self.last_batch: tuple[int, int, float] | None = None

    def phase(self, name: str) -> None:
        with self.lock:
            self.step = name

    def snapshot_planned(self, table: str, rows: int | None, chunks: int) -> None:
        with self.lock:
            entry = self._table(table)
            entry.planned, entry.chunks = rows, chunks

    def rows(self, table: str, stage: Stage, count: int) -> None:
        with self.lock:
            self._table(table).meters[stage].add(count, self.clock())

    def position(self, at: str, behind_bytes: int | None, behind_seconds: float | None) -> None:
        with self.lock:
            self.at, self.behind_bytes, self.behind_seconds = at, behind_bytes, behind_seconds

    def batch(self, number: int, rows: int, seconds: float) -> None:
        with self.lock:
            self.batches += 1
            self.last_batch = (number, rows, seconds)

    def total(self, stage: Stage) -> int:
        return sum(entry.meters[stage].total for entry in self.tables.values())

    def rate(self, stage: Stage) -> float:
        now = self.clock()
        return sum(entry.meters[stage].rate(now) for entry in self.tables.values())

    def seconds_left(self) -> float | None:
        """Of the table that takes longest; None when no snapshot is being read."""
        now = self.clock()
        known = [left for entry in self.tables.values() if (left := entry.seconds_left(now)) is not None]
        return max(known, default=None)

    def _table(self, name: str) -> TableProgress:
        return self.tables.setdefault(name, TableProgress())


QUIET = 30.0
"""Seconds after which a line is repeated although nothing moved: long silence looks like a dead process."""


class LogProgress(Tally):
    """One line to the log every ``interval`` seconds while something moves, and one at the end."""

    def __init__(self, interval: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.interval = interval
        self._closed = threading.Event()
        self._shown = ""
        self._shown_at = clock()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()

    def phase(self, name: str) -> None:
        super().phase(name)
        log.debug("phase step=%s", name)

    def note(self, text: str) -> None:
        log.info("%s", text)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        self.write()

    def write(self) -> None:
        """Write a line, unless nothing has changed since the last one and that is not long ago."""
        with self.lock:
            line, now = self.line(), self.clock()
        if line != self._shown or now - self._shown_at >= QUIET:
            self._shown, self._shown_at = line, now
            log.info("%s", line)

    def line(self) -> str:
        """The state as ``key=value`` pairs."""
        parts = [f"step={self.step.replace(' ', '_')}"]
        for stage in STAGES:
            if count := self.total(stage):
                parts.append(f"{stage}_rows={count} {stage}_rate={self.rate(stage):.0f}/s")
        if (left := self.seconds_left()) is not None:
            parts.append(f"left={seconds(left)}")
        if self.at:
            parts.append(f"position={self.at}")
        if self.behind_bytes is not None:
            parts.append(f"behind_bytes={self.behind_bytes}")
        if self.behind_seconds is not None:
            parts.append(f"behind_seconds={self.behind_seconds:.1f}")
        if self.last_batch:
            parts.append(f"batch={self.last_batch[0]}")
        return " ".join(parts)

    def _tick(self) -> None:
        while not self._closed.wait(self.interval):
            self.write()


class LiveProgress(Tally):
    """A table on the terminal, redrawn four times a second; it stays as it was at the end."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.console = console or Console(stderr=True)
        self.begun = clock()
        self._closed = False
        self._live = Live(
            get_renderable=self.render,
            console=self.console,
            refresh_per_second=4,
            vertical_overflow="crop",
        )
        self._live.start()

    def note(self, text: str) -> None:
        self.console.print(Text(text))

    def close(self) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.step = "finished"
        self._live.stop()

    def render(self) -> Group:
        """The table of tables under a line with the step, the position and the lag."""
        with self.lock:
            return Group(self._heading(), self._rows())

    def _heading(self) -> Text:
        parts = [f"{self.step}  {seconds(self.clock() - self.begun)}"]
        if self.at:
            parts.append(f"position {self.at}")
        if self.behind_bytes is not None:
            parts.append(f"{size(self.behind_bytes)} behind")
        if self.behind_seconds is not None:
            parts.append(f"lag {self.behind_seconds:.1f} s")
        if self.last_batch:
            number, rows, took = self.last_batch
            parts.append(f"batch {number}: {rows:,} rows in {took:.1f} s")
        return Text("  |  ".join(parts), no_wrap=True, overflow="ellipsis")

    def _rows(self) -> Table:
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        shown.add_column("table", no_wrap=True)
        for heading in (*STAGES, "rows/s", "left"):
            shown.add_column(heading, justify="right", no_wrap=True)
        now = self.clock()
        # More tables than lines: those that move come first, the rest is counted.
        room = max(1, self.console.size.height - 4)
        busy = sorted(self.tables.items(), key=lambda item: (-item[1].busiest(now), item[0]))[:room]
        for name, entry in sorted(busy):
            left = entry.seconds_left(now)
            shown.add_row(
                name,
                *(self._cell(entry, stage) for stage in STAGES),
                f"{entry.busiest(now):,.0f}",
                "" if left is None else seconds(left),
            )
        if hidden := len(self.tables) - len(busy):
            shown.add_row(f"and {hidden} more tables")
        return shown

    @staticmethod
    def _cell(entry: TableProgress, stage: Stage) -> str:
        total = entry.meters[stage].total
        if stage == "snapshot" and entry.planned:
            return f"{total:,} of {entry.planned:,}"
        return f"{total:,}" if total else ""


def size(count: int) -> str:
    """Bytes for people, in binary units."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def seconds(amount: float) -> str:
    """A duration for people: ``8s``, ``3m05s``, ``2h04m``."""
    whole = max(0, round(amount))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def for_console(console: Console) -> Progress:
    """A live table where ``console`` is a terminal, log lines elsewhere."""
    return LiveProgress(console) if console.is_terminal else LogProgress()
