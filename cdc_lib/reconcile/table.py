"""One table of a reconciliation: compared, its first differences named, mended where that is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_lib.captured import CapturedTable
from cdc_lib.control.incidents import Incident
from cdc_lib.progress import Stage
from cdc_lib.reconcile.buckets import Selection
from cdc_lib.reconcile.columns import Columns, compared
from cdc_lib.reconcile.comparing import Found, compare, unequal_keys
from cdc_lib.reconcile.differences import Sample
from cdc_lib.reconcile.hashing import KEY, Words
from cdc_lib.reconcile.repairing import MOST, Repair
from cdc_lib.reconcile.result import TableResult
from cdc_lib.reconcile.silver_rows import SilverRows, open_silver
from cdc_lib.reconcile.source_rows import SourceRows
from cdc_lib.source import Chunk, SnapshotSession

if TYPE_CHECKING:
    from cdc_lib.capture import Capture

log = logging.getLogger("cdc_lib.reconcile")


class ComparedTable:
    """A table in an open view at whose position silver stands."""

    def __init__(self, capture: Capture, session: SnapshotSession, entry: CapturedTable, shown: int) -> None:
        self._capture = capture
        self._session = session
        self._entry = entry
        self._shown = shown
        self._structure = session.table(entry.id)
        self._ref = capture.context.lake.ref("silver", entry.state.silver)
        self._columns = self._compared()

    def result(self, *, repair: bool) -> TableResult:
        """Compare, and mend if asked to. A difference is also an incident in the control tables."""
        source, silver = self._source(), self._silver()
        sample = Sample(self._shown)
        with Repair(self._capture, self._entry, self._structure, self._session.position) as mending:

            def lacking(chunk: Chunk, rows: pa.RecordBatch, hashed: Words, doubled: Words) -> None:
                sample.take(chunk, rows, hashed, doubled)
                if repair and self._structure.key:
                    mending.take(chunk, rows, hashed, doubled)

            found = compare(source, silver, lacking)
            shown = sample.differences(silver, found.extras)
            mended = 0
            if repair and found.differing and self._structure.key and not mending.too_many:
                mended = self._mend(mending, found, source, silver)
        result = TableResult(
            table=str(self._entry.id),
            source_rows=found.source,
            silver_rows=found.silver,
            equal=found.equal,
            wrong=found.wrong,
            unknown=found.unknown,
            lost=found.lost,
            extra=found.extra,
            kept=self._columns.kept,
            lacking=self._columns.lacking,
            differences=shown,
            repaired=mended,
        )
        result = replace(result, remedy=self._remedy(result, doubled=len(found.doubled)))
        self._report(result)
        return result

    def _mend(self, mending: Repair, found: Found, source: SourceRows, silver: SilverRows) -> int:
        """Mend, compare the rows in question again, and count the differences that are gone."""
        gone = np.union1d(found.extras, found.doubled)
        mending.finish(silver.rows(Selection(keys=gone), key_only=True) if len(gone) else pa.table({}))
        if len(found.doubled):
            mending.bring_back(source, found.doubled)
        wanted = mending.wanted()
        keys = np.union1d(gone, wanted[KEY])
        left = unequal_keys(wanted, self._silver().hashes(Selection(keys=keys)))
        return max(0, found.differing - len(left))

    # -- the two sides

    def _compared(self) -> Columns:
        lake = self._capture.context.lake
        there = lake.exists(self._ref)
        silver = lake.arrow_schema(self._ref) if there else pa.schema(list(self._structure.row_type))
        return compared(self._structure, silver)

    def _source(self) -> SourceRows:
        chunks = self._session.chunks(self._entry.id)
        planned = [chunk.rows for chunk in chunks]
        rows = None if None in planned else sum(count or 0 for count in planned)
        self._capture.progress.snapshot_planned(str(self._entry.id), rows, len(chunks))
        threads = self._capture.pipeline.run.threads
        layout = self._columns.of_source
        return SourceRows(self._session, chunks, layout, threads, self._check("snapshot"))

    def _silver(self) -> SilverRows:
        """Silver as it is now; a repair may have added columns of its own to it, which do not count."""
        layout = replace(self._compared().layout, columns=self._columns.layout.columns)
        return open_silver(self._capture.context.lake, self._ref, layout, self._check("silver"))

    def _check(self, stage: Stage) -> Callable[[int], None]:
        def check(rows: int) -> None:
            self._capture.progress.rows(str(self._entry.id), stage, rows)
            self._capture.context.check_stop()

        return check

    # -- what is said of it

    def _remedy(self, result: TableResult, *, doubled: int) -> str:
        if result.same:
            return ""
        again = f"cdc snapshot {result.table}"
        if doubled and result.repaired:
            # Rows that are deleted softly stay, and both come back.
            return (
                f"delete the rows of keys that silver has more than once from {self._ref}, and repair again"
            )
        if not self._structure.key:
            return f"rows without a key cannot be mended one by one: {again}"
        if result.lacking or result.repaired:
            return again
        if result.different > MOST:
            return f"too many to be mended one by one: {again}"
        return f"cdc reconcile {result.table} --repair"

    def _report(self, result: TableResult) -> None:
        if not result.different and not result.lacking:
            return
        what = [
            f"{count} {word}"
            for count, word in (
                (result.wrong, "rows differ"),
                (result.unknown, "rows have values not known"),
                (result.lost, "rows are missing in silver"),
                (result.extra, "rows are only in silver"),
                (result.repaired, "of these were repaired"),
            )
            if count
        ]
        what += [f"silver lacks column {name}, or has it with another type" for name in result.lacking]
        message = f"{', '.join(what)}, at {self._session.position}"
        batch = self._capture.standing.batch
        remedy = result.remedy or "nothing: silver equals the source again"
        self._capture.control.incidents.add(
            Incident("difference", self._entry.table_id, result.table, batch, message, remedy)
        )
        log.warning("silver differs table=%s what=%s", result.table, message)
