"""The state of all pipelines, in Delta: one module and one table each, readable by SQL.

Rows of several pipelines share a table and carry the pipeline's name. Deletion vectors stay off, so that
the tables can be read without a JVM.
"""

from __future__ import annotations

from typing import Any

from cdc_lib.control.batches import Batches
from cdc_lib.control.chunks import Chunks
from cdc_lib.control.incidents import Incidents
from cdc_lib.control.leases import Leases
from cdc_lib.control.messages import Messages
from cdc_lib.control.notifications import Notifications
from cdc_lib.control.row import ControlTable
from cdc_lib.control.runs import Runs
from cdc_lib.control.schema_changes import SchemaChanges
from cdc_lib.control.schema_history import SchemaHistory
from cdc_lib.control.signals import Answers, Signals
from cdc_lib.control.tables import Tables
from cdc_lib.control.totals import Totals
from cdc_lib.control.transactions import Transactions
from cdc_lib.control.watermarks import Watermarks
from cdc_lib.delta import Lake

__all__ = ["Control"]

_RECENT = 50
"""Versions that the first sync of a run flushes again: those of an earlier run that ended before its own."""


class Control:
    """The control tables of one pipeline."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._lake = lake
        self._synced: dict[str, int] = {}
        self.leases = Leases(lake, pipeline)
        self.tables = Tables(lake, pipeline)
        self.watermarks = Watermarks(lake, pipeline)
        self.batches = Batches(lake, pipeline)
        self.totals = Totals(lake, pipeline)
        self.chunks = Chunks(lake, pipeline)
        self.signals = Signals(lake, pipeline)
        self.answers = Answers(lake, pipeline)
        self.schema_history = SchemaHistory(lake, pipeline, self.batches, self.leases)
        self.schema_changes = SchemaChanges(lake, pipeline)
        self.transactions = Transactions(lake, pipeline)
        self.messages = Messages(lake, pipeline)
        self.notifications = Notifications(lake, pipeline)
        self.runs = Runs(lake, pipeline)
        self.incidents = Incidents(lake, pipeline)

    def create(self) -> None:
        """Create the tables that do not exist yet."""
        for table in self.every():
            table.create()

    def sync(self) -> None:
        """Flush what was written since the last call to disk, before the source forgets what stands in it."""
        for table in self.every():
            version = self._lake.version(table.ref)
            since = self._synced.get(table.name, max(-1, version - _RECENT))
            if version > since:
                self._lake.sync(table.ref, since)
                self._synced[table.name] = version

    def every(self) -> list[ControlTable[Any]]:
        """All of them."""
        return [table for table in vars(self).values() if isinstance(table, ControlTable)]
