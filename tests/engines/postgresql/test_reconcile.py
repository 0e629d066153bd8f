"""``cdc reconcile`` on a real server: damage done to silver is found down to the cell, and mended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import workload
from tests.engines.conformance import assert_same
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase
from tests.servers.postgresql import Database

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        yield made


def fill(database: PostgresDatabase, rows: int) -> None:
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, note text, amount numeric(12,3), "
        "at timestamptz, day timestamp, ratio float8)",
        f"""INSERT INTO t SELECT n, 'customer ' || n, CASE n % 3 WHEN 0 THEN '' WHEN 1 THEN 'note' END,
            n / 8.0, '2024-01-01+00'::timestamptz + n * interval '7 s', '2024-01-01'::timestamp, n / 7.0
            FROM generate_series(1, {rows}) n""",
    )


DAMAGE = {
    10: "name = 'customer 010'",
    11: "name = concat(name, ' ')",
    12: "note = NULL",
    13: "amount = amount + 0.001",
    14: "at = at + INTERVAL 1 HOUR",
    15: "ratio = -ratio",
    16: "name = 'customer 17'",
    17: "name = 'customer 16'",
}
"""By key, what is done to silver's row. 16 and 17 exchange their names."""


def damage(pipeline: PipelineUnderTest) -> None:
    silver = pipeline.table("silver", "public_t")
    cases: dict[str, str] = {}
    for key, change in DAMAGE.items():
        column, _, value = change.partition(" = ")
        cases[column] = cases.get(column, "CASE id") + f" WHEN {key} THEN {value}"
    changes = ", ".join(f"{column} = {case} ELSE {column} END" for column, case in cases.items())
    keys = ", ".join(map(str, DAMAGE))
    pipeline.spark.sql(f"UPDATE {silver} SET {changes} WHERE id IN ({keys})", pipeline.folder)
    pipeline.spark.sql(f"DELETE FROM {silver} WHERE id = 30", pipeline.folder)
    pipeline.spark.sql(f"INSERT INTO {silver} (id, name) VALUES (-1, 'nobody')", pipeline.folder)


def cells(result: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str, str]]:
    return {
        (one["key"]["id"], one["column"]): (one["kind"], one["source"], one["silver"])
        for one in result["differences"]
    }


