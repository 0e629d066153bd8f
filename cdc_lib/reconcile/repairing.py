"""Silver mended by ordinary rows of bronze, so that history says what was done and a rebuild repeats it.

Wrong and lost rows come again with the source's values, as snapshots bring them; rows that only silver has
are deleted. A key that silver holds twice cannot be mended by either alone: both rows are deleted, and the
source's row comes with the batch after.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import Self

from cdc_lib.captured import CapturedTable
from cdc_lib.change import ChangeBatch, SchemaChange
from cdc_lib.position import Position
from cdc_lib.reading import ReadBatch, Reading
from cdc_lib.reconcile.buckets import Selection, among
from cdc_lib.reconcile.hashing import KEY, LANES, Words
from cdc_lib.reconcile.source_rows import SourceRows
from cdc_lib.schema import Table
from cdc_lib.source import Chunk
from cdc_lib.sweeping import deleted

if TYPE_CHECKING:
    from cdc_lib.capture import Capture

REPAIRED = "repair"
"""``source.snapshot`` of these rows."""
MOST = 1_000_000
"""Rows from which on reading the table again is the better way."""


class Repair:
    """The repair of one table; a context manager. Rows come to :meth:`take` while the table is compared;
    nothing is written before :meth:`finish`."""

    def __init__(self, capture: Capture, entry: CapturedTable, structure: Table, position: Position) -> None:
        self._capture = capture
        self._entry = entry
        self._structure = structure
        self._position = position
        self._lock = threading.Lock()
        self._batch: ReadBatch | None = None
        self._reading: Reading | None = None
        self._rows = 0
        self._wanted: list[Words] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    @property
    def too_many(self) -> bool:
        return self._rows > MOST

    def wanted(self) -> Words:
        """Hashes of the rows that silver must have in the end."""
        return np.concatenate([np.zeros((LANES, 0), np.uint64), *self._wanted], axis=1)

    def take(self, chunk: Chunk, rows: pa.RecordBatch, hashed: Words, doubled: Words) -> None:
        """Stage rows of the source, but those of keys that silver holds twice."""
        once = ~among(hashed[KEY], doubled)
        rows, hashed = rows.filter(pa.array(once)), hashed[:, once]
        with self._lock:
            self._rows += rows.num_rows
            if self.too_many:
                self.discard()
            if self.too_many or not rows.num_rows:
                return
            self._wanted.append(hashed)
            batch = self._staging()
            batch.stage.add_chunk(self._entry.table_id, ChangeBatch(self._table, _marked(rows)), REPAIRED)

    def finish(self, extra: pa.Table) -> None:
        """Commit what was taken and deletes of the keys ``extra``, and bring silver up to it."""
        if extra.num_rows:
            batch = self._staging()
            source = self._capture.source.source_type
            keys = extra.combine_chunks()
            rows = deleted(self._table, keys, source, self._position.sort_key, marker=REPAIRED)
            batch.stage.add_chunk(self._entry.table_id, ChangeBatch(self._table, rows), REPAIRED)
        if self._batch is not None:
            self._batch.stage.close()
            self._capture.take(self._batch)
            self._capture.apply()
            self._batch = None

    def bring_back(self, source: SourceRows, keys: Words) -> None:
        """A second batch, with the source's rows of these keys."""
        selection = Selection(keys=keys)

        def take(chunk: Chunk, rows: pa.RecordBatch, hashed: Words) -> None:
            chosen = selection.of(hashed)
            none = np.zeros(0, np.uint64)
            self.take(chunk, rows.filter(pa.array(chosen)), hashed[:, chosen], none)

        source.scan(take, again=True)
        self.finish(pa.table({}))

    @property
    def _table(self) -> Table:
        assert self._reading is not None
        table = self._reading.captured[self._entry.id].table
        assert table is not None
        return table

    def _staging(self) -> ReadBatch:
        if self._batch is None:
            self._reading = self._capture.reading()
            number = self._capture.standing.batch + 1
            self._batch = ReadBatch(self._reading.stage(number), self._position, self._position)
            self._reading.observe(self._batch, SchemaChange(None, self._structure))
        return self._batch

    def discard(self) -> None:
        """Throw away what was taken and not committed; idempotent."""
        if self._batch is not None:
            self._batch.stage.discard()
            self._batch = None


def _marked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with their mark, and ordinals without gaps."""
    source = rows.column("source")
    fields = [
        pa.repeat(pa.scalar(REPAIRED, field.type), rows.num_rows) if field.name == "snapshot" else values
        for field, values in zip(source.type, source.flatten(), strict=True)
    ]
    marked = pa.StructArray.from_arrays(fields, fields=list(source.type))
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns |= {"source": marked, "ordinal": pa.array(np.arange(rows.num_rows, dtype=np.int64))}
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)
