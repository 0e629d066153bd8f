"""PostgreSQL as a source: the contract of ``cdc_lib/source.py``, put together from the parts beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import CdcError, FixConfiguration
from cdc_lib.pipeline import SourceConfig
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId
from cdc_lib.source import (
    Capabilities,
    Chunk,
    Finding,
    IncrementalSession,
    LogReader,
    Preparation,
    SharedView,
    SnapshotSession,
    SnapshotSpec,
    Source,
    Span,
)
from cdc_lib.sources.postgresql import catalog, check, chunks, joining, publication, server, slot
from cdc_lib.sources.postgresql.connection import connect, connect_replication, execute
from cdc_lib.sources.postgresql.envelope import SOURCE
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.heartbeat import Heartbeat
from cdc_lib.sources.postgresql.incremental import PostgresIncremental
from cdc_lib.sources.postgresql.log import PostgresLog
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.preparing import Preparing, releases
from cdc_lib.sources.postgresql.relations import CaptureRules
from cdc_lib.sources.postgresql.shape import Shape
from cdc_lib.sources.postgresql.snapshot import PostgresSnapshot
from cdc_lib.sources.postgresql.visibility import View, next_transaction

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection


_PLAIN_NAME = re.compile(r"\w+(\\?\.)\w+")


class PostgresSource(Source):
    """One database of a PostgreSQL server, 14 or later, read through pgoutput.

    One ``LogReader.read`` opens ``config.window_bytes`` of log at most.
    """

    capabilities = Capabilities(logical_messages=True, shared_views=True)
    position_type = PostgresPosition
    source_type: ClassVar[pa.DataType] = SOURCE
    _connection: Connection | None = None

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._heartbeat = Heartbeat(config)

    def connect(self) -> None:
        try:
            self._connection = connect(self.config)
        except ModuleNotFoundError as error:
            if error.name != "psycopg2":
                raise
            raise FixConfiguration(
                "the driver for postgresql is not installed",
                why="module psycopg2 is missing",
                remedy="pip install 'cdc-lib[postgresql]'",
            ) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check(self) -> list[Finding]:
        existing = catalog.all_tables(self._control)
        captured = [table for table in existing if self.config.captures(table)]
        found = check.findings(self.config, self._control, catalog.relations(self._control, captured))
        try:
            self._refuse_missing(existing)
        except FixConfiguration as error:
            found.append(Finding("error", "tables", f"{error.what}: {error.why}", error.remedy))
        return found

    def tables(self) -> list[TableId]:
        existing = catalog.all_tables(self._control)
        self._refuse_missing(existing)
        return [table for table in existing if self.config.captures(table)]

    def _refuse_missing(self, existing: Sequence[TableId]) -> None:
        """An entry of ``table.include.list`` that is a plain name, not a pattern, must name a table."""
        names = {str(table).lower() for table in existing}
        entries = self.config["table.include.list"]
        plain = [entry.replace("\\", "") for entry in entries if _PLAIN_NAME.fullmatch(entry)]
        missing = [name for name in plain if name.lower() not in names]
        if missing:
            raise FixConfiguration(
                f"table.include.list names {', '.join(missing)}, which the database does not have",
                why="the table was dropped or renamed, or never existed in this database",
                remedy="correct table.include.list, or create the table",
            )

    def describe(self, table: TableId) -> Table:
        relation = self._relations([table])[table]
        if not relation.readable:
            raise FixConfiguration(
                f"the table {table} cannot be read",
                why=f"the role {self.config['database.user']} has no SELECT on it",
                remedy="grant it (`cdc check` prints the SQL), or leave it out (table.include.list)",
            )
        return Shape(self.config).table(relation, catalog.type_catalog(self._control))

    def span(self) -> Span:
        newest = server.flushed_position(self._control)
        state = slot.slot_state(self._control, self._slot)
        if state is None or state.lost:
            return Span(oldest=newest, newest=newest)
        return Span(
            oldest=None,
            newest=newest,
            retained_bytes=state.retained_bytes,
            headroom_bytes=state.headroom_bytes,
        )

    def prepare(self, tables: Sequence[TableId], committed: Position | None) -> None:
        relations = self._shaped(tables)
        self._publish(relations)
        self._assert_joins_up(committed)

    def unlogged(self, tables: Sequence[TableId]) -> list[TableId]:
        found = publication.find(self._control, self.config["publication.name"])
        return [table for table in tables if found is None or not found.has(table)]

    def _shaped(self, tables: Sequence[TableId]) -> dict[TableId, catalog.Relation]:
        """The tables; FixConfiguration if one cannot be captured as configured."""
        relations = self._relations(tables)
        shape, types = Shape(self.config), catalog.type_catalog(self._control)
        for relation in relations.values():
            shape.table(relation, types)
        return relations

    def _assert_joins_up(self, committed: Position | None) -> None:
        if committed is not None:
            assert isinstance(committed, PostgresPosition)
            server.assert_same_history(self._control, self._replication, committed)
            slot.assert_continues(self._control, self._slot, committed)
        else:
            slot.assert_usable(slot.slot_state(self._control, self._slot), self._slot)
        slot.wait_until_free(self._control, self._slot)

    def preview(
        self, tables: Sequence[TableId], committed: Position | None, *, keep: bool = True
    ) -> list[Preparation]:
        preparing = Preparing(self.config, self._control)
        due = preparing.publication(self._shaped(tables))
        self._assert_joins_up(committed)
        return [*due, *preparing.slot(committed, keep=keep)]

    def pieces(self, table: TableId, chunk_rows: int, *, one_view: bool) -> list[Chunk]:
        relation = self._relations([table])[table]
        with translated(f"{table} cannot be cut into pieces"):
            if one_view:
                return chunks.plan(self._control, chunks.cut_of(self._control, relation), chunk_rows)
            return chunks.plan_windows(self._control, relation, chunk_rows)

    def start(self) -> PostgresPosition:
        here = server.current_position(self._control)
        state = slot.slot_state(self._control, self._slot)
        if state is None:
            with closing(self._replication()) as connection, slot.naming_blockers(self._control):
                made = slot.create_slot(connection, self._slot, temporary=False)
                exported = self._exported(made.snapshot)
                unseen = exported.ahead_of(View.of(self._control))
                return replace(here.at(made.consistent_point), unseen=unseen)
        slot.assert_usable(state, self._slot)
        if state.confirmed is None:
            raise slot.slot_lost(self._slot)
        # Which of the running transactions are in the log up to there, nobody can tell any more.
        unseen = View.of(self._control).unfinished(next_transaction(self._control))
        return replace(here.at(state.confirmed), unseen=unseen)

    def with_open_writers(self, position: Position) -> PostgresPosition:
        assert isinstance(position, PostgresPosition)
        open_now = View.of(self._control).unfinished(next_transaction(self._control))
        return replace(position, unseen=tuple(sorted({*position.unseen, *open_now})))

    def _exported(self, snapshot: str) -> View:
        with closing(connect(self.config)) as reader, translated("the exported snapshot cannot be opened"):
            execute(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            execute(reader, "SET TRANSACTION SNAPSHOT %s", (snapshot,))
            return View.of(reader)

    def incremental(self, spec: SnapshotSpec) -> IncrementalSession:
        return PostgresIncremental(self.config, spec)

    def snapshot(self, spec: SnapshotSpec) -> SnapshotSession:
        session = PostgresSnapshot(self.config, self._control, spec)
        session.open()
        return session

    def joined(self, view: SharedView, chunk: Chunk, expected: Table) -> Iterator[ChangeBatch]:
        return joining.rows_of(self.config, view, chunk, expected)

    def log(self, tables: Sequence[TableId], schemas: Mapping[TableId, Table]) -> LogReader:
        return PostgresLog(self.config, self._control, self._rules(tables), schemas)

    def begin_anew(self) -> None:
        slot.drop_lost(self._control, self._slot)

    def release(self, upto: Position) -> None:
        assert isinstance(upto, PostgresPosition)
        if releases(self.config):
            slot.advance(self._control, self._slot, upto)
        self._heartbeat.beat()

    @property
    def _control(self) -> Connection:
        if self._connection is None:
            raise CdcError(
                "the source is not connected", remedy="use it as a context manager, or call connect()"
            )
        return self._connection

    @property
    def _slot(self) -> str:
        name: str = self.config["slot.name"]
        return name

    def _replication(self) -> Connection:
        return connect_replication(self.config)

    def _relations(self, tables: Sequence[TableId]) -> dict[TableId, catalog.Relation]:
        """Those tables; FixConfiguration if one does not exist."""
        found = catalog.relations(self._control, tables)
        if missing := [str(table) for table in tables if table not in found]:
            raise FixConfiguration(
                f"the table {', '.join(missing)} does not exist",
                why="it was dropped or renamed, or never existed in this database",
                remedy="correct table.include.list, or create the table",
            )
        return found

    def _publish(self, relations: Mapping[TableId, catalog.Relation]) -> None:
        tables = sorted(relations)
        mode = self.config["publication.autocreate.mode"]
        ready = publication.prepare(self._control, self.config["publication.name"], mode, tables)
        partitioned = [table for table in tables if relations[table].partitioned]
        publication.refuse_incomplete(ready, tables, partitioned)

    def _rules(self, tables: Sequence[TableId]) -> CaptureRules:
        captured = frozenset(tables)

        def catalog_key(table: TableId) -> tuple[str, ...] | None:
            relation = catalog.relations(self._control, [table], defaults=False).get(table)
            return relation.natural_key or None if relation else None

        return CaptureRules(
            captured=captured.__contains__,
            includes=self.config.keeps,
            override=self.config.column_type,
            message_key=self.config.key_columns,
            catalog_key=catalog_key,
            message=self.config.captures_message,
            catalog=catalog.type_catalog(self._control),
            handling=Shape(self.config).handling,
        )
