"""What a repair stages: marked rows, none of keys that silver holds twice, nothing if it were too much."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc_lib.change import change_schema
from cdc_lib.reconcile import repairing
from cdc_lib.reconcile.hashing import KEY, LANES, Words
from cdc_lib.reconcile.repairing import Repair
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.source import Chunk
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.staging import BatchStage, StagedBatch

SOURCE = pa.struct([pa.field("snapshot", pa.string()), pa.field("ts_ms", pa.int64())])
TABLE = Table(
    TableId("s", "t"), (Column("id", pa.int64(), "bigint"), Column("v", pa.string(), "text")), ("id",)
)
HERE = PostgresPosition("7001", 1, 0x5000)
NONE = np.zeros(0, np.uint64)


class Capturing:
    """Stands in for a run: stages into a folder, and keeps what it is told to commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.standing = SimpleNamespace(batch=4)
        self.source = SimpleNamespace(source_type=SOURCE)
        self.committed: list[list[dict[str, Any]]] = []
        self.applied = 0

    def reading(self) -> Any:
        captured = {TABLE.id: SimpleNamespace(table=TABLE)}
        return SimpleNamespace(
            captured=captured,
            stage=lambda number: BatchStage(self.folder, number),
            observe=lambda batch, change: None,
        )

    def take(self, batch: Any) -> None:
        contents: StagedBatch = batch.stage.contents()
        rows = []
        for part in (part for table in contents.tables for part in table.parts):
            with pa.OSFile(part.path) as file, pa.ipc.open_stream(file) as stream:
                rows += stream.read_all().to_pylist()
        self.committed.append(rows)
        self.standing.batch = batch.number

    def apply(self) -> None:
        self.applied += 1


@pytest.fixture
def run(tmp_path: Path) -> Capturing:
    return Capturing(tmp_path)


@pytest.fixture
def repair(run: Capturing) -> Repair:
    entry = SimpleNamespace(table_id="t1", id=TABLE.id)
    return Repair(run, entry, TABLE, HERE)  # type: ignore[arg-type]


def read(*ids: int) -> tuple[Chunk, pa.RecordBatch, Words]:
    rows = [
        {
            "op": "r",
            "after": {"id": id, "v": "x"},
            "source": {"snapshot": "true", "ts_ms": 5},
            "ordinal": 7 * id,
        }
        for id in ids
    ]
    hashed = np.zeros((LANES, len(ids)), np.uint64)
    hashed[KEY] = ids
    return Chunk(TABLE.id, 0), pa.RecordBatch.from_pylist(rows, change_schema(TABLE, SOURCE)), hashed


def test_rows_and_deletes_go_into_one_batch(run: Capturing, repair: Repair) -> None:
    repair.take(*read(3, 5, 6), np.array([5], np.uint64))
    repair.take(*read(8), NONE)
    repair.finish(pa.table({"id": [5, 9]}))
    [rows] = run.committed
    found = [(row["op"], (row["after"] or row["before"])["id"], row["ordinal"]) for row in rows]
    assert found == [("r", 3, 0), ("r", 6, 1), ("r", 8, 2), ("d", 5, 3), ("d", 9, 4)]
    assert {row["source"]["snapshot"] for row in rows} == {"repair"}
    assert (run.standing.batch, run.applied) == (5, 1)
    assert sorted(repair.wanted()[KEY].tolist()) == [3, 6, 8]


def test_keys_that_silver_held_twice_come_with_the_batch_after(run: Capturing, repair: Repair) -> None:
    doubled = np.array([5], np.uint64)
    repair.take(*read(5), doubled)
    repair.finish(pa.table({"id": [5]}))
    source = SimpleNamespace(scan=lambda each, again: each(*read(4, 5, 6)))
    repair.bring_back(source, doubled)  # type: ignore[arg-type]
    found = [[(row["op"], (row["after"] or row["before"])["id"]) for row in rows] for rows in run.committed]
    assert found == [[("d", 5)], [("r", 5)]]
    assert run.standing.batch == 6


def test_too_many_rows_are_not_kept(run: Capturing, repair: Repair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "MOST", 3)
    repair.take(*read(1, 2, 3), NONE)
    assert not repair.too_many
    assert list(run.folder.iterdir())
    repair.take(*read(4), NONE)
    assert repair.too_many
    assert not list(run.folder.iterdir())


def test_what_was_not_committed_is_thrown_away(run: Capturing, repair: Repair) -> None:
    with repair:
        repair.take(*read(1), NONE)
        assert list(run.folder.iterdir())
    assert not list(run.folder.iterdir())


def test_nothing_to_mend_is_no_batch(run: Capturing, repair: Repair) -> None:
    repair.finish(pa.table({}))
    assert (run.committed, run.applied) == ([], 0)
