"""The slot, the publication and the server's history: whether the log still joins up with what we have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import psycopg2.extras
import pytest

from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.errors import FixConfiguration, FixSource, ResnapshotNeeded, RetryLater
from cdc_lib.sources.postgresql import publication, slot
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.engines.postgresql.observing import changes, events, streaming, table
from tests.servers import postgresql
from tests.servers.postgresql import Database

T = table("t")


@pytest.fixture
def t(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return database


# -- the slot ------------------------------------------------------------------------------------------


def test_dropped_slot(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute(f"SELECT pg_drop_replication_slot('{t.slot}')")
        with pytest.raises(ResnapshotNeeded, match="does not exist"):
            source.prepare([T], start)
        t.execute("INSERT INTO t VALUES (1, 'a')")
        with pytest.raises(ResnapshotNeeded, match="does not exist"):
            events(source, start)


def test_slot_moved_past_us(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute(
            "INSERT INTO t VALUES (1, 'a')",
            f"SELECT pg_replication_slot_advance('{t.slot}', pg_current_wal_lsn())",
        )
        with pytest.raises(ResnapshotNeeded, match="moved past"):
            source.prepare([T], start)


def test_slot_created_anew_by_somebody(t: Database) -> None:
    with streaming(t) as (source, start):
        t.execute(
            f"SELECT pg_drop_replication_slot('{t.slot}')",
            "INSERT INTO t VALUES (1, 'lost')",
            f"SELECT pg_create_logical_replication_slot('{t.slot}', 'pgoutput')",
        )
        with pytest.raises(ResnapshotNeeded, match="moved past"):
            source.prepare([T], start)


def test_slot_that_fell_too_far_behind(t: Database, own_postgres: EmbeddedPostgres) -> None:
    t.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
    try:
        with streaming(t) as (source, start):
            for number in range(4):
                t.execute(f"INSERT INTO t VALUES ({number}, 'x')", "SELECT pg_switch_wal()")
            t.execute("CHECKPOINT")
            assert source.span().oldest is not None
            with pytest.raises(ResnapshotNeeded, match="gone"):
                source.prepare([T], start)
    finally:
        t.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_slot_of_another_plug_in(t: Database) -> None:
    with PostgresSource(t.config()) as source:
        t.execute(f"SELECT pg_create_physical_replication_slot('{t.slot}')")
        try:
            with pytest.raises(FixConfiguration, match="pgoutput"):
                source.prepare([T], None)
        finally:
            t.execute(f"SELECT pg_drop_replication_slot('{t.slot}')")


@pytest.fixture
def reader(t: Database) -> Iterator[psycopg2.extras.LogicalReplicationConnection]:
    """Somebody who reads from the pipeline's slot."""
    with streaming(t):
        pass
    other = t.connect_replication()
    cursor = other.cursor()
    options = {"proto_version": "1", "publication_names": t.slot}
    cursor.start_replication(slot_name=t.slot, options=options)
    yield other
    other.close()


def test_slot_that_another_session_reads(
    t: Database, reader: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "FREE_SECONDS", 0.3)
    with PostgresSource(t.config()) as source:
        position = source.start()
        with pytest.raises(RetryLater, match="another session") as caught:
            source.prepare([T], None)
        assert "pg_terminate_backend(" in caught.value.remedy
        with pytest.raises(RetryLater, match="another session"):
            source.release(source.span().newest)
        t.execute("INSERT INTO t VALUES (1, 'a')")
        with pytest.raises(RetryLater, match="another session"):
            events(source, position)


def test_session_of_a_killed_runner_is_waited_for(
    t: Database, reader: psycopg2.extras.LogicalReplicationConnection
) -> None:
    leaving = threading.Timer(0.5, reader.close)
    leaving.start()
    with PostgresSource(t.config()) as source:
        began = time.monotonic()
        source.prepare([T], None)
    assert time.monotonic() - began > 0.3
    leaving.join()


# -- the server's history ------------------------------------------------------------------------------


def test_another_cluster(t: Database) -> None:
    with streaming(t) as (source, start):
        assert isinstance(start, PostgresPosition)
        with pytest.raises(ResnapshotNeeded, match="another database cluster"):
            source.prepare([T], replace(start, system="1"))


def test_log_that_ends_before_us(t: Database) -> None:
    with streaming(t) as (source, start):
        assert isinstance(start, PostgresPosition)
        with pytest.raises(ResnapshotNeeded, match="ends before"):
            source.prepare([T], start.at(start.lsn + (1 << 40)))


