"""``cdc plan`` says what the next run then does, and writes nothing on either side.

Plans are made by a role that may only read, in sessions that may only read, and everything that a plan could
touch is compared before and after: each file and folder of the lake with its time, slots and publications.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.config import load
from cdc_lib.control import Control
from cdc_lib.control.signals import Signal
from cdc_lib.delta import Lake
from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.plan import PendingMerge, Plan, PlannedTable
from cdc_lib.planning import make_plan
from tests.engines import kill
from tests.engines.conformance import assert_same
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

LIMITS = {"chunk_rows": 100, "batch_rows": 100}
"""Tables of some hundred rows are several pieces, each a batch of its own."""


@dataclass
class Case:
    """A pipeline, and a role that may do nothing but look."""

    database: PostgresDatabase
    pipeline: PipelineUnderTest
    reader: str
    password: str

    def plan(self) -> Plan:
        """The plan, made by the reader; nothing is another afterwards."""
        before = self.touchable()
        plan = make_plan(load(self.theirs().write()))
        assert self.touchable() == before
        return plan

    def theirs(self) -> PipelineUnderTest:
        """The same pipeline over the same tables, as the reader has it."""
        folder = self.pipeline.folder / "reader"
        folder.mkdir(exist_ok=True)
        secret = folder / "password"
        secret.write_text(self.password, encoding="utf-8")
        login = {"database.user": self.reader, "database.password": f"${{file:{secret}}}"}
        target = {"path": str(self.pipeline.lake), "writer": self.pipeline.writer}
        return replace(self.pipeline, folder=folder, source={**self.pipeline.source, **login}, target=target)

    def touchable(self) -> tuple[object, ...]:
        lake = self.pipeline.lake
        paths = sorted([lake, *lake.rglob("*")]) if lake.exists() else []
        files = [(str(path), path.stat().st_mtime_ns, _digest(path)) for path in paths]
        return files, self.slots(), self.published(), self.query("SELECT count(*) FROM pg_publication")

    def slots(self) -> list[tuple[Any, ...]]:
        return self.query(
            "SELECT slot_name, temporary, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots "
            "ORDER BY slot_name"
        )

    def published(self) -> list[str]:
        return [name for (name,) in self.query("SELECT tablename FROM pg_publication_tables ORDER BY 1")]

    def query(self, text: str) -> list[tuple[Any, ...]]:
        return self.database.database.rows(text)

    def table(self, plan: Plan, name: str) -> PlannedTable:
        (found,) = [table for table in plan.tables if table.table == f"public.{name}"]
        return found

    def pieces(self, state: str) -> Counter[str]:
        """Rows of the control table ``chunks``, by the table's name."""
        names = {row["table_id"]: row["source_table"] for row in self.pipeline.control("tables")}
        return Counter(
            names[row["table_id"]] for row in self.pipeline.control("chunks") if row["state"] == state
        )

    def fill(self, name: str, rows: int = 300, key: str = "PRIMARY KEY") -> None:
        self.database.execute(
            f"CREATE TABLE {name} (id int {key}, n int)",
            f"INSERT INTO {name} SELECT i, i FROM generate_series(1, {rows}) i",
            f"ANALYZE {name}",
            f'GRANT SELECT ON {name} TO "{self.reader}"',
        )

    def assert_stops_as_said(self, plan: Plan) -> None:
        """The first error of the plan is the one that the run ends with."""
        assert not plan.good
        said, outcome = plan.stops[0], self.pipeline.attempt()
        assert (said.error, said.exit_code, said.what) == (outcome.error, outcome.exit_code, outcome.what)
        assert (said.why, said.remedy) == (outcome.why, outcome.remedy)

    def assert_same(self, *names: str) -> None:
        for name in names:
            assert_same(self.pipeline, self.database, name)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@pytest.fixture
