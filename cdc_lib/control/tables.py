"""The captured tables: stable id, names in source and lake, and what is being done with each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.schema import TableId


class State(str, Enum):
    """What is being done with a table; a closed set."""

    SNAPSHOT = "snapshot"
    """To be read whole. Set when a run first sees the table, by a signal, by ``cdc snapshot``, and when a
    change of its structure gave old rows new values."""
    SETTLE = "settle"
    """Read whole. Once silver has that, its rows that vanished from the source are deleted and those with
    values that nobody said are read by their keys (``settling``). Captured as in ``streaming``."""
    STREAMING = "streaming"
    """Its changes are captured and applied. Set when all chunks of its snapshot are committed, or at first
    sight if the snapshot mode takes none."""
    BRONZE_ONLY = "bronze_only"
    """Captured, but silver stopped, since its rows cannot be told apart. Set by the applier, with reason."""


@dataclass(frozen=True)
class TableState:
    """One captured table."""

    table_id: Annotated[
        str, Stored("STRING", "stable id; survives renames, names the table in transaction ids")
    ]
    source_schema: Annotated[str, Stored("STRING", "schema of the table in the source")]
    source_table: Annotated[str, Stored("STRING", "name of the table in the source")]
    bronze: Annotated[str, Stored("STRING", "name of its table in the bronze schema")]
    silver: Annotated[str, Stored("STRING", "name of its table in the silver schema")]
    state: Annotated[State, Stored("STRING", "snapshot, settle, streaming or bronze_only")]
    reason: Annotated[str, Stored("STRING", "why it is in this state, if something is wrong")] = ""
    remedy: Annotated[str, Stored("STRING", "what to do about it")] = ""
    updated_at: Annotated[datetime, Stored("TIMESTAMP", "when the row was last written")] = field(
        default_factory=now
    )

    @property
    def id(self) -> TableId:
        return TableId(self.source_schema, self.source_table)


class Tables(ControlTable[TableState]):
    """The captured tables of a pipeline; also the map from source names to names in the lake."""

    name = "tables"
    comment = "The captured tables, their names in source and lake, and what is being done with each"
    row = TableState

    def load(self) -> dict[TableId, TableState]:  # type: ignore[override]
        """The states by source name."""
        return {state.id: state for state in sorted(self._select(), key=lambda state: state.id)}

    def save(self, states: Sequence[TableState]) -> None:
        """Write states, all in one commit.

        :raises Conflict: another process wrote the same table's state at the same time.
        """
        if states:
            rows = [self._to_dict(replace(state, updated_at=now())) for state in states]
            self._lake.upsert_rows(self.ref, rows, ["pipeline", "table_id"])

    def _from_dict(self, data: Mapping[str, Any]) -> TableState:
        return TableState(**{**data, "state": State(data["state"])})
