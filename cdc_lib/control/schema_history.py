"""Every structure that a captured table has had, numbered from 1.

Versions are written before the batch in which they first occur is sealed. They count only if the seal is
by the runner that wrote them: a runner that died before its seal may have read further than the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from cdc_lib.clock import now
from cdc_lib.control.batches import Batches
from cdc_lib.control.leases import Leases
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Lake
from cdc_lib.schema import Table


@dataclass(frozen=True)
class SchemaVersion:
    """A structure of a table, and the batch in which it first occurs."""

    table_id: str
    batch: int
    table: Table


@dataclass(frozen=True)
class SchemaRow:
    """The structure as it is stored."""

    table_id: Annotated[str, Stored("STRING", "table, as in the control table tables")]
    version: Annotated[int, Stored("INT", "counts the structures of the table, from 1")]
    batch: Annotated[
        int, Stored("BIGINT", "batch in which it first occurs; it counts only if that was sealed")
    ]
    runner: Annotated[
        str, Stored("STRING", "runner that wrote it; it counts only if that runner sealed the batch")
    ]
    structure: Annotated[str, Stored("STRING", "columns, types, key and identity, JSON")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")] = field(default_factory=now)


class SchemaHistory(ControlTable[SchemaRow]):
    """The structures of a pipeline's tables."""

    name = "schema_history"
    comment = "Every structure that a captured table has had"
    row = SchemaRow

    def __init__(self, lake: Lake, pipeline: str, batches: Batches, leases: Leases) -> None:
        super().__init__(lake, pipeline)
        self._batches = batches
        self._leases = leases

    def add(self, versions: Sequence[SchemaVersion]) -> None:
        """Write structures that a batch, not yet sealed, brings."""
        self._append(
            [
                SchemaRow(
                    version.table_id,
                    version.table.version,
                    version.batch,
                    self._leases.holder,
                    version.table.to_json(),
                )
                for version in versions
            ]
        )

    def load(self, upto_batch: int | None = None) -> list[SchemaVersion]:  # type: ignore[override]
        """Structures of sealed batches (up to ``upto_batch``), oldest first."""
        found = [version for version in self._sealed() if upto_batch is None or version.batch <= upto_batch]
        return sorted(found, key=lambda version: (version.batch, version.table_id, version.table.version))

    def rows(self) -> list[SchemaRow]:
        """All structures as they were written, also those that do not count."""
        return self._select()

    def of_batch(self, batch: int) -> list[SchemaVersion]:
        """Structures that first occur in a sealed batch, oldest first."""
        return [version for version in self.load(upto_batch=batch) if version.batch == batch]

    def versions(self, table_id: str) -> list[Table]:
        """All structures of a table, oldest first."""
        return [version.table for version in self.load() if version.table_id == table_id]

    def _sealed(self) -> list[SchemaVersion]:
        rows = self.rows()
        readers = self._batches.readers() if rows else {}
        return [
            SchemaVersion(row.table_id, row.batch, Table.from_json(row.structure))
            for row in rows
            if readers.get(row.batch) == row.runner
        ]
