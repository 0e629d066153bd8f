"""All there is to show of a pipeline, read once: its state now, its history, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cdc_lib import clock
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal
from cdc_lib.control.chunks import Progress
from cdc_lib.control.incidents import Incident
from cdc_lib.control.leases import is_valid
from cdc_lib.control.runs import Run
from cdc_lib.control.schema_changes import SchemaChangeRow
from cdc_lib.delta import Lake
from cdc_lib.facts import Facts
from cdc_lib.status import Status, read_status


@dataclass(frozen=True)
class Batch:
    """A committed batch. ``delay``: seconds from the source's newest commit in it to ours, if it has any."""

    number: int
    committed_at: datetime
    snapshot_rows: int
    log_rows: int
    delay: float | None


@dataclass(frozen=True)
class Overview:
    """A pipeline at ``at``. Histories are oldest first.

    ``events``: rows in bronze by table and operation. ``snapshots``: by table, the newest of each.
    ``running``: whether some run holds the lease.
    """

    at: datetime
    engine: str
    status: Status
    running: bool = False
    runs: Sequence[Run] = ()
    batches: Sequence[Batch] = ()
    events: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    snapshots: Mapping[str, Progress] = field(default_factory=dict)
    schema_changes: Sequence[SchemaChangeRow] = ()
    incidents: Sequence[Incident] = ()


def read_overview(pipeline: Pipeline, *, now: datetime | None = None) -> Overview:
    """Everything about a pipeline that its control tables, and its source if it answers, can tell."""
    now = now or clock.now()
    status = read_status(pipeline, now=now)
    control = Control(Lake(pipeline.target), pipeline.name)
    names = {state.table_id: str(table) for table, state in control.tables.load().items()}
    seals = [seal for seal in control.batches.after(0) if seal.batch <= status.batch]
    lease = control.leases.current()
    progress = control.chunks.progress(control.watermarks.started())
    return Overview(
        now,
        pipeline.source.engine,
        status,
        running=lease is not None and is_valid(lease),
        runs=control.runs.load(),
        batches=_batches(control, seals),
        events=_events(seals, names),
        snapshots={names[key]: progress[key] for key in progress.keys() & names.keys()},
        schema_changes=sorted(control.schema_changes.load(), key=lambda change: change.at),
        incidents=control.incidents.load(),
    )


def _batches(control: Control, seals: Sequence[Seal]) -> list[Batch]:
    marks = {mark.batch: mark for mark in control.watermarks.load() if mark.kind == "batch"}
    found = []
    for seal in sorted(seals, key=lambda seal: seal.batch):
        mark = marks.get(seal.batch)
        if mark is None:
            continue
        made = mark.source_committed_at
        log_rows = sum(table.log_rows for table in seal.tables)
        rows = sum(table.rows for table in seal.tables)
        delay = None if made is None else max(0.0, (mark.committed_at - made).total_seconds())
        found.append(Batch(seal.batch, mark.committed_at, rows - log_rows, log_rows, delay))
    return found


def _events(seals: Sequence[Seal], names: Mapping[str, str]) -> dict[str, Counter[str]]:
    """Rows by operation, of all tables that ever had any; older seals do not say."""
    found: dict[str, Counter[str]] = {name: Counter() for name in names.values()}
    for table in (table for seal in seals for table in seal.tables if table.facts):
        name = names.get(table.table_id)
        if name is not None:
            found[name].update(Facts.from_json(table.facts).counts)
    return found
