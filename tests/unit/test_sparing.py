"""Which bronze tables maintenance leaves as they are; foreign writes are in the tests of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.clock import now
from cdc_lib.config import Target
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake, TableRef
from cdc_lib.maintenance.files import Work
from cdc_lib.maintenance.sparing import Sparing

IN_CATALOG = TableRef("bronze", "t", None, "main", "bronze")
ON_PATH = TableRef("bronze", "t", "/lake/bronze/t", None, "bronze")
STATE = TableState("t", "public", "t", "t", "t", State.STREAMING)
COMMITTED = Watermark(1, "", "", "batch", None, {}, "r", now())


@dataclass
class Platform:
    """A lake as far as it is asked here."""

    supports_dml_txn: bool


@pytest.fixture
def control(tmp_path: Path) -> Control:
    found = Control(Lake(Target(path=tmp_path)), "shop")
    found.create()
    return found


def sealed(control: Control, batch: int, days: float) -> None:
    """A batch with rows of the table, sealed so many days ago."""
    table = SealedTable("t", "public", "t", 1, 1, 1, "", False, [])
    at = now() - timedelta(days=days)
    control.batches._append([Seal(batch, 1, "r", "i", "", "", [table], "", "", at)])


def decided(control: Control, ref: TableRef, *, notes: bool, hours: int = 168) -> Work:
    lake: Any = Platform(notes)
    lease: Any = control.leases.offered("r", 60)
    return Sparing(lake, control, COMMITTED, lease, hours=hours).work(ref, STATE)


def test_a_table_at_which_nothing_happens_where_commits_take_no_notes(control: Control) -> None:
    """Its last note would be forgotten sooner, and nothing would repeat it."""
    sealed(control, 1, days=22)
    work = decided(control, IN_CATALOG, notes=False)
    assert (work.compact, work.vacuum, work.finding) == (False, False, False)
    assert "no rows since" in work.left


@pytest.mark.parametrize(
    ("ref", "notes", "days"), [(IN_CATALOG, True, 22), (ON_PATH, False, 22), (IN_CATALOG, False, 20)]
)
def test_it_is_looked_after_where_they_do_and_as_long_as_rows_come(
    control: Control, ref: TableRef, notes: bool, days: float
) -> None:
    sealed(control, 1, days=days)
    assert decided(control, ref, notes=notes) == Work(ref)


def test_a_batch_that_was_not_committed_for_longer_than_files_are_kept(control: Control) -> None:
    sealed(control, 1, days=9)
    sealed(control, 2, days=8)
    work = decided(control, ON_PATH, notes=True)
    assert (work.compact, work.vacuum, work.finding) == (False, False, False)
    assert "batch 2" in work.left


def test_a_batch_that_a_run_is_about_to_commit_does_not_hold_it_up(control: Control) -> None:
    """Its table can be taken back: what its earlier version needs is kept for longer."""
    sealed(control, 1, days=9)
    sealed(control, 2, days=0)
    assert decided(control, ON_PATH, notes=True) == Work(ON_PATH)
