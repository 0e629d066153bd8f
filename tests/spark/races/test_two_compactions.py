"""Two processes put the small files of one table together at the same time.

delta-rs lets both commit, and the table has every row twice. Guards: Spark alone does it to bronze and
silver; control tables on a path are looked at again under a lock.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc_lib import delta_direct
from cdc_lib.delta import Conflict, Field, Lake

ROWS = 5


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    delta_direct.create(path, pa.schema([("k", pa.int64())]), "", {})
    for number in range(ROWS):
        delta_direct.append(path, [{"k": number}], None, None)
    return path


def count(path: str) -> int:
    return len(delta_direct.read(path, None, None) or ())


def test_delta_rs_does_not_notice_the_other(table: str) -> None:
    stale = DeltaTable(table)
    DeltaTable(table).optimize.compact()
    stale.optimize.compact()
    assert count(table) == 2 * ROWS, "delta-rs has learned it: the guards can go"


def test_a_paused_process_that_wakes_up_looks_again(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has appended, sleeps, and puts files together that another process has long put together."""
    monkeypatch.setattr(delta_direct, "COMPACT_EVERY", 1)
    append = write_deltalake

    def paused(*arguments: object, **options: object) -> None:
        append(*arguments, **options)  # type: ignore[arg-type]
        DeltaTable(table).optimize.compact()

    monkeypatch.setattr("deltalake.write_deltalake", paused)
    delta_direct.append(table, [{"k": ROWS}], None, None)
    assert count(table) == ROWS + 1


def test_one_at_a_time(table: str) -> None:
    with (Path(table) / "_delta_log" / ".compacting").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        version = DeltaTable(table).version()
        delta_direct.compact(table)
        assert DeltaTable(table).version() == version
    delta_direct.compact(table)
    assert DeltaTable(table).version() == version + 1
    assert count(table) == ROWS


def test_rows_are_added_beside_others_that_are_deleted(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs takes the two for a conflict; a run must not end because of it."""
    opened = delta_direct.existing
    between = iter([True])

    def deleted_meanwhile(path: str) -> DeltaTable:
        found = opened(path)
        if next(between, False):
            opened(path).delete("k = 0")
        return found

    monkeypatch.setattr(delta_direct, "existing", deleted_meanwhile)
    txn = delta_direct.Txn("a", 1)
    delta_direct.append(table, [{"k": 9}], txn, None)
    assert sorted(row["k"] for row in delta_direct.read(table, None, None) or ()) == [1, 2, 3, 4, 9]


def test_spark_notices(lake: Lake, at_once: Callable[..., list[object]]) -> None:
    ref = lake.ref("bronze", "t")
    lake.create(ref, [Field("k", "BIGINT")])
    for number in range(ROWS):
        lake.append_rows(ref, [{"k": number}])
    results = at_once(*[lambda: lake.execute(f"OPTIMIZE {ref.sql}")] * 2)
    assert all(isinstance(result, (list, Conflict)) for result in results), results
    assert count(str(ref.path)) == ROWS
