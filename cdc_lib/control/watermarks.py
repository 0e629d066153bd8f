"""Up to where bronze is complete, and up to which batch each silver table has been brought.

Only ever appended to and only ever forward. A row counts once it was read back: the source is allowed to
forget what is below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from cdc_lib.clock import now
from cdc_lib.control.row import ControlTable, Stored
from cdc_lib.delta import Conflict, Txn
from cdc_lib.errors import ResnapshotNeeded, RetryLater

Kind = Literal["start", "batch", "heartbeat", "applied"]


@dataclass(frozen=True)
class Watermark:
    """All batches up to ``batch`` are in bronze, and with them everything up to ``position``."""

    batch: Annotated[int, Stored("BIGINT", "newest committed batch; readers of bronze use rows up to it")]
    position: Annotated[str, Stored("STRING", "position in the source's log, JSON; empty on applied rows")]
    sort_key: Annotated[str, Stored("STRING", "the position as text whose order is the position order")]
    kind: Annotated[
        Kind, Stored("STRING", "start, batch, heartbeat (log without captured changes) or applied (silver)")
    ]
    source_committed_at: Annotated[
        datetime | None, Stored("TIMESTAMP", "newest commit time at the source in the batch")
    ]
    tables: Annotated[
        dict[str, int], Stored("MAP<STRING, BIGINT>", "Delta version of each bronze table, by table id")
    ]
    runner: Annotated[str, Stored("STRING", "runner that wrote the row")]
    committed_at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")]
    applied: Annotated[
        dict[str, int], Stored("MAP<STRING, BIGINT>", "on applied rows: newest batch in silver, by table id")
    ] = field(default_factory=dict)


class Watermarks(ControlTable[Watermark]):
    """The watermarks of a pipeline."""

    name = "watermarks"
    comment = "Up to which batch and log position bronze is complete, and silver applied"
    row = Watermark

    def latest(self) -> Watermark | None:
        """The highest committed watermark."""
        committed = [mark for mark in self.load() if mark.kind != "applied"]
        return max(committed, key=_order, default=None)

    def started(self) -> int:
        """The batch above which the log has no gap: that of the newest start."""
        return max((mark.batch for mark in self._select(kind="start")), default=0)

    def commit(self, watermark: Watermark, txn: Txn | None = None) -> None:
        """Write a watermark and read it back.

        :raises RetryLater: another runner has moved on further.
        :raises ResnapshotNeeded: Delta skipped the row; the table is older than what was committed to it.
        """
        self._refuse_going_back(watermark)
        try:
            self._append([watermark], txn)
        except Conflict:
            raise _overtaken(watermark.batch) from None
        found = self.latest()
        if found is None or _order(found) < _order(watermark):
            raise ResnapshotNeeded(
                f"the watermark of batch {watermark.batch} did not arrive",
                why="Delta has recorded this batch before and skipped the row: "
                "the table watermarks was restored to an older version",
                remedy="restore it to its newest version, or start a new pipeline name (snapshots again)",
            )

    def applied(self) -> dict[str, int]:
        """The newest batch that each silver table has, by table id."""
        newest: dict[str, int] = {}
        for mark in self._select(kind="applied"):
            for table_id, batch in mark.applied.items():
                newest[table_id] = max(batch, newest.get(table_id, 0))
        return newest

    def commit_applied(self, applied: Mapping[str, int], runner: str = "") -> None:
        """Note the batches that silver tables were brought to, all in one row."""
        if applied:
            batch = max(applied.values())
            self._append([Watermark(batch, "", "", "applied", None, {}, runner, now(), dict(applied))])

    def _refuse_going_back(self, watermark: Watermark) -> None:
        newest = self.latest()
        if newest is not None and _order(watermark) < _order(newest):
            raise _overtaken(watermark.batch)


def _order(mark: Watermark) -> tuple[int, str]:
    return mark.batch, mark.sort_key


def _overtaken(batch: int) -> RetryLater:
    return RetryLater(
        f"batch {batch} cannot be committed: a higher watermark is there",
        why="another runner has taken over this pipeline and moved on",
        remedy="run again; nothing is lost",
    )
