"""``control.schema_history``: every structure each table has had, by version.

Versions are written before their batch is sealed. If the batch never is, they never happened: they are
ignored, and written again with the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field
from cdc_lib.schema import Table


@dataclass(frozen=True)
class SchemaVersion:
    """A table's structure (its ``version`` is the number) and the batch that brought it."""

    table_id: str
    batch: int
    table: Table


class SchemaHistory(ControlTable):
    """Append-only."""

    NAME = "schema_history"
    COMMENT = "Every structure of every table. Counts only if its batch was sealed."
    FIELDS = (
        Field("table_id", "STRING", "The table, as in control.tables."),
        Field("version", "INT", "Number of the structure, from 1."),
        Field("batch", "BIGINT", "The batch that brought it."),
        Field("structure", "STRING", "JSON: columns with types, ids and comments; key; identity."),
        Field("at", "TIMESTAMP", "When it was written."),
    )

    def add(self, versions: Sequence[SchemaVersion]) -> None:
        self.insert(
            [
                {
                    "table_id": version.table_id,
                    "version": version.table.version,
                    "batch": version.batch,
                    "structure": version.table.to_json(),
                    "at": now(),
                }
                for version in versions
            ]
        )

    def load(self, upto_batch: int) -> list[SchemaVersion]:
        """All versions of batches up to this one; of repeated attempts, the last."""
        return self._newest(batch for batch in self.select() if batch["batch"] <= upto_batch)

    def of_batch(self, batch: int) -> list[SchemaVersion]:
        """The versions that a batch brought."""
        return self._newest(self.select({"batch": batch}))

    @staticmethod
    def _newest(rows: object) -> list[SchemaVersion]:
        newest: dict[tuple[str, int], SchemaVersion] = {}
        for row in sorted(rows, key=lambda row: row["at"]):  # type: ignore[call-overload]
            version = SchemaVersion(row["table_id"], row["batch"], Table.from_json(row["structure"]))
            newest[row["table_id"], row["version"]] = version
        return [newest[key] for key in sorted(newest)]
