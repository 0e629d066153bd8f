"""delta-rs does not skip a repeated transaction version and lets it go back; our direct writes must not.

Guard: the version is read on the very handle that commits, and a concurrent commit of the same application
conflicts. The first test shows what delta-rs does by itself.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc_lib import delta_direct
from cdc_lib.delta import Conflict, Txn

ROW = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def path(tmp_path: Path) -> str:
    delta_direct.create(str(tmp_path / "t"), ROW.schema, "", {})
    return str(tmp_path / "t")


def count(path: str) -> int:
    return len(delta_direct.read(path, None, None) or [])


def test_delta_rs_alone_writes_twice_and_goes_back(path: str) -> None:
    for version in (5, 5, 3):
        properties = CommitProperties(app_transactions=[Transaction("app", version)])
        write_deltalake(path, ROW, mode="append", commit_properties=properties)
    assert (count(path), DeltaTable(path).transaction_version("app")) == (3, 3)


def test_ours_does_not(path: str) -> None:
    for version in (5, 5, 3):
        delta_direct.append(path, [{"n": version}], Txn("app", version), None)
    assert (count(path), DeltaTable(path).transaction_version("app")) == (1, 5)


@pytest.mark.parametrize("late", [6, 7, 8], ids=["lower", "equal", "higher"])
def test_a_handle_that_is_behind_conflicts(path: str, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = DeltaTable(path)
    delta_direct.append(path, [{"n": 1}], Txn("app", 7), None)
    monkeypatch.setattr(delta_direct, "open_table", lambda _: behind)
    with pytest.raises(Conflict):
        delta_direct.append(path, [{"n": 2}], Txn("app", late), None)


def test_replacing_a_row_on_a_handle_that_is_behind_conflicts(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = DeltaTable(path)
    delta_direct.upsert(path, [{"n": 1}], ["n"], None)
    monkeypatch.setattr(delta_direct, "open_table", lambda _: behind)
    with pytest.raises(Conflict):
        delta_direct.upsert(path, [{"n": 1}], ["n"], None)
