"""Changes of tables' structures, one row a column, for people; the structures are in schema_history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Txn

if TYPE_CHECKING:
    from cdc_lib.staging import StagedChange


@dataclass(frozen=True)
class SchemaChangeRow:
    """One change of one column."""

    table_id: Annotated[str, Stored("STRING", "table, as in the control table tables")]
    table: Annotated[str, Stored("STRING", "name of the table in the source")]
    version: Annotated[int, Stored("INT", "version of the structure that it led to")]
    kind: Annotated[str, Stored("STRING", "kind of change: added, dropped, widened, ...")]
    column: Annotated[str, Stored("STRING", "name of the column")]
    detail: Annotated[str, Stored("STRING", "what was before and what is now")]
    batch: Annotated[int, Stored("BIGINT", "batch in which it happened")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")] = field(default_factory=now)


class SchemaChanges(ControlTable[SchemaChangeRow]):
    """The changes of a pipeline's tables."""

    name = "schema_changes"
    comment = "Changes of the captured tables' structures, one row a column"
    row = SchemaChangeRow

    def add(self, changes: Sequence[StagedChange], *, batch: int, txn: Txn | None = None) -> None:
        rows = [
            SchemaChangeRow(
                change.table_id,
                change.table,
                change.version,
                change.kind,
                change.column,
                change.detail,
                batch,
            )
            for change in changes
        ]
        self._append(rows, txn)
