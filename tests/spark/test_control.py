"""Control tables: who may write, what is sealed and committed, what people asked for.

On a path they need no JVM; in a catalog they go through Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc_lib.config import Target
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.chunks import ChunkRow
from cdc_lib.control.incidents import Incident
from cdc_lib.control.leases import Lease, machine_id, process_start
from cdc_lib.control.row import ControlTable, fields_of
from cdc_lib.control.runs import Run
from cdc_lib.control.schema_history import SchemaVersion
from cdc_lib.control.signals import Answer, Signal
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake, Txn
from cdc_lib.errors import FixConfiguration, ResnapshotNeeded, RetryLater
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.source import Chunk

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def control_of(lake: Lake, pipeline: str = "shop") -> Control:
    control = Control(lake, pipeline)
    control.create()
    return control


@pytest.fixture
def direct(target: Target, no_jvm: Callable[[], SparkSession]) -> Lake:
    return Lake(target, no_jvm)


@pytest.fixture
def control(direct: Lake) -> Control:
    return control_of(direct)


def a_seal(batch: int, attempt: int = 1, runner: str = "r1", incarnation: str = "i1") -> Seal:
    tables = [SealedTable("t1", "public", "orders", 3, 10, 7, "hash", True, [1, 2])]
    return Seal(batch, attempt, runner, incarnation, '{"lsn":1}', '{"lsn":2}', tables, "cfg", "/s", NOON)


def a_mark(batch: int, sort_key: str, **more: object) -> Watermark:
    mark = Watermark(batch, '{"lsn":1}', sort_key, "batch", None, {"t1": 4}, "r1", NOON)
    return replace(mark, **more)  # type: ignore[arg-type]


def structure(version: int, *names: str) -> Table:
    columns = tuple(Column(name, pa.int64(), "bigint", id=i) for i, name in enumerate(names, 1))
    return Table(TableId("public", "orders"), columns, ("id",), version=version)


class TestDefinitions:
    def test_every_column_has_a_comment_and_every_table_a_pipeline(self, control: Control) -> None:
        tables = [table for table in vars(control).values() if isinstance(table, ControlTable)]
        assert len(tables) == 15
        for table in tables:
            stored = control.leases._lake.fields(table.ref)
            assert stored[0].name == "pipeline"
            assert [field.name for field in stored if not field.comment] == []
            assert [field.name for field in stored] == [field.name for field in fields_of(table.row)]

    def test_rows_read_as_they_were_written(self, control: Control) -> None:
        run = Run("x", "run", NOON, NOON, "failed", "what", "do", {"seconds": 1.5})
        incident = Incident("kind", "t1", "public.orders", 4, "what", "do", NOON)
        control.runs.add(run)
        control.incidents.add(incident)
        assert control.runs.load() == [run]
        assert control.incidents.load() == [incident]

    def test_pipelines_share_tables_but_not_rows(self, direct: Lake) -> None:
        shop, other = control_of(direct), control_of(direct, "other")
        shop.batches.seal(a_seal(1))
        assert other.batches.last() is None
        assert shop.batches.last() == a_seal(1)


class TestLease:
    def test_one_holder(self, direct: Lake) -> None:
        first, second = control_of(direct).leases, control_of(direct).leases
        lease = first.acquire("r1", 60)
        with pytest.raises(RetryLater, match="r1") as refused:
            second.acquire("r2", 60)
        assert str(os.getpid()) in refused.value.why
        first.release(lease)
        assert second.acquire("r2", 60).incarnation == lease.incarnation

    def test_expired(self, control: Control) -> None:
        control.leases.acquire("r1", 0)
        assert control.leases.acquire("r2", 60).runner == "r2"

    def test_a_runner_that_slept_too_long_learns_it(self, control: Control) -> None:
        slept = control.leases.acquire("r1", 0)
        control.leases.acquire("r2", 60)
        with pytest.raises(RetryLater, match="r2 took it"):
            control.leases.renew(slept, 60)
        control.leases.release(slept)
        assert control.leases.load()[0].runner == "r2"

    def test_one_that_slept_alone_goes_on(self, control: Control) -> None:
        slept = control.leases.acquire("r1", 0)
        assert control.leases.renew(slept, 60).expires_at > slept.expires_at

    def test_dead_process_of_this_machine(self, control: Control) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self._hold(control, pid=child.pid, process_started=process_start(child.pid))
        with pytest.raises(RetryLater):
            control.leases.acquire("r2", 60)
        child.kill()
        child.wait()
        assert control.leases.acquire("r2", 60).runner == "r2"

    def test_reused_process_id(self, control: Control) -> None:
        self._hold(control, pid=os.getpid(), process_started="1")
        assert control.leases.acquire("r2", 60).runner == "r2"

    def test_process_of_another_machine_is_left_alone(self, control: Control) -> None:
        self._hold(control, pid=os.getpid(), process_started="1", machine="elsewhere")
        with pytest.raises(RetryLater):
            control.leases.acquire("r2", 60)

    def test_two_at_the_same_moment(self, direct: Lake, at_once: Callable[..., list[object]]) -> None:
        control_of(direct)
        runners = [Control(direct, "shop") for _ in range(4)]
        calls = [lambda c=c, i=i: c.leases.acquire(f"r{i}", 60) for i, c in enumerate(runners)]
        results = at_once(*calls)
        (winner,) = [result for result in results if isinstance(result, Lease)]
        assert all(isinstance(result, (Lease, RetryLater)) for result in results), results
        assert control_of(direct).leases.current() == winner

    def test_in_a_catalog(self, catalog_lake: Lake) -> None:
        leases = catalog_control(catalog_lake, "leases").leases
        lease = leases.acquire("r1", 60)
        with pytest.raises(RetryLater, match="r1"):
            leases.acquire("r2", 60)
        assert leases.renew(lease, 60).number == 2

    @staticmethod
    def _hold(control: Control, **changes: object) -> None:
        lease = control.leases.acquire("r1", 60)
        held = replace(lease, **{"machine": machine_id(), "number": 2, **changes})  # type: ignore[arg-type]
        control.leases._lake.upsert_rows(
            control.leases.ref, [control.leases._to_dict(held)], ["pipeline"], txn=Txn("lease/shop", 2)
        )


def catalog_control(lake: Lake, *names: str) -> Control:
    """Only the tables that a test needs: Spark takes a second for each."""
    control = Control(lake, "shop")
    for name in names:
        getattr(control, name).create()
    return control


class TestWatermarks:
    def test_latest_is_by_batch_then_position(self, control: Control) -> None:
        assert control.watermarks.latest() is None
        for mark in (a_mark(0, "5", kind="start"), a_mark(1, "7"), a_mark(1, "9", kind="heartbeat")):
            control.watermarks.commit(mark)
            assert control.watermarks.latest() == mark
        control.watermarks.commit_applied({"t1": 9})
        assert control.watermarks.latest() == a_mark(1, "9", kind="heartbeat")

    @pytest.mark.parametrize("back", [a_mark(1, "9"), a_mark(2, "6")], ids=["batch", "position"])
    def test_never_goes_back(self, control: Control, back: Watermark) -> None:
        control.watermarks.commit(a_mark(2, "7"))
        with pytest.raises(RetryLater, match="higher watermark"):
            control.watermarks.commit(back)
        assert control.watermarks.latest() == a_mark(2, "7")

    def test_a_skipped_row_is_no_commit(self, control: Control) -> None:
        """The table was restored: Delta still knows the transaction and skips the row."""
        control.watermarks.commit(a_mark(1, "5"), Txn("i1/watermarks", 1))
        control.watermarks.commit(a_mark(2, "7"), Txn("i1/watermarks", 2))
        restore(control.watermarks, 2)
        assert control.watermarks.latest() == a_mark(1, "5")
        with pytest.raises(ResnapshotNeeded, match="restored"):
            control.watermarks.commit(a_mark(2, "7"), Txn("i1/watermarks", 2))

    def test_applied(self, control: Control) -> None:
        assert control.watermarks.applied() == {}
        for applied in ({"t1": 3, "t2": 1}, {"t2": 5}, {"t1": 2}):
            control.watermarks.commit_applied(applied)
        assert control.watermarks.applied() == {"t1": 3, "t2": 5}


def restore(table: ControlTable[object], version: int) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(table.ref.path)).restore(version - 1)


class TestSeals:
    def test_unfinished_is_the_newest_attempt_after_the_watermark(self, control: Control) -> None:
        assert control.batches.unfinished(0) is None
        for seal in (a_seal(1), a_seal(2), a_seal(2, attempt=2, runner="r2")):
            control.batches.seal(seal)
        assert control.batches.unfinished(0) == a_seal(1)
        assert control.batches.unfinished(1) == a_seal(2, attempt=2, runner="r2")
        assert control.batches.unfinished(2) is None
        assert control.batches.after(0) == [a_seal(1), a_seal(2, attempt=2, runner="r2")]

    def test_too_many_attempts(self, control: Control) -> None:
        with pytest.raises(FixConfiguration, match="999 times"):
            control.batches.seal(a_seal(1, attempt=1000))

    def test_a_zombie_cannot_seal_behind_a_takeover(self, control: Control) -> None:
        control.batches.seal(a_seal(1))
        control.batches.seal(a_seal(1, attempt=2, runner="r2"))
        with pytest.raises(RetryLater, match="r2"):
            control.batches.seal(a_seal(1, attempt=1, runner="r3"))

    def test_restored_table_is_told_from_another_runner(self, control: Control) -> None:
        control.batches.seal(a_seal(1))
        control.batches.seal(a_seal(2))
        restore(control.batches, 2)
        with pytest.raises(ResnapshotNeeded, match="restored"):
            control.batches.seal(a_seal(2, runner="r2"))


class TestSchemaHistory:
    @pytest.fixture
    def history(self, control: Control) -> Control:
        control.leases.acquire("r1", 60)
        control.schema_history.add([SchemaVersion("t1", 1, structure(1, "id"))])
        control.batches.seal(a_seal(1, runner="r1"))
        return control

    def test_versions_of_sealed_batches(self, history: Control) -> None:
        assert history.schema_history.load(upto_batch=1) == [SchemaVersion("t1", 1, structure(1, "id"))]
        assert history.schema_history.versions("t1") == [structure(1, "id")]

    def test_versions_without_a_seal_never_happened(self, history: Control) -> None:
        history.schema_history.add([SchemaVersion("t1", 2, structure(2, "id", "lost"))])
        assert history.schema_history.versions("t1") == [structure(1, "id")]
        assert history.schema_history.of_batch(2) == []

    def test_only_those_of_the_runner_that_sealed(self, history: Control, direct: Lake) -> None:
        """A runner read further than the next one, and died before its seal."""
        dead = [SchemaVersion("t1", 2, structure(n, "id", *"ab"[: n - 1])) for n in (2, 3)]
        history.schema_history.add(dead)
        history.leases.release(history.leases.current() or pytest.fail("no lease"))
        second = Control(direct, "shop")
        second.leases.acquire("r2", 60)
        read = SchemaVersion("t1", 2, structure(2, "id", "a"))
        second.schema_history.add([read])
        second.batches.seal(a_seal(2, runner="r2"))
        assert second.schema_history.of_batch(2) == [read]
        assert second.schema_history.versions("t1") == [structure(1, "id"), structure(2, "id", "a")]

    def test_a_takeover_keeps_them(self, history: Control) -> None:
        history.batches.seal(a_seal(1, attempt=2, runner="r2"))
        assert history.schema_history.versions("t1") == [structure(1, "id")]


class TestTables:
    def test_states_are_replaced_in_place(self, control: Control) -> None:
        orders = TableState("t1", "public", "orders", "public_orders", "public_orders", State.SNAPSHOT)
        items = replace(orders, table_id="t2", source_table="items")
        control.tables.save([orders, items])
        control.tables.save([replace(orders, state=State.STREAMING)])
        found = control.tables.load()
        assert list(found) == [TableId("public", "items"), TableId("public", "orders")]
        assert found[orders.id].state is State.STREAMING
        assert found[items.id].state is State.SNAPSHOT

    def test_in_a_catalog(self, catalog_lake: Lake) -> None:
        tables = catalog_control(catalog_lake, "tables").tables
        state = TableState("t1", "public", "orders", "b", "s", State.SNAPSHOT)
        tables.save([state])
        tables.save([replace(state, state=State.BRONZE_ONLY, reason="because")])
        (found,) = tables.load().values()
        assert (found.state, found.reason) == (State.BRONZE_ONLY, "because")


class TestChunks:
    def test_done_after_a_restart_belongs_to_the_newest_snapshot(
        self, control: Control, direct: Lake
    ) -> None:
        orders = TableId("public", "orders")
        control.chunks.plan({"t1": [Chunk(orders, 1, None, ("5",), 4), Chunk(orders, 2, ("5",), None)]})
        control.chunks.plan({"t1": [Chunk(orders, 1)]})
        Control(direct, "shop").chunks.done([("t1", 1)], batch=3, txn=Txn("i1/notes", 3))
        rows = sorted(control.chunks.load(), key=lambda row: row.at)
        snapshots = [row.snapshot for row in rows]
        assert snapshots[0] == snapshots[1] != snapshots[2] == snapshots[3]
        assert {(row.number, str(row.lower), str(row.upper)) for row in rows[:2]} == {
            (1, "None", "['5']"),
            (2, "['5']", "None"),
        }
        assert rows[3] == ChunkRow(snapshots[2], "t1", 1, None, None, "done", 3, None, rows[3].at)


class TestSignals:
    def test_inserted_by_sql(self, lake: Lake) -> None:
        control = Control(lake, "shop")
        control.signals.create()
        control.answers.create()
        lake.execute(f"INSERT INTO {control.signals.ref.sql} (id, type, data) VALUES ('a', 'log', '{{}}')")
        lake.execute(f"INSERT INTO {control.signals.ref.sql} (pipeline, id) VALUES ('other', 'b')")
        assert control.signals.load() == [Signal("a", "log", "{}", None)]
        control.answers.add([Answer("a", "accepted", "done")])
        assert control.answers.ids() == {"a"}

    def test_oldest_first_and_none_without_an_id(self, control: Control) -> None:
        for signal in (Signal("late", "log", "", NOON), Signal("early", "log", "", NOON - timedelta(days=1))):
            control.signals.add(signal)
        ref = control.signals.ref
        control.signals._lake.append_rows(ref, [{"type": "log", "at": NOON + timedelta(days=1)}])
        ids = [signal.id for signal in control.signals.load()]
        assert ids[:2] == ["early", "late"]
        assert ids[2].startswith("unnamed-")


def test_a_new_control_folder_takes_under_two_seconds(direct: Lake, tmp_path: Path) -> None:
    import time

    started = time.process_time()
    control_of(direct)
    assert time.process_time() - started < 2
    assert len(list((tmp_path / "lake" / "control").iterdir())) == 15