def case(recording_postgres: EmbeddedPostgres, make_pipeline: MakePipeline) -> Iterator[Case]:
    with PostgresDatabase(recording_postgres) as database:
        reader, password = f"reader_{database.name}", secrets.token_hex(8)
        database.execute(
            f"CREATE ROLE \"{reader}\" LOGIN PASSWORD '{password}'",
            f'ALTER ROLE "{reader}" SET default_transaction_read_only = on',
            f'GRANT USAGE ON SCHEMA public TO "{reader}"',
        )
        made = Case(database, make_pipeline(database.database, LIMITS), reader, password)
        made.fill("t")
        yield made
        database.execute(f'DROP OWNED BY "{reader}"', f'DROP ROLE "{reader}"')


def test_a_first_start(case: Case) -> None:
    case.fill("keyless", rows=50, key="")
    plan = case.plan()
    assert not case.pipeline.lake.exists()
    assert plan.good
    assert (plan.batch, plan.position, plan.configuration, plan.log) == (0, "", "first", None)
    publication, slot = plan.source
    assert (publication.action, publication.subject) == ("create", "publication")
    assert publication.added == ("public.keyless", "public.t")
    assert (slot.action, slot.subject) == ("create", "slot")
    planned = {
        table.table: (table.standing, table.action, table.way, table.chunks, table.rows)
        for table in plan.tables
    }
    assert planned == {
        "public.keyless": ("new", "snapshot", "one view", 1, 50),
        "public.t": ("new", "snapshot", "windows", 3, 300),
    }
    case.pipeline.run()
    assert case.published() == ["keyless", "t"]
    assert [name for name, *_ in case.slots()] == [slot.name]
    assert case.pieces("planned") == {"keyless": 1, "t": 3}
    case.assert_same("t", "keyless")


def test_nothing_to_do(case: Case) -> None:
    case.pipeline.run()
    case.database.execute("DELETE FROM t WHERE id = 1")
    case.pipeline.run()
    plan = case.plan()
    assert plan.good
    assert plan.configuration == "unchanged"
    table = case.table(plan, "t")
    assert (table.standing, table.state, table.action, table.silver) == ("known", "streaming", "log", None)
    (release,) = plan.source
    assert (release.action, release.subject) == ("release", "slot")
    [(_, _, _, before)] = case.slots()
    assert case.pipeline.run().metrics.get("batches", 0) == 0
    [(_, _, _, after)] = case.slots()
    assert (before, after) == (before, plan.position)
    assert not case.plan().source, "what was let go is let go"


def test_a_table_that_is_new_and_one_that_is_gone(case: Case) -> None:
    case.fill("short_lived", rows=10)
    case.fill("filtered", rows=10)
    case.pipeline.run()
    case.fill("extra", rows=200)
    case.database.execute("INSERT INTO short_lived VALUES (11, 11)", "DROP TABLE short_lived")
    case.pipeline.source["table.include.list"] = r"public\.(?!filtered).*"
    plan = case.plan()
    assert plan.good
    assert plan.configuration == "changed"
    (publication,) = [each for each in plan.source if each.subject == "publication"]
    assert (publication.action, publication.added) == ("alter", ("public.extra",))
    assert publication.removed == ("public.filtered",), "the server itself took the one that was dropped"
    extra = case.table(plan, "extra")
    assert (extra.standing, extra.state, extra.action, extra.chunks) == ("new", "", "snapshot", 2)
    assert [case.table(plan, name).standing for name in ("t", "filtered", "short_lived")] == [
        "known",
        "gone",
        "gone",
    ]
    assert [case.table(plan, name).action for name in ("t", "filtered", "short_lived")] == [
        "log",
        "none",
        "log",
    ]
    assert plan.log is not None
    assert plan.log.bytes is not None
    assert plan.log.bytes > 0
    case.pipeline.run()
    assert case.published() == ["extra", "t"]
    assert case.pieces("planned")["extra"] == 2
    assert len(case.pipeline.rows("bronze", "public_short_lived")) == 11
    case.assert_same("t", "extra")
    case.pipeline.source["table.include.list"] = r"public\..*"
    plan = case.plan()
    again = case.table(plan, "filtered")
    assert (again.standing, again.state, again.action, again.chunks) == ("known", "snapshot", "snapshot", 1)
    before = case.pieces("done")["filtered"]
    case.pipeline.run()
    assert case.pieces("done")["filtered"] == before + 1
    case.assert_same("filtered")


