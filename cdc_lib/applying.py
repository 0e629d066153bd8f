"""Step 8 of the ladder: bring silver up to the committed watermark, several tables at a time."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from cdc_lib import silver
from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.incidents import Incident
from cdc_lib.control.tables import State
from cdc_lib.delta import Conflict, Lake
from cdc_lib.facts import Facts
from cdc_lib.faults import reach
from cdc_lib.progress import Progress
from cdc_lib.unity import Governor

log = logging.getLogger("cdc_lib.applying")

MERGE_TRIES = 4
"""How often a table is merged to that others change at the same time."""


@dataclass(frozen=True)
class Pending:
    """Batches of a table that silver lacks: the newest, and what kinds of rows are in them, if known."""

    upto: int
    facts: Facts | None


class Applier:
    """Merges what bronze has and silver lacks. Knows in memory which tables have something pending."""

    def __init__(self, lake: Lake, control: Control, pipeline: Pipeline, incarnation: str) -> None:
        self._lake = lake
        self._control = control
        self._pipeline = pipeline
        self._incarnation = incarnation
        self._applied: dict[str, int] = {}
        self._pending: dict[str, Pending] = {}
        self._ready: set[str] = set()
        self._lock = threading.Lock()
        self._governor = Governor(lake)
        self._fence = silver.Fence(control.leases.held, control.leases.holder)

    def load(self, committed: int) -> None:
        """Find out at start what earlier runs left: batches above each table's applied one."""
        self._applied = self._control.watermarks.applied()
        for seal in self._control.batches.after(min(self._applied.values(), default=0)):
            if seal.batch <= committed:
                for table in seal.tables:
                    if seal.batch > self._applied.get(table.table_id, 0):
                        facts = Facts.from_json(table.facts) if table.facts else None
                        self.pending(table.table_id, seal.batch, facts)

    def pending(self, table_id: str, batch: int, facts: Facts | None) -> None:
        """A committed batch has rows of this table; batches come in order."""
        before = self._pending.get(table_id, Pending(0, Facts()))
        known = None if facts is None or before.facts is None else before.facts + facts
        self._pending[table_id] = Pending(batch, known)

    def apply(self, captured: Captured, progress: Progress) -> dict[str, int]:
        """Merge all pending tables; rows read from bronze by table name."""
        work = self.due(captured)
        self._pending.clear()
        if not work:
            return {}
        with ThreadPoolExecutor(self._pipeline.run.commit_threads, "cdc-silver") as pool:
            rows = dict(pool.map(lambda item: self._one(item[0], item[1], progress), work))
        reach("silver.merged")
        done = {entry.table_id: pending.upto for entry, pending in work}
        self._applied.update(done)
        self._control.watermarks.commit_applied(done)
        return rows

    def due(self, captured: Captured) -> list[tuple[CapturedTable, Pending]]:
        """The tables that :meth:`apply` would merge, and what of them; none if silver is not ours."""
        if self._pipeline.apply.mode != "merge":
            return []
        return [
            (captured[table_id], pending)
            for table_id, pending in sorted(self._pending.items())
            if captured[table_id].state.state is not State.BRONZE_ONLY
        ]

    def applied(self, table_id: str) -> int:
        """The newest batch that a silver table has."""
        return self._applied.get(table_id, 0)

    def _one(self, entry: CapturedTable, pending: Pending, progress: Progress) -> tuple[str, int]:
        upto = pending.upto
        target = self._target(entry)
        after, facts = self.applied(entry.table_id), pending.facts
        if entry.table_id not in self._ready:
            if silver.ensure(self._lake, target, self._incarnation) and after:
                # Somebody dropped it: it is made anew from all of bronze.
                after, facts = 0, None
            self._governor.silver(target, self._pipeline.rule(entry.id))
            self._ready.add(entry.table_id)
        try:
            outcome = self._merge(target, after, Pending(upto, facts))
        except silver.KeylessUpdate as error:
            self._stop_silver(entry, str(error), upto)
            return str(entry.id), 0
        progress.rows(str(entry.id), "silver", outcome.rows)
        if outcome.unavailable and entry.state.state is State.STREAMING:
            self.report_unavailable(entry, outcome.unavailable, upto)
        reach("silver.merged.one")
        return str(entry.id), outcome.rows

    def _merge(self, target: silver.SilverTable, after: int, pending: Pending) -> silver.Applied:
        """Somebody may put the table's files together meanwhile (``cdc maintain``, the platform by itself).
        Then Delta takes only one of both; the same range may come again, with the same result."""
        apply = partial(
            silver.apply,
            self._lake,
            target,
            after=after,
            upto=pending.upto,
            incarnation=self._incarnation,
            facts=pending.facts,
            fence=self._fence,
        )
        for _ in range(MERGE_TRIES - 1):
            try:
                return apply()
            except Conflict:
                log.info("merging again: others changed its files meanwhile table=%s", target.table.id)
        return apply()

    def older(self, entry: CapturedTable, batch: int) -> pa.Table:
        """Keys of the living rows of silver that no batch from ``batch`` on has touched."""
        if entry.table is None or not entry.table.key:
            return pa.table({})
        return silver.older(self._lake, self._target(entry), batch)

    def vanished(self, entry: CapturedTable, batch: int) -> pa.Table:
        """Keys of rows that lived before ``batch`` and that no batch from there on has touched, by bronze."""
        if entry.table is None or not entry.table.key:
            return pa.table({})
        earlier = [seal for seal in self._control.batches.after(0) if seal.batch < batch]
        if not any(table.table_id == entry.table_id for seal in earlier for table in seal.tables):
            return pa.table({})
        return silver.vanished(self._lake, self._target(entry), batch)

    def incomplete(self, entry: CapturedTable) -> pa.Table:
        """Keys of the living rows of silver with values that are not known."""
        if entry.table is None or not entry.table.key:
            return pa.table({})
        return silver.incomplete(self._lake, self._target(entry))

    def refresh(self, table_id: str) -> None:
        """The table's structure changed: look at its silver table again before the next merge."""
        self._ready.discard(table_id)

    def _target(self, entry: CapturedTable) -> silver.SilverTable:
        assert entry.table is not None
        rule = self._pipeline.rule(entry.id)
        return silver.SilverTable(
            table=rule.described(entry.table),
            bronze=self._lake.ref("bronze", entry.state.bronze),
            silver=self._lake.ref("silver", entry.state.silver),
            table_id=entry.table_id,
            delete=rule.delete,
            since=dict(entry.since),
            scd=rule.scd,
            pipeline=self._pipeline.name,
        )

    def report_unavailable(self, entry: CapturedTable, rows: int, batch: int) -> None:
        """Note that silver has rows whose values are not all known."""
        self._control.incidents.add(
            Incident(
                kind="value not known",
                table_id=entry.table_id,
                table=str(entry.id),
                batch=batch,
                message=f"{rows} rows have columns that neither the log nor silver carried; "
                "they are listed in the column __unavailable",
                remedy=f"cdc snapshot {entry.id}",
            )
        )

    def _stop_silver(self, entry: CapturedTable, reason: str, batch: int) -> None:
        remedy = f"give {entry.id} a primary key, or name one in message.key.columns"
        with self._lock:
            entry.state = replace(entry.state, state=State.BRONZE_ONLY, reason=reason, remedy=remedy)
            self._control.tables.save([entry.state])
        self._control.incidents.add(
            Incident("table without a key", entry.table_id, str(entry.id), batch, reason, remedy)
        )
        log.warning("silver stopped table=%s reason=%s", entry.id, reason)
