"""What ``cdc reconcile`` prints for people: a line a table, then the first differences."""

from __future__ import annotations

from rich.console import Console

from cdc_lib.cli.output import show_table, stdout
from cdc_lib.progress import seconds
from cdc_lib.reconcile.result import Difference, Reconciled, TableResult


def show_reconciled(found: Reconciled, console: Console | None = None) -> None:
    """Tables, their differences, what was left out, and the verdict last."""
    console = console or stdout()
    if found.tables:
        show_table(
            ["table", "rows in source", "rows in silver", "equal", "different", "repaired", ""],
            [
                (
                    table.table,
                    table.source_rows,
                    table.silver_rows,
                    table.equal,
                    table.different,
                    table.repaired,
                    "equal" if table.same else "DIFFERENT",
                )
                for table in found.tables
            ],
            console,
        )
    for table in found.tables:
        _show_details(table, console)
    for skipped in found.skipped:
        console.print(f"{skipped.table}: not compared: {skipped.reason}", soft_wrap=True, markup=False)
    verdict = "Silver equals the source" if found.same else "Silver DIFFERS from the source"
    if not found.tables:
        verdict = "Nothing was compared"
    took = seconds(found.metrics.get("seconds", 0))
    console.print(f"{verdict} at {found.position}; {took}.", soft_wrap=True, markup=False)


def _show_details(table: TableResult, console: Console) -> None:
    if table.kept:
        console.print(
            f"{table.table}: the source no longer has {', '.join(table.kept)}; not compared",
            soft_wrap=True,
            markup=False,
        )
    if table.lacking:
        console.print(
            f"{table.table}: silver lacks {', '.join(table.lacking)}, or has it with another type",
            soft_wrap=True,
            markup=False,
        )
    if table.different:
        counts = f"{table.wrong} differ, {table.unknown} not known, {table.lost} missing in silver"
        console.print(
            f"\n{table.table}: {counts}, {table.extra} only in silver", soft_wrap=True, markup=False
        )
    if table.differences:
        show_table(["key", "column", "source", "silver"], [_cells(one) for one in table.differences], console)
    if table.remedy:
        console.print(f"  to do: {table.remedy}", soft_wrap=True, markup=False)


def _cells(one: Difference) -> tuple[str, str, str, str]:
    key = ", ".join(f"{name}={value}" for name, value in one.key.items())
    if one.kind == "missing in silver":
        return key, "", "a row", "no row"
    if one.kind == "only in silver":
        return key, "", "no row", "a row"
    return key, one.column, str(one.source), "not known" if one.kind == "not known" else str(one.silver)
