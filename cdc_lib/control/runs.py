"""One row a run: when, what came of it, and its counters.

A continuous run has no end to wait for: every few minutes it writes a row with what was counted since the one
before, and the outcome ``going on``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from cdc_lib.control.row import ControlTable, Stored


@dataclass(frozen=True)
class Run:
    """One run of a verb of ``cdc``."""

    run_id: Annotated[str, Stored("STRING", "id of the run")]
    verb: Annotated[str, Stored("STRING", "run, capture, apply, snapshot, reconcile, rebuild or maintain")]
    started_at: Annotated[datetime, Stored("TIMESTAMP", "when it started")]
    ended_at: Annotated[datetime, Stored("TIMESTAMP", "when it ended")]
    outcome: Annotated[str, Stored("STRING", "done, interrupted, failed, or going on: a continuous run")]
    error: Annotated[str, Stored("STRING", "what happened, if it failed")] = ""
    remedy: Annotated[str, Stored("STRING", "what to do about it")] = ""
    metrics: Annotated[dict[str, float], Stored("MAP<STRING, DOUBLE>", "counters and times")] = field(
        default_factory=dict
    )


class Runs(ControlTable[Run]):
    """The runs of a pipeline."""

    name = "runs"
    comment = "One row a run: when, what came of it, and its counters"
    row = Run

    def load(self) -> list[Run]:
        """All runs, oldest first."""
        return sorted(self._select(), key=lambda run: run.started_at)

    def add(self, run: Run) -> None:
        self._append([run])
