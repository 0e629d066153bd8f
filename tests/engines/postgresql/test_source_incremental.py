"""Pieces of a real server's tables, read while changes flow: what they show, and when they are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.errors import RetryLater
from cdc_lib.source import Chunk, IncrementalSession, PieceRefused
from cdc_lib.sources.postgresql import incremental
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.engines.postgresql.observing import changes, end_of, events, spec, streaming, table
from tests.servers.postgresql import Database

T = table("t")


@pytest.fixture
def t(database: Database) -> Database:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 3) i"
    )
    return database


def ids(session: IncrementalSession, after: PostgresPosition, chunk: Chunk | None = None) -> list[int]:
    batches = session.rows(chunk or Chunk(T, 0), after, session.table(T))
    return sorted(row["id"] for batch in batches for row in batch.rows.column("after").to_pylist())


@contextmanager
def unanswered_commit(database: Database, statement: str) -> Iterator[threading.Thread]:
    """A commit that is in the log and not visible: it waits for a standby that does not answer."""
    database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    time.sleep(0.5)

    def commit() -> None:
        with closing(database.connect()) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = on")
                cursor.execute(statement)

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    try:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        deadline = time.monotonic() + 20
        while database.rows(query) == [(0,)]:
            assert time.monotonic() < deadline, "the commit does not wait"
            time.sleep(0.05)
        yield thread
    finally:
        answered(database)
        thread.join(20)


def answered(database: Database) -> None:
    with closing(database.connect()) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = local")
            cursor.execute("ALTER SYSTEM RESET synchronous_standby_names")
            cursor.execute("SELECT pg_reload_conf()")


def test_a_piece_waits_for_what_the_log_has_and_nobody_sees(
    t: Database, own_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visibility race: the event belongs to a batch that is done, and a later view lacks the row."""
    with streaming(t) as (source, start):
        with (
            unanswered_commit(t, "INSERT INTO t VALUES (4, 4)") as commit,
            source.incremental(spec(T)) as session,
        ):
            found = events(source, start)
            assert [row["after"]["id"] for row in changes(found, T)] == [4]
            after = end_of(found)
            assert isinstance(after, PostgresPosition)
            assert len(after.unseen) == 1
            assert ids(session, replace(after, unseen=())) == [1, 2, 3], (
                "without the guard the row is missing"
            )
            monkeypatch.setattr(incremental, "VISIBLE_SECONDS", 0.5)
            with pytest.raises(RetryLater, match="still not visible"):
                ids(session, after)
            monkeypatch.setattr(incremental, "VISIBLE_SECONDS", 60)
            threading.Timer(1.0, answered, (t,)).start()
            assert ids(session, after) == [1, 2, 3, 4]
            commit.join(20)
        later = end_of(events(source, after))
        assert isinstance(later, PostgresPosition)
        assert later.unseen == ()


def test_a_slot_that_was_there_before(t: Database, own_postgres: EmbeddedPostgres) -> None:
    """Which of the running transactions are in the log behind it nobody can tell: all are waited for."""
    config = t.config()
    t.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (config["slot.name"],))
    with PostgresSource(config) as source:
        source.prepare([T], None)
        with unanswered_commit(t, "INSERT INTO t VALUES (4, 4)"):
            assert len(source.start().unseen) == 1


def test_a_structure_that_is_not_the_expected_one_is_refused(t: Database) -> None:
    with streaming(t) as (source, start), source.incremental(spec(T)) as session:
        assert isinstance(start, PostgresPosition)
        expected = session.table(T)
        t.execute("ALTER TABLE t ADD COLUMN extra text")
        with pytest.raises(PieceRefused, match="changed its structure"):
            list(session.rows(Chunk(T, 0), start, expected))
        assert ids(session, start) == [1, 2, 3]


def test_a_truncate_waits_for_a_piece_and_no_longer(t: Database) -> None:
    with streaming(t) as (source, start), source.incremental(spec(T)) as session:
        assert isinstance(start, PostgresPosition)
        read = session.rows(Chunk(T, 0), start, session.table(T))
        next(read)
        truncating = threading.Thread(target=t.execute, args=("TRUNCATE t",), daemon=True)
        truncating.start()
        truncating.join(0.5)
        assert truncating.is_alive(), "the piece is still being read"
        list(read)
        truncating.join(20)
        assert not truncating.is_alive()
        assert ids(session, start) == []


def test_writers_are_not_stopped(t: Database) -> None:
    with streaming(t) as (source, start), source.incremental(spec(T)) as session:
        assert isinstance(start, PostgresPosition)
        read = session.rows(Chunk(T, 0), start, session.table(T))
        rows = next(read).rows
        t.execute("SET lock_timeout = '2s'", "UPDATE t SET n = 9", "DELETE FROM t WHERE id = 1")
        assert sorted(row["n"] for row in rows.column("after").to_pylist()) == [1, 2, 3]
        assert list(read) == []


