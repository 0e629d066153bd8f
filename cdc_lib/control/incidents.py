"""``control.incidents``: where silver could not be made equal to the source, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field


@dataclass(frozen=True)
class Incident:
    kind: str
    table_id: str
    table: str
    batch: int
    message: str
    remedy: str


class Incidents(ControlTable):
    """Append-only."""

    NAME = "incidents"
    COMMENT = "Differences that could not be avoided, and their remedies."
    FIELDS = (
        Field("kind", "STRING", "value not known, rows recomputed, table without a key."),
        Field("table_id", "STRING", "The table, as in control.tables."),
        Field("table", "STRING", "Its name at the source."),
        Field("batch", "BIGINT", "The batch in which it showed."),
        Field("message", "STRING", "What happened."),
        Field("remedy", "STRING", "What to do."),
        Field("at", "TIMESTAMP", "When it was written."),
    )

    def add(self, incident: Incident) -> None:
        self.insert([{**asdict(incident), "at": now()}])

    def load(self) -> list[Incident]:
        names = [name for name in Incident.__dataclass_fields__]
        rows = sorted(self.select(), key=lambda row: row["at"])
        return [Incident(**{name: row[name] for name in names}) for row in rows]
