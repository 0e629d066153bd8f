"""The log of a real server: what it says, where a range ends, and that it says the same again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from cdc_lib.change import ChangeBatch, LogEvent, Message, Progress, SchemaChange, TransactionEnd
from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.errors import ResnapshotNeeded, RetryLater
from cdc_lib.pipeline import TableRule
from cdc_lib.sources.postgresql import copying, server
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.engines.postgresql.observing import (
    changes,
    end_of,
    events,
    snapshot_batches,
    spec,
    streaming,
    structures,
    table,
)
from tests.servers.postgresql import Database

T = table("t")


@pytest.fixture
def t(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return database


def test_every_kind_of_row_change(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute(
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "UPDATE t SET v = 'c' WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
            "DELETE FROM t WHERE id = 1",
            "TRUNCATE t",
        )
        found = events(source, start)
    rows = changes(found, T)
    assert [row["op"] for row in rows] == ["c", "c", "u", "d", "c", "d", "t"]
    assert [row["after"] for row in rows[:3]] == [
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b"},
        {"id": 1, "v": "c"},
    ]
    assert (rows[3]["before"]["id"], rows[4]["previous_key"], rows[4]["after"]) == (
        2,
        {"id": 2},
        {"id": 3, "v": "b"},
    )
    assert rows[5]["before"]["id"] == 1
    ordinals = [row["ordinal"] for row in rows]
    assert ordinals == sorted(set(ordinals))


def test_messages_inside_and_outside_transactions(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute(
            "SELECT pg_logical_emit_message(false, 'loose', 'x')",
            "SELECT pg_logical_emit_message(true, 'bound', 'y')",
        )
        found = [event for event in events(source, start) if isinstance(event, Message)]
    assert sorted((one.prefix, one.content, one.transactional) for one in found) == [
        ("bound", b"y", True),
        ("loose", b"x", False),
    ]


def test_origin_of_a_replicated_transaction_is_kept(t: Database) -> None:
    name = f"origin_{t.name}"
    with streaming(t) as (source, start):
        with closing(t.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_replication_origin_create(%s)", (name,))
            cursor.execute("SELECT pg_replication_origin_session_setup(%s)", (name,))
            cursor.execute("INSERT INTO t VALUES (1, 'a')")
        assert [row["source"]["origin"] for row in changes(events(source, start), T)] == [name]
    t.execute(f"SELECT pg_replication_origin_drop('{name}')")


def test_column_added_while_reading_is_announced_before_its_rows(t: Database) -> None:
    with streaming(t) as (source, start):
        schemas = structures(source)
        t.execute(
            "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'b', 5)"
        )
        found = events(source, start, schemas=schemas)
    kinds = [type(event) for event in found if isinstance(event, (ChangeBatch, SchemaChange))]
    assert kinds == [ChangeBatch, SchemaChange, ChangeBatch]
    assert [row["after"] for row in changes(found, T)] == [{"id": 1, "v": "a"}, {"id": 2, "v": "b", "n": 5}]


def test_type_created_while_reading_is_looked_up(t: Database) -> None:
    with streaming(t) as (source, start):
        schemas = structures(source)
        t.execute(
            "CREATE TYPE mood AS ENUM ('ok')",
            "ALTER TABLE t ADD m mood",
            "INSERT INTO t VALUES (1, 'a', 'ok')",
        )
        changed = [
            event for event in events(source, start, schemas=schemas) if isinstance(event, SchemaChange)
        ]
        assert changed[0].table.same_structure(source.describe(T))
    assert changed[0].table.column("m").source_type == "public.mood"


def test_described_structure_is_the_log_s(database: Database) -> None:
    """The catalog and the Relation message must agree, or each run would see a change of structure."""
    database.execute(
        "CREATE DOMAIN code AS char(3)",
        'CREATE TABLE "Odd Name" (a int, "B" numeric(8,2)[], c code, d timestamptz(3), g int '
        "GENERATED ALWAYS AS (a + 1) STORED, e bit(4), PRIMARY KEY (d, a))",
        "CREATE TABLE full_one (a text, b interval(3))",
        "ALTER TABLE full_one REPLICA IDENTITY FULL",
        "CREATE TABLE indexed (a int PRIMARY KEY, b int NOT NULL UNIQUE)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_b_key",
    )
    with streaming(database) as (source, start):
        database.execute(
            "INSERT INTO \"Odd Name\" VALUES (1, '{1.5}', 'x', now(), default, '1010')",
            "INSERT INTO full_one VALUES ('x', '1 day')",
            "INSERT INTO indexed VALUES (1, 2)",
        )
        found = events(source, start)
        described = structures(source)
    assert not [event for event in found if isinstance(event, SchemaChange)]
    logged = {event.table.id: event.table for event in found if isinstance(event, ChangeBatch)}
    assert {one: logged[one].key for one in logged} == {one: described[one].key for one in described}
    assert described[table("Odd Name")].key == ("d", "a")
    assert described[table("indexed")].key == ("b",)


VALUES = {
    "bpchar": ("char(5)", "'ab'"),
    "boolean": ("boolean", "true"),
    "inet": ("inet", "'10.0.0.1'"),
    "cidr": ("cidr", "'10.0.0.0/8'"),
    "name": ("name", "'n'"),
    "char": ('"char"', "'q'"),
    "money": ("money", "1234.5"),
    "domain of char": ("code", "'x'"),
    "domain of a domain": ("short_code", "'y'"),
    "array of char": ("char(4)[]", "'{a,NULL,\"b c\"}'"),
    "text": ("text", "E'a\\tb\\\\ \\u20ac'"),
    "bytea": ("bytea", "'\\x00ff5c'"),
    "float4": ("real", "0.1"),
    "float8": ("float8", "1e-310"),
    "nan": ("numeric", "'NaN'"),
    "numeric": ("numeric(20,4)", "-1.5"),
    "infinity": ("timestamptz", "'infinity'"),
    "timestamp": ("timestamp", "'2024-02-29 23:59:59.999999'"),
    "before christ": ("date", "'0044-03-15 BC'"),
    "time": ("time", "'24:00'"),
    "timetz": ("timetz", "'12:00+05:30'"),
    "interval": ("interval", "'1 year 2 days 03:04:05.6'"),
    "json": ("json", "'{\"a\" : 1}'"),
    "jsonb": ("jsonb", "'{\"a\" : 1}'"),
    "uuid": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    "bit": ("bit(4)", "'1010'"),
    "range": ("int4range", "'[1,5)'"),
    "composite": ("pair", "ROW(1, 'x y')"),
    "enum": ("mood", "'so so'"),
    "array of enum": ("mood[]", "'{\"so so\"}'"),
    "regclass": ("regclass", "'other.thing'"),
    "tsvector": ("tsvector", "'a:1 b:2'"),
    "point": ("point", "'(0.1,2)'"),
    "odd bounds": ("int[]", "'[2:3]={1,2}'"),
    "matrix": ("int[]", "'{{1,2},{3,4}}'"),
    "null": ("char(3)", "NULL"),
}


def test_snapshot_and_log_give_the_same_value(database: Database) -> None:
    """For each type: the row as the snapshot reads it, and the same row as the log's full before-image."""
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in VALUES.items())
    literals = ", ".join(value for _, value in VALUES.values())
    database.execute(
        "CREATE SCHEMA other",
        "CREATE TABLE other.thing (x int)",
        "CREATE DOMAIN code AS char(3)",
        "CREATE DOMAIN short_code AS code",
        "CREATE TYPE pair AS (n int, t text)",
        "CREATE TYPE mood AS ENUM ('so so')",
        f"CREATE TABLE t ({columns})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t VALUES ({literals})",
    )
    with PostgresSource(database.config(schema_include_list=("public",))) as source:
        source.prepare([T], None)
        with source.snapshot(spec(T)) as session:
            read = snapshot_batches(session, T)
            start = session.position
        database.execute("DELETE FROM t")
        [logged] = [event.rows for event in events(source, start) if isinstance(event, ChangeBatch)]
    seen, told = read.column("after").combine_chunks(), logged.column("before")
    for name in VALUES:
        assert seen.field(name).equals(told.field(name)), name
    assert read.column("special").to_pylist() == logged.column("special").to_pylist()
    # A few against the manual, so that both paths cannot be wrong together.
    row = seen.to_pylist()[0]
    assert (row["bpchar"], row["inet"], row["domain of char"]) == ("ab   ", "10.0.0.1", "x  ")
    assert row["regclass"] == "other.thing"


