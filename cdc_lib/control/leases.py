"""``control.leases``: which runner owns a pipeline, and which incarnation of it this is."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field, Txn
from cdc_lib.errors import RetryLater
from cdc_lib.staging import boot_id


@dataclass(frozen=True)
class Lease:
    """``incarnation`` is given out with a pipeline's first lease and stays; ``runner`` holds it until
    ``expires_at`` (UTC). ``generation`` rises with every change."""

    generation: int
    incarnation: str
    runner: str
    host: str
    pid: int
    process_started: str
    acquired_at: datetime
    expires_at: datetime


class Leases(ControlTable):
    """One row per pipeline. The generation is also the change's transaction version, so that of two runners
    who saw the same generation only one can write the next."""

    NAME = "leases"
    COMMENT = "Which runner owns which pipeline."
    FIELDS = (
        Field("generation", "BIGINT", "Rises with every change of the lease."),
        Field("incarnation", "STRING", "Id of this life of the pipeline; part of all transaction ids."),
        Field("runner", "STRING", "Who owns it; empty when nobody does."),
        Field("host", "STRING", "Machine and its last boot."),
        Field("pid", "BIGINT", "Process on it."),
        Field("process_started", "STRING", "When that process started, in the system's own terms."),
        Field("acquired_at", "TIMESTAMP", "When it was taken."),
        Field("expires_at", "TIMESTAMP", "When others may take it."),
    )

    def acquire(self, runner: str, seconds: int) -> Lease:
        """Take the pipeline, or fail.

        A lease of a process that no longer lives on this machine is void at once.

        :raises RetryLater: another runner has it.
        """
        held = self._held()
        if held is not None and _valid(held):
            raise _taken(held)
        moment = now()
        lease = Lease(
            generation=held.generation + 1 if held else 1,
            incarnation=held.incarnation if held else str(uuid.uuid4()),
            runner=runner,
            host=_host(),
            pid=os.getpid(),
            process_started=_started(os.getpid()),
            acquired_at=moment,
            expires_at=moment + timedelta(seconds=seconds),
        )
        return self._write(lease)

    def renew(self, lease: Lease, seconds: int) -> Lease:
        """Put the expiry off.

        :raises RetryLater: somebody else took the pipeline meanwhile.
        """
        expires = now() + timedelta(seconds=seconds)
        return self._write(replace(lease, generation=lease.generation + 1, expires_at=expires))

    def release(self, lease: Lease) -> None:
        """Give the pipeline back; nothing happens if it is no longer ours."""
        free = replace(lease, generation=lease.generation + 1, runner="", expires_at=now())
        with suppress(RetryLater):
            self._write(free)

    def _held(self) -> Lease | None:
        rows = self.select()
        if not rows:
            return None
        return Lease(**{name: value for name, value in rows[0].items() if name != "pipeline"})

    def _write(self, lease: Lease) -> Lease:
        """Write the next generation and read it back; a version that is taken is skipped in silence."""
        txn = Txn(f"{self.pipeline}/lease", lease.generation)
        self.lake.upsert_rows(
            self.ref, [{"pipeline": self.pipeline, **asdict(lease)}], keys=("pipeline",), txn=txn
        )
        found = self._held()
        if found is None or (found.generation, found.runner) != (lease.generation, lease.runner):
            raise _taken(found)
        return lease


def _valid(lease: Lease) -> bool:
    if not lease.runner or lease.expires_at <= now():
        return False
    return lease.host != _host() or _started(lease.pid) == lease.process_started


def _taken(lease: Lease | None) -> RetryLater:
    if lease is None:
        return RetryLater(
            "the pipeline's lease is gone", why="control.leases was changed", remedy="run again"
        )
    return RetryLater(
        f"another runner works on this pipeline: {lease.runner}",
        why=f"its lease (host {lease.host.split('/')[0]}, process {lease.pid}) runs until "
        f"{lease.expires_at:%Y-%m-%d %H:%M:%S} UTC",
        remedy="wait for it, or stop it; a dead runner's lease ends by itself",
    )


def _host() -> str:
    return f"{socket.gethostname()}/{boot_id()}"


def _started(pid: int) -> str:
    """The process's start in clock ticks since boot, "" if there is no such process, so that a reused pid is
    not taken for its predecessor."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return _started_elsewhere(pid)
    fields = text.rsplit(")", 1)[1].split()
    return "" if fields[0] in "ZX" else fields[19]


def _started_elsewhere(pid: int) -> str:
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
