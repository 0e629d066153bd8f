"""``control.watermarks``: what is committed. Rows are only ever added, and never go back.

Readers of bronze use rows up to the newest batch here, and the source is released only up to its position.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from cdc_lib.control.base import ControlTable, now
from cdc_lib.delta import Field, Txn
from cdc_lib.errors import RetryLater

Kind = Literal["start", "batch", "heartbeat"]


@dataclass(frozen=True)
class Watermark:
    """``start``: the first position, nothing captured yet. ``batch``: bronze has batch N. ``heartbeat``: no
    captured table changed up to this position. ``tables``: Delta version of each bronze table after our last
    commit to it, by table id."""

    batch: int
    position: str
    sort_key: str
    kind: Kind
    source_committed_at: datetime | None = None
    tables: dict[str, int] = field(default_factory=dict)
    runner: str = ""
    committed_at: datetime = field(default_factory=now)


class Watermarks(ControlTable):
    """Append-only."""

    NAME = "watermarks"
    COMMENT = "What is committed: one row per batch, heartbeat, and application to silver."
    FIELDS = (
        Field("kind", "STRING", "start, batch, heartbeat or applied."),
        Field("batch", "BIGINT", "Newest batch that bronze has as a whole."),
        Field("position", "STRING", "JSON: everything committed at the source up to here is in bronze."),
        Field("sort_key", "STRING", "The position as text whose order is the log's order."),
        Field("source_committed_at", "TIMESTAMP", "When the source committed its last change in the batch."),
        Field(
            "tables", "MAP<STRING,BIGINT>", "By table id: Delta version of bronze; for applied, the batch."
        ),
        Field("runner", "STRING", "Who wrote it."),
        Field("committed_at", "TIMESTAMP", "When."),
    )

    def latest(self) -> Watermark | None:
        """The newest watermark, by batch and then by position; None before the first start."""
        rows = [row for row in self.select() if row["kind"] != "applied"]
        if not rows:
            return None
        newest = max(rows, key=lambda row: (row["batch"], row["sort_key"]))
        tables = dict(newest["tables"] or {})
        return Watermark(**{**_without_pipeline(newest), "tables": tables})

    def commit(self, watermark: Watermark, txn: Txn | None = None) -> None:
        """Append, and read back.

        :raises RetryLater: somebody committed further than this.
        """
        self.insert([asdict(watermark)], txn=txn)
        latest = self.latest()
        if latest is None or (latest.batch, latest.sort_key) != (watermark.batch, watermark.sort_key):
            raise RetryLater(
                f"watermark {watermark.batch} is not the newest after it was written",
                why="another runner committed a later one",
                remedy="run again; let only one job run a pipeline",
            )

    def applied(self) -> dict[str, int]:
        """By table id: the newest batch known to be in silver. May lag, which does no harm."""
        newest: dict[str, int] = {}
        for row in self.select({"kind": "applied"}):
            for table_id, batch in dict(row["tables"] or {}).items():
                newest[table_id] = max(batch, newest.get(table_id, 0))
        return newest

    def commit_applied(self, tables: dict[str, int]) -> None:
        """Silver has these tables up to these batches."""
        row = {"kind": "applied", "batch": max(tables.values()), "tables": tables, "committed_at": now()}
        self.insert([row])


def _without_pipeline(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "pipeline"}
