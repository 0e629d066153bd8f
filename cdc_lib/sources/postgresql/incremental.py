"""Pieces of tables, each read in a short transaction of its own while changes flow.

In each transaction the order matters: first the lock of any SELECT (ACCESS SHARE), which writers do not
notice and DDL waits for, *then* the first query, which takes the view. So the view is younger than any
rewrite or TRUNCATE before the lock, and none can come behind it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.pipeline import SourceConfig
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Chunk, IncrementalSession, PieceRefused, SnapshotSpec
from cdc_lib.sources.postgresql import catalog, chunks, keys
from cdc_lib.sources.postgresql.connection import connect, execute
from cdc_lib.sources.postgresql.copying import CopyStream
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.rows import RowDecoder
from cdc_lib.sources.postgresql.selecting import copy_query, lock_tables
from cdc_lib.sources.postgresql.shape import Shape
from cdc_lib.sources.postgresql.visibility import View

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

VISIBLE_SECONDS = 60
"""How long to wait until a transaction that is in the log becomes visible."""
MARKER = "incremental"


class PostgresIncremental(IncrementalSession):
    """See the module. Connections are opened as threads need them."""

    def __init__(self, config: SourceConfig, spec: SnapshotSpec) -> None:
        self._config = config
        self._spec = spec
        self._shape = Shape(config)
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._opened: list[Connection] = []
        self._opening = threading.Lock()

    def table(self, table: TableId) -> Table:
        with _Borrowed(self) as connection:
            return self._shape.table(self._relation(connection, table), catalog.type_catalog(connection))

    def chunks(self, table: TableId) -> list[Chunk]:
        with _Borrowed(self) as connection, translated(f"{table} cannot be cut into pieces"):
            relation = self._relation(connection, table)
            return chunks.plan_windows(connection, relation, self._spec.chunk_rows)

    def rows(self, chunk: Chunk, after: Position, expected: Table) -> Iterator[ChangeBatch]:
        assert isinstance(after, PostgresPosition)
        with _Borrowed(self) as connection:
            relation = self._open_view(connection, chunk.table, after)
            types = catalog.type_catalog(connection)
            if not expected.same_structure(self._shape.table(relation, types)):
                raise PieceRefused(
                    f"{chunk.table} changed its structure", remedy="nothing: the piece is read again"
                )
            columns = [held for _, held in self._shape.columns(relation, types)]
            decoder = RowDecoder(expected, columns, after, time.time_ns() // 1000, MARKER)
            oids = [attribute.type_oid for attribute in relation.attributes]
            special = frozenset(catalog.text_forms(connection, oids))
            if chunk.keys is None:
                condition = chunks.cut_of(connection, relation).condition(chunk)
            else:
                condition = keys.condition(relation, types, chunk.keys)
            query = copy_query(connection, relation, expected.names, special, condition)
            with CopyStream(connection, query, f"{chunk.table} cannot be read") as stream:
                for received in stream:
                    batch = decoder.feed(received)
                    if batch.rows.num_rows:
                        yield batch

    def close(self) -> None:
        import psycopg2

        opened, self._opened = self._opened, []
        for connection in opened:
            with suppress(psycopg2.Error):
                connection.close()

    def _open_view(self, connection: Connection, table: TableId, after: PostgresPosition) -> catalog.Relation:
        """Begin a transaction whose view shows everything up to ``after``."""
        deadline = time.monotonic() + VISIBLE_SECONDS
        timeout = str(self._config["snapshot.lock.timeout.ms"])
        while True:
            relation = self._relation(connection, table)
            with translated(f"{table} cannot be locked for reading"):
                execute(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                # SET takes no view; a SELECT of set_config would.
                execute(connection, f"SET LOCAL lock_timeout = {int(timeout)}")
                lock_tables(connection, [relation])
            hidden = View.of(connection).hidden(after.unseen)
            if not hidden:
                return self._relation(connection, table)
            execute(connection, "ROLLBACK")
            if time.monotonic() > deadline:
                raise RetryLater(
                    f"transaction {hidden[0]} is in the log and still not visible",
                    why="its commit waits, for example for a synchronous standby that does not answer; "
                    "a snapshot would miss its rows",
                    remedy="look at synchronous_standby_names and pg_stat_activity, then run again",
                )
            time.sleep(0.2)

    def _relation(self, connection: Connection, table: TableId) -> catalog.Relation:
        found = catalog.relations(connection, [table]).get(table)
        if found is None:
            raise FixConfiguration(
                f"the table {table} does not exist",
                why="it was dropped or renamed after the list of tables was read",
                remedy="correct table.include.list, or create the table",
            )
        return found

    def _take(self) -> Connection:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        made = connect(self._config)
        with self._opening:
            self._opened.append(made)
        return made


class _Borrowed:
    """A connection for one piece; outside of any transaction before and after."""

    def __init__(self, session: PostgresIncremental) -> None:
        self._session = session

    def __enter__(self) -> Connection:
        self._connection = self._session._take()
        return self._connection

    def __exit__(self, *_: object) -> None:
        import psycopg2

        if self._connection.closed:
            return
        try:
            execute(self._connection, "ROLLBACK")
        except psycopg2.Error:
            self._connection.close()
            return
        self._session._idle.put(self._connection)
