"""``control.tables``: the captured tables, each with an id that survives renames, and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field
from cdc_lib.schema import TableId


class State(str, Enum):
    """A closed set; each says who sets it."""

    SNAPSHOT = "snapshot"
    """A snapshot is due or under way. Set at first sight, by ``cdc snapshot``, by a signal, and when rows
    changed without row events."""
    STREAMING = "streaming"
    """Follows the log. Set when the last chunk of its snapshot is committed, or at first sight without one."""
    BRONZE_ONLY = "bronze_only"
    """Captured, but silver stands still: an update or delete came for a table without a key. Set by apply;
    left by ``cdc snapshot`` once the table has a key."""


@dataclass(frozen=True)
class TableState:
    """``reason`` and ``remedy`` say why a table is not streaming."""

    table_id: str
    source_schema: str
    source_table: str
    bronze: str
    silver: str
    state: State
    reason: str = ""
    remedy: str = ""
    updated_at: datetime = field(default_factory=now)


class Tables(ControlTable):
    """One row per table, updated in place."""

    NAME = "tables"
    COMMENT = "The captured tables and their states."
    FIELDS = (
        Field("table_id", "STRING", "Stable id; keys the Delta transaction ids of bronze and silver."),
        Field("source_schema", "STRING", "Schema at the source."),
        Field("source_table", "STRING", "Name at the source."),
        Field("bronze", "STRING", "Name of its bronze table."),
        Field("silver", "STRING", "Name of its silver table."),
        Field("state", "STRING", "snapshot, streaming or bronze_only."),
        Field("reason", "STRING", "Why it is not streaming."),
        Field("remedy", "STRING", "What to do about it."),
        Field("updated_at", "TIMESTAMP", "When the state changed."),
    )

    def load(self) -> dict[TableId, TableState]:
        states = [
            TableState(**{**{k: v for k, v in row.items() if k != "pipeline"}, "state": State(row["state"])})
            for row in self.select()
        ]
        return {TableId(state.source_schema, state.source_table): state for state in states}

    def save(self, states: Sequence[TableState]) -> None:
        """Insert or update, in one commit."""
        rows = [{"pipeline": self.pipeline, **asdict(state), "state": state.state.value} for state in states]
        self.lake.upsert_rows(self.ref, rows, keys=("pipeline", "table_id"))