@pytest.mark.parametrize("size", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_damage_is_found_to_the_cell_and_mended(
    size: int, database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    fill(database, size)
    pipeline = make_pipeline(database.database)
    pipeline.run()
    [equal] = pipeline.reconcile()["tables"]
    assert (equal["same"], equal["source_rows"], equal["silver_rows"]) == (True, size, size)
    damage(pipeline)
    found = pipeline.reconcile()
    [table] = found["tables"]
    assert not found["same"]
    assert cells(table) == {
        ("-1", ""): ("only in silver", None, None),
        ("10", "name"): ("different", '"customer 10"', '"customer 010"'),
        ("11", "name"): ("different", '"customer 11"', '"customer 11 "'),
        ("12", "note"): ("different", '""', "NULL"),
        ("13", "amount"): ("different", "1.625", "1.626"),
        ("14", "at"): ("different", "2024-01-01 00:01:38.000000Z", "2024-01-01 01:01:38.000000Z"),
        ("15", "ratio"): ("different", "2.142857142857143", "-2.142857142857143"),
        ("16", "name"): ("different", '"customer 16"', '"customer 17"'),
        ("17", "name"): ("different", '"customer 17"', '"customer 16"'),
        ("30", ""): ("missing in silver", None, None),
    }
    counts = {name: table[name] for name in ("equal", "wrong", "lost", "extra", "unknown")}
    assert counts == {"equal": size - 9, "wrong": 8, "lost": 1, "extra": 1, "unknown": 0}

    mended = pipeline.reconcile(repair=True)
    assert mended["same"]
    assert mended["tables"][0]["repaired"] == 10
    rest = "WHERE source.snapshot = 'repair' ORDER BY coalesce(after.id, before.id)"
    rows = pipeline.rows("bronze", "public_t", "op, coalesce(after.id, before.id) AS id", rest).to_pylist()
    assert [(row["op"], row["id"]) for row in rows] == [("d", -1), *(("r", key) for key in (*DAMAGE, 30))]
    database.execute("UPDATE t SET name = 'changed' WHERE id IN (10, 30)", "DELETE FROM t WHERE id = 11")
    assert pipeline.reconcile()["tables"][0]["different"] == 0
    assert [row["kind"] for row in pipeline.control("incidents")] == ["difference", "difference"]


@pytest.mark.slow
def test_every_type(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    """Read by the snapshot, then by the log; from plain files, then, with deletion vectors, by Spark."""
    types = database.typed()
    longest = max(len(values) for _, values in types.values())
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in types.items())
    rows = [
        ", ".join(str((*values, "NULL")[min(place, len(values))]) for _, values in types.values())
        for place in range(longest + 1)
    ]
    database.execute(
        f"CREATE TABLE t (id integer PRIMARY KEY, {columns})",
        *(f"INSERT INTO t VALUES ({place}, {row})" for place, row in enumerate(rows)),
    )
    pipeline = make_pipeline(database.database)
    pipeline.run()
    assert pipeline.reconcile()["same"]
    database.execute(
        *(f"INSERT INTO t VALUES ({100 + place}, {row})" for place, row in enumerate(rows)),
        "UPDATE t SET c_smallint = 5 WHERE id < 4",
    )
    [table] = pipeline.reconcile()["tables"]
    assert (table["same"], table["equal"]) == (True, 2 * len(rows))

    silver = pipeline.table("silver", "public_t")
    changes = [
        f"ALTER TABLE {silver} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"UPDATE {silver} SET c_real = 0.0 WHERE c_real = 0.0 AND id = 5",
        f"UPDATE {silver} SET c_bytea = X'00FF11' WHERE id = 1",
        f"UPDATE {silver} SET a_integer = array(1, 2, NULL, 3) WHERE id = 0",
        f"UPDATE {silver} SET __special = map('c_date', '-infinity') WHERE id = 2",
        f"UPDATE {silver} SET __special = NULL WHERE id = 103",
    ]
    for change in changes:
        pipeline.spark.sql(change, pipeline.folder)
    [table] = pipeline.reconcile(shown=100)["tables"]
    found = cells(table)
    assert {key for key, _ in found} == {"0", "1", "2", "5", "103"}
    assert found["5", "c_real"] == ("different", "-0", "0")
    assert found["1", "c_bytea"] == ("different", "00ff10", "00ff11")
    assert found["0", "a_integer"] == ("different", "[1, 2, NULL, -3]", "[1, 2, NULL, 3]")
    assert found["2", "c_date"] == ("different", "infinity (server text)", "-infinity (server text)")
    assert found["103", "c_date"] == ("different", "-infinity (server text)", "NULL")
    assert pipeline.reconcile(repair=True)["same"]
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_tables_of_all_kinds(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    database.execute(
        "CREATE TABLE soft (id int PRIMARY KEY, v text)",
        "INSERT INTO soft VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE TABLE twice (id int PRIMARY KEY, v text)",
        "INSERT INTO twice VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE TABLE readings (sensor int, v float8)",
        "INSERT INTO readings VALUES (1, 1), (1, 1), (2, NULL)",
        "CREATE TABLE counted (n int)",
        "ALTER TABLE counted REPLICA IDENTITY FULL",
        "INSERT INTO counted VALUES (1), (1), (2)",
        "CREATE TABLE versions (id int PRIMARY KEY, v text)",
        "INSERT INTO versions VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')",
        "CREATE TABLE odd (day date PRIMARY KEY)",
        "INSERT INTO odd VALUES ('infinity')",
        "CREATE TABLE pairs (one text, other text, v int)",
        "INSERT INTO pairs VALUES ('a', 'b', 1), ('ab', '', 2)",
        "CREATE TABLE narrow (id int PRIMARY KEY, old text, v text)",
        "INSERT INTO narrow VALUES (1, 'x', 'y')",
        "CREATE TABLE large (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE large ALTER COLUMN body SET STORAGE EXTERNAL",
    )
    pipeline = make_pipeline(database.database, message_key_columns="public.pairs:one,other")
    pipeline.tables = [
        {"match": r"public\.soft", "delete": "soft"},
        {"match": r"public\.versions", "scd": 2},
    ]
    pipeline.run()
    database.execute(
        "DELETE FROM soft WHERE id = 2",
        "UPDATE counted SET n = 5 WHERE n = 1",
        "UPDATE versions SET v = 'z' WHERE id < 3",
        "DELETE FROM versions WHERE id = 2",
        "ALTER TABLE narrow DROP COLUMN old",
        "UPDATE narrow SET v = 'z'",
        "INSERT INTO large VALUES (1, 1, repeat('x', 9000))",
    )
    found = pipeline.reconcile()
    assert found["same"]
    names = ("soft", "twice", "readings", "counted", "versions", "pairs", "large")
    compared = {table["table"]: table for table in found["tables"]}
    assert compared.keys() == {f"public.{name}" for name in (*names, "narrow")}
    assert compared["public.narrow"]["kept"] == ["old"]
    assert compared["public.soft"]["silver_rows"] == 2
    [skipped] = found["skipped"]
    assert skipped["table"] == "public.odd"
    assert "bronze only" in skipped["reason"]

    database.execute("ALTER TABLE narrow ADD COLUMN fresh int")
    silver = {name: pipeline.table("silver", f"public_{name}") for name in names}
    for change in (
        f"UPDATE {silver['soft']} SET __deleted_at = NULL WHERE id = 2",
        f"UPDATE {silver['soft']} SET __deleted_at = current_timestamp() WHERE id = 3",
        f"INSERT INTO {silver['soft']} SELECT * FROM {silver['soft']} WHERE id = 1",
        f"INSERT INTO {silver['twice']} SELECT * FROM {silver['twice']} WHERE id < 3",
        f"UPDATE {silver['versions']} SET v = 'y' WHERE id = 1 AND __END_AT IS NULL",
        f"UPDATE {silver['versions']} SET v = 'never there' WHERE __END_AT IS NOT NULL",
        f"DELETE FROM {silver['versions']} WHERE id = 3",
        f"UPDATE {silver['counted']} SET n = 6 WHERE n = 2",
        f"DELETE FROM {silver['readings']} WHERE sensor = 2",
        f"INSERT INTO {silver['readings']} (sensor, v) VALUES (1, 1.0)",
        f"UPDATE {silver['pairs']} SET v = 7 WHERE one = 'ab'",
        f"ALTER TABLE {silver['large']} ADD COLUMNS (__unavailable ARRAY<STRING>)",
        f"UPDATE {silver['large']} SET body = NULL, __unavailable = array('body')",
    ):
        pipeline.spark.sql(change, pipeline.folder)
    found = pipeline.reconcile()
    compared = {table["table"].removeprefix("public."): table for table in found["tables"]}
    counts = {
        name: (table["wrong"], table["unknown"], table["lost"], table["extra"], table["lacking"])
        for name, table in compared.items()
    }
    assert counts == {
        "soft": (0, 0, 1, 2, []),
        "twice": (0, 0, 0, 2, []),
        "counted": (0, 0, 1, 1, []),
        "versions": (1, 0, 1, 0, []),
        "readings": (0, 0, 1, 1, []),
        "pairs": (1, 0, 0, 0, []),
        "narrow": (0, 0, 0, 0, ["fresh"]),
        "large": (0, 1, 0, 0, []),
    }
    assert [one["key"] for one in compared["pairs"]["differences"]] == [{"one": '"ab"', "other": '""'}]
    [unknown] = compared["large"]["differences"]
    assert (unknown["kind"], unknown["column"], unknown["silver"]) == ("not known", "body", None)

    tables = [f"public.{name}" for name in names]
    found = pipeline.reconcile(*tables, repair=True)
    compared = {table["table"].removeprefix("public."): table for table in found["tables"]}
    assert {name: table["same"] for name, table in compared.items()} == {
        "soft": False,
        "twice": True,
        "counted": False,
        "versions": True,
        "readings": False,
        "pairs": True,
        "large": True,
    }
    assert "cdc snapshot public.readings" in compared["readings"]["remedy"]
    # Deleted softly, both rows of a key would stay.
    assert compared["soft"]["repaired"] == 2
    assert "delete the rows" in compared["soft"]["remedy"]
    pipeline.spark.sql(f"DELETE FROM {silver['soft']} WHERE id = 1", pipeline.folder)
    assert pipeline.reconcile("public.soft", repair=True)["same"]
    # A row that somebody else put there has no sequence; a snapshot must not take it for a newer one.
    pipeline.spark.sql(f"INSERT INTO {silver['pairs']} (one, other) VALUES ('z', 'z')", pipeline.folder)
    pipeline.run("snapshot", ["public.readings", "public.counted", "public.pairs"])
    found = pipeline.reconcile(*tables)
    assert {table["table"]: table["different"] for table in found["tables"]} == dict.fromkeys(tables, 0)


@pytest.mark.slow
def test_in_a_catalog(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    fill(database, 3000)
    pipeline = make_pipeline(database.database)
    layers = {layer: f"{database.name}_{layer}" for layer in ("bronze", "silver", "control")}
    pipeline.target = {"catalog": "spark_catalog", **layers}
    pipeline.run()
    damage(pipeline)
    # A client of Spark Connect, whose server's workers are sent the code that hashes.
    process = pipeline.start("reconcile")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1, output
    assert "8 differ, 0 not known, 1 missing in silver, 1 only in silver" in output
    assert "cdc reconcile public.t --repair" in output
    [table] = pipeline.reconcile(repair=True)["tables"]
    assert {key for key, _ in cells(table)} == {"-1", *map(str, DAMAGE), "30"}
    assert (table["different"], table["same"]) == (10, True)
    assert pipeline.reconcile()["tables"][0]["different"] == 0


@pytest.mark.slow
def test_equal_under_load(recorded_database: Database, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(recorded_database)
    pipeline.run_limits = {"chunk_rows": 200}
    pipeline.run()
    positions = []
    with workload.Workload(recorded_database, seed=11) as writers:
        for _ in range(4):
            before = writers.transactions
            found = pipeline.reconcile()
            assert found["same"], found
            assert len(found["tables"]) == len(workload.TABLES)
            assert writers.transactions > before
            positions.append(found["position"])
    assert len(set(positions)) == 4
    assert not pipeline.control("incidents")


def test_a_table_that_is_not_captured(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = make_pipeline(database.database)
    outcome = pipeline.attempt("reconcile", ["public.other"])
    assert (outcome.error, outcome.exit_code) == ("FixConfiguration", 2)
    assert "public.other" in outcome.what
