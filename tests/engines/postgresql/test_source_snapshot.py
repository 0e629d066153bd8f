"""The snapshot of a real server: one view, in pieces, under writes and under DDL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg2
import pytest

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.sources.postgresql import copying, slot, snapshot
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.engines.postgresql.observing import (
    changes,
    events,
    snapshot_batches,
    snapshot_rows,
    spec,
    table,
)
from tests.servers.postgresql import Database

ACCOUNTS = table("accounts")


def test_pieces_by_key_cover_a_table_exactly_once(database: Database) -> None:
    database.execute(
        "CREATE TABLE readings (place text, at int, value float8, PRIMARY KEY (place, at))",
        "INSERT INTO readings SELECT 'p' || i % 7, i, i / 3.0 FROM generate_series(1, 30000) i",
    )
    readings = table("readings")
    with opened(database, readings, chunk_rows=4000) as session:
        pieces = session.chunks(readings)
        rows = snapshot_rows(session, readings)
    assert len(pieces) > 4
    assert all(piece.lower is None or len(piece.lower) == 2 for piece in pieces)
    assert sorted((row["place"], row["at"], row["value"]) for row in rows) == database.rows(
        'SELECT place, at, value FROM readings ORDER BY place COLLATE "C", at'
    )


def test_pieces_hold_about_as_many_rows_each(database: Database) -> None:
    """Keys that crowd at one end of their range are cut by count, not by distance."""
    database.execute(
        "CREATE TABLE crowded (id bigint PRIMARY KEY)",
        "INSERT INTO crowded SELECT i * i FROM generate_series(1, 40000) i",
        "ANALYZE crowded",
    )
    crowded = table("crowded")
    with opened(database, crowded, chunk_rows=10_000) as session:
        counts = [sum(batch.rows.num_rows for batch in session.rows(one)) for one in session.chunks(crowded)]
    assert sum(counts) == 40_000
    assert len(counts) == 4
    assert max(counts) < 15_000


def test_table_without_a_key_is_cut_by_place(database: Database) -> None:
    database.execute("CREATE TABLE heap (v int)", "INSERT INTO heap SELECT generate_series(1, 60000)")
    heap = table("heap")
    with opened(database, heap, chunk_rows=10_000) as session:
        assert len(session.chunks(heap)) > 2
        rows = snapshot_rows(session, heap)
    assert sorted(row["v"] for row in rows) == list(range(1, 60_001))


def test_partitioned_table_is_read_through_its_root(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id int, month int, PRIMARY KEY (id, month)) PARTITION BY LIST (month)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES IN (1)",
        "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES IN (2)",
        "INSERT INTO orders SELECT i, i % 2 + 1 FROM generate_series(1, 1000) i",
    )
    orders = table("orders")
    with PostgresSource(database.config()) as source:
        assert source.tables() == [orders]
        source.prepare([orders], None)
        with source.snapshot(spec(orders)) as session:
            rows = snapshot_rows(session, orders)
        database.execute("INSERT INTO orders VALUES (5000, 2)")
        seen = changes(events(source, session.position), orders)
    assert sorted(row["id"] for row in rows) == list(range(1, 1001))
    assert [row["after"]["id"] for row in seen] == [5000]


def test_inheriting_table_is_not_read_twice(database: Database) -> None:
    database.execute(
        "CREATE TABLE cities (name text PRIMARY KEY)",
        "CREATE TABLE capitals (PRIMARY KEY (name)) INHERITS (cities)",
        "INSERT INTO cities VALUES ('Lyon')",
        "INSERT INTO capitals VALUES ('Paris')",
    )
    with opened(database, table("cities")) as session:
        assert snapshot_rows(session, table("cities")) == [{"name": "Lyon"}]


def test_snapshot_and_log_join_up_under_writes(database: Database) -> None:
    """Every transfer keeps the sum; a view that is not one moment breaks it, a gap or overlap the end."""
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)",
        "INSERT INTO accounts SELECT i, 100 FROM generate_series(1, 20000) i",
    )
    with PostgresSource(database.config()) as source, writing(database):
        source.prepare([ACCOUNTS], None)
        with source.snapshot(spec(ACCOUNTS, chunk_rows=3000)) as session:
            state = {row["id"]: row["balance"] for row in snapshot_rows(session, ACCOUNTS)}
            schemas = {ACCOUNTS: session.table(ACCOUNTS)}
    assert sum(state.values()) == 20_000 * 100
    with PostgresSource(database.config()) as source:
        found = changes(events(source, session.position, schemas=schemas), ACCOUNTS)
    assert found
    for change in found:
        apply(state, change)
    assert state == dict(database.rows("SELECT id, balance FROM accounts"))


def test_several_tables_and_several_ranges_are_read_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ROWS", 100)
    tables = [table("wide_a"), table("wide_b")]
    for one in tables:
        database.execute(
            f"CREATE TABLE {one} (id int PRIMARY KEY, filler text)",
            f"INSERT INTO {one} SELECT i, repeat('x', 400) FROM generate_series(1, 60000) i",
            f"ANALYZE {one}",
        )
    with opened(database, *tables, chunk_rows=30_000, threads=4) as session, ExitStack() as open_reads:
        for one in tables:
            for chunk in session.chunks(one):
                read = session.rows(chunk)
                open_reads.callback(give_up, read)
                next(read)
        busy = database.rows(
            "SELECT query FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY (%%' "
            "AND datname = %s AND application_name = %s",
            (database.name, f"cdc_lib {database.name}"),
        )
    queries = {query for (query,) in busy}
    assert len(queries) == 4
    assert {one.name for one in tables if any(one.name in query for query in queries)} == {"wide_a", "wide_b"}


def test_view_survives_a_read_that_was_given_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "ROWS", 100)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, filler text)",
        "INSERT INTO big SELECT i, repeat('x', 300) FROM generate_series(1, 50000) i",
    )
    big = table("big")
    with opened(database, big, threads=1) as session:
        read = session.rows(session.chunks(big)[0])
        next(read)
        give_up(read)
        database.execute("DELETE FROM big")
        assert snapshot_batches(session, big).num_rows == 50_000


# -- DDL beside the snapshot: a rewrite is not MVCC-safe ------------------------------------------------

DISTURBANCES = {
    "rewrite": "ALTER TABLE t ALTER v TYPE varchar(50) USING v || 'x'",
    "truncate": "TRUNCATE t",
}


def disturbing(database: Database, session: snapshot.PostgresSnapshot, statement: str) -> bool:
    """Make the view of a session be followed at once by DDL from elsewhere. Whether the DDL got through is
    left in the session for the test."""
    create_view = session.create_view

    def view_then_ddl() -> None:
        create_view()
        with closing(database.connect()) as other, other.cursor() as cursor:
            cursor.execute("SET lock_timeout = '300ms'")
            try:
                cursor.execute(statement)
            except psycopg2.errors.LockNotAvailable:
                got_through.append(False)
            else:
                got_through.append(True)

    got_through: list[bool] = []
    session.create_view = view_then_ddl  # type: ignore[method-assign]
    session.open()
    return got_through[0]


@pytest.mark.parametrize("statement", DISTURBANCES.values(), ids=DISTURBANCES)
def test_ddl_right_after_the_view_waits_for_the_snapshot(database: Database, statement: str) -> None:
    source, session = unopened(database)
    with source, session:
        assert not disturbing(database, session, statement)
        assert snapshot_batches(session, table("t")).num_rows == 1000


@pytest.mark.parametrize("statement", DISTURBANCES.values(), ids=DISTURBANCES)
def test_without_the_lock_the_rewrite_is_noticed(
    database: Database, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, session = unopened(database)
    with source, session:
        monkeypatch.setattr(session, "lock", lambda: unlocked(session))
        assert disturbing(database, session, statement)
        with pytest.raises(RetryLater, match="rewritten"):
            list(session.rows(session.chunks(table("t"))[0]))


def test_without_any_guard_the_rewrite_loses_all_rows_in_silence(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the guards are for: if this server ever stops doing so, the two tests above prove nothing."""
    source, session = unopened(database)
    with source, session:
        monkeypatch.setattr(session, "lock", lambda: unlocked(session))
        monkeypatch.setattr(session, "assert_unchanged", lambda of: None)
        assert disturbing(database, session, DISTURBANCES["rewrite"])
        assert list(session.rows(session.chunks(table("t"))[0])) == []