@pytest.mark.slow
def test_changes_of_structure(case: Case) -> None:
    case.fill("filled")
    case.fill("wider")
    case.fill("renamed")
    case.pipeline.run()
    case.database.execute(
        "ALTER TABLE renamed RENAME n TO number",
        "UPDATE renamed SET number = 0 WHERE id = 1",
        "ALTER TABLE t ADD note text",
        "ALTER TABLE filled ADD level int DEFAULT 7",
        "ALTER TABLE wider ALTER n TYPE bigint",
    )
    for name in ("t", "filled", "wider"):
        case.database.execute(f"UPDATE {name} SET n = n + 1 WHERE id = 1")
    plan = case.plan()
    assert plan.good
    planned = {
        (table.table, change.kind, change.column): change.effect
        for table in plan.tables
        for change in table.changes
    }
    assert planned == {
        ("public.t", "added", "note"): "evolves",
        ("public.filled", "added", "level"): "snapshot",
        ("public.wider", "widened", "n"): "snapshot",
        ("public.renamed", "dropped", "n"): "evolves",
        ("public.renamed", "added", "number"): "snapshot",
        ("public.renamed", "renamed", "number"): "snapshot",
    }
    case.pipeline.run()
    done = {(row["table"], row["kind"], row["column"]) for row in case.pipeline.control("schema_changes")}
    assert done == set(planned)
    assert case.pieces("planned") == {"t": 3, "filled": 6, "wider": 6, "renamed": 6}, "three are read again"
    case.assert_same("t", "filled", "wider")


def test_a_change_of_structure_that_bronze_cannot_follow(case: Case) -> None:
    case.pipeline.run()
    case.database.execute("ALTER TABLE t ALTER n TYPE text", "INSERT INTO t VALUES (1000, 'x')")
    plan = case.plan()
    assert not plan.good
    (change,) = case.table(plan, "t").changes
    assert (change.kind, change.column, change.effect) == ("incompatible", "n", "refuses")
    assert case.pipeline.attempt().error == "ResnapshotNeeded"


def test_a_sealed_batch_after_a_kill(case: Case) -> None:
    case.pipeline.run()
    case.database.execute("INSERT INTO t VALUES (1000, 1)", "DELETE FROM t WHERE id = 1")
    kill.killed(case.pipeline, "sealed", "capture")
    case.database.execute("INSERT INTO t VALUES (1001, 1)")
    plan = case.plan()
    assert plan.good
    assert plan.sealed is not None
    sealed = (plan.sealed.batch, plan.sealed.tables, plan.sealed.rows, plan.sealed.way)
    assert sealed == (plan.batch, ["public.t"], 2, "staging")
    assert plan.log is not None
    assert (plan.sealed.upto, plan.position) == (plan.log.after, plan.log.after)
    pending = PendingMerge(plan.batch - 1, plan.batch, 2)
    assert case.table(plan, "t").silver == pending
    outcome = case.pipeline.run()
    attempts = Counter(row["batch"] for row in case.pipeline.control("batches"))
    assert attempts == {**dict.fromkeys(range(1, plan.batch), 1), plan.batch: 2, plan.batch + 1: 1}
    assert outcome.metrics["silver.rows.public.t"] == 3
    case.assert_same("t")


@pytest.mark.slow
def test_a_sealed_batch_that_must_be_read_again(case: Case) -> None:
    case.pipeline.run()
    case.database.execute("DELETE FROM t WHERE id = 1")
    kill.killed(case.pipeline, "sealed", "capture")
    shutil.rmtree(case.pipeline.lake / "_staging")
    plan = case.plan()
    assert plan.sealed is not None
    assert (plan.sealed.way, plan.good) == ("log", True)
    case.pipeline.source["skipped.operations"] = "t"
    changed = case.plan()
    case.assert_stops_as_said(changed)
    assert changed.configuration == "changed"
    del case.pipeline.source["skipped.operations"]
    case.pipeline.run()
    case.assert_same("t")


