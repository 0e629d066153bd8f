"""Where a pipeline stands, from its control tables, and from the source if that answers quickly.

Control tables at a path are read without a JVM, so that asking costs nothing and can be done often.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from cdc_lib import clock
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.runs import Run
from cdc_lib.control.tables import TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake
from cdc_lib.errors import CdcError
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Source, Span, open_source

PATIENCE = 2.0
"""Seconds that the source has to answer: a status must come at once, most of all in times of trouble."""


@dataclass(frozen=True)
class TableStatus:
    """One captured table. ``batch``: newest committed batch with rows of it; ``applied``: in silver."""

    table: str
    state: str
    batch: int
    applied: int
    rows: int
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Status:
    """A pipeline's state. Times are in seconds, None where there is nothing to tell from.

    ``lag_bytes``
        Log at the source that is not in bronze yet; None if the source did not answer.
    ``lag_seconds``
        How long ago the source made its newest captured commit; 0 if nothing is left to read.
    ``delay_seconds``
        From the source's commit to ours, for the last batch.
    ``retained_bytes``, ``headroom_bytes``
        Log that the source keeps for us, and how much more it would keep before it drops it.
    """

    pipeline: str
    batch: int = 0
    position: str = ""
    committed_at: datetime | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    delay_seconds: float | None = None
    retained_bytes: int | None = None
    headroom_bytes: int | None = None
    source_error: str = ""
    last_run: Run | None = None
    incidents: int = 0
    tables: list[TableStatus] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CapturedTableInfo:
    """Where one source table is."""

    table: str
    key: list[str]
    state: str
    columns: int
    version: int
    bronze: str
    silver: str
    rows: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Throughput:
    """What all runs together did for one table; ``seconds`` of the runs that had rows of it."""

    table: str
    snapshot_rows: int
    log_rows: int
    silver_rows: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second into bronze, whole runs counted: starting, reading, committing and merging."""
        return (self.snapshot_rows + self.log_rows) / self.seconds if self.seconds else 0.0


def read_status(pipeline: Pipeline, *, now: datetime | None = None) -> Status:
    """State, lag and errors of a pipeline and its tables."""
    now = now or clock.now()
    control = Control(Lake(pipeline.target), pipeline.name)
    source = open_source(pipeline.source)
    span = ask(source)
    watermark = control.watermarks.latest()
    return Status(
        pipeline.name,
        **_progress(watermark, source.position_type, span, now),
        retained_bytes=span.retained_bytes if isinstance(span, Span) else None,
        headroom_bytes=span.headroom_bytes if isinstance(span, Span) else None,
        source_error=span if isinstance(span, str) else "",
        last_run=max(_captures(control), key=lambda run: run.ended_at, default=None),
        incidents=len(control.incidents.load()),
        tables=_tables(control, watermark),
    )


def read_tables(pipeline: Pipeline) -> list[CapturedTableInfo]:
    """The captured tables as the control tables know them."""
    lake = Lake(pipeline.target)
    control = Control(lake, pipeline.name)
    watermark = control.watermarks.latest()
    batch = watermark.batch if watermark else 0
    structures: dict[str, Table] = {}
    for version in control.schema_history.load(upto_batch=batch):
        if version.table.version >= getattr(structures.get(version.table_id), "version", 0):
            structures[version.table_id] = version.table
    rows = _rows(control, batch)
    return [
        _info(lake, table, state, structures.get(state.table_id), rows[state.table_id].total())
        for table, state in sorted(control.tables.load().items())
    ]


def read_throughput(pipeline: Pipeline) -> list[Throughput]:
    """Rows and rates by table, over all runs so far."""
    control = Control(Lake(pipeline.target), pipeline.name)
    watermark = control.watermarks.latest()
    runs = control.runs.load()
    rows = _rows(control, watermark.batch if watermark else 0)
    return [
        Throughput(
            str(table),
            snapshot_rows=rows[state.table_id]["snapshot"],
            log_rows=rows[state.table_id]["log"],
            silver_rows=round(sum(run.metrics.get(f"silver.rows.{table}", 0) for run in runs)),
            seconds=sum(run.metrics["seconds"] for run in runs if run.metrics.get(f"bronze.rows.{table}")),
        )
        for table, state in sorted(control.tables.load().items())
    ]


