"""What ``cdc maintain`` prints for people: the tables it did something to, then what it left, then a sum."""

from __future__ import annotations

from rich.console import Console

from cdc_lib.cli.output import show_table, stdout
from cdc_lib.maintenance import Maintained, TableUpkeep
from cdc_lib.progress import size


def show_maintained(found: Maintained, console: Console | None = None) -> None:
    """Tables where there was nothing to do are only counted."""
    console = console or stdout()
    if not found.tables:
        console.print("Nothing captured yet, so nothing to maintain.", soft_wrap=True)
        return
    busy = [table for table in found.tables if _has_work(table)]
    if busy:
        columns = ["table", "size", "files", "then", "files removed"]
        show_table(columns, [_row(table) for table in busy], console)
    if found.expired:
        show_table(
            ["control table", "rows dropped"], [(one.table, one.rows) for one in found.expired], console
        )
    for table in found.tables:
        if table.left:
            console.print(f"{table.table}: {table.left}", soft_wrap=True, markup=False)
    would = "Nothing was written; it would be: " if found.planned else ""
    removed = sum(table.removed for table in found.tables)
    rows = sum(one.rows for one in found.expired)
    console.print(
        f"{would}{len(busy)} of {len(found.tables)} tables, {removed:,} files removed,"
        f" {rows:,} rows dropped.",
        soft_wrap=True,
    )


def _has_work(table: TableUpkeep) -> bool:
    return bool(table.removed) or table.files_after != table.files


def _row(table: TableUpkeep) -> tuple[str, str, int, str, int]:
    then = "fewer" if table.files_after is None else f"{table.files_after:,}"
    return table.table, size(table.bytes), table.files, then, table.removed
