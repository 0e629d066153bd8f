"""``cdc reconcile``: the source's rows at one position, silver brought to exactly there, both compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cdc_lib.captured import CapturedTable
from cdc_lib.control.tables import State
from cdc_lib.errors import FixConfiguration
from cdc_lib.reconcile.result import Reconciled, Skipped
from cdc_lib.reconcile.table import ComparedTable
from cdc_lib.schema import TableId
from cdc_lib.source import SnapshotSpec

if TYPE_CHECKING:
    from cdc_lib.capture import Capture


class Reconciliation:
    """Compares tables, through the steps of the ``capture`` that it belongs to.

    :param tables: these alone; empty: all that are captured.
    :param repair: mend what differs.
    :param shown: differences of a table that the result has one by one.
    """

    def __init__(self, capture: Capture, tables: Sequence[TableId], *, repair: bool, shown: int) -> None:
        self._capture = capture
        self._tables = tables
        self._repair = repair
        self._shown = shown

    def run(self) -> Reconciled:
        """Compare. The capture must have caught up, so that the view is not open for longer than it need be.

        :raises FixConfiguration: a table was named that is not captured.
        """
        capture = self._capture
        entries = self._entries()
        reasons = {entry.id: self._reason(entry) for entry in entries}
        chosen = [entry for entry in entries if not reasons[entry.id]]
        if not chosen:
            return Reconciled(str(capture.standing.position), (), _skipped(reasons))
        run = capture.pipeline.run
        with capture.source.snapshot(
            SnapshotSpec([entry.id for entry in chosen], run.chunk_rows, run.threads)
        ) as session:
            capture.stream_to(session.position)
            capture.apply()
            capture.progress.phase("reconcile")
            # The last stretch of the log may have stopped a table.
            reasons |= {entry.id: self._reason(entry) for entry in chosen}
            results = [
                ComparedTable(capture, session, entry, self._shown).result(repair=self._repair)
                for entry in chosen
                if not reasons[entry.id]
            ]
        return Reconciled(str(session.position), tuple(results), _skipped(reasons))

    def _entries(self) -> list[CapturedTable]:
        captured = self._capture.standing.captured
        missing = [str(table) for table in self._tables if table not in captured]
        if missing:
            raise FixConfiguration(
                f"{', '.join(missing)}: no such captured table",
                why="it does not exist, or the filters of the pipeline leave it out",
                remedy="cdc tables shows the captured ones",
            )
        return [captured[table] for table in sorted(set(self._tables) or {entry.id for entry in captured})]

    def _reason(self, entry: CapturedTable) -> str:
        """Why a table cannot be compared; empty if it can."""
        if entry.id not in self._capture.tables:
            return "it is no longer captured, or no longer there"
        if not self._capture.streaming:
            return "its changes are not captured (snapshot.mode), so silver stays where the snapshot was"
        state = entry.state
        if state.state is State.BRONZE_ONLY:
            return f"it is kept in bronze only: {state.reason}"
        return "" if state.state is State.STREAMING else f"it waits in state {state.state.value}: cdc run"


def _skipped(reasons: Mapping[TableId, str]) -> tuple[Skipped, ...]:
    return tuple(Skipped(str(table), reason) for table, reason in reasons.items() if reason)