def test_type_from_the_file_holds_on_both_paths(database: Database) -> None:
    """``columns: {amount: "decimal(38,9)"}``; what does not fit stands beside the row as text."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, amount numeric)", "INSERT INTO t VALUES (1, 1.5), (2, 1e40)"
    )
    rule = TableRule(match=r"public\.t", columns={"amount": "decimal(38,9)"})
    with PostgresSource(replace(database.config(), rules=(rule,))) as source:
        source.prepare([T], None)
        with source.snapshot(spec(T)) as session:
            read = snapshot_batches(session, T).to_pylist()
            schemas = {T: session.table(T)}
        database.execute("UPDATE t SET id = id + 10")
        found = events(source, session.position, schemas=schemas)
    assert not [event for event in found if isinstance(event, SchemaChange)]
    written = [row for row in changes(found, T) if row["op"] == "c"]
    for rows in (read, written):
        assert [one["after"]["amount"] for one in rows] == [Decimal("1.500000000"), None]
        assert rows[1]["special"] == [("amount", "1" + "0" * 40)]


# -- ranges --------------------------------------------------------------------------------------------


def test_same_range_gives_the_same_rows_again(t: Database) -> None:
    with streaming(t) as (source, start):
        for number in range(20):
            t.execute(
                f"INSERT INTO t SELECT i, 'x' FROM generate_series({number * 100}, {number * 100 + 99}) i"
            )
        end = source.span().newest
        schemas = structures(source)
        t.execute("DELETE FROM t", "ALTER TABLE t ADD later int", "INSERT INTO t VALUES (-1, 'y', 1)")
        first = events(source, start, end, schemas)
    with PostgresSource(t.config()) as source:
        again = events(source, start, end, schemas)
    assert as_table(first).equals(as_table(again))
    assert as_table(first).num_rows == 2000


def test_range_holds_exactly_the_commits_within_it(t: Database) -> None:
    """A transaction belongs to where it commits, not to where it began."""
    with streaming(t) as (source, start), closing(t.connect()) as early, early.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (1, 'began first')")
        t.execute("INSERT INTO t VALUES (2, 'committed first')")
        middle = source.span().newest
        cursor.execute("COMMIT")
        before, behind = events(source, start, middle), events(source, middle)
    assert [row["after"]["id"] for row in changes(before, T)] == [2]
    assert [row["after"]["id"] for row in changes(behind, T)] == [1]


def test_cuts_at_transaction_ends_neither_lose_nor_repeat(
    t: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ROWS", 64)
    with streaming(t) as (source, start):
        t.execute(*(f"INSERT INTO t VALUES ({i}, 'x')" for i in range(100)))
        upto, seen, cuts, end = start, [], 0, source.span().newest
        while upto < end:
            ends = [one.position for one in events(source, upto, end) if isinstance(one, TransactionEnd)]
            cut = ends[0] if ends else end
            seen += [row["after"]["id"] for row in changes(events(source, upto, cut), T)]
            upto, cuts = cut, cuts + 1
    assert seen == list(range(100))
    assert cuts >= 4


def test_window_bounds_what_one_read_opens(t: Database) -> None:
    window = 1 << 20
    with streaming(t) as (source, start):
        source.config = replace(source.config, window_bytes=window)
        for number in range(8):
            t.execute(
                f"INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series({number}000, {number}999) i"
            )
        end = source.span().newest
        at, seen, reads = start, [], 0
        while at < end:
            found = events(source, at, end)
            assert end_of(found).lsn <= at.lsn + window  # type: ignore[attr-defined]
            seen += [row["after"]["id"] for row in changes(found, T)]
            at, reads = end_of(found), reads + 1
    assert seen == list(range(8000))
    assert reads >= 4


def test_release_moves_the_slot_once_and_never_back(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute("INSERT INTO t VALUES (1, 'a')")
        middle = source.span().newest
        t.execute("INSERT INTO t VALUES (2, 'b')")
        for upto in (middle, middle, start):
            source.release(upto)
        confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        assert t.rows(confirmed, (t.slot,)) == [(str(middle),)]
        assert [row["after"]["id"] for row in changes(events(source, middle), T)] == [2]


def test_idle_log_that_ends_at_a_page_is_flushed(t: Database) -> None:
    """After a switch the next record would start behind the new page's header, which nobody writes yet."""
    with streaming(t) as (source, start):
        t.execute("SELECT pg_switch_wal()")
        began = time.monotonic()
        end = source.span().newest
        assert time.monotonic() - began < 5
        assert events(source, start, end) == [Progress(end)]


