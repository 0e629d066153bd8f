"""Rows that batches brought whose seals are no longer listed, so that their sum does not shrink.

A row says which batches it counts; one that is counted and still listed (maintenance was killed in between)
is not counted twice. The newest row counts, and includes all before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from cdc_lib.clock import now
from cdc_lib.control.batches import Seal
from cdc_lib.control.row import ControlTable, Stored


@dataclass(frozen=True)
class Total:
    """All batches below ``below`` that are not named in ``but``."""

    number: Annotated[int, Stored("BIGINT", "counts these rows; the highest counts")]
    below: Annotated[int, Stored("BIGINT", "batches below this one are counted here")]
    but: Annotated[list[int], Stored("ARRAY<BIGINT>", "but for these, which are listed in batches")]
    snapshot_rows: Annotated[
        dict[str, int], Stored("MAP<STRING, BIGINT>", "rows read by snapshots, by table id")
    ]
    log_rows: Annotated[dict[str, int], Stored("MAP<STRING, BIGINT>", "rows of the log, by table id")]
    at: Annotated[datetime, Stored("TIMESTAMP", "when the row was written")] = field(default_factory=now)

    def counts(self, batch: int) -> bool:
        """Whether a batch is counted here."""
        return batch < self.below and batch not in self.but


NOTHING = Total(0, 0, [], {}, {})


class Totals(ControlTable[Total]):
    """The rows of a pipeline's batches that are no longer listed."""

    name = "totals"
    comment = "Rows that batches brought which are no longer listed in batches"
    row = Total

    def newest(self) -> Total:
        """The one that counts."""
        return max(self.load(), key=lambda total: total.number, default=NOTHING)

    def add(self, seals: Iterable[Seal], below: int, but: Iterable[int]) -> None:
        """Count these seals; of those listed, all below ``below`` are counted then, but for ``but``."""
        before = self.newest()
        snapshot, log = Counter(before.snapshot_rows), Counter(before.log_rows)
        for seal in {seal.batch: seal for seal in sorted(seals, key=lambda seal: seal.attempt)}.values():
            if not before.counts(seal.batch):
                more = _rows_of(seal)
                snapshot.update(more["snapshot"])
                log.update(more["log"])
        self._append([Total(before.number + 1, below, sorted(but), dict(snapshot), dict(log))])


def _rows_of(seal: Seal) -> Mapping[str, dict[str, int]]:
    return {
        "snapshot": {table.table_id: table.rows - table.log_rows for table in seal.tables},
        "log": {table.table_id: table.log_rows for table in seal.tables},
    }
