"""Batch reads: a table's rows as they are now, piece by piece on the workers.

Each piece is read in a view of its own, at or after the position that all rows carry in ``_position``: what
changes meanwhile may be in one piece and not yet in another, as in any parallel read of a live table. With
``onePosition``, and for tables that cannot be cut by a key, one task reads all of it in one view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cdc_lib.change import ChangeBatch
from cdc_lib.datasource.options import CdcOptions
from cdc_lib.datasource.rows import rows_of
from cdc_lib.position import Position
from cdc_lib.schema import Table
from cdc_lib.source import Chunk, SnapshotSpec, open_source


class Piece(InputPartition):  # type: ignore[misc]
    """A part of the table, to be read at or after ``position``; no chunk: all of it, in one view."""

    def __init__(self, position: Position | None, chunk: Chunk | None) -> None:
        super().__init__(chunk.number if chunk else 0)
        self.position = position
        self.chunk = chunk


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Reads a table of the structure ``table``."""

    def __init__(self, options: CdcOptions, table: Table) -> None:
        self._options = options
        self._table = table

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.one_position or not self._table.key:
            return [Piece(None, None)]
        with open_source(self._options.source) as source:
            position = source.span().newest.plain()
            pieces = source.pieces(self._table.id, self._options.chunk_rows, one_view=False)
        return [Piece(position, chunk) for chunk in pieces]

    def read(self, partition: Piece) -> Iterator[pa.RecordBatch]:
        for change in self._one_view() if partition.chunk is None else self._piece(partition):
            yield rows_of(change.rows, self._table, change.table)

    def _piece(self, partition: Piece) -> Iterator[ChangeBatch]:
        assert partition.chunk is not None
        assert partition.position is not None
        with open_source(self._options.source) as source, source.incremental(self._spec) as session:
            yield from session.rows(partition.chunk, partition.position, self._table)

    def _one_view(self) -> Iterator[ChangeBatch]:
        with open_source(self._options.source) as source, source.snapshot(self._spec) as session:
            for chunk in session.chunks(self._table.id):
                yield from session.rows(chunk)

    @property
    def _spec(self) -> SnapshotSpec:
        return SnapshotSpec([self._table.id], self._options.chunk_rows, threads=1, keep=False)
