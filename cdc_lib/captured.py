"""The captured tables of a run: identity, state and structure, in memory.

Loaded once at start from the control tables; what a batch adds to the schema history is written before the
batch is sealed and counts only if it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdc_lib.bronze import column_collisions, table_collisions, table_name
from cdc_lib.control import Control
from cdc_lib.control.schema_history import SchemaVersion
from cdc_lib.control.tables import State, TableState
from cdc_lib.errors import FixConfiguration
from cdc_lib.evolution import ColumnChange, first_version, next_version, refuse_incompatible
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.source import Finding


@dataclass
class CapturedTable:
    """One table: ``table`` is its newest structure (None until first seen)."""

    state: TableState
    table: Table | None = None
    ever: dict[str, Column] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)

    @property
    def id(self) -> TableId:
        return TableId(self.state.source_schema, self.state.source_table)

    @property
    def table_id(self) -> str:
        return self.state.table_id

    def adopt(self, table: Table) -> None:
        """Take a numbered structure as the newest; ``since`` maps column to the version it appeared in."""
        before = {column.name: column.id for column in self.table.columns} if self.table else {}
        for column in table.columns:
            if before.get(column.name) != column.id:
                self.since[column.name] = table.version
            self.ever[column.name] = column
        self.table = table

    def copy(self) -> CapturedTable:
        return replace(self, ever=dict(self.ever), since=dict(self.since))


class Captured:
    """All captured tables of a pipeline, by source name and by stable id."""

    def __init__(self, tables: Iterable[CapturedTable] = ()) -> None:
        self._by_id = {table.table_id: table for table in tables}
        self._by_name = {table.id: table for table in self._by_id.values()}

    @classmethod
    def load(cls, control: Control, sealed: int) -> Captured:
        """Read states and structures; ``sealed`` is the last sealed batch, later versions never happened."""
        versions: dict[str, list[Table]] = {}
        for version in control.schema_history.load(upto_batch=sealed):
            versions.setdefault(version.table_id, []).append(version.table)
        captured = []
        for state in control.tables.load().values():
            entry = CapturedTable(state)
            for table in sorted(versions.get(state.table_id, []), key=lambda table: table.version):
                entry.adopt(table)
            captured.append(entry)
        return cls(captured)

    def __iter__(self) -> Iterator[CapturedTable]:
        return iter(self._by_id.values())

    def __contains__(self, table: TableId) -> bool:
        return table in self._by_name

    def __getitem__(self, key: TableId | str) -> CapturedTable:
        return self._by_id[key] if isinstance(key, str) else self._by_name[key]

    def copy(self) -> Captured:
        """An independent view for the thread that reads ahead."""
        return Captured([table.copy() for table in self])

    def discover(self, tables: Sequence[TableId], state: State) -> list[CapturedTable]:
        """Entries for tables seen for the first time, in ``state``."""
        new = [CapturedTable(_new_state(table, state)) for table in tables if table not in self]
        # Only those that are captured now: of others bronze gets no rows.
        _refuse(table_collisions(tables))
        for entry in new:
            self._by_id[entry.table_id] = entry
            self._by_name[entry.id] = entry
        return new

    def structures(self) -> dict[TableId, Table]:
        return {entry.id: entry.table for entry in self if entry.table is not None}

    def observe(self, table: Table, batch: int) -> Observed:
        """A structure seen in the log or by a snapshot; numbered, and what it changes.

        :raises ResnapshotNeeded: bronze cannot follow.
        """
        entry = self[table.id]
        if entry.table is not None and entry.table.same_structure(table):
            return Observed(entry, entry.table, None, [])
        _refuse_columns(table, entry.ever)
        changes: list[ColumnChange] = []
        if entry.table is None:
            numbered = first_version(table)
        else:
            numbered, changes = next_version(entry.table, table, entry.ever)
            refuse_incompatible(numbered, changes)
        entry.adopt(numbered)
        return Observed(entry, numbered, SchemaVersion(entry.table_id, batch, numbered), changes)


def _refuse_columns(table: Table, ever: Mapping[str, Column]) -> None:
    """Before anything is sealed: a batch that bronze can never take would stop the pipeline for good.

    :param ever: the columns that bronze has.
    """
    if not table.columns:
        raise FixConfiguration(
            f"{table.id} has no columns",
            why="a Delta table must have some",
            remedy="leave it out: correct table.include.list or table.exclude.list",
        )
    older = tuple(column for name, column in ever.items() if name not in table.names)
    _refuse(column_collisions(replace(table, columns=(*older, *table.columns))))


def _refuse(findings: Sequence[Finding]) -> None:
    for finding in findings:
        raise FixConfiguration(f"{finding.subject}: {finding.message}", remedy=finding.remedy)


@dataclass(frozen=True)
class Observed:
    """``version`` is what the schema history must get; None if the structure was known."""

    entry: CapturedTable
    table: Table
    version: SchemaVersion | None
    changes: list[ColumnChange]


def _new_state(table: TableId, state: State) -> TableState:
    name = table_name(table)
    return TableState(
        table_id=uuid.uuid4().hex,
        source_schema=table.schema,
        source_table=table.name,
        bronze=name,
        silver=name,
        state=state,
    )
