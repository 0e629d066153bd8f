"""The data: one table of ten columns, a backlog of changes to it, and one huge transaction.

The shape is that of the measurements the design was made from: transactions of about 100 rows, 60 % inserts,
30 % updates, 10 % deletes; text, numbers, times, a UUID, NULLs in one column. All values follow from the
row's number and the transaction's, so every server gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cdc_lib.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

TABLE = "public.orders"
BRONZE = "public_orders"
PUBLICATION = "bench"
BASE_SLOT = "bench_log"
PER_TRANSACTION = 100
SERVER_VERSION = 16
SERVER_SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    # Vacuum would write log of its own and take CPU in rounds of its own choosing.
    "autovacuum": "off",
}

Identity = Literal["full", "default"]

COLUMNS = {
    "id": "bigint",
    "customer": "integer",
    "note": "text",
    "amount": "numeric(12,2)",
    "created": "timestamptz",
    "active": "boolean",
    "day": "date",
    "score": "double precision",
    "token": "uuid",
    "comment": "text",
}
_CREATE = f"""
    CREATE TABLE {TABLE} ({", ".join(f"{name} {type}" for name, type in COLUMNS.items())}, PRIMARY KEY (id))
"""
_ROW = """
    i, (i * 7919) %% 100003, 'n-' || substr(md5(i::text), 1, 27),
    ((i * 104729) %% 2000000000 - 1000000000) / 100.0,
    timestamptz '2026-01-01 00:00:00+00' + i * interval '1.000003 s', i %% 3 = 0,
    date '2000-01-01' + (i %% 10000)::int, sqrt(i) * 1e3, md5(i::text || 'token')::uuid,
    CASE WHEN i %% 4 > 0 THEN 'comment ' || i %% 1000 END
"""
_INSERT = f"INSERT INTO {TABLE} SELECT {_ROW} FROM generate_series(%s::bigint, %s::bigint) i"

# One call for the whole log: 10,000 transactions driven from outside would take a minute of round trips.
# Updates and deletes pick 35 and 12 keys among all ever inserted; about one in seven is deleted already.
_BACKLOG = f"""
    CREATE PROCEDURE bench_backlog(
        transactions int, INOUT inserted bigint, INOUT updated bigint, INOUT deleted bigint)
    LANGUAGE plpgsql AS $$
    DECLARE t int; n bigint; top bigint := 0;
    BEGIN
        PERFORM setseed(0.5);
        -- Plans are made while the table is still empty, and kept.
        PERFORM set_config('enable_seqscan', 'off', false);
        FOR t IN 1..transactions LOOP
            INSERT INTO {TABLE} SELECT {_ROW.replace("%%", "%")} FROM generate_series(top + 1, top + 60) i;
            top := top + 60; inserted := inserted + 60;
            UPDATE {TABLE} SET amount = t, note = 'u-' || substr(md5((t * id)::text), 1, 27),
                score = ln(t + id), comment = CASE WHEN id % 5 > 0 THEN 'changed ' || t END
            WHERE id = ANY (ARRAY(SELECT (1 + floor(random() * top))::bigint FROM generate_series(1, 35)));
            GET DIAGNOSTICS n = ROW_COUNT; updated := updated + n;
            DELETE FROM {TABLE}
            WHERE id = ANY (ARRAY(SELECT (1 + floor(random() * top))::bigint FROM generate_series(1, 12)));
            GET DIAGNOSTICS n = ROW_COUNT; deleted := deleted + n;
            COMMIT;
        END LOOP;
    END $$
"""
# A tenth of the table: 71 % updates, 9 % deletes, 20 % inserts, scattered over all keys.
_SCATTERED = f"SELECT id FROM {TABLE} ORDER BY md5(id::text || 'pick'), id LIMIT %s"


@dataclass(frozen=True)
class Operations:
    """Rows of a log by operation, counted by the server as it executed them."""

    c: int = 0
    u: int = 0
    d: int = 0

    @property
    def rows(self) -> int:
        return self.c + self.u + self.d


class Database:
    """A server of the benchmark's own, durable (fsync on), with the empty table and its publication."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server

    @property
    def pid(self) -> int:
        pid = self.server.pid
        assert pid is not None, "the server of the benchmark has stopped"
        return pid

    @property
    def dsn(self) -> str:
        server = self.server
        return (
            f"host={server.host} port={server.port} user={server.user} password={server.password} "
            "dbname=postgres"
        )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        import psycopg2

        with closing(psycopg2.connect(self.dsn)) as connection:
            connection.autocommit = True
            yield connection

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement, or none."""
        with self.connection() as connection, connection.cursor() as cursor:
            # Loading may lose its last commits in a crash, which no measured step does.
            cursor.execute("SET synchronous_commit = off")
            cursor.execute(statement, values or None)
            return [] if cursor.description is None else cursor.fetchall()

    def create(self, identity: Identity) -> None:
        self.execute(_CREATE)
        self.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY {identity}")
        self.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}")

    # -- filling

    def fill(self, rows: int) -> None:
        """The table of a snapshot, with nothing left to clean up for the first who reads it."""
        self.insert(1, rows)
        self.execute(f"VACUUM (FREEZE, ANALYZE) {TABLE}")
        self.execute("CHECKPOINT")

    def insert(self, first: int, last: int) -> Operations:
        """Rows ``first`` to ``last`` in one transaction."""
        self.execute(_INSERT, first, last)
        return Operations(c=last - first + 1)

    def write_backlog(self, rows: int) -> Operations:
        """About ``rows`` changes in transactions of about 100."""
        self.execute(_BACKLOG)
        transactions = max(1, rows // PER_TRANSACTION)
        found = self.execute("CALL bench_backlog(%s, 0, 0, 0)", transactions)[0]
        self.settle()
        return Operations(*map(int, found))

    def change(self, rows: int, keys: int) -> Operations:
        """Change ``keys`` keys of a table of ``rows`` in three transactions."""
        updates, deletes = keys * 71 // 100, keys * 9 // 100
        picked = f"{_SCATTERED} OFFSET %s"
        deleted = f"DELETE FROM {TABLE} WHERE id IN ({picked})"
        changed = (
            f"UPDATE {TABLE} SET amount = amount + 1, note = 'changed', comment = NULL WHERE id IN ({picked})"
        )
        self.execute(changed, updates, 0)
        self.execute(deleted, deletes, updates)
        inserts = keys - updates - deletes
        self.insert(rows + 1, rows + inserts)
        self.settle()
        return Operations(inserts, updates, deletes)

    def settle(self) -> None:
        self.execute(f"ANALYZE {TABLE}")
        self.execute("CHECKPOINT")

    # -- the log

    def keep_log(self) -> None:
        """From here on the base slot holds the log."""
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", BASE_SLOT)

    def copy_slot(self, name: str) -> None:
        """A slot that gives the same log as the base slot, for one round."""
        self.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", BASE_SLOT, name)

    def drop_slot(self, name: str) -> None:
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", name
        )

    def end_of_log(self) -> str:
        return str(self.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def log_bytes(self) -> int:
        """Server log between the base slot and now."""
        found = self.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn) "
            "FROM pg_replication_slots WHERE slot_name = %s",
            BASE_SLOT,
        )
        return int(found[0][0])


@contextmanager
def database(folder: Path, identity: Identity = "default") -> Iterator[Database]:
    """A new server in ``folder`` with the empty table; gone afterwards."""
    server = EmbeddedPostgres(folder, version=SERVER_VERSION, fsync=True, settings=SERVER_SETTINGS)
    try:
        server.start()
        found = Database(server)
        found.create(identity)
        yield found
    finally:
        server.remove()
