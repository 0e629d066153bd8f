"""Tables whose changes do not reach us for a while: left out, dropped, replaced, or published while somebody
writes to them. The log says nothing of it, so they are read whole when they are captured again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill
from tests.engines.conformance import assert_same
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

EVERY = r"public\..*"
WITHOUT_T = r"public\.u"
REPLACED = ("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (7, 7)")


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        for table in ("t", "u"):
            made.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, n int)",
                f"INSERT INTO {table} VALUES (1, 1), (2, 2)",
            )
        yield made


@pytest.fixture
def pipeline(database: PostgresDatabase, make_pipeline: MakePipeline) -> PipelineUnderTest:
    made = make_pipeline(database.database)
    made.run()
    return made


def assert_caught_up(pipeline: PipelineUnderTest, database: PostgresDatabase) -> None:
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert_same(pipeline, database, "u")
    assert {(row["state"], row["reason"]) for row in pipeline.control("tables")} == {("streaming", "")}
    incidents = [(row["kind"], row["table"]) for row in pipeline.control("incidents")]
    assert incidents == [("changes not captured", "public.t")]


def test_left_out_for_a_while(database: PostgresDatabase, pipeline: PipelineUnderTest) -> None:
    pipeline.source["table.include.list"] = WITHOUT_T
    database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO u VALUES (3, 3)")
    pipeline.run()
    database.execute("INSERT INTO t VALUES (4, 4)")
    pipeline.run()
    pipeline.source["table.include.list"] = EVERY
    database.execute("INSERT INTO t VALUES (5, 5)")
    assert_caught_up(pipeline, database)


@pytest.mark.slow
def test_left_out_between_a_seal_and_its_commit(
    database: PostgresDatabase, pipeline: PipelineUnderTest
) -> None:
    """What was sealed is committed, also of a table that the new configuration leaves out."""
    database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO u VALUES (3, 3)")
    kill.killed(pipeline, "sealed", "capture")
    pipeline.source["table.include.list"] = WITHOUT_T
    pipeline.run()
    assert len(pipeline.rows("bronze", "public_t")) == 3
    database.execute("INSERT INTO t VALUES (4, 4)")
    pipeline.source["table.include.list"] = EVERY
    assert_caught_up(pipeline, database)


@pytest.mark.slow
def test_killed_when_it_has_just_been_published_again(
    database: PostgresDatabase, pipeline: PipelineUnderTest
) -> None:
    pipeline.source["table.include.list"] = WITHOUT_T
    pipeline.run()
    database.execute("DELETE FROM t WHERE id = 1")
    pipeline.source["table.include.list"] = EVERY
    kill.killed(pipeline, "released")
    assert_caught_up(pipeline, database)


@pytest.mark.parametrize("seen", [False, True], ids=["between two runs", "seen by a run"])
def test_replaced_by_another_of_its_name(
    database: PostgresDatabase, pipeline: PipelineUnderTest, seen: bool
) -> None:
    drop, *others = REPLACED
    database.execute(drop)
    if seen:
        pipeline.run()
    database.execute(*others)
    assert_caught_up(pipeline, database)


def test_published_while_somebody_writes(database: PostgresDatabase, pipeline: PipelineUnderTest) -> None:
    """The transaction began before, so the log lacks its first row, and a view taken too early all."""
    database.execute("CREATE TABLE added (id int PRIMARY KEY)")
    with closing(database.database.connect()) as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO added VALUES (1)")
        process = kill.paused(pipeline, "snapshot.opened", "run")
        # Nobody is held up.
        database.execute("SET lock_timeout = '100ms'", "INSERT INTO added VALUES (2)")
        cursor.execute("INSERT INTO added VALUES (3)")
        process.send_signal(signal.SIGCONT)
        time.sleep(2)
        assert process.poll() is None, "it waits for the transaction"
        cursor.execute("COMMIT")
    output, _ = process.communicate(timeout=kill.SECONDS)
    assert process.returncode == 0, output
    assert_same(pipeline, database, "added")


def test_values_that_a_change_of_type_converted(
    database: PostgresDatabase, pipeline: PipelineUnderTest
) -> None:
    database.execute(
        "ALTER TABLE t ALTER n TYPE bigint USING n * 10",
        "INSERT INTO t VALUES (3, 3)",
    )
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ('ALTER TABLE u ADD "N" int', "differ in case alone"),
        ('CREATE TABLE "U" (id int PRIMARY KEY)', "would both be written to"),
        ("CREATE TABLE nothing ()", "has no columns"),
    ],
    ids=["column", "table", "no columns"],
)
def test_what_bronze_cannot_hold_is_refused_before_it_is_sealed(
    database: PostgresDatabase, pipeline: PipelineUnderTest, statement: str, says: str
) -> None:
    """And leaving it out is enough to go on."""
    database.execute(statement, "INSERT INTO t VALUES (4, 4)", "INSERT INTO u (id) VALUES (4)")
    outcome = pipeline.attempt("run")
    assert (outcome.error, says in outcome.text) == ("FixConfiguration", True), outcome.trace
    pipeline.source["table.include.list"] = r"public\.t"
    pipeline.run()
    assert_same(pipeline, database, "t")