PAGE, SEGMENT = 8192, 16 << 20


@pytest.mark.parametrize(
    ("next_record", "end_of_last"),
    [
        (7 * SEGMENT + 40, 7 * SEGMENT),
        (7 * SEGMENT + 3 * PAGE + 24, 7 * SEGMENT + 3 * PAGE),
        # Not behind a header: a segment's first one is longer, and on other pages 40 is inside of records.
        (7 * SEGMENT + 3 * PAGE + 40, 7 * SEGMENT + 3 * PAGE + 40),
        (7 * SEGMENT + 3 * PAGE + 32, 7 * SEGMENT + 3 * PAGE + 32),
        (7 * SEGMENT + 48, 7 * SEGMENT + 48),
    ],
)
def test_end_of_the_last_record(next_record: int, end_of_last: int) -> None:
    assert server._end_of_record(next_record, PAGE, SEGMENT) == end_of_last


# -- asynchronous commit -------------------------------------------------------------------------------


@pytest.fixture
def lazy_flush(own_postgres: EmbeddedPostgres, t: Database) -> Iterator[Database]:
    """The log is flushed every few seconds only."""
    t.execute("ALTER SYSTEM SET wal_writer_delay = '3s'", "SELECT pg_reload_conf()")
    yield t
    t.execute("ALTER SYSTEM RESET wal_writer_delay", "SELECT pg_reload_conf()")


