"""What went wrong without stopping the run, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored


@dataclass(frozen=True)
class Incident:
    """One difference between source and tables that somebody should know of."""

    kind: Annotated[str, Stored("STRING", "kind of incident, a few words")]
    table_id: Annotated[str, Stored("STRING", "table, as in the control table tables")]
    table: Annotated[str, Stored("STRING", "name of the table in the source")]
    batch: Annotated[int, Stored("BIGINT", "batch in which it happened")]
    message: Annotated[str, Stored("STRING", "what happened, and why")]
    remedy: Annotated[str, Stored("STRING", "what to do about it")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")] = field(default_factory=now)


class Incidents(ControlTable[Incident]):
    """The incidents of a pipeline."""

    name = "incidents"
    comment = "What went wrong without stopping the run, and what to do about it"
    row = Incident

    def load(self) -> list[Incident]:
        """All incidents, oldest first."""
        return sorted(self._select(), key=lambda incident: incident.at)

    def add(self, incident: Incident) -> None:
        self._append([incident])
