"""``cdc maintain`` on real pipelines: what it puts in order goes on to be captured, recovered and rebuilt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, WriterProperties

from cdc_lib.config import load
from cdc_lib.control import Control
from cdc_lib.control.row import ControlTable
from cdc_lib.delta import Lake
from cdc_lib.delta_log import versions
from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill, workload
from tests.engines.conformance import assert_same, ops
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase
from tests.servers.postgresql import Database

pytestmark = pytest.mark.timeout(300)

LIMITS = {"batch_rows": 450, "chunk_rows": 160, "threads": 2}


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        made.execute(
            "CREATE TABLE t (id integer PRIMARY KEY, n integer)", "INSERT INTO t VALUES (1, 1), (2, 2)"
        )
        yield made


def update_often(database: PostgresDatabase, pipeline: PipelineUnderTest, times: int = 9) -> None:
    """So many batches, each with a row and a file of its own."""
    for number in range(times):
        database.execute(f"UPDATE t SET n = n + {number} WHERE id = 1")
        pipeline.run("capture")


def maintained(pipeline: PipelineUnderTest, **options: Any) -> dict[str, Mapping[str, Any]]:
    """What was done to each table."""
    outcome = pipeline.spark.run(pipeline.write(), "maintain", **options)
    assert not outcome.error, outcome.trace
    print(outcome.result)
    return {table["table"]: table for table in outcome.result["tables"]}


def log_of(pipeline: PipelineUnderTest, layer: str, table: str) -> Path:
    return pipeline.lake / layer / table / "_delta_log"


def forget_old_commits(pipeline: PipelineUnderTest, layer: str, table: str) -> None:
    """What Delta does to commits of a month ago, once a checkpoint stands above them."""
    path = str(pipeline.lake / layer / table)
    DeltaTable(path).create_checkpoint()
    for version in versions(path)[:-1]:
        (log_of(pipeline, layer, table) / f"{version:020d}.json").unlink()


def age_control_rows(pipeline: PipelineUnderTest, days: int) -> None:
    """All rows of control tables, but the lease's, as if written so long ago."""
    loaded = load(pipeline.write())
    for table in Control(Lake(loaded.target), loaded.name).every():
        if table.name not in ("leases", "tables"):
            _age(table, timedelta(days=days))


def _age(table: ControlTable[Any], by: timedelta) -> None:
    held = DeltaTable(str(table.ref.path))
    times = [field.name for field in held.schema().fields if str(field.type).find("timestamp") >= 0]
    if held.to_pyarrow_table().num_rows and times:
        held.update(
            {name: f"\"{name}\" - INTERVAL '{by.days} days'" for name in times},
            writer_properties=WriterProperties(),
        )


