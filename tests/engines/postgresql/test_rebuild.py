"""Control tables that are lost and written anew from bronze: ``cdc rebuild``, then the next run.

What must hold then is what always holds: bronze has every change once, silver is what the source is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill, workload
from tests.engines.conformance import assert_same, ops
from tests.engines.connect_server import Outcome
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


def lose_control(pipeline: PipelineUnderTest) -> None:
    shutil.rmtree(pipeline.lake / "control")


def rebuild(pipeline: PipelineUnderTest) -> Outcome:
    outcome = pipeline.run("rebuild")
    print(outcome.result)
    return outcome


def states(pipeline: PipelineUnderTest) -> dict[str, str]:
    return {row["source_table"]: row["state"] for row in pipeline.control("tables")}


def incidents(pipeline: PipelineUnderTest) -> list[str]:
    return [row["kind"] for row in sorted(pipeline.control("incidents"), key=lambda row: row["at"])]


@pytest.mark.slow
def test_after_several_batches_while_changes_wait(
    recorded_database: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(recorded_database, LIMITS)
    with workload.Workload(recorded_database, seed=31) as writes:
        pipeline.run()
        pipeline.run()
        # Bronze alone: silver is behind when the control tables go, and must be brought up from there.
        pipeline.run("capture")
        tables = {row["source_table"]: row["table_id"] for row in pipeline.control("tables")}
        batch = max(row["batch"] for row in pipeline.control("batches"))
        start = kill.started_at(pipeline)
        lose_control(pipeline)
        refused = pipeline.attempt()
        assert (refused.error, refused.exit_code) == ("FixConfiguration", 2), refused.trace
        assert "cdc rebuild" in refused.remedy
        found = rebuild(pipeline).result
    assert writes.transactions > 10
    assert found["gap"] is None
    assert found["batch"] == batch + 1, "a number that nothing has seen"
    assert states(pipeline) == dict.fromkeys(workload.TABLES, "streaming")
    assert {row["source_table"]: row["table_id"] for row in pipeline.control("tables")} == tables
    assert incidents(pipeline) == ["control tables rebuilt"]
    pipeline.run()
    found = kill.differences(pipeline, recorded_database, start=start)
    assert not found, kill.shown(found)


def test_after_a_kill_between_the_tables_of_a_batch(
    recorded_database: Database, make_pipeline: MakePipeline
) -> None:
    """What the tables have of it is taken back, and comes again with the log."""
    pipeline = make_pipeline(recorded_database, {**LIMITS, "batch_rows": 5000, "commit_threads": 1})
    pipeline.run()
    start = kill.started_at(pipeline)
    with workload.Workload(recorded_database, seed=32):
        pipeline.run("capture")
        kill.killed(pipeline, "bronze.appended.one", "capture")
        lose_control(pipeline)
        found = rebuild(pipeline).result
    assert "batch undone" in incidents(pipeline), found
    assert found["gap"] is None
    pipeline.run()
    differences = kill.differences(pipeline, recorded_database, start=start)
    assert not differences, kill.shown(differences)


@pytest.mark.slow
def test_in_the_middle_of_a_snapshot(recorded_database: Database, make_pipeline: MakePipeline) -> None:
    """Which pieces were read nobody knows any more: their tables are read again, whole."""
    pipeline = make_pipeline(recorded_database, LIMITS)
    with workload.Workload(recorded_database, seed=33):
        kill.killed(pipeline, "committed:2", "capture")
        start = kill.started_at(pipeline)
        lose_control(pipeline)
        found = rebuild(pipeline).result
    assert "snapshot" in states(pipeline).values()
    assert "table read again" in incidents(pipeline)
    assert found["gap"] is None
    pipeline.run()
    assert set(states(pipeline).values()) == {"streaming"}
    differences = kill.differences(pipeline, recorded_database, start=start)
    assert not differences, kill.shown(differences)


@pytest.mark.slow
def test_rows_that_vanished_before_a_snapshot_that_silver_had_not_settled(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    slot = slot_of(database)
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')", "DELETE FROM t WHERE id = 1")
    # Dies when the rows are read again, and before those that were not seen are deleted.
    assert pipeline.attempt().error == "ResnapshotNeeded"
    kill.killed(pipeline, "silver.merged", "snapshot")
    lose_control(pipeline)
    rebuild(pipeline)
    assert states(pipeline) == {"t": "settle"}
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_a_structure_that_changes_while_the_control_tables_are_lost(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """The structure of the last commit goes on, so the log shows the change as it always does."""
    pipeline = make_pipeline(database.database)
    pipeline.run()
    database.execute("ALTER TABLE t ADD label text", "INSERT INTO t VALUES (3, 3, 'three')")
    pipeline.run("capture")
    database.execute("UPDATE t SET label = 'two' WHERE id = 2", "ALTER TABLE t DROP n")
    database.execute("ALTER TABLE t ADD other int DEFAULT 7", "INSERT INTO t VALUES (4, 'four')")
    lose_control(pipeline)
    rebuild(pipeline)
    database.execute("UPDATE t SET label = 'one' WHERE id = 1")
    pipeline.run()
    found = pipeline.rows("silver", "public_t").select(["id", "label", "other"]).to_pylist()
    true = database.database.rows("SELECT id, label, other FROM t ORDER BY id")
    assert sorted(tuple(row.values()) for row in found) == true
    assert incidents(pipeline) == ["control tables rebuilt", "rows recomputed"]
    numbers = {row["version"] for row in pipeline.control("schema_history")}
    assert numbers == {1, 2, 3}, "as first seen, with label, and as the two changes left it"


@pytest.mark.slow
def test_a_change_of_structure_that_gave_old_rows_values(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """Captured, and its table not read again yet: the note of the batch says that it must be."""
    pipeline = make_pipeline(database.database)
    pipeline.run()
    database.execute("ALTER TABLE t ADD other int DEFAULT 7", "INSERT INTO t VALUES (3, 3, 3)")
    kill.killed(pipeline, "committed", "capture")
    lose_control(pipeline)
    rebuild(pipeline)
    assert states(pipeline) == {"t": "snapshot"}
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_a_rebuild_that_did_not_come_to_its_end(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """The watermark comes last: without it nothing runs, and the rebuild can be repeated."""
    pipeline = make_pipeline(database.database)
    pipeline.run()
    database.execute("UPDATE t SET n = 10 WHERE id = 1")
    lose_control(pipeline)
    rebuild(pipeline)
    shutil.rmtree(pipeline.lake / "control" / "watermarks")
    refused = pipeline.attempt()
    assert (refused.error, "cdc rebuild" in refused.remedy) == ("FixConfiguration", True), refused.trace
    rebuild(pipeline)
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t") == ["r", "r", "u"]
    assert [row["attempt"] for row in pipeline.control("batches")] == [1, 2, 1]


@pytest.mark.slow
def test_silver_that_was_behind(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    """It gets what bronze has without a further change at the source, and without its facts."""
    database.execute("CREATE TABLE u (id integer PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    pipeline = make_pipeline(database.database)
    pipeline.run()
    database.execute("UPDATE t SET n = 10 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    pipeline.run("capture")
    lose_control(pipeline)
    rebuild(pipeline)
    (seal,) = pipeline.control("batches")
    assert [table["name"] for table in seal["tables"]] == ["t"], "silver of u has all there is"
    pipeline.run("apply")
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_bronze_that_somebody_else_changed(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    database.execute("UPDATE t SET n = 10 WHERE id = 1")
    pipeline.run()
    restore = f"RESTORE TABLE {pipeline.table('bronze', 'public_t')} TO VERSION AS OF 1"
    pipeline.spark.sql(restore, pipeline.folder)
    lose_control(pipeline)
    said = rebuild(pipeline).result["said"]
    assert "public.t is read again: somebody else changed its bronze table (RESTORE)" in said
    assert states(pipeline) == {"t": "snapshot"}
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_bronze_of_a_version_that_noted_less(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    """Its tables are described by the source, and read again."""
    pipeline = make_pipeline(database.database)
    pipeline.run()
    for entry in (pipeline.lake / "bronze" / "public_t" / "_delta_log").glob("*.json"):
        entry.write_text("".join(map(_noting_less, entry.read_text("utf-8").splitlines(True))), "utf-8")
    database.execute("INSERT INTO t VALUES (3, 3)")
    lose_control(pipeline)
    rebuild(pipeline)
    assert states(pipeline) == {"t": "snapshot"}
    assert incidents(pipeline) == ["table read again", "control tables rebuilt"]
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert [row["version"] for row in pipeline.control("schema_history")] == [1, 2]


def _noting_less(line: str) -> str:
    action: dict[str, Any] = json.loads(line)
    if "userMetadata" in action.get("commitInfo", {}):
        note = json.loads(action["commitInfo"]["userMetadata"])
        kept = {name: note[name] for name in note if name not in ("state", "snapshot", "structure")}
        action["commitInfo"]["userMetadata"] = json.dumps(kept)
    return json.dumps(action) + "\n"


@pytest.mark.slow
def test_a_log_that_does_not_go_on(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    slot = slot_of(database)
    database.execute("DELETE FROM t WHERE id = 1")
    database.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    lose_control(pipeline)
    found = rebuild(pipeline).result
    assert "moved past" in found["gap"]["what"]
    assert "cdc snapshot" in found["gap"]["remedy"]
    assert pipeline.attempt().error == "ResnapshotNeeded"
    pipeline.run("snapshot")
    assert_same(pipeline, database, "t")


def slot_of(database: PostgresDatabase) -> str:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
    [(name,)] = database.database.rows(query, (database.name,))
    return str(name)


# -- refused


def test_control_tables_that_are_there(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    before = pipeline.control("tables")
    outcome = pipeline.attempt("rebuild")
    assert (outcome.error, outcome.exit_code) == ("FixConfiguration", 2), outcome.trace
    assert "are there" in outcome.what
    assert pipeline.control("tables") == before
    assert not pipeline.control("incidents")


@pytest.mark.slow
def test_control_tables_of_which_some_are_there(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run("capture")
    shutil.rmtree(pipeline.lake / "control" / "watermarks")
    outcome = pipeline.attempt("rebuild")
    assert (outcome.error, outcome.exit_code) == ("FixConfiguration", 2), outcome.trace
    assert "watermarks is not" in outcome.what


@pytest.mark.slow
def test_a_runner_that_owns_the_pipeline(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    pipeline.run()
    lose_control(pipeline)
    process = kill.paused(pipeline, "recovered")
    try:
        outcome = pipeline.attempt("rebuild")
        assert (outcome.error, outcome.exit_code) == ("RetryLater", 3), outcome.trace
    finally:
        code, output = kill.woken(process)
    assert code == 2, output
    assert "cdc rebuild" in output


@pytest.mark.slow
def test_tables_of_two_incarnations(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    database.execute("CREATE TABLE u (id integer PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    pipeline = make_pipeline(database.database)
    pipeline.run("capture")
    pipeline.spark.sql(
        f"ALTER TABLE {pipeline.table('bronze', 'public_u')} SET TBLPROPERTIES ('cdc.incarnation' = 'other')",
        pipeline.folder,
    )
    lose_control(pipeline)
    outcome = pipeline.attempt("rebuild")
    assert (outcome.error, outcome.exit_code) == ("FixConfiguration", 2), outcome.trace
    assert "2 incarnations" in outcome.what
    assert "other: public_u" in outcome.why
    assert not pipeline.control("tables"), "nothing was written"


@pytest.mark.slow
def test_nothing_to_rebuild_from(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    outcome = pipeline.attempt("rebuild")
    assert (outcome.error, outcome.exit_code) == ("FixConfiguration", 2), outcome.trace
    assert "no bronze table" in outcome.what


# -- elsewhere


@pytest.mark.slow
def test_in_a_catalog(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(database.database)
    layers = {layer: f"{database.name}_{layer}" for layer in ("bronze", "silver", "control")}
    pipeline.target = {"catalog": "spark_catalog", **layers}
    pipeline.run()
    database.execute("UPDATE t SET n = 10 WHERE id = 1")
    pipeline.run()
    database.execute("INSERT INTO t VALUES (3, 3)")
    pipeline.spark.sql(f"DROP SCHEMA {layers['control']} CASCADE", pipeline.folder)
    process = pipeline.start("rebuild")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "rebuilt: 1 tables" in output
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t") == ["r", "r", "u", "c"]
