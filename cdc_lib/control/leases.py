"""Who may write: one row a pipeline, replaced by compare and swap.

Each change of the row carries ``number`` as a Delta transaction version, and replaces none of the same or a
higher number: of two runners that read the same row, one commit stands, the other conflicts or changes
nothing and reads the winner back.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Conflict, Lake, Txn
from cdc_lib.errors import RetryLater
from cdc_lib.table_ref import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RELEASED = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""End of a lease that was given back: past by every clock, also one that is behind."""


@dataclass(frozen=True)
class Lease:
    """The right of one runner to write, until ``expires_at``."""

    incarnation: Annotated[
        str, Stored("STRING", "id of this life of the pipeline; fixed with its first lease")
    ]
    runner: Annotated[str, Stored("STRING", "who holds the lease")]
    host: Annotated[str, Stored("STRING", "machine that the runner works on")]
    machine: Annotated[
        str, Stored("STRING", "boot and process space of that machine, to tell whether pid means ours")
    ]
    pid: Annotated[int, Stored("INT", "process of the runner")]
    process_started: Annotated[
        str, Stored("STRING", "when the process started, in the machine's own clock ticks")
    ]
    acquired_at: Annotated[datetime, Stored("TIMESTAMP", "when the runner took the lease")]
    expires_at: Annotated[datetime, Stored("TIMESTAMP", "from when on others may take it")]
    number: Annotated[int, Stored("BIGINT", "counts the changes of this row; the Delta transaction version")]


class Leases(ControlTable[Lease]):
    """The lease of a pipeline. ``holder`` is the runner that took it through this object."""

    name = "leases"
    comment = "Which runner may write for a pipeline, and until when"
    row = Lease

    def __init__(self, lake: Lake, pipeline: str) -> None:
        super().__init__(lake, pipeline)
        self.holder = ""

    def current(self) -> Lease | None:
        """The newest lease, valid or not."""
        return max(self.load(), key=lambda lease: lease.number, default=None)

    def held(self) -> DataFrame:
        """A frame that has a row as long as nobody took the lease from ``holder``."""
        held: DataFrame = self._lake.table(self.ref).where(f"runner = {literal(self.holder)}")
        return held.where(f"pipeline = {literal(self._pipeline)}")

    def acquire(self, runner: str, seconds: int, incarnation: str = "") -> Lease:
        """Take the lease: none is there, it has run out, or its process on this machine is gone.

        :param incarnation: the pipeline's, where the lease that said so is lost.
        :raises RetryLater: another runner holds it, or took it at the same moment.
        """
        taken = self._swap(self.offered(runner, seconds, incarnation))
        self.holder = runner
        return taken

    def offered(self, runner: str, seconds: int, incarnation: str = "") -> Lease:
        """The lease that :meth:`acquire` would write.

        :raises RetryLater: another runner holds it.
        """
        held = self.current()
        if held is not None and is_valid(held):
            raise _held_by(held)
        at = now()
        return Lease(
            incarnation=incarnation or (held.incarnation if held else uuid.uuid4().hex),
            runner=runner,
            host=socket.gethostname(),
            machine=machine_id(),
            pid=os.getpid(),
            process_started=process_start(os.getpid()),
            acquired_at=at,
            expires_at=at + timedelta(seconds=seconds),
            number=held.number + 1 if held else 1,
        )

    def renew(self, lease: Lease, seconds: int) -> Lease:
        """Extend the lease; also after it ran out, as long as nobody else took it.

        :raises RetryLater: somebody did.
        """
        held = self.current()
        if held is None or held.runner != lease.runner:
            raise _taken_over(lease, held)
        longer = replace(lease, number=held.number + 1, expires_at=now() + timedelta(seconds=seconds))
        return self._swap(longer)

    def release(self, lease: Lease) -> None:
        """Let others take it at once; nothing happens if they already did."""
        held = self.current()
        if held is None or held.runner != lease.runner:
            return
        try:
            self._swap(replace(lease, number=held.number + 1, expires_at=RELEASED))
        except RetryLater:
            return

    def _swap(self, lease: Lease) -> Lease:
        txn = Txn(f"lease/{self._pipeline}", lease.number)
        try:
            row = self._to_dict(lease)
            self._lake.upsert_rows(self.ref, [row], ["pipeline"], txn=txn, version="number")
        except Conflict:
            raise _taken_over(lease, self.current()) from None
        held = self.current()
        if held is None or (held.runner, held.number) != (lease.runner, lease.number):
            raise _taken_over(lease, held)
        return held


def is_valid(lease: Lease) -> bool:
    """Whether its runner may still be at work: not run out, and its process not known to be gone."""
    if lease.expires_at <= now():
        return False
    if lease.machine != machine_id():
        return True
    return process_start(lease.pid) == lease.process_started


def machine_id() -> str:
    """What a process id belongs to: this boot of this machine, and this process space (containers)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> str:
    """When a process started, so that a reused id is not taken for it; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _exists(pid)
    # The program's name, in parentheses, may itself hold spaces and parentheses.
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def _exists(pid: int) -> str:
    """Where there is no /proc: whether there is such a process."""
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "running"
    return "running"


def _held_by(lease: Lease) -> RetryLater:
    return RetryLater(
        f"another runner is at work on this pipeline: {lease.runner}",
        why=f"it runs on {lease.host}, process {lease.pid}, and holds the lease until "
        f"{lease.expires_at:%Y-%m-%d %H:%M:%S} UTC",
        remedy="wait for it to end, or stop it; the lease of a stopped runner runs out by itself",
    )


def _taken_over(lease: Lease, held: Lease | None) -> RetryLater:
    if held is None:
        return RetryLater(
            f"the lease of {lease.runner} is gone",
            why="somebody deleted rows of the control table leases",
            remedy="run again",
        )
    return RetryLater(
        f"{lease.runner} does not hold the lease: {held.runner} took it",
        why=f"it runs on {held.host}, process {held.pid}, since {held.acquired_at:%Y-%m-%d %H:%M:%S} UTC",
        remedy="wait for it to end; what it commits counts, this runner stops",
    )