def test_locked_table_is_a_passing_fault(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = database.config(snapshot_lock_timeout_ms=200)
    with PostgresSource(config) as source, closing(database.connect()) as other, other.cursor() as cursor:
        source.prepare([table("t")], None)
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(RetryLater, match="cannot be locked"):
            source.snapshot(spec(table("t")))


def test_missing_table_is_named(database: Database) -> None:
    with PostgresSource(database.config()) as source, pytest.raises(FixConfiguration, match=r"public\.gone"):
        source.snapshot(spec(table("gone")))


def test_snapshot_beside_the_slot_leaves_the_slot_alone(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with PostgresSource(database.config()) as source:
        source.prepare([table("t")], None)
        with source.snapshot(spec(table("t"))) as first:
            start = first.position
        database.execute("INSERT INTO t VALUES (2)")
        with source.snapshot(spec(table("t"))) as second:
            assert [row["id"] for row in snapshot_rows(second, table("t"))] == [1, 2]
        assert second.position > start
        assert [row["after"]["id"] for row in changes(events(source, start), table("t"))] == [2]
    assert database.rows(
        "SELECT count(*) FROM pg_replication_slots WHERE database = %s", (database.name,)
    ) == [(1,)]


def test_waiting_for_a_writer_ends_and_names_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "CREATE_SECONDS", 0.5)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with PostgresSource(database.config()) as source, closing(database.connect()) as other:
        source.prepare([table("t")], None)
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(RetryLater, match=f"process {other.info.backend_pid}"):
                source.snapshot(spec(table("t")))
    assert (
        database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database.name,))
        == []
    )