def visible_then_read(database: Database) -> list[int]:
    """Commit without waiting for the disk, see the row, take the end position and read up to it."""
    with streaming(database) as (source, start), closing(database.connect()) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = off")
            # The WAL writer sleeps its whole delay only after it has just woken up.
            cursor.execute("INSERT INTO t VALUES (0, 'wakes the WAL writer')")
            time.sleep(0.2)
            cursor.execute("INSERT INTO t VALUES (1, 'visible')")
            cursor.execute("SELECT count(*) FROM t WHERE id = 1")
            assert cursor.fetchone() == (1,)
        return [row["after"]["id"] for row in changes(events(source, start), T)]


def test_end_position_covers_what_is_visible(lazy_flush: Database) -> None:
    assert visible_then_read(lazy_flush) == [0, 1]


def test_without_the_wait_a_visible_row_is_missed(
    lazy_flush: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the wait is for: the row is at or below the end position and not in the range read up to it."""
    monkeypatch.setattr(server, "wait_until_flushed", lambda connection, position: None)
    assert 1 not in visible_then_read(lazy_flush)


# -- interruptions -------------------------------------------------------------------------------------


@pytest.fixture
def long_log(t: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(copying, "ROWS", 100)
    return t


def begun(source: PostgresSource, database: Database, start: object) -> Iterator[LogEvent]:
    database.execute("INSERT INTO t SELECT i, repeat('x', 300) FROM generate_series(1, 100000) i")
    read = source.log([T], structures(source)).read(start, source.span().newest)  # type: ignore[arg-type]
    next(read)
    return read


def test_connection_lost_in_the_middle_is_a_passing_fault(long_log: Database) -> None:
    with streaming(long_log) as (source, start):
        read = begun(source, long_log, start)
        assert copies(long_log, "pg_terminate_backend(pid)") == [(True,)]
        with pytest.raises(RetryLater):
            list(read)
        assert as_table(events(source, start)).num_rows == 100_000


def test_closing_the_iterator_ends_the_read_at_the_server(long_log: Database) -> None:
    with streaming(long_log) as (source, start):
        read = begun(source, long_log, start)
        assert copies(long_log, "pid")
        read.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 5
        while copies(long_log, "pid") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert copies(long_log, "pid") == []
        source.prepare([T], start)


def test_publication_younger_than_the_changes_is_not_read_over(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute(f'DROP PUBLICATION "{t.slot}"', "INSERT INTO t VALUES (1, 'unpublished')")
        source.prepare([T], start)
        with pytest.raises(ResnapshotNeeded, match="publication"):
            events(source, start)


def as_table(found: list[LogEvent]) -> pa.Table:
    return pa.Table.from_batches([event.rows for event in found if isinstance(event, ChangeBatch)])


def copies(database: Database, what: str) -> list[tuple[object, ...]]:
    return database.rows(
        f"SELECT {what} FROM pg_stat_activity "
        "WHERE datname = %s AND state = 'active' AND query LIKE 'COPY (%%'",
        (database.name,),
    )