@pytest.mark.parametrize("point", ["committed:2", "sealed:2"])
def test_an_interrupted_snapshot(case: Case, point: str) -> None:
    """One batch is committed; a second is committed, or sealed and will be."""
    kill.killed(case.pipeline, point, "capture")
    plan = case.plan()
    assert plan.good
    assert (plan.batch, plan.sealed is not None) == (2, point.startswith("sealed"))
    table = case.table(plan, "t")
    assert (table.state, table.action, table.way, table.chunks) == ("snapshot", "resume", "windows", 1)
    case.pipeline.run()
    assert case.pieces("planned") == {"t": 3}
    assert case.pieces("done") == {"t": 3}, "none was read twice"
    assert {row["batch"] for row in case.pipeline.control("batches")} == {1, 2, 3}
    case.assert_same("t")


def test_what_a_snapshot_leaves_to_settle(case: Case) -> None:
    case.pipeline.run()
    kill.killed(case.pipeline, "silver.merged", "snapshot")
    plan = case.plan()
    assert plan.good
    table = case.table(plan, "t")
    assert (table.state, table.action) == ("settle", "settle")
    case.pipeline.run()
    assert case.table(case.plan(), "t").state == "streaming"


@pytest.mark.slow
def test_signals_and_merges_that_wait(case: Case) -> None:
    case.pipeline.run("capture")
    loaded = load(case.pipeline.write())
    signals = Control(Lake(loaded.target), loaded.name).signals
    signals.add(Signal("1", "execute-snapshot", '{"data-collections": ["public.t"]}'))
    signals.add(Signal("2", "dance"))
    plan = case.plan()
    assert [(signal.id, signal.status) for signal in plan.signals] == [("1", "accepted"), ("2", "rejected")]
    table = case.table(plan, "t")
    assert (table.state, table.action, table.chunks) == ("streaming", "snapshot", 3)
    assert table.silver == PendingMerge(0, plan.batch, 300)
    case.pipeline.run()
    answers = {row["id"]: row["text"] for row in case.pipeline.control("signal_answers")}
    assert answers == {signal.id: signal.text for signal in plan.signals}
    assert case.pieces("planned") == {"t": 6}
    case.assert_same("t")


# -- what would stop the run


def test_a_lost_slot_said_by_the_command(case: Case) -> None:
    case.pipeline.run()
    [(name, *_)] = case.slots()
    case.database.execute(f"SELECT pg_drop_replication_slot('{name}')")
    plan = case.plan()
    assert [stop.error for stop in plan.stops] == ["ResnapshotNeeded"]
    assert plan.log is None
    case.assert_stops_as_said(plan)
    theirs = case.theirs()
    shown, _ = (process := theirs.start("plan", "--json")).communicate(timeout=kill.SECONDS)
    assert process.returncode == 1, shown
    assert json.loads(shown) == json.loads(json.dumps(case.plan().to_dict()))
    shown, _ = (process := theirs.start("plan")).communicate(timeout=kill.SECONDS)
    assert process.returncode == 1, shown
    assert plan.stops[0].what in shown
    assert "Traceback" not in shown
    assert case.password not in shown


def test_a_runner_that_is_at_work(case: Case) -> None:
    case.pipeline.run()
    case.database.execute("DELETE FROM t WHERE id = 1")
    paused = kill.paused(case.pipeline, "log.staged")
    try:
        case.assert_stops_as_said(case.plan())
    finally:
        code, output = kill.woken(paused)
    assert code == 0, output
    assert case.plan().good


def test_a_server_that_does_not_answer(case: Case) -> None:
    """What stands is known without it."""
    case.pipeline.run()
    server = case.database.database.server
    assert isinstance(server, EmbeddedPostgres)
    server.stop()
    try:
        plan = make_plan(load(case.pipeline.write()))
        case.assert_stops_as_said(plan)
    finally:
        server.start()
    assert [(table.table, table.state) for table in plan.tables] == [("public.t", "streaming")]
