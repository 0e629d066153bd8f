"""``control.schema_changes``: what changed in the structure of captured tables, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field, Txn
from cdc_lib.staging import StagedChange


class SchemaChanges(ControlTable):
    """Append-only."""

    NAME = "schema_changes"
    COMMENT = "Changes of table structures."
    FIELDS = (
        Field("table_id", "STRING", "The table, as in control.tables."),
        Field("table", "STRING", "Its name at the source."),
        Field("version", "INT", "The structure that came of it, as in control.schema_history."),
        Field("kind", "STRING", "added, readded, dropped, widened or retyped."),
        Field("column", "STRING", "The column."),
        Field("detail", "STRING", "Types, where they matter."),
        Field("batch", "BIGINT", "The batch it came in."),
        Field("at", "TIMESTAMP", "When it was written."),
    )

    def add(self, changes: Sequence[StagedChange], *, batch: int, txn: Txn) -> None:
        self.insert([{**asdict(change), "batch": batch, "at": now()} for change in changes], txn=txn)
