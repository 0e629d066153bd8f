"""How runs end when something is wrong: the error's class, exit code and remedy, and nothing lost after it.

Each test brings one small pipeline into trouble, looks at what it says, does what the remedy says, and
compares silver with the source.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill
from tests.engines.conformance import assert_same, ops
from tests.engines.connect_server import Outcome
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(400)

TABLE = "public_t"


@dataclass
class Case:
    """A pipeline over one table that has run once, with changes that it has not captured yet."""

    database: PostgresDatabase
    pipeline: PipelineUnderTest

    @property
    def slot(self) -> str:
        [(name,)] = self.database.database.rows(
            "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (self.database.name,)
        )
        return str(name)

    def assert_ends_with(self, outcome: Outcome, error: str, exit_code: int, *words: str) -> None:
        assert (outcome.error, outcome.exit_code) == (error, exit_code), outcome.trace or outcome.text
        for word in words:
            assert word in outcome.text
        assert outcome.remedy, outcome.text
        assert self.password not in outcome.text + outcome.trace

    @property
    def password(self) -> str:
        return self.database.database.server.password

    def assert_good(self, *, once: bool = True) -> None:
        """The next run succeeds and silver equals the source; each change is in bronze once."""
        self.pipeline.run()
        assert_same(self.pipeline, self.database, "t")
        if once:
            assert ops(self.pipeline, TABLE) == ["r", "r", "u", "c"]


@pytest.fixture
def case(recording_postgres: EmbeddedPostgres, make_pipeline: MakePipeline) -> Iterator[Case]:
    with PostgresDatabase(recording_postgres) as database:
        database.execute(
            "CREATE TABLE t (id integer PRIMARY KEY, n integer)", "INSERT INTO t VALUES (1, 1), (2, 2)"
        )
        pipeline = make_pipeline(database.database)
        pipeline.run("capture")
        database.execute("UPDATE t SET n = 10 WHERE id = 1", "INSERT INTO t VALUES (3, 3)")
        yield Case(database, pipeline)


def test_two_runners_at_once(case: Case) -> None:
    first = kill.paused(case.pipeline, "log.staged")
    second = case.pipeline.attempt("capture")
    case.assert_ends_with(second, "RetryLater", 3, "another runner", str(first.pid))
    code, output = kill.woken(first)
    assert code == 0, output
    case.assert_good()


def test_sessions_that_the_server_ends(case: Case) -> None:
    process = kill.paused(case.pipeline, "released")
    case.database.database.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = %s AND pid <> pg_backend_pid()",
        (case.database.name,),
    )
    code, output = kill.woken(process)
    assert code == 3, output
    assert "to do: " in output
    assert case.password not in output
    case.assert_good()


def test_a_server_that_stops_and_comes_back(case: Case) -> None:
    server = case.database.database.server
    assert isinstance(server, EmbeddedPostgres)
    process = kill.paused(case.pipeline, "log.staged")
    server.stop("immediate")
    try:
        code, output = kill.woken(process)
        # What was staged before is committed without the server; the next question to it fails.
        assert code in (0, 3), output
        away = case.pipeline.attempt("capture")
        case.assert_ends_with(away, "RetryLater", 3, f"{server.host}:{server.port}")
    finally:
        server.start()
    case.assert_good()


def test_a_wrong_password(case: Case) -> None:
    secret = case.pipeline.folder / "password"
    right = secret.read_text(encoding="utf-8")
    wrong = "correct-horse-battery"
    secret.write_text(wrong, encoding="utf-8")
    outcome = case.pipeline.attempt("capture")
    case.assert_ends_with(
        outcome, "FixConfiguration", 2, "password authentication failed", "database.password"
    )
    assert wrong not in outcome.text + outcome.trace
    output, _ = (process := case.pipeline.start("capture", "--debug")).communicate(timeout=kill.SECONDS)
    assert process.returncode == 2, output
    assert wrong not in output
    runs = case.pipeline.control("runs")
    assert wrong not in str(runs)
    assert [run["outcome"] for run in runs].count("failed") == 2
    secret.write_text(right, encoding="utf-8")
    case.assert_good()


def test_a_table_that_does_not_exist(case: Case) -> None:
    outcome = case.pipeline.attempt("snapshot", ["public.nowhere"])
    case.assert_ends_with(outcome, "FixConfiguration", 2, "public.nowhere", "cdc tables")
    case.assert_good()


def test_a_captured_table_that_was_dropped(case: Case) -> None:
    """Its changes up to then arrive, and the others go on."""
    case.database.execute(
        "CREATE TABLE short_lived (id integer PRIMARY KEY)", "INSERT INTO short_lived VALUES (1)"
    )
    case.pipeline.run("capture")
    case.database.execute("INSERT INTO short_lived VALUES (2)", "DROP TABLE short_lived")
    case.assert_good()
    assert ops(case.pipeline, "public_short_lived") == ["r", "c"]


def test_a_lost_slot(case: Case) -> None:
    """What changed in the gap is not in the log; taking everything again makes silver right all the same."""
    before = ops(case.pipeline, TABLE)
    case.database.execute(f"SELECT pg_drop_replication_slot('{case.slot}')")
    case.database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (7, 7)")
    outcome = case.pipeline.attempt("capture")
    case.assert_ends_with(outcome, "ResnapshotNeeded", 5, "slot", "cdc snapshot")
    assert ops(case.pipeline, TABLE) == before, "nothing was written"
    assert case.pipeline.attempt("snapshot", ["public.t"]).error == "ResnapshotNeeded", "all, or none"
    _taken_again(case)
    marks = case.pipeline.rows("bronze", TABLE, "after.id, source.snapshot", "WHERE op = 'd'").to_pylist()
    assert [row["snapshot"] for row in marks][:1] == ["vanished"]
    (incident,) = case.pipeline.control("incidents")
    assert incident["kind"] == "gap in the log"


def test_a_slot_that_was_moved_past_us(case: Case) -> None:
    case.database.execute(f"SELECT pg_replication_slot_advance('{case.slot}', pg_current_wal_lsn())")
    outcome = case.pipeline.attempt("capture")
    case.assert_ends_with(outcome, "ResnapshotNeeded", 5, "moved past", "cdc snapshot")
    _taken_again(case)


def _taken_again(case: Case) -> None:
    case.pipeline.run("snapshot")
    assert {row["state"] for row in case.pipeline.control("tables")} == {"streaming"}
    assert_same(case.pipeline, case.database, "t")
    case.assert_good(once=False)


def test_bronze_of_another_incarnation(case: Case) -> None:
    control, kept = case.pipeline.lake / "control", case.pipeline.folder / "kept"
    slot = case.slot
    control.rename(kept)
    outcome = case.pipeline.attempt("capture")
    case.assert_ends_with(
        outcome, "FixConfiguration", 2, "another incarnation", "put the control tables back"
    )
    assert ops(case.pipeline, TABLE) == ["r", "r"], "nothing was written"
    assert case.slot == slot, "nothing was released"
    shutil.rmtree(control)
    kept.rename(control)
    case.assert_good()


def test_bronze_restored_to_an_older_version(case: Case) -> None:
    case.pipeline.run("capture")
    history = f"DESCRIBE HISTORY {case.pipeline.table('bronze', TABLE)}"
    version = max(case.pipeline.spark.sql(history, case.pipeline.folder).column("version").to_pylist())
    restore = f"RESTORE TABLE {case.pipeline.table('bronze', TABLE)} TO VERSION AS OF"
    case.pipeline.spark.sql(f"{restore} {version - 1}", case.pipeline.folder)
    case.database.execute("DELETE FROM t WHERE id = 2")
    outcome = case.pipeline.attempt("capture")
    case.assert_ends_with(outcome, "ResnapshotNeeded", 5, "RESTORE", f"VERSION AS OF {version}")
    assert ops(case.pipeline, TABLE) == ["r", "r"], "nothing was written on top"
    case.pipeline.spark.sql(f"{restore} {version}", case.pipeline.folder)
    case.pipeline.run()
    assert_same(case.pipeline, case.database, "t")
    assert ops(case.pipeline, TABLE) == ["r", "r", "u", "c", "d"]


def test_bronze_restored_and_the_table_taken_again(case: Case) -> None:
    case.pipeline.run("capture")
    case.pipeline.spark.sql(
        f"RESTORE TABLE {case.pipeline.table('bronze', TABLE)} TO VERSION AS OF 1", case.pipeline.folder
    )
    case.assert_ends_with(case.pipeline.attempt(), "ResnapshotNeeded", 5, "cdc snapshot public.t")
    case.pipeline.run("snapshot", ["public.t"])
    assert_same(case.pipeline, case.database, "t")


# -- a sealed batch whose staging, log or configuration is not what it was


@pytest.fixture
def sealed(case: Case) -> Case:
    """Killed after the seal of the batch that holds the two changes."""
    kill.killed(case.pipeline, "sealed", "capture")
    return case


def staging(case: Case) -> Path:
    return case.pipeline.lake / "_staging"


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


def _cut_short(folder: Path) -> None:
    [file] = folder.rglob("*.arrow")
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize("damage", [_gone, _cut_short])
def test_a_sealed_batch_is_read_again_if_its_staging_is_not_whole(
    sealed: Case, damage: Callable[[Path], None]
) -> None:
    damage(staging(sealed))
    sealed.database.execute("INSERT INTO t VALUES (4, 4)")
    sealed.pipeline.run()
    assert_same(sealed.pipeline, sealed.database, "t")
    assert ops(sealed.pipeline, TABLE) == ["r", "r", "u", "c", "c"]
    columns = "op, after.id, _batch"
    found = sealed.pipeline.rows("bronze", TABLE, columns, "WHERE op <> 'r' ORDER BY _sequence").to_pylist()
    assert [row["_batch"] - found[0]["_batch"] for row in found] == [0, 0, 1], (
        "the seal ended before the insert"
    )


@pytest.mark.parametrize("change", ["log_hash: 'other'", "log_rows: 3"])
def test_a_log_that_is_not_what_was_sealed(sealed: Case, change: str) -> None:
    """The seal says something else than the log, as after a restore of the server."""
    _gone(staging(sealed))
    field, _, value = change.partition(": ")
    others = {
        name: f"t.{name}"
        for name in (
            *("table_id", "schema", "name", "schema_version", "rows", "log_rows", "log_hash", "partial"),
            *("chunks", "facts"),
        )
    }
    parts = ", ".join(f"'{name}', {text}" for name, text in (others | {field: value}).items())
    batches = sealed.pipeline.table("control", "batches")
    sealed.pipeline.spark.sql(
        f"UPDATE {batches} SET tables = transform(tables, t -> named_struct({parts})) "
        f"WHERE batch = {max(row['batch'] for row in sealed.pipeline.control('batches'))}",
        sealed.pipeline.folder,
    )
    outcome = sealed.pipeline.attempt("capture")
    sealed.assert_ends_with(outcome, "ResnapshotNeeded", 5, "cannot be repeated", "public.t")
    assert ops(sealed.pipeline, TABLE) == ["r", "r"], "nothing was committed"


def test_a_configuration_that_changed_after_the_seal(sealed: Case) -> None:
    """What was sealed is finished as it was; the new configuration holds from the next batch on."""
    sealed.pipeline.source["skipped.operations"] = "c"
    sealed.pipeline.run("capture")
    assert ops(sealed.pipeline, TABLE) == ["r", "r", "u", "c"]
    sealed.database.execute("INSERT INTO t VALUES (5, 5)", "DELETE FROM t WHERE id = 2")
    sealed.pipeline.run("capture")
    assert ops(sealed.pipeline, TABLE) == ["r", "r", "u", "c", "d"]


def test_a_configuration_that_changed_and_staging_that_is_gone(sealed: Case) -> None:
    _gone(staging(sealed))
    sealed.pipeline.source["skipped.operations"] = "c"
    outcome = sealed.pipeline.attempt("capture")
    sealed.assert_ends_with(outcome, "FixConfiguration", 2, "another configuration", "earlier file")
    del sealed.pipeline.source["skipped.operations"]
    sealed.assert_good()