def test_connection_lost_in_the_middle_is_a_passing_fault(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ROWS", 100)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, filler text)",
        "INSERT INTO big SELECT i, repeat('x', 300) FROM generate_series(1, 100000) i",
    )
    with opened(database, table("big")) as session:
        read = session.rows(session.chunks(table("big"))[0])
        next(read)
        terminate_copies(database)
        with pytest.raises(RetryLater):
            list(read)


def test_a_truncate_that_waits_for_the_snapshot_does_not_stop_it(database: Database) -> None:
    """It waits behind our first lock; a reader that asked for its own lock only now would wait behind it."""
    source, session = unopened(database)
    database.execute("ALTER TABLE t ALTER v SET DEFAULT 'b'")
    with source, session:
        session.open()
        database.execute("INSERT INTO t VALUES (1001)")
        with closing(database.connect()) as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_truncate, other)
            wait_for_lock(database)
            assert snapshot_batches(session, table("t")).num_rows == 1000
            # Without the structure, so that reading the log has to ask the catalog for it.
            found = events(source, session.position, schemas={})
            assert [row["op"] for row in changes(found, table("t"))] == ["c"]
            assert not waiting.done()
            session.close()
            waiting.result(10)


def _truncate(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE t")


def wait_for_lock(database: Database) -> None:
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
    for _ in range(100):
        if database.rows(query)[0][0]:
            return
        time.sleep(0.05)
    raise AssertionError("nobody waits for a lock")


# -- parts ---------------------------------------------------------------------------------------------


class opened:
    """A snapshot session on a prepared source."""

    def __init__(self, database: Database, *tables: Any, chunk_rows: int = 250_000, threads: int = 2) -> None:
        self._source = PostgresSource(database.config())
        self._spec = spec(*tables, chunk_rows=chunk_rows, threads=threads)

    def __enter__(self) -> snapshot.PostgresSnapshot:
        self._source.connect()
        self._source.prepare(self._spec.tables, None)
        session = self._source.snapshot(self._spec)
        assert isinstance(session, snapshot.PostgresSnapshot)
        self._session = session
        return session

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._source.close()


def give_up(read: Iterator[ChangeBatch]) -> None:
    """Close a generator that the contract calls an iterator."""
    read.close()  # type: ignore[attr-defined]


def unopened(database: Database) -> tuple[PostgresSource, snapshot.PostgresSnapshot]:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 1000) i",
    )
    source = PostgresSource(database.config())
    source.connect()
    source.prepare([table("t")], None)
    return source, snapshot.PostgresSnapshot(source.config, source._control, spec(table("t")))


