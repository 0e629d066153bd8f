"""What a run tells about its progress, as Debezium's notifications do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored


@dataclass(frozen=True)
class Notification:
    """One message of a run to whoever watches; columns as in Debezium's notifications."""

    id: Annotated[str, Stored("STRING", "id of the notification")]
    aggregate_type: Annotated[
        str, Stored("STRING", "what it is about: Initial Snapshot, Incremental Snapshot, ...")
    ]
    type: Annotated[str, Stored("STRING", "what happened: STARTED, COMPLETED, ...")]
    additional_data: Annotated[dict[str, str], Stored("MAP<STRING, STRING>", "details")] = field(
        default_factory=dict
    )
    at: Annotated[datetime, Stored("TIMESTAMP", "when it was written")] = field(default_factory=now)


class Notifications(ControlTable[Notification]):
    """The notifications of a pipeline."""

    name = "notifications"
    comment = "What runs tell about their progress"
    row = Notification

    def add(self, notification: Notification) -> None:
        self._append([notification])
