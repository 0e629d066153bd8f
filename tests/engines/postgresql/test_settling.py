"""What a snapshot leaves to do once silver has it, from a real server to silver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill
from tests.engines.conformance import assert_same
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        yield made


def fill(database: PostgresDatabase, key: str, value: str) -> None:
    """A table ``t`` of ten rows with a column that the log leaves out where it did not change."""
    database.execute(
        f"CREATE TABLE t (id {key} PRIMARY KEY, n int, large text)",
        "ALTER TABLE t ALTER COLUMN large SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT {value}, i, repeat(md5(i::text), 200) FROM generate_series(1, 10) i",
    )


def run_while_keys_move(pipeline: PipelineUnderTest, database: PostgresDatabase, *moves: str) -> str:
    """A first run in which keys move between the window's low watermark and its piece: the piece shows the
    rows under their new keys only, which the log creates without the large column."""
    process = kill.paused(pipeline, "snapshot.opened", "run")
    database.execute(*moves)
    code, output = kill.woken(process)
    assert code == 0, output
    return output


def test_rows_that_moved_before_their_piece_was_read(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    fill(database, "int", "i")
    pipeline = make_pipeline(database.database)
    moves = ("UPDATE t SET id = id + 100 WHERE n <= 3", "UPDATE t SET n = -1 WHERE id = 102")
    output = run_while_keys_move(pipeline, database, *moves)
    assert "rows are read by their keys" in output
    assert_same(pipeline, database, "t")
    assert not pipeline.control("incidents")


def test_a_run_that_dies_before_it_reads_them(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """The table's state says what is left to do."""
    fill(database, "int", "i")
    pipeline = make_pipeline(database.database)
    process = kill.paused(pipeline, "snapshot.opened", "capture")
    database.execute("UPDATE t SET id = id + 100 WHERE n <= 3")
    code, output = kill.woken(process)
    assert code == 0, output
    kill.killed(pipeline, "silver.merged")
    pipeline.run()
    assert_same(pipeline, database, "t")


def test_a_history_across_a_gap_in_the_log(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    """Rows that a new snapshot finds as they were begin no version; those that it misses have ended."""
    fill(database, "int", "i")
    pipeline = make_pipeline(database.database)
    pipeline.tables = [{"match": r"public\.t", "scd": 2}]
    pipeline.run()
    [(slot,)] = database.database.rows(
        "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (database.name,)
    )
    database.database.rows("SELECT pg_drop_replication_slot(%s)", (slot,))
    database.execute("DELETE FROM t WHERE id > 8", "UPDATE t SET n = -1 WHERE id = 1")
    assert pipeline.attempt("run").error == "ResnapshotNeeded"
    pipeline.run("snapshot")
    assert_same(pipeline, database, "t")
    found = pipeline.rows("silver", "public_t").to_pylist()
    ended = sorted((row["id"], row["n"]) for row in found if row["__END_AT"] is not None)
    assert ended == [(1, 1), (9, 9), (10, 10)]
    assert len(found) == 11


def test_rows_that_the_source_cannot_be_asked_for_stay_listed(
    database: PostgresDatabase, make_pipeline: MakePipeline
) -> None:
    """Their key is a number here and a time there. An incident says so, and what it tells to do mends it."""
    fill(database, "timestamp", "'2024-01-01'::timestamp + i * interval '1 day'")
    pipeline = make_pipeline(database.database, time_precision_mode="adaptive")
    run_while_keys_move(pipeline, database, "UPDATE t SET id = id + interval '1 year' WHERE n <= 3")
    (incident,) = pipeline.control("incidents")
    assert (incident["kind"], incident["message"].split()[0]) == ("value not known", "3")
    found = pipeline.rows("silver", "public_t").to_pylist()
    assert sorted(row["n"] for row in found if row["__unavailable"]) == [1, 2, 3]
    assert incident["remedy"] == "cdc snapshot public.t"
    pipeline.run("snapshot", ["public.t"])
    found = pipeline.rows("silver", "public_t").to_pylist()
    assert len(found) == 10
    assert all(row["large"] and not row["__unavailable"] for row in found)
