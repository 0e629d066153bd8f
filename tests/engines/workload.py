"""A PostgreSQL database under all kinds of writes, whose true history the server itself records.

Three tables: ``plain``; ``documents`` with two large columns kept out of line, so that the log leaves them
out of updates that do not change them; ``stock`` with a key of two columns. Triggers write every change to
``audit.history``, which nobody captures: the row locks give the order per key, the statement trigger the
truncates, ``pg_xact_commit_timestamp`` the commits. The server needs ``track_commit_timestamp``.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any

from psycopg2 import errors, sql
from typing_extensions import Self

from tests.engines.history import Change, History
from tests.servers.postgresql import Database

SETTINGS = {"track_commit_timestamp": "on", "max_wal_size": "4GB"}

TABLES: Mapping[str, Sequence[str]] = {
    "plain": ("id", "label", "amount", "flag"),
    "documents": ("id", "title", "body", "extra", "revision"),
    "stock": ("site", "item", "qty", "note"),
}
KEYS: Mapping[str, Sequence[str]] = {"plain": ["id"], "documents": ["id"], "stock": ["site", "item"]}

_SCHEMA = """
CREATE TABLE plain (id bigint PRIMARY KEY, label text, amount numeric(12,3), flag boolean NOT NULL);
CREATE TABLE documents (id integer PRIMARY KEY, title text NOT NULL, body text, extra text,
                        revision integer NOT NULL);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;
CREATE TABLE stock (site text, item integer, qty bigint NOT NULL, note text, PRIMARY KEY (site, item));
CREATE SCHEMA audit;
CREATE TABLE audit.history (
    number bigserial PRIMARY KEY, transaction bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    session integer NOT NULL DEFAULT pg_backend_pid(), table_name text NOT NULL, old jsonb, new jsonb,
    log_position pg_lsn NOT NULL DEFAULT pg_current_wal_insert_lsn());
"""
_INITIAL = """
INSERT INTO plain SELECT n, 'label ' || n, n / 8.0, n % 2 = 0 FROM generate_series(1, 600) n;
INSERT INTO documents
    SELECT n, 'title ' || n, repeat(md5(n::text), 80), repeat(md5((-n)::text), 90), 0
    FROM generate_series(1, 90) n;
INSERT INTO stock SELECT 'site' || n % 7, n, n * 1000, NULL FROM generate_series(1, 300) n;
"""
_HISTORY = """
SELECT number, transaction, session, table_name, old, new,
       (extract(epoch FROM pg_xact_commit_timestamp((transaction % 4294967296)::text::xid)) * 1000000)::bigint
FROM audit.history ORDER BY number
"""


def _triggers(table: str) -> str:
    """Every column as the server prints it: no type's JSON form gets in between."""
    images = {
        image: "jsonb_build_object("
        + ", ".join(f"'{name}', {image}.{name}::text" for name in TABLES[table])
        + ")"
        for image in ("OLD", "NEW")
    }
    return f"""
    CREATE FUNCTION audit.{table}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit.history (table_name, old, new) VALUES ('{table}',
            CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN {images["OLD"]} END,
            CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN {images["NEW"]} END);
        RETURN NULL;
    END $$;
    CREATE FUNCTION audit.{table}_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit.history (table_name) VALUES ('{table}');
        RETURN NULL;
    END $$;
    CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION audit.{table}();
    CREATE TRIGGER history_truncate AFTER TRUNCATE ON {table}
        FOR EACH STATEMENT EXECUTE FUNCTION audit.{table}_truncate();
    """


def create(database: Database) -> None:
    """Tables, triggers and the first rows, which are part of the recorded history."""
    database.execute(_SCHEMA, *(_triggers(table) for table in TABLES), _INITIAL)


def recorded(database: Database) -> History:
    """The true history up to now."""
    changes = [
        Change(number, str(transaction), table, old, new, str(session), committed_us)
        for number, transaction, session, table, old, new, committed_us in database.rows(_HISTORY)
    ]
    return History(KEYS, changes)


def committed_after(database: Database, log_position: str) -> set[str]:
    """Transactions that surely committed behind a position: they were still writing there."""
    query = "SELECT DISTINCT transaction FROM audit.history WHERE log_position >= %s::pg_lsn"
    return {str(transaction) for (transaction,) in database.rows(query, (log_position,))}


def source_rows(database: Database, table: str) -> dict[tuple[str, ...], dict[str, str | None]]:
    """The table as it is now, every value as the server prints it, by key."""
    names = TABLES[table]
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names),
        sql.Identifier(table),
    )
    found = [dict(zip(names, row, strict=True)) for row in database.rows(query)]
    return {tuple(str(row[name]) for name in KEYS[table]): row for row in found}


class Workload:
    """Sessions that write until the block ends; a context manager. ``pace``: seconds between transactions."""

    def __init__(self, database: Database, seed: int, *, sessions: int = 2, pace: float = 0.03) -> None:
        self._database = database
        self._pace = pace
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self.transactions = 0
        self._threads = [
            threading.Thread(
                target=self._write, args=(random.Random(f"{seed}-{number}"), number), daemon=True
            )
            for number in range(sessions)
        ]
        print(f"workload seed {seed}")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Let the running transactions end. A session that failed fails the test; idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if self._failed:
            raise self._failed.pop()

    def _write(self, random: random.Random, number: int) -> None:
        try:
            with closing(self._database.connect()) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    # One session commits asynchronously: its rows are visible before they are on disk.
                    cursor.execute(f"SET synchronous_commit = {'off' if number % 2 else 'on'}")
                    while not self._stop.wait(self._pace):
                        transaction(cursor, random)
                        self.transactions += 1
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's own thread
            self._failed.append(failure)


