"""Bronze on a local path without Spark: staged rows become Parquet files, which delta-rs commits.

A third of the CPU of Spark's writer, milliseconds for a small append, and no JVM (``docs/benchmarks.md``).
Only rows that fit the table as it is come this way; what changes its structure is Spark's to write.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_lib import delta_direct
from cdc_lib.delta_direct import NewFile, Txn

if TYPE_CHECKING:
    from cdc_lib.staged_files import Part

ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 32 << 20
"""A row group is closed when it has this many rows or bytes; it is what a thread holds in memory."""
THREADS = 2
STATISTICS = ("_batch", "_sequence")


def append(
    path: str,
    parts: Sequence[Part],
    rows: pa.Schema,
    held: pa.Schema,
    *,
    batch: int,
    txn: Txn,
    metadata: Mapping[str, Any],
) -> None:
    """Append staged files in one commit; in silence nothing if the table has ``txn`` or a later version.

    :param rows: the newest structure of the staged rows.
    :param held: the table's columns, which cover it.
    :raises Conflict: somebody committed at the same time what does not go together with this.
    """
    table = delta_direct.existing(path)
    if delta_direct.has(table, txn):
        return
    written = int(time.time() * 1000)

    def write(part: Part, place: Path) -> NewFile:
        return _write(place, _row_groups(part, rows, held, batch, written), held)

    places = [Path(path) / f"part-{uuid.uuid4()}.zstd.parquet" for _ in parts]
    with ExitStack() as undo:
        for place in places:
            undo.callback(place.unlink, missing_ok=True)
        with ThreadPoolExecutor(THREADS, "cdc-parquet") as pool:
            files = list(pool.map(write, parts, places))
        # From here on a commit may name them, even if it seems to have failed: they stay (VACUUM takes what
        # no version names), unless the table surely has the batch already.
        undo.pop_all()
    if not delta_direct.add_files(path, files, txn, metadata):
        for place in places:
            place.unlink(missing_ok=True)


def _write(place: Path, groups: Iterator[pa.Table], schema: pa.Schema) -> NewFile:
    count = 0
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    # Change data is nearly unique: dictionaries cost a quarter of the time and are thrown away.
    with pq.ParquetWriter(
        place, schema, compression="zstd", use_dictionary=False, write_statistics=list(STATISTICS)
    ) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
            count += group.num_rows
            for column in STATISTICS:
                bounds = pc.min_max(group.column(column)).as_py()
                low[column] = min(bounds["min"], low.get(column, bounds["min"]))
                high[column] = max(bounds["max"], high.get(column, bounds["max"]))
    nulls = dict.fromkeys(STATISTICS, 0)
    stats = {"numRecords": count, "minValues": low, "maxValues": high, "nullCount": nulls}
    return NewFile(place.name, place.stat().st_size, json.dumps(stats))


def _row_groups(part: Part, rows: pa.Schema, held: pa.Schema, batch: int, written: int) -> Iterator[pa.Table]:
    from cdc_lib.bronze_reader import conform

    waiting: list[pa.RecordBatch] = []
    count = size = 0
    # Read, not mapped: the pages of a mapped file would count as this process's memory.
    with pa.OSFile(part.path) as file, pa.ipc.open_stream(file) as stream:
        for received in stream:
            whole = _envelope(conform(received, rows, part.version, part.base), held, batch, written)
            waiting.append(whole)
            count, size = count + whole.num_rows, size + received.nbytes
            if count >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, count, size = [], 0, 0
    if count:
        yield pa.Table.from_batches(waiting)


def _envelope(rows: pa.RecordBatch, held: pa.Schema, batch: int, written: int) -> pa.RecordBatch:
    """The staged rows under bronze's columns; what the source dropped long ago is NULL."""
    from cdc_lib.bronze_reader import cast

    count = rows.num_rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns |= {
        "ts_ms": pa.repeat(pa.scalar(written, pa.int64()), count),
        "_batch": pa.repeat(pa.scalar(batch, pa.int64()), count),
        "_sequence": pc.add(rows.column("ordinal"), pa.scalar(batch << 32, pa.int64())),
        "_position": rows.column("position"),
    }
    arrays = [cast(columns[field.name], field.type) for field in held]
    return pa.RecordBatch.from_arrays(arrays, schema=held)
