"""An operator restores a bronze table to an older version, then the pipeline runs on.

Delta's transaction versions survive RESTORE: a batch that is executed again is skipped in silence, and its
rows are gone. Guards: the foreign commit on top of the version we remember, a commit counts only while it
stands, and the verified append.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from staged import INCARNATION, append, orders, stage

from cdc_lib import bronze
from cdc_lib.delta import Lake, TableRef
from cdc_lib.errors import ResnapshotNeeded


@pytest.fixture
def ref(lake: Lake) -> TableRef:
    return lake.ref("bronze", "public_orders")


@pytest.fixture
def batch(lake: Lake, ref: TableRef, tmp_path: Path) -> Callable[[int], None]:
    def run(number: int) -> None:
        rows = [{"op": "c", "after": {"id": number}}]
        append(lake, ref, stage(tmp_path / str(number), (orders(), rows)), number)

    return run


def test_restored_and_repeated(lake: Lake, ref: TableRef, batch: Callable[[int], None]) -> None:
    batch(1)
    batch(2)
    remembered = lake.version(ref)
    lake.execute(f"RESTORE TABLE {ref.sql} TO VERSION AS OF 1")
    (foreign,) = bronze.foreign_commits(lake, ref, remembered, INCARNATION)
    assert (foreign.operation, foreign.version) == ("RESTORE", remembered + 1)
    # With that guard out, the batch is executed again: its old commit does not count any more, Delta skips
    # the append, and the row is missing.
    assert bronze.find_commit(lake, ref, INCARNATION, 2) is None
    batch(2)
    assert [row["after"] for row in lake.rows(ref)] == [{"id": 1}], "Delta no longer skips: the guard can go"
    with pytest.raises(ResnapshotNeeded, match="batch 2 did not arrive"):
        bronze.verify(lake, ref, INCARNATION, 2)
    # The remedy: back to the version that we remember.
    lake.execute(f"RESTORE TABLE {ref.sql} TO VERSION AS OF {remembered}")
    assert bronze.foreign_commits(lake, ref, remembered, INCARNATION) == []
    assert bronze.verify(lake, ref, INCARNATION, 2).version == remembered


def test_rows_of_an_uncommitted_batch_deleted(
    lake: Lake, ref: TableRef, batch: Callable[[int], None]
) -> None:
    """Nothing is remembered of a table whose first batch is not committed; its commit tells all the same."""
    batch(1)
    lake.execute(f"DELETE FROM {ref.sql}")
    with pytest.raises(ResnapshotNeeded, match="DELETE, version 2"):
        bronze.find_commit(lake, ref, INCARNATION, 1)
