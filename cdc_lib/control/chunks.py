"""Progress of snapshots: a row when a chunk is planned, a row when it is done. Only ever appended to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from cdc_lib.control.row import ControlTable, Stored, now
from cdc_lib.delta import Lake, Txn
from cdc_lib.source import Chunk


@dataclass(frozen=True)
class ChunkRow:
    """One chunk of one table's snapshot, planned or done."""

    snapshot: Annotated[str, Stored("STRING", "id of the snapshot that the chunk belongs to")]
    table_id: Annotated[str, Stored("STRING", "table, as in the control table tables")]
    number: Annotated[int, Stored("INT", "place of the chunk in the snapshot of this table")]
    lower: Annotated[list[str] | None, Stored("ARRAY<STRING>", "lowest key, included; NULL: open")]
    upper: Annotated[
        list[str] | None, Stored("ARRAY<STRING>", "upper bound of the key, not included; NULL: open")
    ]
    state: Annotated[Literal["planned", "done"], Stored("STRING", "planned or done")]
    batch: Annotated[
        int | None, Stored("BIGINT", "batch that brought its rows; it is done if that is committed")
    ]
    rows: Annotated[int | None, Stored("BIGINT", "estimate of its rows, on planned ones; NULL: not known")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")] = field(default_factory=now)


class Chunks(ControlTable[ChunkRow]):
    """The chunks of a pipeline's snapshots."""

    name = "chunks"
    comment = "Progress of snapshots: a row when a chunk is planned, another when it is done"
    row = ChunkRow

    def __init__(self, lake: Lake, pipeline: str) -> None:
        super().__init__(lake, pipeline)
        self._snapshots: dict[str, str] = {}

    def plan(self, chunks: Mapping[str, Sequence[Chunk]]) -> None:
        """Write down the chunks that a snapshot is about to read, by table id."""
        snapshot = uuid.uuid4().hex
        self._snapshots.update(dict.fromkeys(chunks, snapshot))
        self._append(
            [_planned(snapshot, table_id, chunk) for table_id, planned in chunks.items() for chunk in planned]
        )

    def done(self, chunks: Sequence[tuple[str, int]], *, batch: int, txn: Txn | None = None) -> None:
        """Note chunks (table id and number) whose rows are in bronze with ``batch``."""
        if any(table_id not in self._snapshots for table_id, _ in chunks):
            self._snapshots = self._newest() | self._snapshots
        self._append(
            [
                ChunkRow(self._snapshots.get(table_id, ""), table_id, number, None, None, "done", batch, None)
                for table_id, number in chunks
            ],
            txn,
        )

    def first_batch(self, table_id: str) -> int:
        """The batch that brought the first rows of the table's newest snapshot; 0 if none did."""
        snapshot = self._newest().get(table_id)
        done = [row for row in self._select(table_id=table_id, state="done") if row.snapshot == snapshot]
        return min((row.batch or 0 for row in done), default=0)

    def _newest(self) -> dict[str, str]:
        """The newest snapshot planned for each table, by table id."""
        planned = sorted(self._select(state="planned"), key=lambda row: row.at)
        return {row.table_id: row.snapshot for row in planned}


def _planned(snapshot: str, table_id: str, chunk: Chunk) -> ChunkRow:
    lower = None if chunk.lower is None else list(chunk.lower)
    upper = None if chunk.upper is None else list(chunk.upper)
    return ChunkRow(snapshot, table_id, chunk.number, lower, upper, "planned", None, chunk.rows)
