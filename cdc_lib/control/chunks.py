"""Progress of snapshots: a row when a chunk is planned, a row when it is done. Only ever appended to."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Lake, Txn
from cdc_lib.schema import TableId
from cdc_lib.source import Chunk

RESTART = -1
"""Number of a row that only says that earlier pieces do not count."""


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


@dataclass(frozen=True)
class Progress:
    """How far the newest snapshot of one table is. ``rows`` and ``rows_done`` are estimates of the source,
    None if it has none."""

    pieces: int
    done: int
    rows: int | None
    rows_done: int | None
    planned_at: datetime
    last_at: datetime


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
        snapshot, at = uuid.uuid4().hex, self._later()
        self._snapshots.update(dict.fromkeys(chunks, snapshot))
        self._append(
            [
                _planned(snapshot, table_id, chunk, at)
                for table_id, planned in chunks.items()
                for chunk in planned
            ]
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

    def restart(self, table_ids: Sequence[str]) -> None:
        """What was read of these tables does not count any more; they must be planned anew."""
        snapshot, at = uuid.uuid4().hex, self._later()
        self._snapshots.update(dict.fromkeys(table_ids, snapshot))
        self._append(
            [
                ChunkRow(snapshot, table_id, RESTART, None, None, "planned", None, None, at)
                for table_id in table_ids
            ]
        )

    def left(
        self, table_id: str, table: TableId, started: int, coming: Collection[int] = ()
    ) -> list[Chunk] | None:
        """Pieces of the table's newest snapshot that are not done; None if it must be planned anew.

        :param started: what batches up to this one brought does not count: the log has a gap behind it.
        :param coming: pieces that count as done: a sealed batch is about to bring them.
        """
        rows = self._of_newest(table_id)
        planned = {row.number: row for row in rows if row.state == "planned"}
        done = _done(rows, started) | set(coming)
        if not planned or RESTART in planned or done >= planned.keys():
            return None
        self._snapshots[table_id] = rows[0].snapshot
        return [_chunk(table, row) for number, row in sorted(planned.items()) if number not in done]

    def completes(self, table_id: str, started: int, coming: Collection[int]) -> bool:
        """Whether a batch that brings these pieces brings the last of the table's newest snapshot."""
        rows = self._of_newest(table_id)
        lacking = {row.number for row in rows if row.state == "planned"} - _done(rows, started)
        return bool(lacking) and RESTART not in lacking and lacking.issubset(coming)

    def first_batch(self, table_id: str, started: int) -> int:
        """The batch above ``started`` that brought the first rows of the table's newest snapshot; 0 if none
        did."""
        batches = [row.batch or 0 for row in self._of_newest(table_id) if row.state == "done"]
        return min((batch for batch in batches if batch > started), default=0)

    def progress(self, started: int) -> dict[str, Progress]:
        """How far the newest snapshot of each table is, by table id; none for what must be planned anew."""
        newest = self._newest()
        rows: dict[str, list[ChunkRow]] = {}
        for row in self._select():
            if newest.get(row.table_id) == row.snapshot:
                rows.setdefault(row.table_id, []).append(row)
        return {table_id: made for table_id, kept in rows.items() if (made := _progress(kept, started))}

    def _later(self) -> datetime:
        """Now, or by a clock that was set back, just after the newest plan there is: plans have no number, so
        their times must rise."""
        newest = max((row.at for row in self._select(state="planned")), default=None)
        return now() if newest is None else max(now(), newest + timedelta(microseconds=1))

    def _of_newest(self, table_id: str) -> list[ChunkRow]:
        rows = self._select(table_id=table_id)
        newest = max((row for row in rows if row.state == "planned"), key=lambda row: row.at, default=None)
        return [row for row in rows if newest is not None and row.snapshot == newest.snapshot]

    def _newest(self) -> dict[str, str]:
        """The newest snapshot planned for each table, by table id."""
        planned = sorted(self._select(state="planned"), key=lambda row: row.at)
        return {row.table_id: row.snapshot for row in planned}


def _done(rows: Sequence[ChunkRow], started: int) -> set[int]:
    return {row.number for row in rows if row.state == "done" and (row.batch or 0) > started}


def _progress(rows: Sequence[ChunkRow], started: int) -> Progress | None:
    planned = {row.number: row for row in rows if row.state == "planned"}
    if RESTART in planned:
        return None
    done = _done(rows, started) & planned.keys()
    return Progress(
        len(planned),
        len(done),
        _added(row.rows for row in planned.values()),
        _added(planned[number].rows for number in done),
        min(row.at for row in planned.values()),
        max(row.at for row in rows),
    )


def _added(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _chunk(table: TableId, row: ChunkRow) -> Chunk:
    lower = None if row.lower is None else tuple(row.lower)
    upper = None if row.upper is None else tuple(row.upper)
    return Chunk(table, row.number, lower, upper, row.rows)


def _planned(snapshot: str, table_id: str, chunk: Chunk, at: datetime) -> ChunkRow:
    lower = None if chunk.lower is None else list(chunk.lower)
    upper = None if chunk.upper is None else list(chunk.upper)
    return ChunkRow(snapshot, table_id, chunk.number, lower, upper, "planned", None, chunk.rows, at)