def test_failover_goes_on_only_from_before_the_switch() -> None:
    """A recovery of the same data ends on a new timeline, as a promoted standby does."""
    with postgresql.running("16") as server, postgresql.database(server) as database:
        assert isinstance(server, EmbeddedPostgres)
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with streaming(database) as (source, start):
            database.execute("INSERT INTO t VALUES (1)")
        server.stop()
        (server.data / "recovery.signal").touch()
        database_settings = server.data / "postgresql.auto.conf"
        database_settings.write_text("restore_command = 'false'\n")
        server.restart()
        wait_until_promoted(database)
        database.execute("INSERT INTO t VALUES (2)")
        with PostgresSource(database.config()) as source:
            now = source.span().newest
            assert isinstance(now, PostgresPosition)
            assert now.timeline == 2
            source.prepare([T], start)
            assert [row["after"]["id"] for row in changes(events(source, start, now), T)] == [1, 2]
            with pytest.raises(ResnapshotNeeded, match="gone on from a point before"):
                source.prepare([T], replace(now, timeline=1))


def wait_until_promoted(database: Database) -> None:
    deadline = time.monotonic() + 30
    while database.rows("SELECT pg_is_in_recovery()") == [(True,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- the publication -----------------------------------------------------------------------------------


def members(database: Database) -> list[str]:
    found = database.rows(
        "SELECT tablename::text FROM pg_publication_tables WHERE pubname = %s ORDER BY 1", (database.slot,)
    )
    return [name for (name,) in found]


def test_filtered_publication_follows_the_filters(t: Database) -> None:
    t.execute("CREATE TABLE u (id int PRIMARY KEY)", "CREATE TABLE hidden (id int PRIMARY KEY)")
    with streaming(t, table_include_list=("public.t",)):
        assert members(t) == ["t"]
    with streaming(t, table_exclude_list=("public.hidden",)):
        assert members(t) == ["t", "u"]
    before = t.rows("SELECT xmin::text FROM pg_publication_rel ORDER BY 1")
    with streaming(t, table_exclude_list=("public.hidden",)):
        assert t.rows("SELECT xmin::text FROM pg_publication_rel ORDER BY 1") == before


def test_missing_publication_is_not_created_when_disabled(t: Database) -> None:
    config = t.config(publication_autocreate_mode="disabled")
    with PostgresSource(config) as source:
        with pytest.raises(FixSource) as caught:
            source.prepare([T], None)
        t.execute(caught.value.remedy)
        source.prepare([T], None)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE PUBLICATION {p}",
        "CREATE PUBLICATION {p} FOR TABLE t WITH (publish = 'insert, update')",
    ],
)
def test_publication_that_leaves_changes_out(t: Database, made: str) -> None:
    """And the SQL in the remedy mends it."""
    t.execute(made.format(p=t.slot))
    with PostgresSource(t.config(publication_autocreate_mode="disabled")) as source:
        with pytest.raises(FixSource) as caught:
            source.prepare([T], None)
        t.execute(*caught.value.remedy.split("; "))
        source.prepare([T], None)


def test_publication_with_a_row_filter_is_refused(t: Database) -> None:
    if t.rows("SELECT current_setting('server_version_num')::int >= 150000") == [(False,)]:
        pytest.skip("row filters came with PostgreSQL 15")
    t.execute(f"CREATE PUBLICATION {t.slot} FOR TABLE t WHERE (id > 5)")
    with PostgresSource(t.config()) as source:
        with pytest.raises(FixSource, match="filters rows") as caught:
            source.prepare([T], None)
        t.execute(*caught.value.remedy.split("; "))
        source.prepare([T], None)


def test_empty_publication_asks_for_its_tables(t: Database) -> None:
    config = t.config(publication_autocreate_mode="no_tables")
    with PostgresSource(config) as source, pytest.raises(FixSource, match=r"does not have public\.t"):
        source.prepare([T], None)
    assert members(t) == []


def test_publication_of_all_tables(t: Database) -> None:
    with streaming(t, publication_autocreate_mode="all_tables"):
        found = publication.find(t.connect(), t.slot)
    assert found is not None
    assert found.all_tables
    assert found.via_root


def test_role_without_rights_is_told_which(t: Database) -> None:
    role = f"reader_{t.name}"
    t.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'pw'")
    try:
        with PostgresSource(t.config(database_user=role, database_password="pw")) as source:
            findings = {(one.severity, one.subject): one.remedy for one in source.check()}
            assert "GRANT SELECT" in findings["error", "public.t"]
            assert "CREATE PUBLICATION" in findings["error", "publication"]
            with pytest.raises(FixSource, match="publication"):
                source.prepare([T], None)
        t.execute(*findings["error", "public.t"].split("; "), findings["error", "publication"])
        with PostgresSource(t.config(database_user=role, database_password="pw")) as source:
            assert not [one for one in source.check() if one.severity == "error"]
            source.prepare([T], None)
            source.start()
    finally:
        t.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_connections_do_not_linger(t: Database) -> None:
    with streaming(t) as (source, start):
        events(source, start)
    with closing(t.connect()):
        left = t.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (f"cdc_lib {t.name}",)
        )
    assert left == [(0,)]
