"""The figures that monitoring systems get, whichever way they get them.

Names are OpenTelemetry's style; Prometheus has them with underscores and the unit at the end, as the mapping
between the two says. Figures that Debezium has too come a second time under its names, with the labels that
its exporter for Prometheus gives them, so that panels made for Debezium go on working.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from cdc_lib.change import Op
from cdc_lib.control.tables import State
from cdc_lib.monitoring.attention import last_success
from cdc_lib.monitoring.overview import Overview

Labels = Mapping[str, str]
Sample = tuple[Labels, float]

PLUGINS = {"postgresql": "postgres", "sqlserver": "sql_server"}
"""Engines whose metrics Debezium calls otherwise than their connector."""
OPERATIONS = {Op.CREATE: "Create", Op.UPDATE: "Update", Op.DELETE: "Delete"}


@dataclass(frozen=True)
class Measure:
    """One figure of some things. ``unit`` as in UCUM: ``By``, ``s``, or empty."""

    name: str
    description: str
    unit: Literal["By", "s", ""] = ""
    kind: Literal["gauge", "counter"] = "gauge"
    samples: list[Sample] = field(default_factory=list)


def measures(overviews: Sequence[Overview]) -> list[Measure]:
    """All figures of all pipelines; what is not known is left out, never 0."""
    found: dict[str, Measure] = {}
    for overview in overviews:
        for measure, labels, value in [*_ours(overview), *_debezium(overview)]:
            if value is not None:
                found.setdefault(measure.name, measure).samples.append((labels, float(value)))
    return list(found.values())


Row = tuple[Measure, Labels, float | None]


def _ours(overview: Overview) -> Iterator[Row]:
    status, labels = overview.status, {"pipeline": overview.status.pipeline}
    last = last_success(overview)
    yield Measure("cdc.up", "1 if the source answered"), labels, not status.source_error
    yield Measure("cdc.running", "1 while a run has the lease"), labels, overview.running
    yield Measure("cdc.lag.size", "Log not in bronze yet", "By"), labels, status.lag_bytes
    yield (
        Measure("cdc.lag.time", "Age of the newest captured commit; 0 if none is left", "s"),
        labels,
        status.lag_seconds,
    )
    yield (
        Measure("cdc.delay", "From the source's commit to ours, last batch", "s"),
        labels,
        status.delay_seconds,
    )
    yield Measure("cdc.retained", "Log that the source keeps for us", "By"), labels, status.retained_bytes
    yield (
        Measure("cdc.headroom", "Log it may still keep before it drops it", "By"),
        labels,
        status.headroom_bytes,
    )
    yield Measure("cdc.batch", "Number of the newest committed batch"), labels, status.batch
    yield (
        Measure("cdc.last_success.timestamp", "When a run last ended well, Unix time", "s"),
        labels,
        _unix(last),
    )
    if run := status.last_run:
        took = (run.ended_at - run.started_at).total_seconds()
        yield Measure("cdc.last_run.failed", "1 if the last run failed"), labels, run.outcome == "failed"
        yield Measure("cdc.last_run.duration", "How long the last run took", "s"), labels, took
    yield Measure("cdc.incidents", "Incidents so far", "", "counter"), labels, status.incidents
    yield (
        Measure("cdc.schema_changes", "Changes of columns so far", "", "counter"),
        labels,
        len(overview.schema_changes),
    )
    states = Counter(table.state for table in status.tables)
    for state in State:
        count = {**labels, "state": state.value}
        yield Measure("cdc.tables", "Captured tables by state"), count, states[state.value]
    yield from _by_table(overview, labels)


def _by_table(overview: Overview, labels: Labels) -> Iterator[Row]:
    for table in overview.status.tables:
        named = {**labels, "table": table.table}
        yield (
            Measure("cdc.table.errored", "1 if something is wrong with the table"),
            named,
            bool(table.reason),
        )
        yield (
            Measure("cdc.table.silver_behind", "1 if silver lacks rows of bronze"),
            named,
            table.applied < table.batch,
        )
        yield Measure("cdc.table.rows", "Rows brought to bronze", "", "counter"), named, table.rows
    for name, progress in overview.snapshots.items():
        named = {**labels, "table": name}
        yield Measure("cdc.snapshot.pieces", "Pieces of the table's newest snapshot"), named, progress.pieces
        yield Measure("cdc.snapshot.pieces_done", "Those that are in bronze"), named, progress.done


def _debezium(overview: Overview) -> Iterator[Row]:
    status = overview.status
    plugin = PLUGINS.get(overview.engine, overview.engine)
    base = {"plugin": plugin, "name": status.pipeline}
    yield from _streaming(overview, {**base, "context": "streaming"})
    yield from _snapshot(overview, {**base, "context": "snapshot"})


def _streaming(overview: Overview, labels: Labels) -> Iterator[Row]:
    status = overview.status
    delay = None if status.delay_seconds is None else status.delay_seconds * 1000
    total: Counter[str] = sum((Counter(counts) for counts in overview.events.values()), Counter())
    newest = max((batch.committed_at for batch in overview.batches if batch.log_rows), default=None)
    since = None if newest is None else (overview.at - newest).total_seconds() * 1000
    yield _theirs("MilliSecondsBehindSource"), labels, delay
    yield _theirs("MilliSecondsSinceLastEvent"), labels, since
    yield _theirs("Connected"), labels, not status.source_error
    yield _theirs("TotalNumberOfEventsSeen"), labels, total.total() - total[Op.READ.value]
    for op, word in OPERATIONS.items():
        yield _theirs(f"TotalNumberOf{word}EventsSeen"), labels, total[op.value]


def _snapshot(overview: Overview, labels: Labels) -> Iterator[Row]:
    tables = overview.status.tables
    remaining = [table for table in tables if table.state == State.SNAPSHOT.value]
    began = min((each.planned_at for each in overview.snapshots.values()), default=None)
    ended = max((each.last_at for each in overview.snapshots.values()), default=None)
    ended = overview.at if remaining else ended
    took = None if began is None or ended is None else (ended - began).total_seconds()
    yield _theirs("TotalTableCount"), labels, len(tables)
    yield _theirs("RemainingTableCount"), labels, len(remaining)
    yield _theirs("SnapshotRunning"), labels, bool(remaining) and overview.running
    yield _theirs("SnapshotAborted"), labels, bool(remaining) and not overview.running
    yield _theirs("SnapshotCompleted"), labels, bool(tables) and not remaining
    yield _theirs("SnapshotDurationInSeconds"), labels, took
    for name, counts in overview.events.items():
        yield _theirs("RowsScanned"), {**labels, "table": name}, counts.get(Op.READ.value, 0)


def _theirs(name: str) -> Measure:
    return Measure(f"debezium.metrics.{name}", f"Debezium's {name}; see docs/monitoring.md")


def _unix(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
