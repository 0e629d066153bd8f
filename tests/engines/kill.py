"""Kill a runner at a named point, prove that it was reached, and compare all tables with the truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_lib import faults
from tests.engines import workload
from tests.engines.canonical import of_delta, rows_of_delta
from tests.engines.history import Event, Row
from tests.engines.pipelines import PipelineUnderTest
from tests.servers.postgresql import Database

FIRST_START: Mapping[str, int] = {
    # The second batch of the snapshot: one is committed, one is under way, others are not read yet.
    "chunks.staged": 2,
    "sealed": 2,
    "bronze.appended.one": 2,
    "bronze.appended": 2,
    "committed": 2,
    "silver.merged.one": 2,
}
"""Which time a point is reached that the first start is killed at; the first, if it is not named here."""
SECONDS = 200
"""A run that is not killed in this time has not reached its point."""


def pairs() -> list[tuple[str, str]]:
    """Every point for a first start, each with another for the recovery from it: the one that follows."""
    return list(zip(faults.POINTS, [*faults.POINTS[1:], faults.POINTS[0]], strict=True))


def killed(pipeline: PipelineUnderTest, fault: str, verb: str = "run") -> None:
    """Run until ``fault`` (``point`` or ``point:nth``), where SIGKILL ends the process."""
    log = _fault_log(pipeline, fault)
    process = pipeline.start(verb, CDC_FAULT=fault, CDC_FAULT_LOG=str(log))
    output = finished(process)
    assert process.returncode == -signal.SIGKILL, (
        f"ended with {process.returncode}, not by {fault}:\n{output}"
    )
    assert _reached(log) == [fault.partition(":")[0]]


def killed_with_its_jvm(pipeline: PipelineUnderTest, fault: str) -> None:
    """As :func:`killed`, but the process has a JVM of its own, and the whole group dies at once."""
    log = _fault_log(pipeline, fault)
    process = pipeline.start(own_spark=True, CDC_FAULT=fault, CDC_FAULT_LOG=str(log), CDC_FAULT_ACTION="stop")
    wait_until_stopped(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(SECONDS)
    assert _reached(log) == [fault.partition(":")[0]]


def paused(pipeline: PipelineUnderTest, point: str, verb: str = "capture") -> subprocess.Popen[str]:
    """A run that stands still at a point, alive and with its lease."""
    log = pipeline.folder / "reached"
    process = pipeline.start(verb, CDC_FAULT=point, CDC_FAULT_LOG=str(log), CDC_FAULT_ACTION="stop")
    wait_until_stopped(process)
    return process


def woken(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Let it go on; its exit code and what it says."""
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=SECONDS)
    return process.returncode, output


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    """Wait until a fault's SIGSTOP has arrived."""
    for _ in range(SECONDS * 10):
        state = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        if state == "T":
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"ended with {process.returncode} before it was stopped:\n{finished(process)}")
    process.kill()
    raise AssertionError("the fault was not reached in time")


def _fault_log(pipeline: PipelineUnderTest, fault: str) -> Path:
    return pipeline.folder / f"reached-{fault.replace(':', '-')}-{len(list(pipeline.folder.iterdir()))}"


def _reached(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").split() if log.exists() else []


def finished(process: subprocess.Popen[str]) -> str:
    """What it said until its end, or until it took too long, and then where it stood."""
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        # With PYTHONFAULTHANDLER it says where each of its threads stands.
        process.send_signal(signal.SIGABRT)
        return f"{process.communicate()[0]}\nstill running after {SECONDS} s"


# -- the comparison


def started_at(pipeline: PipelineUnderTest) -> str:
    """Where in the log the pipeline began to capture."""
    start = next(row for row in pipeline.control("watermarks") if row["kind"] == "start")
    return str(json.loads(start["position"])["lsn"])


def differences(pipeline: PipelineUnderTest, database: Database, start: str = "") -> list[str]:
    """What bronze and silver have that is not so at the source, or lack. The workload must have ended.

    :param start: what :func:`started_at` said before the control tables were lost, if they were.
    """
    watermarks = [row for row in pipeline.control("watermarks") if row["kind"] != "applied"]
    committed = max(int(row["batch"]) for row in watermarks)
    position = start or started_at(pipeline)
    events = [event for table in workload.TABLES for event in bronze_events(pipeline, table)]
    found = [
        f"{event.table}: row of batch {event.sequence >> 32}, which is not committed"
        for event in events
        if event.sequence >> 32 > committed
    ]
    history = workload.recorded(database)
    found += history.problems(events, workload.committed_after(database, position))
    for table in workload.TABLES:
        found += _silver_differences(pipeline, database, table)
    return found


def _silver_differences(pipeline: PipelineUnderTest, database: Database, table: str) -> Iterator[str]:
    names, key = list(workload.TABLES[table]), workload.KEYS[table]
    rows = rows_of_delta(pipeline.rows("silver", f"public_{table}"), names)
    silver = {tuple(str(row[name]) for name in key): row for row in rows}
    true = workload.source_rows(database, table)
    if len(rows) != len(silver):
        yield f"silver {table}: {len(rows)} rows with {len(silver)} keys"
    for place in sorted({*silver, *true}, key=str):
        if silver.get(place) != true.get(place):
            yield f"silver {table} {place}: {_cut(silver.get(place))}, at the source {_cut(true.get(place))}"


def bronze_events(pipeline: PipelineUnderTest, table: str) -> list[Event]:
    """Bronze of a table of the workload, every value as canonical text."""
    rows = pipeline.rows("bronze", f"public_{table}")
    images = {name: rows.schema.field(name).type for name in ("before", "after", "previous_key")}
    return [_event(table, row, images) for row in rows.to_pylist()]


def _event(table: str, row: Mapping[str, Any], images: Mapping[str, pa.StructType]) -> Event:
    held = {name: _texts(row[name], to) for name, to in images.items()}
    assert row["_sequence"] >> 32 == row["_batch"], row
    return Event(
        sequence=row["_sequence"],
        op=row["op"],
        table=table,
        transaction=str(row["source"]["txId"] or ""),
        before=held["before"],
        after=held["after"],
        unavailable=frozenset(row["after_unavailable"] or ()),
        before_unavailable=frozenset(row["before_unavailable"] or ()),
        previous_key=held["previous_key"],
        committed_us=row["source"]["ts_us"],
        position=row["_position"],
    )


def _texts(image: Mapping[str, Any] | None, to: pa.StructType) -> Row | None:
    if image is None:
        return None
    return {field.name: of_delta(image[field.name], field.type) for field in to}


def _cut(row: Mapping[str, str | None] | None) -> str:
    return "nothing" if row is None else str({name: text and text[:40] for name, text in row.items()})


def shown(found: Sequence[str]) -> str:
    """The first few differences, for an assertion's message."""
    return "\n".join([*found[:8], *([f"and {len(found) - 8} more"] if len(found) > 8 else [])])
