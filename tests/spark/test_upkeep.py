"""Files that are put together and removed: rows stay, the commits are known as ours and say what counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from staged import INCARNATION, append, orders, stage

from cdc_lib import bronze, delta_upkeep
from cdc_lib.config import Target
from cdc_lib.delta import Lake, TableRef
from cdc_lib.delta_log import versions
from cdc_lib.maintenance.files import Files, Work
from cdc_lib.noting import noted

BATCHES = delta_upkeep.MANY


@pytest.fixture(params=["path", pytest.param("catalog", marks=pytest.mark.slow)])
def lake(request: pytest.FixtureRequest, spark: SparkSession, target: Target) -> Lake:
    """Both kinds of targets."""
    if request.param == "catalog":
        found: Lake = request.getfixturevalue("catalog_lake")
        return found
    return Lake(target, lambda: spark)


@pytest.fixture
def ref(lake: Lake, tmp_path: Path) -> TableRef:
    """Bronze of a few batches, one row and one file each."""
    ref = lake.ref("bronze", "public_orders")
    for number in range(1, BATCHES + 1):
        rows = [{"op": "c", "after": {"id": number}, "special": [("id", "x")]}]
        append(lake, ref, stage(tmp_path / str(number), (orders(), rows)), number)
    return ref


def rows(lake: Lake, ref: TableRef) -> list[dict[str, object]]:
    return sorted(lake.rows(ref), key=lambda row: row["_sequence"])


def upkeep(lake: Lake, *, committed: int = BATCHES, hours: int = 168, writes: bool = True) -> Files:
    return Files(lake, INCARNATION, committed, hours=hours, writes=writes)


class TestCompaction:
    def test_many_small_files_become_one_with_the_same_rows(self, lake: Lake, ref: TableRef) -> None:
        before, version = rows(lake, ref), lake.version(ref)
        done = upkeep(lake).look_after(Work(ref))
        assert (done.files, done.files_after) == (BATCHES, 1)
        assert rows(lake, ref) == before
        assert lake.version(ref) == version + 1

    def test_it_is_no_foreign_write_and_hides_no_batch(self, lake: Lake, ref: TableRef) -> None:
        remembered = lake.version(ref)
        upkeep(lake).look_after(Work(ref))
        assert bronze.foreign_commits(lake, ref, remembered, INCARNATION) == []
        found = bronze.find_commit(lake, ref, INCARNATION, BATCHES)
        assert found is not None
        assert found.version == remembered, (
            "the commit that brought the batch, not the one that moved its rows"
        )

    def test_a_skipped_append_is_still_noticed(self, lake: Lake, ref: TableRef, tmp_path: Path) -> None:
        """Transaction versions outlive the files."""
        upkeep(lake).look_after(Work(ref))
        before = rows(lake, ref)
        again = [{"op": "c", "after": {"id": 1}}]
        append(lake, ref, stage(tmp_path / "again", (orders(), again)), BATCHES)
        assert rows(lake, ref) == before

    def test_nothing_is_committed_where_there_is_nothing_to_do(self, lake: Lake, ref: TableRef) -> None:
        upkeep(lake).look_after(Work(ref))
        version = lake.version(ref)
        done = upkeep(lake).look_after(Work(ref))
        assert (done.files, done.files_after, done.removed) == (1, 1, 0)
        assert lake.version(ref) == version

    def test_a_plan_writes_nothing(self, lake: Lake, ref: TableRef) -> None:
        version = lake.version(ref)
        done = upkeep(lake, writes=False).look_after(Work(ref))
        assert (done.files, done.files_after) == (BATCHES, None)
        assert lake.version(ref) == version

    def test_it_repeats_the_note_of_the_newest_committed_batch(self, lake: Lake, ref: TableRef) -> None:
        """The newest batch of all may yet have to be taken back, and must not be proved by this."""
        upkeep(lake, committed=BATCHES - 1).look_after(Work(ref))
        (commit,) = lake.history(ref, limit=1)
        note = noted(commit, INCARNATION)
        assert note is not None
        assert note["batch"] == BATCHES - 1
        assert noted(commit, "another") is None


class TestVacuum:
    def test_a_week_is_kept(self, lake: Lake, ref: TableRef) -> None:
        upkeep(lake).look_after(Work(ref))
        assert upkeep(lake).look_after(Work(ref)).removed == 0
        assert lake.table_at(ref, BATCHES).count() == BATCHES

    def test_older_files_go_and_rows_stay(self, lake: Lake, ref: TableRef) -> None:
        upkeep(lake).look_after(Work(ref))
        before, remembered = rows(lake, ref), lake.version(ref)
        planned = upkeep(lake, hours=0, writes=False).look_after(Work(ref))
        done = upkeep(lake, hours=0).look_after(Work(ref))
        assert planned.removed == done.removed == BATCHES
        assert rows(lake, ref) == before
        assert bronze.foreign_commits(lake, ref, remembered, INCARNATION) == []
        assert upkeep(lake, hours=0, writes=False).look_after(Work(ref)).removed == 0


def test_vacuum_removes_what_a_dead_append_left_and_not_what_one_is_just_writing(
    target: Target, no_jvm: Callable[[], SparkSession], tmp_path: Path
) -> None:
    lake = Lake(target, no_jvm)
    ref = lake.ref("bronze", "public_orders")
    append(lake, ref, stage(tmp_path / "s", (orders(), [{"op": "c", "after": {"id": 1}}])), 1)
    dead, living = (Path(str(ref.path)) / f"part-{name}.zstd.parquet" for name in ("dead", "living"))
    for file in (dead, living):
        file.write_bytes(b"rows")
    os.utime(dead, (1, 1))
    assert upkeep(lake).look_after(Work(ref)).removed == 1
    assert (dead.exists(), living.exists()) == (False, True)


def test_files_of_deletion_vectors_stay(spark: SparkSession, target: Target) -> None:
    """delta-rs knows nothing of them, and would take them for left over."""
    lake = Lake(target, lambda: spark)
    ref = lake.ref("silver", "t")
    spark.range(100).repartition(1).write.format("delta").save(str(ref.path))
    lake.execute(f"ALTER TABLE {ref.sql} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    lake.execute(f"DELETE FROM {ref.sql} WHERE id < 10")
    (vector,) = Path(str(ref.path)).glob("deletion_vector_*")
    os.utime(vector, (1, 1))
    upkeep(lake).look_after(Work(ref))
    assert vector.exists()
    assert lake.table(ref).count() == 90


def test_control_rows_are_deleted_by_value_in_a_catalog(catalog_lake: Lake) -> None:
    """Values are quoted as this Spark reads them; the other rules are in ``unit/test_expiring.py``."""
    from datetime import datetime, timezone

    from cdc_lib.control import Control
    from cdc_lib.control.runs import Run
    from cdc_lib.control.signals import Signal

    control = Control(catalog_lake, "shop")
    for table in (control.runs, control.signals):
        table.create()
    ids = ["it's", "back\\slash", 'double"', "other"]
    for each in ids:
        control.signals.add(Signal(each, "log"))
    control.signals.forget([("id", "in", ids[:3])])
    assert [signal.id for signal in control.signals.load()] == ["other"]
    at = [datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2, 3)]
    for number, day in enumerate(at):
        control.runs.add(Run(str(number), "run", day, day, "done"))
    control.runs.forget([("ended_at", "<", at[2]), ("run_id", "not in", ["0"])])
    assert [run.run_id for run in control.runs.load()] == ["0", "2"]


def test_the_note_outlives_the_commit_that_made_it(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    """Delta forgets commits of a month ago once a checkpoint stands above them. Maintenance makes such
    commits on tables at which nothing has happened for long; they would take the last note with them."""
    lake = Lake(target, lambda: spark)
    ref = lake.ref("bronze", "public_orders")
    for number in range(1, BATCHES + 1):
        row = {"op": "c", "after": {"id": number}}
        append(lake, ref, stage(tmp_path / str(number), (orders(), [row])), number)
    upkeep(lake).look_after(Work(ref))
    log = Path(str(ref.path)) / "_delta_log"
    from deltalake import DeltaTable

    DeltaTable(str(ref.path)).create_checkpoint()
    for version in versions(str(ref.path))[:-1]:
        (log / f"{version:020d}.json").unlink()
    notes = [noted(commit, INCARNATION) for commit in lake.history(ref)]
    assert [note and note["batch"] for note in notes] == [BATCHES]
    assert json.loads(json.dumps(notes[0])) == {"batch": BATCHES, "incarnation": INCARNATION}
    assert delta_upkeep.files(lake, ref).count == 1