def test_many_files_become_one_and_the_pipeline_goes_on(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    update_often(database, pipeline)
    before = pipeline.rows("bronze", "public_t", rest="ORDER BY _sequence").to_pylist()
    done = maintained(pipeline)
    assert (done["bronze.public_t"]["files"], done["bronze.public_t"]["files_after"]) == (10, 1)
    assert pipeline.rows("bronze", "public_t", rest="ORDER BY _sequence").to_pylist() == before
    assert maintained(pipeline)["bronze.public_t"]["files"] == 1
    assert [run["verb"] for run in pipeline.control("runs")].count("maintain") == 2
    database.execute("UPDATE t SET n = 0 WHERE id = 2")
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t") == ["r", "r", *["u"] * 10]


@pytest.mark.slow
def test_control_rows_that_are_old_go_and_the_pipeline_goes_on(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """Structures, signals and what silver lacks are still known."""
    pipeline = make_pipeline(database.database)
    pipeline.run()
    database.execute("ALTER TABLE t ADD label text", "INSERT INTO t VALUES (3, 3, 'three')")
    pipeline.run()
    update_often(database, pipeline, 3)
    age_control_rows(pipeline, days=100)
    # Silver lacks the last three batches, so their seals are needed.
    maintained(pipeline)
    assert [row["batch"] for row in sorted(pipeline.control("batches"), key=lambda row: row["batch"])] == [
        1,
        2,
        3,
        4,
        5,
    ]
    pipeline.run()
    assert_same(pipeline, database, "t")
    age_control_rows(pipeline, days=100)
    maintained(pipeline)
    batches = [row["batch"] for row in pipeline.control("batches")]
    assert sorted(batches) == [1, 2, 5], "two that brought structures, and the newest"
    assert len(pipeline.control("watermarks")) <= 4
    database.execute("UPDATE t SET label = 'one', n = -1 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_bronze_that_somebody_else_changed_is_left_alone(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """To take it back, the files of the earlier version are needed."""
    pipeline = make_pipeline(database.database)
    pipeline.run()
    update_often(database, pipeline)
    DeltaTable(str(pipeline.lake / "bronze" / "public_t")).delete("_batch = 3")
    version = DeltaTable(str(pipeline.lake / "bronze" / "public_t")).version()
    found = maintained(pipeline)["bronze.public_t"]
    assert found["finding"]
    assert "changed by somebody else (DELETE" in found["left"]
    assert DeltaTable(str(pipeline.lake / "bronze" / "public_t")).version() == version
    refused = pipeline.attempt()
    assert refused.error == "ResnapshotNeeded"
    assert f"TO VERSION AS OF {version - 1}" in refused.remedy
    pipeline.spark.sql(
        f"RESTORE TABLE {pipeline.table('bronze', 'public_t')} TO VERSION AS OF {version - 1}",
        pipeline.folder,
    )
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_maintained_between_a_kill_and_the_recovery(
    recorded_database: Database, make_pipeline: MakePipeline
) -> None:
    """Some tables have the batch and some have not: the files move, and each row still arrives once."""
    pipeline = make_pipeline(recorded_database, {**LIMITS, "commit_threads": 1})
    with workload.Workload(recorded_database, seed=41):
        pipeline.run()
        for _ in range(9):
            pipeline.run("capture")
        kill.killed(pipeline, "bronze.appended.one", "capture")
        done = maintained(pipeline)
        assert any(
            table["files_after"] < table["files"]
            for name, table in done.items()
            if name.startswith("bronze.")
        ), done
    pipeline.run()
    found = kill.differences(pipeline, recorded_database)
    assert not found, kill.shown(found)


@pytest.mark.slow
def test_bronze_of_a_batch_that_waits_for_long_is_left_alone(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    update_often(database, pipeline)
    database.execute("UPDATE t SET n = 0 WHERE id = 2")
    kill.killed(pipeline, "bronze.appended", "capture")
    age_control_rows(pipeline, days=8)
    assert "is not committed; to do: cdc run" in maintained(pipeline)["bronze.public_t"]["left"]
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert maintained(pipeline)["bronze.public_t"]["files_after"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", [False, True])
def test_rebuilt_after_maintenance(
    recorded_database: Database, make_pipeline: MakePipeline, *, forgotten: bool
) -> None:
    """Also when Delta has forgotten the commits that brought the rows: maintenance repeated what they say."""
    pipeline = make_pipeline(recorded_database, LIMITS)
    with workload.Workload(recorded_database, seed=42):
        pipeline.run()
        for _ in range(9):
            pipeline.run("capture")
        start = kill.started_at(pipeline)
        done = maintained(pipeline)
        moved = [name.partition(".")[2] for name, t in done.items() if t["files_after"] != t["files"]]
        assert moved
        for table in moved if forgotten else []:
            forget_old_commits(pipeline, "bronze", table)
        shutil.rmtree(pipeline.lake / "control")
        found = pipeline.run("rebuild").result
    assert found["gap"] is None
    assert set(found["tables"].values()) == {"streaming"}, found["said"]
    pipeline.run()
    differences = kill.differences(pipeline, recorded_database, start=start)
    assert not differences, kill.shown(differences)


@pytest.mark.slow
def test_beside_a_run_that_goes_on(recorded_database: Database, make_pipeline: MakePipeline) -> None:
    """Neither ends because of the other, and nothing is lost or doubled."""
    pipeline = make_pipeline(recorded_database, LIMITS)
    pipeline.maintain = {"keep_days": 1}
    with workload.Workload(recorded_database, seed=43, pace=0.01) as writes:
        pipeline.run()
        before = newest_batch(pipeline)
        process = pipeline.start("run", "--continuous")
        moved = False
        while process.poll() is None and not (moved and newest_batch(pipeline) > before + 12):
            done = maintained(pipeline)
            moved |= any(table["files_after"] < table["files"] for table in done.values())
        assert process.poll() is None, kill.finished(process)
        process.terminate()
        output = kill.finished(process)
    assert writes.transactions > 10
    assert process.returncode == 130, output
    pipeline.run()
    found = kill.differences(pipeline, recorded_database)
    assert not found, kill.shown(found)
    verbs = {run["verb"]: run["outcome"] for run in pipeline.control("runs")}
    assert verbs["maintain"] == "done"


def newest_batch(pipeline: PipelineUnderTest) -> int:
    return max(int(row["batch"]) for row in pipeline.control("batches"))


@pytest.mark.slow
def test_a_week_is_kept_unless_forced_while_nothing_runs(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    pipeline.maintain = {"vacuum_hours": 1}
    refused = pipeline.attempt("maintain")
    assert (refused.error, refused.exit_code) == ("FixConfiguration", 2), refused.trace
    assert "--force" in refused.remedy
    process = kill.paused(pipeline, "recovered")
    try:
        outcome = pipeline.spark.run(pipeline.write(), "maintain", force=True)
        assert (outcome.error, outcome.exit_code) == ("RetryLater", 3), outcome.trace
    finally:
        kill.woken(process)
    maintained(pipeline, force=True)
    database.execute("UPDATE t SET n = 0 WHERE id = 2")
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_a_catalog(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    """By the command, as the job runs it: first what would be done, then done."""
    pipeline = make_pipeline(database.database)
    layers = {layer: f"{database.name}_{layer}" for layer in ("bronze", "silver", "control")}
    pipeline.target = {"catalog": "spark_catalog", **layers}
    pipeline.run()
    update_often(database, pipeline)
    bronze = f"{layers['bronze']}.public_t"
    for options, files in ((["--plan"], (10, None)), ([], (10, 1))):
        process = pipeline.start("maintain", "--json", *options)
        output, _ = process.communicate(timeout=400)
        assert process.returncode == 0, output
        found = json.loads(output[output.index("{") :])
        (table,) = (each for each in found["tables"] if each["table"] == bronze)
        assert (table["files"], table["files_after"]) == files
    database.execute("UPDATE t SET n = 0 WHERE id = 2")
    pipeline.run()
    assert_same(pipeline, database, "t")


def test_nothing_captured_yet(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    assert maintained(pipeline) == {}
    assert not pipeline.lake.exists(), "control tables that are lost must not come back empty"
