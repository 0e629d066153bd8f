"""``cdc rebuild``: control tables that were lost, written anew from bronze and silver.

What cannot be known is read again, and said: a table whose snapshot may not have been whole, or that somebody
else changed. The watermark comes last, and a pipeline whose bronze has no watermark does not run, so a
rebuild that is killed can be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc_lib.clock import now
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.incidents import Incident
from cdc_lib.control.schema_history import SchemaVersion
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.due import Due
from cdc_lib.errors import FixConfiguration, ResnapshotNeeded
from cdc_lib.evolution import first_version
from cdc_lib.noting import Note, structures
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Chunk, Source
from cdc_lib.surviving import Survivor, Survivors

if TYPE_CHECKING:
    from cdc_lib.capture import Context

log = logging.getLogger("cdc_lib.rebuilding")

REMEDY = "nothing: the next run goes on from there; cdc reconcile compares silver with the source"


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild wrote. ``tables``: state by source name; ``said``: what is not as it was before.

    ``gap``: why the source's log does not go on from ``position``; None if it does.
    """

    batch: int
    position: str
    tables: Mapping[str, str]
    said: list[str] = field(default_factory=list)
    gap: ResnapshotNeeded | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        gap = None if self.gap is None else {"what": self.gap.what, "remedy": self.gap.remedy}
        return {
            "batch": self.batch,
            "position": self.position,
            "tables": dict(self.tables),
            "said": self.said,
            "gap": gap,
        }


def refuse_unless_lost(control: Control) -> None:
    """:raises FixConfiguration: the control tables, or some of them, say where the pipeline stands."""
    watermark = control.watermarks.latest()
    seal = control.batches.last()
    if watermark is not None:
        raise FixConfiguration(
            f"the control tables are there, up to batch {watermark.batch}",
            why="rebuilding is for control tables that are lost; these know more than bronze does",
            remedy="cdc run goes on from there; cdc status shows what they say",
        )
    # A seal without staging is of a rebuild that did not come to its end.
    if seal is not None and seal.staging:
        raise FixConfiguration(
            f"the control table batches is there, up to batch {seal.batch}, and watermarks is not",
            why="what is left of the control tables would mix with what is rebuilt",
            remedy="put watermarks back, or delete the rows of this pipeline from all control tables",
        )


@dataclass(frozen=True)
class _Entry:
    """A table as it is to be written down. ``note``: its newest commit that counts."""

    survivor: Survivor
    state: TableState
    structures: list[Table]
    note: Note | None

    @property
    def lags(self) -> bool:
        return self.note is not None and self.survivor.applied < self.note.batch


