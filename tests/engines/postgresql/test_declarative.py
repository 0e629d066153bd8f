"""Captured from a server, kept by AUTO CDC: silver equals the source, and what the merge makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.engines.connect_server import ConnectServer
from tests.engines.postgresql import declarative
from tests.engines.postgresql.conftest import MakePipeline
from tests.servers import postgresql
from tests.servers.postgresql import Database, Server

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text, total numeric(12,2), placed timestamp)",
    'CREATE TABLE "odd names" (a int PRIMARY KEY, "b c" text, "d.e" int)',
    "CREATE TABLE log (line text)",
    "INSERT INTO orders SELECT i, 'note ' || i, i / 4.0, 'epoch' FROM generate_series(1, 50) i",
    "INSERT INTO \"odd names\" VALUES (1, 'x', 1), (2, 'y', 2)",
)
CHANGES = (
    "UPDATE orders SET total = total + 1 WHERE id % 2 = 0",
    "DELETE FROM orders WHERE id > 45",
    "INSERT INTO orders VALUES (46, 'again', NULL, 'infinity'), (60, NULL, 0, NULL)",
    "UPDATE orders SET id = 70 WHERE id = 60",
    'UPDATE "odd names" SET "b c" = \'z\' WHERE a = 2',
    "ALTER TABLE orders ADD COLUMN extra int",
    "UPDATE orders SET extra = 5, note = NULL WHERE id = 3",
)


@pytest.fixture(scope="module")
def session(
    connect_server: ConnectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    if reason := declarative.absent():
        pytest.skip(reason)
    jar = declarative.build_catalog(tmp_path_factory.mktemp("catalog"))
    with declarative.declarative_session(connect_server.remote, jar) as opened:
        yield opened


@pytest.fixture
def schema(session: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A schema of Spark's own catalog for the streaming tables."""
    name = f"silver_{abs(hash(tmp_path))}"
    session.sql(f"CREATE SCHEMA {name} LOCATION '{tmp_path / 'warehouse'}'").collect()
    yield name
    session.sql(f"DROP SCHEMA {name} CASCADE").collect()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql.running("16") as started:
        yield started


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with postgresql.database(server) as made:
        made.execute(*TABLES)
        yield made


def rows(session: SparkSession, table: str, columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in session.sql(f"SELECT {columns} FROM {table}").collect()), key=repr)


@pytest.mark.slow
def test_silver_by_auto_cdc(
    session: SparkSession, schema: str, database: Database, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    pipeline = make_pipeline(database)
    pipeline.apply = "declarative"
    pipeline.run()
    configuration = {"cdc.pipeline": str(pipeline.file)}
    declarative.update(session, tmp_path, schema, configuration)
    database.execute(*CHANGES)
    pipeline.run()
    declarative.update(session, tmp_path, schema, configuration)
    columns = "id, note, total, extra"
    by_flow = rows(session, f"{schema}.public_orders", f"{columns}, __sequence, __committed_at")
    assert [row[:4] for row in by_flow] == sorted(database.rows(f"SELECT {columns} FROM orders"), key=repr)
    assert rows(session, f"{schema}.public_odd_names", "a, `b c`, `d.e`") == [(1, "x", 1), (2, "z", 2)]
    assert "public_log" not in {row.tableName for row in session.sql(f"SHOW TABLES IN {schema}").collect()}
    pipeline.apply = "merge"
    pipeline.run("apply")
    merged = pipeline.table("silver", "public_orders")
    assert by_flow == rows(session, merged, f"{columns}, __sequence, __committed_at")


def test_rows_that_vanished_are_found_by_what_bronze_says(
    database: Database, make_pipeline: MakePipeline
) -> None:
    """Silver is somebody else's, and may lag, so it is not asked."""
    pipeline = make_pipeline(database, table_include_list="public.orders")
    pipeline.apply = "declarative"
    pipeline.run()
    database.execute("DELETE FROM orders WHERE id = 8")
    pipeline.run()
    database.execute(
        f"SELECT pg_drop_replication_slot('{database.slot}')", "DELETE FROM orders WHERE id IN (7, 9)"
    )
    pipeline.run("snapshot")
    gone = [row for row in pipeline.rows("bronze", "public_orders").to_pylist() if row["op"] == "d"]
    found = sorted((row["source"]["snapshot"] or "", row["before"]["id"]) for row in gone)
    assert [each for each in found if each[0] == "vanished"] == [("vanished", 7), ("vanished", 9)]
    assert [state["state"] for state in pipeline.control("tables")] == ["streaming"]


@pytest.mark.parametrize("verb", ["apply", "reconcile"])
def test_who_writes_to_silver_is_refused(database: Database, make_pipeline: MakePipeline, verb: str) -> None:
    pipeline = make_pipeline(database)
    pipeline.apply = "declarative"
    assert "which a declarative pipeline keeps" in pipeline.attempt(verb).what
