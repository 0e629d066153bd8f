"""One consistent view of some tables at one log position, read by several connections.

The order matters and is kept by :meth:`PostgresSnapshot.open`:

1. Lock the tables against DDL (ACCESS SHARE, the lock of any SELECT). A rewrite or TRUNCATE is not
   MVCC-safe: if it commits between the view and the lock, the view reads 0 rows, without an error.
   Every connection takes the locks itself: one that came later would queue behind a TRUNCATE that waits
   for the others, and all of them would wait for ever (so does pg_dump with its parallel workers).
2. Create a slot and export its snapshot: the view holds exactly the transactions up to its position.
3. Import that snapshot on every reading connection.
4. After each piece, prove that the locks were held and the tables' files are still the same.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.pipeline import SourceConfig
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Chunk, SharedView, SnapshotSession, SnapshotSpec
from cdc_lib.sources.postgresql import catalog, chunks
from cdc_lib.sources.postgresql.connection import connect, connect_replication, execute, rows
from cdc_lib.sources.postgresql.copying import CopyStream
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.rows import RowDecoder
from cdc_lib.sources.postgresql.selecting import copy_query, lock_tables
from cdc_lib.sources.postgresql.server import current_position
from cdc_lib.sources.postgresql.shape import Shape
from cdc_lib.sources.postgresql.slot import (
    CREATE_SECONDS,
    HeldUp,
    create_slot,
    naming_blockers,
    slot_state,
)
from cdc_lib.sources.postgresql.types import ColumnType
from cdc_lib.sources.postgresql.visibility import View

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection


class PostgresSnapshot(SnapshotSession):
    """See the module. ``control`` is the source's own connection, outside the view."""

    position: PostgresPosition

    def __init__(self, config: SourceConfig, control: Connection, spec: SnapshotSpec) -> None:
        self._config = config
        self._control = control
        self._spec = spec
        self._shape = Shape(config)
        self._locker: Connection | None = None
        self._planner: Connection | None = None
        self._planning = threading.Lock()
        self._workers: list[Connection] = []
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._relations: Mapping[TableId, catalog.Relation] = {}
        self._tables: dict[TableId, Table] = {}
        self._types: dict[TableId, list[ColumnType]] = {}
        self._captured_us = 0
        self._cuts: dict[TableId, chunks.Cut] = {}
        self._special: dict[TableId, frozenset[int]] = {}
        self._storage: dict[TableId, object] = {}

    def open(self) -> None:
        """Lock, then look.

        :raises RetryLater: a lock or the slot was not to be had in time.
        :raises FixConfiguration: a table does not exist.
        """
        deadline = time.monotonic() + CREATE_SECONDS
        with ExitStack() as undo:
            undo.callback(self.close)
            while not self._opened():
                # Somebody wants to truncate or alter a table that we hold: let them, and begin anew.
                self.close()
                if time.monotonic() > deadline:
                    raise RetryLater(
                        "the snapshot cannot be opened",
                        why="transactions that have written wait, time and again, for tables that we lock",
                        remedy="run again when they have ended",
                    )
                time.sleep(0.2)
            undo.pop_all()

    def _opened(self) -> bool:
        """Whether locks and view were had together."""
        try:
            self.lock()
            self.create_view()
        except HeldUp:
            return False
        self._describe()
        return True

    def lock(self) -> None:
        """Hold every table against DDL until the session is closed, on every connection."""
        before = self._found(self._control)
        deadline = time.monotonic() + self._config["snapshot.lock.timeout.ms"] / 1000
        while not self._locked(list(before.values())):
            # Somebody wants to alter a table, and waits for our first lock: let them, and begin anew.
            self.close()
            if time.monotonic() > deadline:
                raise RetryLater(
                    "the tables cannot be locked for reading",
                    why="other sessions alter or truncate them time and again",
                    remedy="run again when they have ended",
                )
            time.sleep(0.1)
        assert self._locker is not None
        # From here on questions that themselves lock a table are asked by a session that has the lock.
        self._relations = self._found(self._locker)
        for table, relation in self._relations.items():
            if relation.oid != before[table].oid:
                raise RetryLater(f"{table} was replaced while it was being locked", remedy="run again")
            self._storage[table] = catalog.storage(self._locker, relation)

    def _locked(self, relations: Sequence[catalog.Relation]) -> bool:
        """Lock on the first connection, with patience, then on those that read, without."""
        from psycopg2 import errors

        timeout = str(self._config["snapshot.lock.timeout.ms"])
        self._locker = connect(self._config)
        with translated("the tables cannot be locked for reading"):
            execute(self._locker, "BEGIN")
            execute(self._locker, "SELECT pg_catalog.set_config('lock_timeout', %s, true)", (timeout,))
            lock_tables(self._locker, relations)
            self._planner = self._reading()
            self._workers = [self._reading() for _ in range(self._spec.threads)]
            try:
                for connection in (self._planner, *self._workers):
                    lock_tables(connection, relations, " NOWAIT")
            except errors.LockNotAvailable:
                return False
        return True

    def _reading(self) -> Connection:
        connection = connect(self._config)
        execute(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return connection

    def create_view(self) -> None:
        """Open the view on all connections; sets :attr:`position`."""
        name = self._config["slot.name"]
        temporary = not self._spec.keep or slot_state(self._control, name) is not None
        here = current_position(self._control)
        with closing(connect_replication(self._config)) as connection, naming_blockers(self._control):
            slot_name = f"{name[:40]}_{uuid.uuid4().hex[:12]}" if temporary else name
            slot = create_slot(connection, slot_name, temporary=temporary, held_up=self._held_up)
            assert self._planner is not None
            for reader in (self._planner, *self._workers):
                with translated("the exported snapshot cannot be opened"):
                    execute(reader, "SET TRANSACTION SNAPSHOT %s", (slot.snapshot,))
        for worker in self._workers:
            with translated("the view cannot be kept"):
                execute(worker, "SAVEPOINT chunk")
            self._idle.put(worker)
        unseen = View.of(self._planner).ahead_of(View.of(self._control))
        self.position = replace(here.at(slot.consistent_point), unseen=unseen)
        self._captured_us = time.time_ns() // 1000

    def _held_up(self) -> bool:
        """Whether a transaction that has written waits for a lock that one of our sessions holds."""
        opened = [*self._workers, self._planner, self._locker]
        ours = [connection.info.backend_pid for connection in opened if connection is not None]
        query = (
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity "
            "WHERE backend_xid IS NOT NULL AND pg_catalog.pg_blocking_pids(pid) && %s)"
        )
        return bool(rows(self._control, query, (ours,))[0][0])

    def table(self, table: TableId) -> Table:
        return self._tables[table]

    def chunks(self, table: TableId) -> list[Chunk]:
        assert self._planner is not None
        with self._planning, translated(f"{table} cannot be cut into pieces"):
            return chunks.plan(self._planner, self._cuts[table], self._spec.chunk_rows)

    def rows(self, chunk: Chunk) -> Iterator[ChangeBatch]:
        worker = self._idle.get()
        try:
            yield from self._read(worker, chunk)
        finally:
            self._rewind(worker)
            self._idle.put(worker)
        self.assert_unchanged(chunk.table)

    def share(self) -> SharedView:
        """The name holds as long as the planner's transaction, which takes no savepoints: inside one the
        server exports nothing."""
        assert self._planner is not None
        with self._planning, translated("the view cannot be shared"):
            [(name,)] = rows(self._planner, "SELECT pg_catalog.pg_export_snapshot()")
        return SharedView(name, self.position, self._captured_us)

    def assert_unchanged(self, table: TableId) -> None:
        """The locks were held all the time, and the table is stored where it was.

        :raises RetryLater: something got in between; what was read of the table must be thrown away.
        """
        assert self._locker is not None
        with translated("the connection that locks the tables was lost"):
            execute(self._locker, "SELECT 1")
        now = catalog.storage(self._locker, self._relations[table])
        if now != self._storage[table]:
            raise RetryLater(
                f"{table} was rewritten while it was being read",
                why="its files are not those it had when the view was opened, so rows may be missing from it",
                remedy="run again, without ALTER TABLE, TRUNCATE, CLUSTER or VACUUM FULL beside it",
            )

    def close(self) -> None:
        import psycopg2

        opened = [*self._workers, self._planner, self._locker]
        self._workers, self._planner, self._locker = [], None, None
        for connection in opened:
            if connection is not None:
                with suppress(psycopg2.Error):
                    connection.close()

    def _found(self, connection: Connection) -> Mapping[TableId, catalog.Relation]:
        found = catalog.relations(connection, self._spec.tables)
        for table in self._spec.tables:
            if table not in found:
                raise FixConfiguration(
                    f"the table {table} does not exist",
                    why="it was dropped or renamed after the list of tables was read",
                    remedy="correct table.include.list, or create the table",
                )
        return found

    def _describe(self) -> None:
        """What the lock keeps from changing, which is therefore what the view shows."""
        types = catalog.type_catalog(self._control)
        for table, relation in self._relations.items():
            self._tables[table] = self._shape.table(relation, types)
            self._types[table] = [held for _, held in self._shape.columns(relation, types)]
            oids = [attribute.type_oid for attribute in relation.attributes]
            self._special[table] = frozenset(catalog.text_forms(self._control, oids))
            with translated(f"{table} cannot be cut into pieces"):
                self._cuts[table] = chunks.cut_of(self._control, relation)

    def _read(self, worker: Connection, chunk: Chunk) -> Iterator[ChangeBatch]:
        table = chunk.table
        decoder = RowDecoder(self._tables[table], self._types[table], self.position, self._captured_us)
        query = self._copy_query(chunk)
        with CopyStream(worker, query, f"{table} cannot be read") as stream:
            for received in stream:
                batch = decoder.feed(received)
                if batch.rows.num_rows:
                    yield batch

    def _copy_query(self, chunk: Chunk) -> str:
        table = chunk.table
        names, condition = self._tables[table].names, self._cuts[table].condition(chunk)
        relation, special = self._relations[table], self._special[table]
        return copy_query(self._control, relation, names, special, condition)

    def _rewind(self, worker: Connection) -> None:
        """Back to the state after the import; a canceled COPY leaves the transaction failed, and only a
        savepoint keeps the view."""
        import psycopg2

        with suppress(psycopg2.Error):
            execute(worker, "ROLLBACK TO SAVEPOINT chunk")
