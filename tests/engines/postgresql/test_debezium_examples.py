"""The connectors of Debezium's guide, run against a server: only the address and the login are another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.connectors import connector
from tests.engines.connect_server import ConnectServer
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

INVENTORY = (
    "CREATE TABLE inventory (id int PRIMARY KEY, item text, price numeric(10,2), at timestamptz)",
    "INSERT INTO inventory VALUES (1, 'tea', 2.50, '2026-01-02 03:04:05+00'), (2, 'cup', NULL, NULL)",
)
CHANGES = (
    "INSERT INTO inventory VALUES (3, 'pot', 9.99, now())",
    "UPDATE inventory SET price = 3 WHERE id = 1",
    "UPDATE inventory SET id = 20 WHERE id = 2",
)
Make = Callable[..., PipelineUnderTest]


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        made.execute(*INVENTORY)
        yield made


@pytest.fixture
def make(connect_server: ConnectServer, tmp_path: Path, database: PostgresDatabase) -> Make:
    """A pipeline of the connector of that name; keywords stand in for what only the author's network has."""

    def made(name: str, **properties: Any) -> PipelineUnderTest:
        server = database.database.server
        secrets = tmp_path / "secret.properties"
        secrets.write_text(f"password={server.password}\n", encoding="utf-8")
        here = {
            "database.hostname": server.host,
            "database.port": str(server.port),
            "database.user": server.user,
            "database.password": f"${{file:{secrets}:password}}",
            "database.dbname": database.database.name,
            **properties,
        }
        given = connector(name)
        assert here.keys() - {"database.port"} <= given.keys()
        return PipelineUnderTest(connect_server, tmp_path, given["topic.prefix"], given | here)

    return made


def compared(pipeline: PipelineUnderTest) -> dict[str, int]:
    """Rows that are equal in source and silver, of each table; there must be no others."""
    found = pipeline.reconcile()
    assert found["same"], found
    return {table["table"]: table["equal"] for table in found["tables"]}


def test_quiet_database(database: PostgresDatabase, make: Make) -> None:
    """The heartbeat's query, as the guide gives it, reaches its table, which is captured like any other. It
    is executed when the source may forget what is committed, so not yet by the first run."""
    memory = "DEFAULT current_setting('work_mem')"
    database.execute(f"CREATE TABLE test_heartbeat_table (text text, work_mem text {memory})")
    pipeline = make("quiet_database")
    refused = pipeline.attempt()
    assert refused.error == "FixSource", refused.text
    assert "the publication cdc_fulfillment does not exist" in refused.text
    tables = '"public"."inventory", "public"."test_heartbeat_table"'
    remedy = f'CREATE PUBLICATION "cdc_fulfillment" FOR TABLE {tables}'
    assert remedy in refused.text
    database.execute(remedy)

    pipeline.run()
    database.execute(*CHANGES)
    pipeline.run()
    assert database.database.rows("SELECT * FROM test_heartbeat_table") == [("test_heartbeat", "64MB")]
    pipeline.source["heartbeat.interval.ms"] = "0"
    pipeline.run()
    assert compared(pipeline) == {"public.inventory": 3, "public.test_heartbeat_table": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fulfillment", "read_only", "all_defaults"])
def test_plain(name: str, database: PostgresDatabase, make: Make) -> None:
    pipeline = make(name)
    pipeline.run()
    database.execute(*CHANGES)
    pipeline.run()
    assert compared(pipeline) == {"public.inventory": 3}


@pytest.mark.slow
def test_managed_service(database: PostgresDatabase, make: Make) -> None:
    """Only the tables of a schema, some with keys that the pipeline names, numbers as text."""
    database.execute(
        "CREATE SCHEMA inventory",
        "CREATE TABLE inventory.customers (pk1 int, pk2 text, score numeric(6,2))",
        "CREATE TABLE inventory.purchaseorders (pk3 int NOT NULL, pk4 int NOT NULL, note text)",
        *(
            f"ALTER TABLE inventory.{table} REPLICA IDENTITY FULL"
            for table in ("customers", "purchaseorders")
        ),
        "INSERT INTO inventory.customers VALUES (1, 'a', 1.50), (1, 'b', NULL)",
        "INSERT INTO inventory.purchaseorders VALUES (1, 1, 'first'), (1, 2, 'second')",
    )
    pipeline = make("managed_service", **{"database.sslmode": "prefer"})
    del pipeline.source["database.sslrootcert"]
    pipeline.run()
    database.execute(
        *CHANGES,
        "UPDATE inventory.customers SET score = 2.25 WHERE pk2 = 'b'",
        "DELETE FROM inventory.purchaseorders WHERE pk4 = 1",
        "UPDATE inventory.purchaseorders SET pk4 = 7",
        "INSERT INTO inventory.purchaseorders VALUES (2, 1, 'third')",
    )
    pipeline.run()
    assert compared(pipeline) == {"inventory.customers": 2, "inventory.purchaseorders": 2}
    scores = pipeline.rows("silver", "inventory_customers", "score").column("score").to_pylist()
    assert sorted(scores) == ["1.50", "2.25"]


@pytest.mark.slow
def test_after_an_upgrade(database: PostgresDatabase, make: Make) -> None:
    """Slot and publication were made by hand while nobody wrote; no snapshot is taken."""
    database.execute(
        "CREATE PUBLICATION dbz_publication_17 FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('debezium_17', 'pgoutput')",
        "INSERT INTO inventory VALUES (3, 'pot', 9.99, now())",
    )
    pipeline = make("after_upgrade")
    pipeline.run()
    assert pipeline.rows("silver", "public_inventory", "id").column("id").to_pylist() == [3]