def unlocked(session: snapshot.PostgresSnapshot) -> None:
    """All that ``lock`` does, and the locks given up at once."""
    snapshot.PostgresSnapshot.lock(session)
    assert session._locker is not None
    with session._locker.cursor() as cursor:
        cursor.execute("COMMIT")
    for reader in (session._planner, *session._workers):
        assert reader is not None
        with reader.cursor() as cursor:
            cursor.execute("COMMIT")
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")


def apply(state: dict[int, int], change: dict[str, Any]) -> None:
    if change["op"] == "d":
        del state[change["before"]["id"]]
    else:
        state[change["after"]["id"]] = change["after"]["balance"]


def slots(database: Database) -> list[tuple[Any, ...]]:
    return database.rows("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database.name,))


def terminate_copies(database: Database) -> None:
    ended = database.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = %s AND state = 'active' AND query LIKE 'COPY (%%'",
        (database.name,),
    )
    assert ended == [(True,)]


class writing:
    """Two sessions that move money between accounts, close some and open others, until the block ends."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(one,)) for one in (self._transfer, self._move)
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed

    def _run(self, act: Callable[[Any, int], None]) -> None:
        try:
            with closing(self._database.connect()) as connection, connection.cursor() as cursor:
                turn = 0
                while not self._stop.wait(0.001):
                    turn += 1
                    act(cursor, turn)
        except psycopg2.Error as error:
            self._failed.append(error)

    def _transfer(self, cursor: Any, turn: int) -> None:
        """Odd accounts only, from one end of the table to the other, so that pieces see both sides."""
        low, high = turn * 2 % 9000 + 1, 19_999 - turn * 2 % 9000
        cursor.execute("BEGIN")
        cursor.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (low,))
        cursor.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (high,))
        cursor.execute("COMMIT")

    def _move(self, cursor: Any, turn: int) -> None:
        """Even accounts: to another key and back."""
        cursor.execute("UPDATE accounts SET id = id + 100000 WHERE id = %s", (turn * 2,))
        cursor.execute("UPDATE accounts SET id = id - 100000 WHERE id = %s", (turn * 2 - 40 + 100_000,))


def test_a_transaction_that_wrote_and_waits_for_our_lock_is_let_through(database: Database) -> None:
    """The new slot waits for it, and it waits for our lock: without a way out neither ever ends."""
    source, session = unopened(database)
    with source, session, closing(database.connect()) as other, ThreadPoolExecutor(2) as pool:
        other.autocommit = False
        with other.cursor() as cursor:
            cursor.execute("CREATE TABLE written (id int)")
        opening = pool.submit(session.open)
        wait_for_slot(database)
        truncating = pool.submit(_truncate, other)
        truncating.result(20)
        other.commit()
        opening.result(30)
        batches = [batch for chunk in session.chunks(table("t")) for batch in session.rows(chunk)]
        assert sum(batch.rows.num_rows for batch in batches) == 0


def wait_for_slot(database: Database) -> None:
    """Until a session creates a slot, which waits for transactions that have written."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%'"
    for _ in range(200):
        if database.rows(query)[0][0]:
            return
        time.sleep(0.05)
    raise AssertionError("no slot was being created")
