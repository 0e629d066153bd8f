"""Staged files of a small table, as a batch leaves them for bronze."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_lib import bronze
from cdc_lib.change import change_schema
from cdc_lib.delta import Lake, TableRef, Txn
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.staged_files import Part
from cdc_lib.staging import StagedTable

SOURCE = pa.struct([pa.field("ts_ms", pa.int64()), pa.field("snapshot", pa.string())])
INCARNATION = "incarnation-1"
MARKS = bronze.Marks("shop", INCARNATION, "id-orders")


def orders(version: int = 1, **columns: pa.DataType) -> Table:
    """``public.orders`` with an ``id`` and these columns."""
    types = {"id": pa.int64(), **columns}
    made = tuple(Column(name, kind, "x", id=i) for i, (name, kind) in enumerate(types.items(), 1))
    return Table(TableId("public", "orders"), made, ("id",), version=version)


def stage(folder: Path, *files: tuple[Table, Sequence[Mapping[str, Any]]]) -> StagedTable:
    """Rows in one file for each structure; the last structure is the newest."""
    folder.mkdir(parents=True, exist_ok=True)
    staged = StagedTable("id-orders", files[-1][0])
    for number, (table, rows) in enumerate(files):
        schema = change_schema(table, SOURCE)
        path = folder / f"{number}-{table.version}.arrow"
        full = [{"position": "0001", "ordinal": staged.rows + i, **row} for i, row in enumerate(rows)]
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_pylist(full, schema))
        staged.rows += len(rows)
        staged.parts.append(Part(str(path), len(rows), path.stat().st_size, table.version))
    return staged


def append(lake: Lake, ref: TableRef, staged: StagedTable, batch: int) -> None:
    """What the ladder does for one table of a batch, without the verification."""
    bronze.ensure(lake, ref, staged.table, SOURCE, MARKS)
    bronze.append(
        lake,
        ref,
        staged,
        batch=batch,
        txn=Txn(f"{INCARNATION}/id-orders", batch),
        metadata={"incarnation": INCARNATION, "batch": batch},
    )
