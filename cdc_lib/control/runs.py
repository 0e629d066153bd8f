"""``control.runs``: what each run did, how it ended, and its counters."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from cdc_lib.control.base import ControlTable
from cdc_lib.delta import Field


@dataclass(frozen=True)
class Run:
    """``error`` and ``remedy`` are empty unless it failed; neither ever holds a value of a row or a secret."""

    run_id: str
    verb: str
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: str = ""
    remedy: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


class Runs(ControlTable):
    """Append-only, written when a run ends."""

    NAME = "runs"
    COMMENT = "Runs and their outcomes."
    FIELDS = (
        Field("run_id", "STRING", "Id of the run."),
        Field("verb", "STRING", "run, capture, apply or snapshot."),
        Field("started_at", "TIMESTAMP", "When it started."),
        Field("ended_at", "TIMESTAMP", "When it ended."),
        Field("outcome", "STRING", "done, interrupted or failed."),
        Field("error", "STRING", "What went wrong."),
        Field("remedy", "STRING", "What to do about it."),
        Field(
            "metrics",
            "MAP<STRING,DOUBLE>",
            "seconds, batches, bronze.rows.<table>, silver.rows.<table>.",
        ),
    )

    def add(self, run: Run) -> None:
        self.insert([asdict(run)])

    def load(self) -> list[Run]:
        """All runs, oldest first."""
        rows: list[dict[str, Any]] = sorted(self.select(), key=lambda row: row["started_at"])
        return [
            Run(
                **{**{k: v for k, v in row.items() if k != "pipeline"}, "metrics": dict(row["metrics"] or {})}
            )
            for row in rows
        ]
