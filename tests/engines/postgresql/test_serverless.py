"""From the database to silver through a Spark Connect server, by a client that refuses what serverless
compute refuses (``tests/serverless.py``); and by the wheel in an environment with nothing but a client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.bundle.built import build_wheel
from tests.engines.conformance import assert_same, ops
from tests.engines.connect_server import without_spark
from tests.engines.pipelines import ROOT, PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase
from tests.serverless import ALLOWED_SETTINGS, COPED_WITH, Asked

pytestmark = pytest.mark.timeout(400)

LAYERS = ("bronze", "silver", "control")


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        made.execute(
            "CREATE TABLE t (id integer PRIMARY KEY, n integer, name text)",
            "COMMENT ON TABLE t IS 'Things, as the shop''s staff call them'",
            "COMMENT ON COLUMN t.n IS 'how many'",
            "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')",
        )
        yield made


def change(database: PostgresDatabase) -> None:
    """A partial update, a key that moves, a delete, and a row that comes and goes."""
    database.execute(
        "UPDATE t SET n = 5 WHERE id = 1",
        "UPDATE t SET id = 30 WHERE id = 3",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t VALUES (4, 4, 'd'), (5, 5, 'e')",
        "DELETE FROM t WHERE id = 4",
    )


def in_catalog(pipeline: PipelineUnderTest, database: PostgresDatabase) -> PipelineUnderTest:
    layers = {layer: f"{database.name}_{layer}" for layer in LAYERS}
    pipeline.target = {"catalog": "spark_catalog", "writer": "spark", **layers}
    return pipeline


def serverless(pipeline: PipelineUnderTest, *verb: str) -> Asked:
    """``cdc`` as on serverless compute; what it asked of Spark."""
    place = pipeline.folder / "asked.json"
    command = [sys.executable, "-m", "tests.serverless", *(verb or ("run",)), str(pipeline.write())]
    environment = {
        **without_spark(),
        "CDC_SPARK_REMOTE": pipeline.spark.remote,
        "CDC_TEST_ASKED": str(place),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    asked = Asked(**json.loads(place.read_text(encoding="utf-8")))
    assert asked.connect
    assert set(asked.settings) <= ALLOWED_SETTINGS
    assert set(asked.refused) <= COPED_WITH
    return asked


def about(pipeline: PipelineUnderTest, layer: str, table: str) -> Mapping[str, Any]:
    """Comment and properties of a table in the catalog, and its columns' comments."""
    name = pipeline.table(layer, table)
    sql = pipeline.spark.sql
    described = sql(f"DESCRIBE EXTENDED {name}", pipeline.folder).to_pylist()
    properties = sql(f"SHOW TBLPROPERTIES {name}", pipeline.folder).to_pylist()
    found = {row["key"]: row["value"] for row in properties}
    for row in reversed(described):
        found[row["col_name"]] = row["comment"] if row["data_type"] in ("int", "string") else row["data_type"]
    return found


@pytest.mark.slow
def test_capture_bronze_and_silver_in_a_catalog(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    pipeline = in_catalog(make_pipeline(database.database), database)
    pipeline.tables = [{"match": "public[.]t", "comments": {"name": "what it is called", "n": "not used"}}]
    first = serverless(pipeline)
    assert {place.replace("`", "").split(".")[1] for place in first.appends} >= {
        f"{database.name}_{layer}" for layer in LAYERS
    }
    change(database)
    asked = serverless(pipeline)
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t") == ["r", "r", "r", "u", "d", "c", "d", "c", "c", "d"]
    assert f"`{database.name}_silver`.`public_t`" in "".join(asked.merged)
    said = about(pipeline, "silver", "public_t")
    assert said["Comment"] == "Things, as the shop's staff call them"
    assert (said["n"], said["name"]) == ("how many", "what it is called")
    assert (said["cdc.pipeline"], said["cdc.source_table"]) == (database.name, "public.t")
    assert said["cdc.bronze"] == f"{database.name}_bronze.public_t"


@pytest.mark.slow
@pytest.mark.parametrize("rule", [{"scd": 2}, {"delete": "soft"}])
def test_histories_and_kept_rows(
    database: PostgresDatabase, make_pipeline: MakePipeline, rule: dict[str, Any]
) -> None:
    pipeline = in_catalog(make_pipeline(database.database), database)
    pipeline.tables = [{"match": "public[.]t", **rule}]
    serverless(pipeline)
    change(database)
    serverless(pipeline)
    assert_same(pipeline, database, "t")
    serverless(pipeline, "reconcile")


@pytest.mark.slow
def test_under_a_path_written_by_spark(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.writer = "spark"
    serverless(pipeline, "capture")
    change(database)
    serverless(pipeline)
    database.execute("UPDATE t SET name = NULL")
    asked = serverless(pipeline)
    assert_same(pipeline, database, "t")
    assert any("/bronze/" in place for place in asked.appends)
    assert any("/silver/" in statement for statement in asked.merged)


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(
    database: PostgresDatabase, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    """With Spark's client alone, as Databricks Connect is: no JVM, no Delta of its own."""
    from pyspark import __version__ as spark

    wheel = build_wheel(tmp_path / "dist").path
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    programs = tmp_path / "venv" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    wanted = [f"{wheel}[postgresql,databricks]", f"pyspark-client=={spark}", "pandas<3"]
    subprocess.run([*install, *wanted], check=True, timeout=300)

    pipeline = in_catalog(make_pipeline(database.database), database)
    file = str(pipeline.write())
    environment = {
        **without_spark(),
        "CDC_SPARK_REMOTE": pipeline.spark.remote,
        "PYTHONPATH": "",
        "JAVA_HOME": "/nowhere",
    }

    def cdc(*words: str) -> str:
        done = subprocess.run(
            [str(programs / "cdc"), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    cdc("check", file)
    assert "3 rows to bronze, 0 applied to silver" in cdc("capture", file)
    change(database)
    assert "7 rows to bronze" in cdc("run", file)
    assert_same(pipeline, database, "t")
    assert "public.t" in cdc("status", file)
