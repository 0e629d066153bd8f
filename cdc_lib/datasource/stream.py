"""Streams: the changes of one table, range by range of the log.

An offset is a position. A range (start, end] is read by looking at the log without moving the slot, and holds
exactly the transactions that committed in it, so that reading it again gives the same rows.

The slot follows what Spark has committed, never what it has read: ``commit(end)`` is called when everything
up to ``end`` is in the query's checkpoint. So is what ``latestOffset`` is given as ``start``, for Spark plans
a micro-batch only after the one before it is committed. That second place is needed: under
Trigger.AvailableNow, Spark never reports the last commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from cdc_lib.change import ChangeBatch, TransactionEnd
from cdc_lib.change import Progress as LogProgress
from cdc_lib.datasource.options import CdcOptions
from cdc_lib.datasource.rows import rows_of
from cdc_lib.errors import RetryLater
from cdc_lib.position import Position
from cdc_lib.schema import Table
from cdc_lib.source import Source, open_source

try:
    from pyspark.sql.streaming.datasource import ReadMaxBytes, SupportsTriggerAvailableNow
except ModuleNotFoundError:
    # Spark 4.1 and older know no limits; there a micro-batch is as large as what has gathered.
    ReadMaxBytes = None
    SupportsTriggerAvailableNow = object

log = logging.getLogger("cdc_lib.datasource")


class LogRange(InputPartition):  # type: ignore[misc]
    """The transactions with ``start`` < commit <= ``end``; one partition: a log is read in its order."""

    def __init__(self, start: Position, end: Position) -> None:
        super().__init__(str(end))
        self.start = start
        self.end = end


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads changes of a table of the structure ``table``, through a slot of the stream's own."""

    def __init__(self, options: CdcOptions, table: Table) -> None:
        self._options = options
        self._table = table
        self._ceiling: Position | None = None
        self._released: Position | None = None

    # -- on the driver

    def initialOffset(self) -> dict[str, Any]:
        """Where the slot stands. It is made now if there is none, so that nothing after now is lost."""
        with open_source(self._options.source) as source:
            source.prepare([self._table.id], None)
            return source.start().plain().to_dict()

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        with open_source(self._options.source) as source:
            self._ceiling = source.span().newest.plain()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next range: what is there now, or less by the limit. Everything up to ``start`` is
        committed."""
        with open_source(self._options.source) as source:
            newest = self._ceiling or source.span().newest.plain()
            if start is None:
                return newest.to_dict()
            after = source.position_type.from_dict(start)
            self._release(source, after)
            if newest <= after:
                return after.to_dict()
            return newest.capped(after, getattr(limit, "max_bytes", 1 << 62)).to_dict()

    def reportLatestOffset(self) -> dict[str, Any]:
        with open_source(self._options.source) as source:
            return source.span().newest.plain().to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with_type = open_source(self._options.source).position_type
        after, upto = with_type.from_dict(start), with_type.from_dict(end)
        return [LogRange(after, upto)] if after < upto else []

    def commit(self, end: dict[str, Any]) -> None:
        with open_source(self._options.source) as source:
            self._release(source, source.position_type.from_dict(end))

    def _release(self, source: Source, upto: Position) -> None:
        """Let the source forget what is committed. If it cannot be done now, the next commit does it."""
        if self._released is not None and upto <= self._released:
            return
        try:
            source.release(upto)
        except RetryLater as error:
            log.warning("the slot was not moved reason=%s", error.what)
        else:
            self._released = upto

    # -- on a worker

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:
        with open_source(self._options.source) as source:
            first, after = 0, partition.start
            while after < partition.end:
                structures = {self._table.id: self._table}
                counted = 0
                for event in source.log([self._table.id], structures).read(after, partition.end):
                    if isinstance(event, ChangeBatch):
                        yield rows_of(event.rows, self._table, event.table, first)
                    elif isinstance(event, TransactionEnd):
                        counted = event.ordinal
                    elif isinstance(event, LogProgress):
                        after = event.position
                first += counted