def ask(source: Source, patience: float = PATIENCE) -> Span | str:
    """What the source says of its log; or why it says nothing, if it has not answered in time."""
    answer: list[Span | str] = []

    def connect() -> None:
        try:
            with source:
                answer.append(source.span())
        except CdcError as error:
            answer.append(error.what)

    # A daemon: a connection that hangs must not hold up the end of the process either.
    thread = threading.Thread(target=connect, name="ask-source", daemon=True)
    thread.start()
    thread.join(patience)
    return answer[0] if answer else f"the source did not answer within {patience:g} s"


def _progress(
    watermark: Watermark | None, positions: type[Position], span: Span | str, now: datetime
) -> dict[str, Any]:
    if watermark is None:
        return {}
    position = positions.from_json(watermark.position)
    behind = None
    if isinstance(span, Span) and span.newest.history == position.history:
        # A source that was idle may stand where we do, never before us.
        behind = span.newest.bytes_since(position)
        behind = None if behind is None else max(0, behind)
    made = watermark.source_committed_at or watermark.committed_at
    return {
        "batch": watermark.batch,
        "position": str(position),
        "committed_at": watermark.committed_at,
        "lag_bytes": behind,
        "lag_seconds": 0.0 if behind == 0 else (now - made).total_seconds(),
        "delay_seconds": (watermark.committed_at - made).total_seconds()
        if watermark.source_committed_at
        else None,
    }


def _captures(control: Control) -> list[Run]:
    """All runs but maintenance, which says nothing of whether changes arrive."""
    return [run for run in control.runs.load() if run.verb != "maintain"]


def _tables(control: Control, watermark: Watermark | None) -> list[TableStatus]:
    committed = watermark.batch if watermark else 0
    rows, newest = _rows(control, committed), _newest(control, committed)
    applied = control.watermarks.applied()
    return [
        TableStatus(
            table=str(table),
            state=state.state.value,
            batch=newest.get(state.table_id, 0),
            applied=applied.get(state.table_id, 0),
            rows=rows[state.table_id].total(),
            reason=state.reason,
            remedy=state.remedy,
        )
        for table, state in sorted(control.tables.load().items())
    ]


class _Rows(dict[str, "Counter[str]"]):
    """Rows by table id, ``snapshot`` and ``log`` apart; none for tables without any."""

    def __missing__(self, table_id: str) -> Counter[str]:
        return Counter()


def _rows(control: Control, committed: int) -> _Rows:
    """What committed batches brought into bronze, also those that are no longer listed."""
    found = _Rows()
    totals = control.totals.newest()
    for table_id, rows in totals.snapshot_rows.items():
        found[table_id] = Counter(snapshot=rows, log=totals.log_rows[table_id])
    for seal in control.batches.after(0):
        if seal.batch > committed or totals.counts(seal.batch):
            continue
        for table in seal.tables:
            counts = found.setdefault(table.table_id, Counter())
            counts.update(snapshot=table.rows - table.log_rows, log=table.log_rows)
    return found


def _newest(control: Control, committed: int) -> dict[str, int]:
    seals: Sequence[Any] = [seal for seal in control.batches.after(0) if seal.batch <= committed]
    return {table.table_id: seal.batch for seal in seals for table in seal.tables}


def _info(
    lake: Lake, table: TableId, state: TableState, structure: Table | None, rows: int
) -> CapturedTableInfo:
    return CapturedTableInfo(
        table=str(table),
        key=list(structure.key) if structure else [],
        state=state.state.value,
        columns=len(structure.columns) if structure else 0,
        version=structure.version if structure else 0,
        bronze=str(lake.ref("bronze", state.bronze)),
        silver=str(lake.ref("silver", state.silver)),
        rows=rows,
    )