class Rebuild:
    """One rebuild, for the runner that holds the lease of the surviving incarnation."""

    def __init__(self, context: Context, source: Source, survivors: Survivors, runner: str) -> None:
        self._lake = context.lake
        self._control = context.control
        self._pipeline = context.pipeline
        self._source = source
        self._survivors = survivors
        self._runner = runner
        self._due = Due(context.pipeline, context.control, source)
        self._said: list[str] = []

    def run(self) -> Rebuilt:
        refuse_unless_lost(self._control)
        position = self._source.position_type.from_json(self._survivors.position)
        tables = self._source.tables()
        gap = self._gap(tables, position)
        entries = list(self._entries(tables))
        self._undo()
        self._write(entries)
        self._commit(entries, position)
        for line in self._said:
            log.warning("rebuilt: %s", line)
        states = {str(entry.state.id): entry.state.state.value for entry in entries}
        return Rebuilt(self._survivors.next_batch, str(position), states, self._said, gap)

    def _gap(self, tables: list[TableId], position: Position) -> ResnapshotNeeded | None:
        """Why the log does not go on from here, found out before anything is written."""
        if not self._due.streaming:
            return None
        try:
            self._source.preview(tables, position)
        except ResnapshotNeeded as gap:
            return gap
        return None

    # -- bronze

    def _undo(self) -> None:
        """Take back a batch that only some of its tables have: its rows come again, under another number."""
        newest = self._survivors.newest
        if self._survivors.committed:
            return
        for table in self._survivors.tables:
            commit = table.commit_of(newest.batch)
            if commit is None:
                continue
            before = self._lake.version(table.ref)
            self._lake.execute(
                f"RESTORE TABLE {table.ref.sql} TO VERSION AS OF {commit.version - 1}",
                metadata={"incarnation": newest.incarnation, "undone": newest.batch},
            )
            self._lake.sync(table.ref, before)
            message = (
                f"batch {newest.batch} was in {table.source} and not in all of its tables; it was taken back "
                f"(RESTORE to version {commit.version - 1}), and its changes come again"
            )
            self._say("batch undone", message, table.table_id, table.source)

    # -- the tables

    def _entries(self, tables: list[TableId]) -> Iterator[_Entry]:
        named = {str(table): table for table in tables}
        for survivor in self._survivors.tables:
            note = survivor.standing(self._survivors.limit)
            versions = structures(note.structure) if note is not None and note.structure else []
            table_id = versions[-1].id if versions else named.get(survivor.source)
            if table_id is None:
                self._say(
                    "table left out",
                    f"{survivor.ref.sql}: its source table {survivor.source} is not captured any more",
                    survivor.table_id,
                    survivor.source,
                )
                continue
            if note is not None and not versions and table_id in tables:
                versions = self._described(survivor, table_id)
            state, why = self._state(survivor, note)
            if why:
                self._say(
                    "table read again", f"{table_id} is read again: {why}", survivor.table_id, str(table_id)
                )
            name = survivor.ref.name
            row = TableState(survivor.table_id, table_id.schema, table_id.name, name, name, state)
            yield _Entry(survivor, row, versions, note)

    def _state(self, survivor: Survivor, note: Note | None) -> tuple[State, str]:
        """What is left to do with a table, and why it is to be read again, if it is."""
        if survivor.foreign:
            return State.SNAPSHOT, f"somebody else changed its bronze table ({survivor.foreign})"
        if note is None:
            first = self._due.first_state
            return first, "" if first is State.STREAMING else "nothing was captured of it yet"
        if note.state == State.SETTLE.value:
            return State.SETTLE, ""
        if note.state in (State.STREAMING.value, State.BRONZE_ONLY.value):
            return State.STREAMING, ""
        unknown = "it is not known whether its snapshot was whole"
        return State.SNAPSHOT, "its snapshot was not whole" if note.state else unknown

    def _described(self, survivor: Survivor, table: TableId) -> list[Table]:
        """Structures for a table whose commits do not tell them: that of the source, above the newest in
        bronze. What bronze has columns for counts as there from the first, or its rows would lack them."""
        row = self._lake.table(survivor.ref).selectExpr("max(_schema_version) AS newest").head()
        newest: int = (None if row is None else row.newest) or 0
        now_there = first_version(self._source.describe(table))
        held = {field.name for field in self._lake.arrow_schema(survivor.ref).field("after").type}
        first = tuple(column for column in now_there.columns if column.name in held)
        return [now_there.numbered(1, first), now_there.numbered(newest + 1)]

    # -- control

    def _write(self, entries: list[_Entry]) -> None:
        control, batch = self._control, self._survivors.next_batch
        control.tables.save([entry.state for entry in entries])
        control.schema_history.add(
            [
                SchemaVersion(entry.state.table_id, batch, table)
                for entry in entries
                for table in entry.structures
            ]
        )
        settling = [(entry, entry.note) for entry in entries if entry.state.state is State.SETTLE]
        if settling:
            control.chunks.plan({entry.state.table_id: [Chunk(entry.state.id, 0)] for entry, _ in settling})
        for entry, note in settling:
            assert note is not None
            control.chunks.done([(entry.state.table_id, 0)], batch=note.snapshot)
        control.watermarks.commit_applied(
            {entry.state.table_id: entry.survivor.applied for entry in entries if entry.survivor.applied}
        )

    def _commit(self, entries: list[_Entry], position: Position) -> None:
        """The seal makes the structures count and names what silver lacks; the watermark, all of it."""
        batch, control = self._survivors.next_batch, self._control
        message = (
            "the control tables were lost and are rebuilt from bronze: signals, messages, runs, earlier "
            f"structures and incidents are gone; bronze is complete up to {position}"
        )
        self._say("control tables rebuilt", message)
        # One that an earlier rebuild sealed and did not commit is taken over, with its structures.
        begun = control.batches.unfinished(batch - 1)
        control.batches.seal(self._seal(entries, position, attempt=begun.attempt + 1 if begun else 1))
        versions = {entry.state.table_id: self._lake.version(entry.survivor.ref) for entry in entries}
        at = position.to_json(), position.sort_key
        control.watermarks.commit(Watermark(batch, *at, "batch", None, versions, self._runner, now()))

    def _seal(self, entries: list[_Entry], position: Position, attempt: int) -> Seal:
        return Seal(
            batch=self._survivors.next_batch,
            attempt=attempt,
            runner=self._runner,
            incarnation=self._survivors.incarnation,
            after=position.to_json(),
            upto=position.to_json(),
            tables=[_lagging(entry) for entry in entries if entry.lags and entry.structures],
            configuration=self._pipeline.fingerprint(),
            staging="",
            sealed_at=now(),
        )

    def _say(self, kind: str, message: str, table_id: str = "", table: str = "") -> None:
        self._said.append(message)
        batch = self._survivors.next_batch
        self._control.incidents.add(Incident(kind, table_id, table, batch, message, REMEDY))


def _lagging(entry: _Entry) -> SealedTable:
    """Names a table to the applier, which then looks at its rows in bronze itself."""
    newest = entry.structures[-1]
    return SealedTable(
        entry.state.table_id,
        newest.id.schema,
        newest.id.name,
        newest.version,
        rows=0,
        log_rows=0,
        log_hash="",
        partial=False,
        chunks=[],
    )