def test_pieces_by_text_key_cover_keys_that_come_later(database: Database) -> None:
    """Ranges are the server's, under its collation, and open at both ends."""
    database.execute(
        "CREATE TABLE t (id text PRIMARY KEY, n int)",
        "INSERT INTO t SELECT chr(65 + i % 26) || lower(md5(i::text)), i FROM generate_series(1, 20000) i",
    )
    with streaming(database) as (source, start), source.incremental(spec(T, chunk_rows=4000)) as session:
        assert isinstance(start, PostgresPosition)
        pieces = session.chunks(T)
        assert len(pieces) > 3
        database.execute("INSERT INTO t VALUES ('', 0), ('~~~', 0), ('Ä', 0), ('zzzz', 0)")
        found = [
            row["id"]
            for piece in pieces
            for batch in session.rows(piece, start, session.table(T))
            for row in batch.rows.column("after").to_pylist()
        ]
    assert len(found) == len(set(found)) == 20_004


KEY = {
    "flag": ("boolean", "true"),
    "number": ("bigint", "-9007199254740993"),
    "amount": ("numeric(12,2)", "12.50"),
    "ratio": ("double precision", "0.1"),
    "name": ("text", "'it''s \\ \"quoted\" Ä'"),
    "padded": ("char(5)", "'ab'"),
    "day": ("date", "'2024-02-29'"),
    "at": ("timestamp", "'2024-02-29 12:00:00.000001'"),
    "zoned": ("timestamptz", "'2024-02-29 12:00:00.000001+05:30'"),
    "token": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    "bytes": ("bytea", "'\\x00ff5c'"),
    "network": ("inet", "'10.0.0.1'"),
    "custom": ("positive", "5"),
}


def test_pieces_are_even_where_keys_are_skewed(database: Database) -> None:
    """Bounds follow where the rows are, not the span of the key; of composite keys also the later columns."""
    database.execute(
        "CREATE TABLE t (tenant int, id bigint, PRIMARY KEY (tenant, id))",
        "INSERT INTO t SELECT 1, i FROM generate_series(1, 19000) i",
        "INSERT INTO t SELECT i, 9e15::bigint - i FROM generate_series(2, 1001) i",
        "ANALYZE t",
    )
    with streaming(database) as (source, start), source.incremental(spec(T, chunk_rows=2000)) as session:
        assert isinstance(start, PostgresPosition)
        pieces = session.chunks(T)
        counts = [sum(b.rows.num_rows for b in session.rows(one, start, session.table(T))) for one in pieces]
    assert sum(counts) == 20_000
    assert max(counts) <= 2 * 2000, counts
    assert len(pieces) == 10


def test_rows_are_found_by_their_keys_as_silver_holds_them(database: Database) -> None:
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in KEY.items())
    values = ", ".join(value for _, value in KEY.values())
    names = ", ".join(f'"{name}"' for name in KEY)
    database.execute(
        "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
        f"CREATE TABLE t ({columns}, id int, PRIMARY KEY ({names}, id))",
        f"INSERT INTO t SELECT {values}, i FROM generate_series(1, 3) i",
    )
    with streaming(database) as (source, start), source.incremental(spec(T)) as session:
        assert isinstance(start, PostgresPosition)
        (rows,) = [batch.rows for batch in session.rows(Chunk(T, 0), start, session.table(T))]
        held = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows.column("after"))])
        keys = held.select([*KEY, "id"])
        assert ids(session, start, Chunk(T, 1, keys=keys.slice(1, 2))) == [2, 3]
        assert ids(session, start, Chunk(T, 1, keys=keys.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("kind", "value", "properties"),
    [
        ("timestamp", "'2024-02-29 12:00:00'", {"time_precision_mode": "adaptive"}),
        ("bytea", "'\\xff'", {"binary_handling_mode": "base64"}),
    ],
)
def test_keys_in_a_form_that_the_server_does_not_read_find_nothing(
    database: Database, kind: str, value: str, properties: dict[str, str]
) -> None:
    database.execute(
        f"CREATE TABLE t (k {kind}, id int, PRIMARY KEY (k, id))", f"INSERT INTO t VALUES ({value}, 1)"
    )
    config = {name.replace("_", "."): given for name, given in properties.items()}
    with streaming(database, **config) as (source, start), source.incremental(spec(T)) as session:
        assert isinstance(start, PostgresPosition)
        (rows,) = [batch.rows for batch in session.rows(Chunk(T, 0), start, session.table(T))]
        keys = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows.column("after"))])
        assert ids(session, start, Chunk(T, 1, keys=keys)) == []


def test_a_table_whose_rows_cannot_be_ordered_is_one_piece(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int, n int)", "INSERT INTO t SELECT i, i FROM generate_series(1, 5000) i"
    )
    with streaming(database) as (source, _), source.incremental(spec(T, chunk_rows=100)) as session:
        assert session.chunks(T) == [Chunk(T, 0)]
