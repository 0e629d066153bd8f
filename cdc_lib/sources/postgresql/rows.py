"""The row decoder: a table's rows, as a snapshot's COPY of text columns hands them over, to change batches.

Values go through the same conversion as the log's (``envelope.column``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cdc_lib.change import STRINGS, TRANSACTION, ChangeBatch, Op, change_schema
from cdc_lib.schema import Table
from cdc_lib.sources.postgresql.envelope import SOURCE, Naming, Specials, column
from cdc_lib.sources.postgresql.pgoutput import trim
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.tuples import Received, walk_copy
from cdc_lib.sources.postgresql.types import ColumnType


class RowDecoder:
    """Decodes ``COPY (SELECT column::text, ...) TO STDOUT (FORMAT binary)``, columns in the table's order.

    :param types: how each of the table's columns is held.
    :param captured_us: when the snapshot was taken, microseconds since 1970.
    :param marker: what stands in ``source.snapshot``, in Debezium's words.
    """

    def __init__(
        self,
        table: Table,
        types: Sequence[ColumnType],
        position: PostgresPosition,
        captured_us: int,
        marker: str = "true",
    ) -> None:
        self._table = table
        self._types = tuple(types)
        self._position = position
        self._captured_us = captured_us
        self._marker = marker
        self._schema = change_schema(table, SOURCE)
        self._ordinal = 0

    def feed(self, rows: list[bytes]) -> ChangeBatch:
        """The next rows; header and trailer of the format may be among them. Ordinals go on."""
        rows = trim(rows)
        count, specials = len(rows), Specials()
        after = self._after(rows, specials)
        columns = [
            pa.repeat(Op.READ.value, count),
            pa.nulls(count, self._table.row_type),
            after,
            pa.nulls(count, STRINGS),
            pa.nulls(count, STRINGS),
            specials.maps(count),
            pa.nulls(count, self._table.key_type),
            self._source(count),
            pa.nulls(count, TRANSACTION),
            pa.repeat(self._position.sort_key, count),
            pa.array(np.arange(self._ordinal, self._ordinal + count)),
        ]
        self._ordinal += count
        return ChangeBatch(self._table, pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _after(self, rows: list[bytes], specials: Specials) -> pa.StructArray:
        received = Received(rows)
        fields = walk_copy(received, len(self._types))
        values = [
            column(received, held, name, one, Naming(specials))
            for held, name, one in zip(self._types, self._table.names, fields, strict=True)
        ]
        return pa.StructArray.from_arrays(values, fields=list(self._table.row_type))

    def _source(self, count: int) -> pa.StructArray:
        times = (self._captured_us // 1000, self._captured_us, self._captured_us * 1000)
        columns = [
            pa.repeat(self._marker, count),
            *(pa.repeat(pa.scalar(time, pa.int64()), count) for time in times),
            pa.nulls(count, pa.int64()),
            pa.repeat(pa.scalar(self._position.lsn, pa.int64()), count),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.string()),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(SOURCE))
