"""What the commands print for people: the state of a pipeline, its tables, what runs did."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cdc_lib.cli.output import show_table, stdout
from cdc_lib.clock import now
from cdc_lib.progress import seconds, size
from cdc_lib.status import CapturedTableInfo, Status, Throughput

if TYPE_CHECKING:
    from cdc_lib.rebuilding import Rebuilt
    from cdc_lib.runner import RunResult


NEXT = (
    ("tables", ""),
    ("status", ""),
    ("sql", "'select status, count(*), sum(total) from silver.public_orders group by status'"),
    ("sql", "'select op, count(*) from bronze.public_orders group by op'"),
    ("sql", "'select batch, sealed_at, upto from control.batches order by batch'"),
)


def show_result(result: RunResult) -> None:
    """One line about a run that ended well."""
    bronze = sum(value for name, value in result.metrics.items() if name.startswith("bronze.rows."))
    silver = sum(value for name, value in result.metrics.items() if name.startswith("silver.rows."))
    stdout().print(
        f"{result.outcome}: {result.metrics.get('batches', 0):.0f} batches,"
        f" {bronze:,.0f} rows to bronze, {silver:,.0f} applied to silver,"
        f" {seconds(result.metrics.get('seconds', 0))}",
        soft_wrap=True,
    )


def show_rebuilt(rebuilt: Rebuilt) -> None:
    """What stands again, and what is left to do."""
    console = stdout()
    console.print(
        f"rebuilt: {len(rebuilt.tables)} tables, up to batch {rebuilt.batch} at {rebuilt.position}",
        soft_wrap=True,
    )
    for line in rebuilt.said:
        console.print(f"  {line}", soft_wrap=True, markup=False)
    if rebuilt.gap is not None:
        console.print(f"{rebuilt.gap}", soft_wrap=True, markup=False)
    else:
        console.print("next: cdc run, then cdc reconcile", soft_wrap=True)


def show_status(status: Status, console: Console | None = None) -> None:
    """The pipeline's state in a few lines, its tables below, problems last."""
    console = console or stdout()
    console.print(Text(status.pipeline, style="bold"), soft_wrap=True)
    for label, text in _lines(status):
        console.print(f"  {label:<10}{text}", soft_wrap=True)
    if status.tables:
        show_table(
            ["table", "state", "rows in bronze", "last batch", "in silver"],
            [(t.table, t.state, t.rows, t.batch, t.applied) for t in status.tables],
            console,
        )
    for table in status.tables:
        if table.reason:
            console.print(f"{table.table}: {table.reason}\n  to do: {table.remedy}", soft_wrap=True)


def _lines(status: Status) -> list[tuple[str, str]]:
    lines = []
    if status.committed_at is None:
        lines.append(("position", "nothing captured yet; to do: cdc run"))
    else:
        age = (now() - status.committed_at).total_seconds()
        delay = "" if status.delay_seconds is None else f", {status.delay_seconds:.1f} s after the source"
        lines.append(("position", f"{status.position}, batch {status.batch}"))
        lines.append(("committed", f"{seconds(age)} ago{delay}"))
        lines.append(("lag", _lag(status)))
    if status.source_error:
        lines.append(("source", status.source_error))
    if status.retained_bytes is not None:
        room = "no limit set" if status.headroom_bytes is None else f"{size(status.headroom_bytes)} left"
        lines.append(("log kept", f"{size(status.retained_bytes)} at the source, {room}"))
    if run := status.last_run:
        lines.append(("last run", ": ".join(filter(None, (run.outcome, run.error)))))
        if run.remedy:
            lines.append(("to do", run.remedy))
    if status.incidents:
        lines.append(("incidents", f"{status.incidents}; see control.incidents"))
    return lines


def _lag(status: Status) -> str:
    if status.lag_bytes == 0:
        return "none"
    behind = "size not known" if status.lag_bytes is None else size(status.lag_bytes)
    made = (
        "" if status.lag_seconds is None else f"; newest captured change is {seconds(status.lag_seconds)} old"
    )
    return f"{behind}{made}"


def show_tables(tables: Sequence[CapturedTableInfo]) -> None:
    """One line a table."""
    if not tables:
        stdout().print("Nothing captured yet. To do: cdc run")
        return
    show_table(
        ["table", "key", "state", "columns", "bronze", "silver", "rows in bronze"],
        [
            (t.table, ", ".join(t.key) or "none", t.state, t.columns, t.bronze, t.silver, t.rows)
            for t in tables
        ],
    )


def show_throughput(tables: Sequence[Throughput], console: Console | None = None) -> None:
    """Rows and rates of all runs together, from the control tables."""
    show_table(
        ["table", "snapshot rows", "log rows", "applied to silver", "rows/s"],
        [(t.table, t.snapshot_rows, t.log_rows, t.silver_rows, round(t.rate)) for t in tables],
        console,
    )


def show_next_commands(pipeline: Path, console: Console | None = None) -> None:
    """What a newcomer may try after the demo; none of it needs the demo's server."""
    console = console or stdout()
    console.print("\nTry:")
    program = "cdc" if shutil.which("cdc") else sys.argv[0]
    for verb, statement in NEXT:
        console.print(f"  {program} {verb} {pipeline} {statement}".rstrip(), soft_wrap=True)
    console.print("\nThen your own database: edit pipelines/shop.yml; cdc check, cdc run.")
