"""Rows that vanished while nobody looked, deleted as ordinary rows of bronze.

A snapshot adds and replaces. After a gap in the log, or when a damaged table is read again, silver may also
hold rows that the source no longer has; the snapshot did not see them, so none of its batches touched them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from cdc_lib.captured import CapturedTable
from cdc_lib.change import SPECIAL, STRINGS, TRANSACTION, ChangeBatch, Op, change_schema
from cdc_lib.position import Position
from cdc_lib.reading import ReadBatch, Reading
from cdc_lib.schema import Table

VANISHED = "vanished"
"""``source.snapshot`` of these rows, where Debezium writes ``true``, ``last`` or ``incremental``."""
ROWS = 65_536


def swept(
    reading: Reading, gone: Iterable[tuple[CapturedTable, pa.Table]], position: Position, number: int
) -> ReadBatch | None:
    """Deletes of these keys, staged as a batch at ``position``; None if there are none."""
    batch = ReadBatch(reading.stage(number), position, position)
    source = reading.source.source_type
    for entry, keys in gone:
        table = entry.table
        assert table is not None
        for start in range(0, keys.num_rows, ROWS):
            part = keys.slice(start, ROWS).combine_chunks()
            deletes = deleted(table, part, source, position.sort_key)
            batch.stage.add_chunk(entry.table_id, ChangeBatch(table, deletes), VANISHED)
    batch.stage.close()
    if batch.empty:
        batch.stage.discard()
        return None
    return batch


def emptied(reading: Reading, entries: Sequence[CapturedTable], position: Position, number: int) -> ReadBatch:
    """A truncate of each table, staged as a batch at ``position``: it stands before rows that are read again
    and cannot be told from those that are there."""
    batch = ReadBatch(reading.stage(number), position, position)
    source = reading.source.source_type
    for entry in entries:
        assert entry.table is not None
        row = {
            "op": Op.TRUNCATE.value,
            "source": _source(source, VANISHED),
            "position": position.sort_key,
            "ordinal": 0,
        }
        rows = pa.RecordBatch.from_pylist([row], change_schema(entry.table, source))
        batch.stage.add_chunk(entry.table_id, ChangeBatch(entry.table, rows), VANISHED)
    batch.stage.close()
    return batch


def deleted(
    table: Table, keys: pa.Table, source: pa.DataType, position: str, *, marker: str = VANISHED
) -> pa.RecordBatch:
    """Deletes whose before-image has the key alone; ``marker`` goes to ``source.snapshot``."""
    count = keys.num_rows
    before = [
        _column(keys, field.name).cast(field.type) if field.name in table.key else pa.nulls(count, field.type)
        for field in table.row_type
    ]
    others = [name for name in table.names if name not in table.key]
    columns = [
        pa.repeat(Op.DELETE.value, count),
        pa.StructArray.from_arrays(before, fields=list(table.row_type)),
        pa.nulls(count, table.row_type),
        pa.repeat(pa.scalar(others, STRINGS), count) if others else pa.nulls(count, STRINGS),
        pa.nulls(count, STRINGS),
        pa.nulls(count, SPECIAL),
        pa.nulls(count, table.key_type),
        pa.repeat(pa.scalar(_source(source, marker), source), count),
        pa.nulls(count, TRANSACTION),
        pa.repeat(position, count),
        pa.array(np.arange(count, dtype=np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=change_schema(table, source))


def _column(keys: pa.Table, name: str) -> pa.Array:
    chunked = keys.column(name)
    return chunked.chunk(0) if chunked.num_chunks else pa.array([], chunked.type)


def _source(kind: pa.DataType, marker: str) -> dict[str, object]:
    now = time.time_ns()
    known = {"snapshot": marker, "ts_ms": now // 1_000_000, "ts_us": now // 1_000, "ts_ns": now}
    return {field.name: known.get(field.name) for field in kind}
