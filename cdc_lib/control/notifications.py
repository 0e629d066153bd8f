"""``control.notifications``: milestones of a pipeline, for whoever waits for them."""

from __future__ import annotations

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field


class Notifications(ControlTable):
    """Append-only; names follow Debezium's notifications."""

    NAME = "notifications"
    COMMENT = "Milestones: a snapshot started, a table completed, a snapshot completed."
    FIELDS = (
        Field("id", "STRING", "Id of what it belongs to, such as a snapshot."),
        Field("aggregate_type", "STRING", "Initial Snapshot, ..."),
        Field("type", "STRING", "STARTED, TABLE_SCAN_COMPLETED, COMPLETED."),
        Field("additional_data", "MAP<STRING,STRING>", "What else is known."),
        Field("at", "TIMESTAMP", "When."),
    )

    def add(self, id: str, aggregate_type: str, type: str, data: dict[str, str]) -> None:
        row = {"id": id, "aggregate_type": aggregate_type, "type": type, "additional_data": data, "at": now()}
        self.insert([row])