def transaction(cursor: Any, random: random.Random) -> None:
    """One transaction of one to six statements; some are rolled back, wholly or to a savepoint."""
    cursor.execute("BEGIN")
    try:
        for _ in range(random.choice([1, 1, 1, 2, 3, 6])):
            if random.random() < 0.1:
                with _undone(cursor):
                    _statement(cursor, random)
            else:
                _statement(cursor, random)
        cursor.execute("ROLLBACK" if random.random() < 0.07 else "COMMIT")
    except (errors.UniqueViolation, errors.DeadlockDetected):
        cursor.execute("ROLLBACK")


@contextmanager
def _undone(cursor: Any) -> Iterator[None]:
    cursor.execute("SAVEPOINT here")
    yield
    cursor.execute("ROLLBACK TO SAVEPOINT here")


def _statement(cursor: Any, random: random.Random) -> None:
    weights = [weight for _, weight in _STATEMENTS]
    [(write, _)] = random.choices(_STATEMENTS, weights)
    write(cursor, random)


def _text(random: random.Random, size: int) -> str:
    return random.randbytes(size // 2).hex()


def _plain_insert(cursor: Any, random: random.Random) -> None:
    cursor.execute(
        "INSERT INTO plain VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
        (random.randint(1, 900), random.choice([None, "", "Ünïcode ✓", "tab\tnew\nline"]), 1.5, True),
    )


def _plain_update(cursor: Any, random: random.Random) -> None:
    cursor.execute(
        "UPDATE plain SET amount = amount + 0.125, flag = NOT flag, label = %s WHERE id BETWEEN %s AND %s",
        (_text(random, 10), (low := random.randint(1, 900)), low + random.choice([0, 0, 4])),
    )


def _plain_delete(cursor: Any, random: random.Random) -> None:
    cursor.execute("DELETE FROM plain WHERE id = %s", (random.randint(1, 900),))


def _plain_move(cursor: Any, random: random.Random) -> None:
    cursor.execute(
        "UPDATE plain SET id = %s WHERE id = %s", (random.randint(1, 1200), random.randint(1, 900))
    )


def _plain_truncate(cursor: Any, random: random.Random) -> None:
    cursor.execute("TRUNCATE plain")
    cursor.execute("INSERT INTO plain SELECT n, 'after', n, true FROM generate_series(1, 200) n")


def _document_insert(cursor: Any, random: random.Random) -> None:
    cursor.execute(
        "INSERT INTO documents VALUES (%s, 'new', %s, %s, 0) ON CONFLICT DO NOTHING",
        (random.randint(1, 120), _text(random, 3000), random.choice([None, _text(random, 4000)])),
    )


def _document_revise(cursor: Any, random: random.Random) -> None:
    """The large columns stay: the log does not carry them."""
    cursor.execute("UPDATE documents SET revision = revision + 1 WHERE id = %s", (random.randint(1, 120),))


def _document_rewrite(cursor: Any, random: random.Random) -> None:
    """One large column changes, the other is not carried."""
    column = random.choice(["body", "extra"])
    cursor.execute(
        f"UPDATE documents SET {column} = %s WHERE id = %s",
        (random.choice([None, "short", _text(random, 5000)]), random.randint(1, 120)),
    )


def _document_move(cursor: Any, random: random.Random) -> None:
    """The key changes and the large columns do not: the create lacks them."""
    cursor.execute(
        "UPDATE documents SET id = %s WHERE id = %s", (random.randint(1, 160), random.randint(1, 120))
    )


def _document_delete(cursor: Any, random: random.Random) -> None:
    cursor.execute("DELETE FROM documents WHERE id = %s", (random.randint(1, 120),))


def _stock_count(cursor: Any, random: random.Random) -> None:
    cursor.execute(
        "INSERT INTO stock VALUES (%s, %s, 1, 'new') "
        "ON CONFLICT (site, item) DO UPDATE SET qty = stock.qty + 1",
        (f"site{random.randint(0, 6)}", random.randint(1, 300)),
    )


def _stock_move(cursor: Any, random: random.Random) -> None:
    cursor.execute(
        "UPDATE stock SET site = %s WHERE item = %s",
        (f"site{random.randint(0, 9)}", random.randint(1, 300)),
    )


def _stock_delete(cursor: Any, random: random.Random) -> None:
    cursor.execute("DELETE FROM stock WHERE item = %s", (random.randint(1, 300),))


def _several_tables(cursor: Any, random: random.Random) -> None:
    _stock_count(cursor, random)
    _plain_update(cursor, random)
    _document_revise(cursor, random)


def _stock_truncate(cursor: Any, random: random.Random) -> None:
    cursor.execute("TRUNCATE stock, documents")
    cursor.execute("INSERT INTO stock SELECT 'site1', n, 0, 'after' FROM generate_series(1, 100) n")
    for number in random.sample(range(1, 120), 30):
        cursor.execute(
            "INSERT INTO documents VALUES (%s, 'after', %s, NULL, 0)", (number, _text(random, 3000))
        )


_STATEMENTS: Sequence[tuple[Callable[[Any, random.Random], None], float]] = (
    (_plain_insert, 8),
    (_plain_update, 10),
    (_plain_delete, 4),
    (_plain_move, 5),
    (_plain_truncate, 0.4),
    (_document_insert, 5),
    (_document_revise, 10),
    (_document_rewrite, 8),
    (_document_move, 5),
    (_document_delete, 3),
    (_stock_count, 8),
    (_stock_move, 5),
    (_stock_delete, 3),
    (_several_tables, 4),
    (_stock_truncate, 0.4),
)


def write_once(database: Database, seed: int, transactions: int) -> None:
    """So many transactions, one after the other."""
    chosen = random.Random(seed)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for _ in range(transactions):
            transaction(cursor, chosen)
