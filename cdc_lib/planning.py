"""``cdc plan``: what the next run would do, found out by the run's own decisions, with nothing written.

Goes up the same steps as ``capture``: what stands, what is half done, what the source needs, what is due. An
error that would end the run there becomes part of the plan, and what can still be said is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from cdc_lib import recovery
from cdc_lib.answering import consider_signals, wanted_tables
from cdc_lib.applying import Applier
from cdc_lib.captured import Captured, CapturedTable
from cdc_lib.config import Pipeline
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal
from cdc_lib.control.leases import Lease
from cdc_lib.control.tables import State
from cdc_lib.delta import Lake
from cdc_lib.due import MISSED, Due, refuse_unknown
from cdc_lib.errors import CdcError, RetryLater
from cdc_lib.evolution import ColumnChange, next_version, refuse_incompatible
from cdc_lib.ladder import Ladder
from cdc_lib.plan import (
    Action,
    Effect,
    LogRange,
    PendingMerge,
    Plan,
    PlannedSignal,
    PlannedTable,
    SealedWork,
    Stop,
    StructureChange,
)
from cdc_lib.position import Position
from cdc_lib.recomputed import recomputed_columns
from cdc_lib.recovery import Standing
from cdc_lib.schema import TableId
from cdc_lib.source import Preparation, Source, open_source


def make_plan(pipeline: Pipeline) -> Plan:
    """The plan of the next ``cdc run``.

    :raises FixConfiguration: the driver of the engine, or what reads the tables, is not installed.
    """
    return _Planner(pipeline, open_source(pipeline.source)).plan()


class _Planner:
    """Collects the parts of one plan."""

    def __init__(self, pipeline: Pipeline, source: Source) -> None:
        self._pipeline = pipeline
        self._source = source
        self._lake = Lake(pipeline.target)
        self._control = Control(self._lake, pipeline.name)
        self._standing = Standing(Captured())
        self._stops: list[Stop] = []
        self._coming: Mapping[str, Collection[int]] = {}
        self._sealed: SealedWork | None = None
        self._preparations: list[Preparation] = []
        self._signals: list[PlannedSignal] = []
        self._log: LogRange | None = None
        self._missed: set[str] = set()
        self._silver: dict[str, PendingMerge] = {}
        self._tables: list[PlannedTable] = []

    def plan(self) -> Plan:
        ladder = self._ladder()
        self._recover(ladder)
        with self._noting(), self._source:
            self._begin(ladder)
        position = self._standing.position
        return Plan(
            self._pipeline.name,
            batch=self._standing.batch,
            position="" if position is None else str(position),
            configuration=self._configuration(),
            stops=self._stops,
            sealed=self._sealed,
            source=self._preparations,
            signals=self._signals,
            log=self._log,
            tables=self._tables or [self._asleep(entry) for entry in _sorted(self._standing.captured)],
        )

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """What would end the run here goes into the plan."""
        try:
            yield
        except CdcError as error:
            self._stops.append(Stop.of(error))

    # -- what stands

    def _ladder(self) -> Ladder:
        return Ladder(self._lake, self._control, self._pipeline, self._lease(), self._source.source_type)

    def _lease(self) -> Lease:
        leases = self._control.leases
        try:
            return leases.offered("plan", self._pipeline.run.lease_seconds)
        except RetryLater as held:
            self._stops.append(Stop.of(held))
            current = leases.current()
            assert current is not None
            return current

    def _configuration(self) -> Literal["first", "unchanged", "changed"]:
        last = self._control.batches.last()
        if last is None:
            return "first"
        return "unchanged" if last.configuration == self._pipeline.fingerprint() else "changed"

    def _recover(self, ladder: Ladder) -> None:
        standing, watermark, seal = recovery.load(self._control, self._source.position_type)
        self._standing = standing
        if watermark is not None:
            with self._noting():
                recovery.refuse_foreign_writes(ladder, standing.captured, watermark, ())
        if seal is not None and standing.position is not None:
            self._finish(ladder, seal, standing.position)
        applier = Applier(self._lake, self._control, self._pipeline, ladder.lease.incarnation)
        applier.load(standing.batch)
        for entry, pending in applier.due(standing.captured):
            rows = None if pending.facts is None else pending.facts.rows
            self._silver[entry.table_id] = PendingMerge(applier.applied(entry.table_id), pending.upto, rows)

    def _finish(self, ladder: Ladder, seal: Seal, position: Position) -> None:
        """Stand where the run will once it has finished the sealed batch."""
        upto = type(position).from_json(seal.upto)
        self._sealed = SealedWork(
            seal.batch,
            seal.attempt,
            after=str(type(position).from_json(seal.after)),
            upto=str(upto),
            tables=sorted(f"{table.schema}.{table.name}" for table in seal.tables),
            rows=sum(table.rows for table in seal.tables),
        )
        unfinished = recovery.Unfinished(ladder, self._control, self._pipeline)
        with self._noting():
            whole = unfinished.staged(seal) is not None
            self._sealed = replace(self._sealed, way="staging" if whole else "log")
            self._coming = unfinished.pieces(seal, self._standing)
        unfinished.adopt(seal, self._standing)
        standing = self._standing
        standing.batch, standing.position, standing.durable = seal.batch, upto, upto

    # -- what is due

    def _begin(self, ladder: Ladder) -> None:
        tables, standing = self._source.tables(), self._standing
        refuse_unknown(tables, ())
        due = Due(self._pipeline, self._control, self._source, self._coming)
        position = standing.position if due.streaming else None
        with self._noting():
            self._preparations = self._source.preview(tables, position, keep=due.streaming)
            if position is not None:
                upto = self._source.span().newest
                self._log = LogRange(str(position), str(upto), upto.bytes_since(position))
        known = {entry.id: entry.state.state.value for entry in standing.captured}
        for entry in due.missed(standing.captured, tables):
            self._missed.add(entry.table_id)
            entry.state = replace(entry.state, state=State.SNAPSHOT, reason=MISSED)
        self._ask(standing.captured)
        standing.captured.discover(tables, due.first_state)
        if standing.position is None:
            with self._noting():
                names = (entry.state.bronze for entry in standing.captured)
                recovery.refuse_other_incarnation(ladder, names, standing.batch)
        for entry in _sorted(standing.captured):
            with self._noting():
                self._tables.append(self._table(entry, due, tables, known.get(entry.id, "")))

    def _ask(self, captured: Captured) -> None:
        considered = consider_signals(self._control, captured)
        for table in wanted_tables(considered):
            captured[table].state = replace(captured[table].state, state=State.SNAPSHOT)
        self._signals = [
            PlannedSignal(each.signal.id, each.signal.type, each.answer.status, each.answer.text)
            for each in considered
        ]

    def _table(self, entry: CapturedTable, due: Due, tables: Collection[TableId], state: str) -> PlannedTable:
        planned = replace(self._asleep(entry), standing="known" if state else "new", state=state)
        if entry.id not in tables:
            return self._gone(planned, entry, due)
        state_now = entry.state.state
        planned = replace(planned, action=_action(state_now, due), changes=self._changes(entry))
        return self._whole(planned, entry, due) if state_now is State.SNAPSHOT else planned

    def _asleep(self, entry: CapturedTable) -> PlannedTable:
        """A known table, as long as the source was not asked about it."""
        state = entry.state
        silver = self._silver.get(entry.table_id)
        return PlannedTable(
            str(entry.id), "known", state.state.value, "none", reason=state.reason, silver=silver
        )

    def _gone(self, planned: PlannedTable, entry: CapturedTable, due: Due) -> PlannedTable:
        if not self._pipeline.source.captures(entry.id):
            return replace(planned, standing="gone", reason="the filters leave it out")
        reason = "it is not in the database any more; the log may hold its last changes"
        return replace(planned, standing="gone", action="log" if due.streaming else "none", reason=reason)

    def _whole(self, planned: PlannedTable, entry: CapturedTable, due: Due) -> PlannedTable:
        one_view = due.needs_one_view(entry)
        # A change of structure that gave rows new values makes the pieces that were read worth nothing.
        anew = one_view or any(change.effect == "snapshot" for change in planned.changes)
        anew = anew or entry.table_id in self._missed
        left = None if anew else due.left(entry)
        size = self._pipeline.run.chunk_rows
        chunks = left or self._source.pieces(entry.id, size, one_view=one_view)
        rows = [chunk.rows for chunk in chunks]
        return replace(
            planned,
            action="resume" if left else "snapshot",
            way="one view" if one_view else "windows",
            chunks=len(chunks),
            rows=None if None in rows else sum(count or 0 for count in rows),
        )

    def _changes(self, entry: CapturedTable) -> list[StructureChange]:
        known = entry.table
        if known is None:
            return []
        now = self._source.describe(entry.id)
        if known.same_structure(now):
            return []
        numbered, changes = next_version(known, now, entry.ever)
        if entry.state.state is State.SNAPSHOT:
            with self._noting():
                refuse_incompatible(numbered, changes)
        filled = recomputed_columns(changes, self._source, entry.id)
        found = [
            StructureChange(change.kind, change.column, change.detail, _effect(change, filled))
            for change in changes
        ]
        if known.key != now.key:
            found.append(StructureChange("key", ", ".join(now.key), _from_to(known.key, now.key), "evolves"))
        if known.identity is not now.identity:
            detail = f"{known.identity.value} to {now.identity.value}"
            found.append(StructureChange("replica identity", "", detail, "evolves"))
        return found


_ACTIONS: Mapping[State, Action] = {
    State.SNAPSHOT: "snapshot",
    State.SETTLE: "settle",
    State.STREAMING: "log",
    State.BRONZE_ONLY: "bronze only",
}


def _action(state: State, due: Due) -> Action:
    return _ACTIONS[state] if due.streaming or state is State.SNAPSHOT else "none"


def _effect(change: ColumnChange, filled: Collection[str]) -> Effect:
    if change.kind == "incompatible":
        return "refuses"
    return "snapshot" if change.column in filled and change.kind != "dropped" else "evolves"


def _from_to(old: Sequence[str], new: Sequence[str]) -> str:
    return f"{', '.join(old) or 'none'} to {', '.join(new) or 'none'}"


def _sorted(captured: Captured) -> list[CapturedTable]:
    return sorted(captured, key=lambda entry: entry.id)
