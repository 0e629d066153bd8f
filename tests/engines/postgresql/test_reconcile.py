"""``cdc reconcile`` on a real server: damage done to silver is found down to the cell, and mended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

ROWS = 100_000


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        yield made


def fill(database: PostgresDatabase, rows: int = ROWS) -> None:
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


def test_damage_is_found_to_the_cell_and_mended(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    fill(database)
    pipeline = make_pipeline(database.database)
    pipeline.run()
    [equal] = pipeline.reconcile()["tables"]
    assert (equal["same"], equal["source_rows"], equal["silver_rows"]) == (True, ROWS, ROWS)
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
    assert counts == {"equal": ROWS - 9, "wrong": 8, "lost": 1, "extra": 1, "unknown": 0}

    mended = pipeline.reconcile(repair=True)
    assert mended["same"]
    assert mended["tables"][0]["repaired"] == 10
    rest = "WHERE source.snapshot = 'repair' ORDER BY coalesce(after.id, before.id)"
    rows = pipeline.rows("bronze", "public_t", "op, coalesce(after.id, before.id) AS id", rest).to_pylist()
    assert [(row["op"], row["id"]) for row in rows] == [("d", -1), *(("r", key) for key in (*DAMAGE, 30))]
    assert pipeline.reconcile()["tables"][0]["different"] == 0
    database.execute("UPDATE t SET name = 'changed' WHERE id IN (10, 30)", "DELETE FROM t WHERE id = 11")
    pipeline.run()
    assert pipeline.reconcile()["same"]
    assert [row["kind"] for row in pipeline.control("incidents")] == ["difference", "difference"]
