"""Structure changes that gave existing rows new values without any row event.

A column added with a default has that default in every old row, and the log says nothing of it; a column
that was dropped and added again has lost its old values; one that was renamed has them under another name;
one whose type was changed may have been converted by any expression.
Such a table is read again; until then the incident says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_lib.captured import Observed
from cdc_lib.control import Control
from cdc_lib.control.incidents import Incident
from cdc_lib.evolution import ColumnChange
from cdc_lib.reading import ReadBatch
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Source

_LONGER = re.compile(r"(?P<name>[a-z ]+)\((?P<old>\d+)\) to (?P=name)\((?P<new>\d+)\)")


def report_recomputed(control: Control, batch: ReadBatch, source: Source) -> list[TableId]:
    """Write an incident for each table whose old rows changed with its structure; those to read again."""
    affected = []
    for seen in batch.observed:
        columns = recomputed_columns(seen.changes, source, seen.entry.id)
        if columns:
            control.incidents.add(_incident(seen, columns, batch.number))
            affected.append(seen.entry.id)
    return affected


def recomputed_columns(changes: Sequence[ColumnChange], source: Source, table: TableId) -> set[str]:
    """The columns that have values in rows which no event told of."""
    retyped = [change for change in changes if change.kind in ("widened", "retyped")]
    converted = {change.column for change in retyped if not _longer(change.detail)}
    added = {change.column for change in changes if change.kind == "added"}
    if not added:
        return converted
    again = {change.column for change in changes if change.kind in ("readded", "renamed")}
    return converted | again | added & _with_default(source, table)


def _longer(detail: str) -> bool:
    """Whether a type only got longer (``varchar(10) to varchar(20)``), which converts no values."""
    found = _LONGER.fullmatch(detail)
    return found is not None and int(found["new"]) > int(found["old"])


def _with_default(source: Source, table: TableId) -> set[str]:
    if table not in source.tables():
        return set()
    now: Table = source.describe(table)
    # A column that may not be NULL had a default when it was added, even if it has none now.
    return {column.name for column in now.columns if column.default is not None or not column.nullable}


def _incident(seen: Observed, columns: set[str], batch: int) -> Incident:
    names = ", ".join(sorted(columns))
    return Incident(
        kind="rows recomputed",
        table_id=seen.entry.table_id,
        table=str(seen.entry.id),
        batch=batch,
        message=f"column {names} was added with a default, added again, renamed or converted: "
        "old rows have values that the log did not carry",
        remedy="nothing: the table is read again by this run",
    )
