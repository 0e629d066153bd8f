"""Which rows of control tables ``cdc maintain`` drops, and which it must not, however old they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from cdc_lib.config import Target
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.chunks import ChunkRow
from cdc_lib.control.expiring import expired
from cdc_lib.control.incidents import Incident
from cdc_lib.control.messages import MessageRow
from cdc_lib.control.runs import Run
from cdc_lib.control.schema_changes import SchemaChangeRow
from cdc_lib.control.schema_history import SchemaRow
from cdc_lib.control.signals import Answer, Signal
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.transactions import TransactionRow
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake
from cdc_lib.status import _rows

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
OLD = NOW - timedelta(days=100)
BEFORE = NOW - timedelta(days=90)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(Target(path=tmp_path / "lake"))


@pytest.fixture
def control(lake: Lake) -> Control:
    found = Control(lake, "shop")
    found.create()
    return found


def put(table: Any, *rows: Any) -> None:
    table._append(rows)


def mark(batch: int, kind: str, key: str = "", at: datetime = OLD, **more: Any) -> Watermark:
    return Watermark(batch, key, key, kind, None, {}, "r", at, **more)  # type: ignore[arg-type]


def seal(batch: int, *tables: str, at: datetime = OLD, attempt: int = 1, runner: str = "r") -> Seal:
    held = [SealedTable(table, "public", table, 1, 1, 1, "", False, []) for table in tables]
    return Seal(batch, attempt, runner, "i", f"{batch - 1}", f"{batch}", held, "", "", at)


def maintain(control: Control) -> dict[str, int]:
    """Drop what may go; what was said to go must be what went."""
    said: dict[str, int] = {}
    before = counts(control)
    for found in expired(control, BEFORE):
        said[found.table.name] = said.get(found.table.name, 0) + found.rows
        found.carry_out()
    after = counts(control)
    written = {"watermarks": 1, "totals": 1}
    for name, rows in said.items():
        assert rows - (before[name] - after[name]) in (0, written.get(name, 0)), name
    return said


def counts(control: Control) -> dict[str, int]:
    return {table.name: len(control._lake.rows(table.ref, ["pipeline"])) for table in control.every()}


def caught_up(control: Control, batches: Sequence[Seal], **applied: int) -> None:
    """Sealed, committed and applied so far, by table."""
    put(control.batches, *batches)
    newest = max(each.batch for each in batches)
    put(control.watermarks, mark(0, "start", "0"), mark(newest, "batch", f"{newest}"))
    put(control.watermarks, mark(max(applied.values(), default=0), "applied", applied=applied))


def test_nothing_goes_where_nothing_was_captured(control: Control) -> None:
    put(control.incidents, Incident("k", "", "", 0, "m", "r", at=OLD))
    assert maintain(control) == {}, (
        "or the control tables were lost: a rebuild is due, and needs what is left"
    )


class TestWatermarks:
    def test_the_latest_stays_however_old_and_the_start_of_the_log(self, control: Control) -> None:
        put(control.watermarks, mark(0, "start", "00"), mark(1, "batch", "01"), mark(2, "batch", "02"))
        assert maintain(control) == {"watermarks": 1}
        latest = control.watermarks.latest()
        assert latest is not None
        assert (latest.batch, latest.sort_key) == (2, "02")
        assert control.watermarks.started() == 0

    def test_heartbeats_of_an_idle_source_go_but_for_the_last(self, control: Control) -> None:
        beats = [mark(1, "heartbeat", f"{place:02}") for place in range(2, 12)]
        put(control.watermarks, mark(0, "start", "00"), mark(1, "batch", "01"), *beats)
        assert maintain(control) == {"watermarks": 10}
        assert {each.sort_key for each in control.watermarks.load()} == {"00", "11"}

    def test_a_start_before_a_gap_goes_and_the_newest_stays(self, control: Control) -> None:
        put(control.watermarks, mark(0, "start"), mark(7, "start", "50"), mark(8, "batch", "51"))
        maintain(control)
        assert control.watermarks.started() == 7
        assert len(control.watermarks.load()) == 2

    def test_what_silver_has_of_each_table_is_still_known(self, control: Control) -> None:
        """An idle table's newest batch stands in an old row of its own."""
        put(control.watermarks, mark(0, "start", "0"), mark(9, "batch", "9", at=NOW))
        put(control.watermarks, mark(3, "applied", applied={"idle": 3}))
        put(control.watermarks, *(mark(n, "applied", applied={"busy": n}) for n in range(4, 10)))
        assert maintain(control) == {"watermarks": 6}
        assert control.watermarks.applied() == {"idle": 3, "busy": 9}

    def test_a_row_of_a_clock_that_was_wrong_counts_by_its_batch(self, control: Control) -> None:
        """Written last, under a clock that had been set back by a year."""
        year_ago = NOW - timedelta(days=365)
        put(control.watermarks, mark(0, "start", "0"), mark(1, "batch", "1", at=NOW))
        put(control.watermarks, mark(2, "batch", "2", at=year_ago))
        put(control.watermarks, mark(2, "applied", at=year_ago, applied={"t": 2}))
        maintain(control)
        latest = control.watermarks.latest()
        assert latest is not None
        assert latest.batch == 2
        assert control.watermarks.applied() == {"t": 2}


class TestBatches:
    def kept(self, control: Control) -> list[int]:
        return sorted(each.batch for each in control.batches.load())

    def test_seals_go_when_silver_has_them(self, control: Control) -> None:
        caught_up(control, [seal(n, "t") for n in range(1, 6)], t=5)
        assert maintain(control)["batches"] == 4
        assert self.kept(control) == [5]

    def test_a_young_one_stays(self, control: Control) -> None:
        caught_up(control, [seal(1, "t"), seal(2, "t", at=NOW), seal(3, "t", at=NOW)], t=3)
        maintain(control)
        assert self.kept(control) == [2, 3]

    def test_what_silver_lacks_stays(self, control: Control) -> None:
        """Its seal says what kinds of rows wait; without it, an update might be taken for an insert."""
        caught_up(control, [seal(1, "t", "u"), seal(2, "u"), seal(3, "t"), seal(4, "u")], t=4, u=1)
        maintain(control)
        assert self.kept(control) == [2, 3, 4], "3 is the newest of t"

    def test_a_table_that_is_not_in_silver_at_all_keeps_its_seals(self, control: Control) -> None:
        caught_up(control, [seal(1, "bronze_only"), seal(2, "bronze_only"), seal(3, "t")], t=3)
        maintain(control)
        assert self.kept(control) == [1, 2, 3]

    def test_one_that_is_sealed_and_not_committed_stays(self, control: Control) -> None:
        caught_up(control, [seal(1, "t"), seal(2, "t")], t=2)
        put(control.batches, seal(3, "t"), seal(3, "t", attempt=2, runner="other"))
        maintain(control)
        found = control.batches.unfinished(2)
        assert found is not None
        assert found.attempt == 2
        assert self.kept(control) == [2, 3, 3]

    def test_one_that_brought_a_structure_stays(self, control: Control) -> None:
        """A structure counts only if the runner that wrote it sealed the batch, and only the seal says so."""
        caught_up(control, [seal(n, "t", runner=f"r{n}") for n in range(1, 5)], t=4)
        put(control.schema_history, SchemaRow("t", 1, 2, "r2", "{}", at=OLD))
        maintain(control)
        assert self.kept(control) == [2, 4]
        assert control.batches.readers()[2] == "r2"

    def test_those_of_another_pipeline_are_not_touched(self, lake: Lake, control: Control) -> None:
        other = Control(lake, "other")
        caught_up(other, [seal(n, "t") for n in range(1, 4)], t=3)
        caught_up(control, [seal(n, "t") for n in range(1, 4)], t=3)
        maintain(control)
        assert self.kept(other) == [1, 2, 3]
        assert self.kept(control) == [3]


class TestTotals:
    """How many rows came is known after the seals that said so are gone."""

    def rows(self, control: Control) -> dict[str, int]:
        found = _rows(control, committed=100)
        return {table: counts.total() for table, counts in found.items()}

    def test_rows_are_still_counted(self, control: Control) -> None:
        caught_up(control, [seal(1, "t", "u"), *(seal(n, "t") for n in range(2, 8))], t=7, u=1)
        before = self.rows(control)
        maintain(control)
        assert self.rows(control) == before == {"t": 7, "u": 1}
        assert [each.batch for each in control.batches.load()] == [1, 7], "each the newest of a table"

    def test_a_kill_after_they_were_counted_counts_none_twice(self, control: Control) -> None:
        caught_up(control, [seal(n, "t") for n in range(1, 6)], t=5)
        (found,) = (each for each in expired(control, BEFORE) if each.table is control.batches)
        assert found.first is not None
        found.first()
        assert self.rows(control) == {"t": 5}
        maintain(control)
        assert self.rows(control) == {"t": 5}

    def test_they_add_up_from_one_maintenance_to_the_next(self, control: Control) -> None:
        """Also for a seal that stayed the last time, because it was the newest of its table."""
        caught_up(control, [seal(1, "t"), seal(2, "t"), seal(3, "u"), seal(4, "u")], t=2, u=4)
        maintain(control)
        put(control.batches, seal(5, "t"), seal(6, "u"))
        put(control.watermarks, mark(6, "batch", "6"), mark(6, "applied", applied={"t": 5, "u": 6}))
        maintain(control)
        maintain(control)
        assert self.rows(control) == {"t": 3, "u": 3}
        assert [each.batch for each in control.batches.load()] == [5, 6]
        assert len(control.totals.load()) == 1


class TestSignals:
    @pytest.fixture(autouse=True)
    def _captured(self, control: Control) -> None:
        put(control.watermarks, mark(0, "start"))

    def test_an_answered_one_goes_with_its_answer(self, control: Control) -> None:
        put(control.signals, Signal("it's \\ 1", "log", at=OLD), Signal("2", "log", at=OLD))
        put(control.answers, Answer("it's \\ 1", "accepted", "", at=OLD), Answer("2", "accepted", "", at=NOW))
        assert maintain(control) == {"signals": 1, "signal_answers": 1}
        assert [signal.id for signal in control.signals.load()] == ["2"]
        assert control.answers.ids() == {"2"}

    def test_one_without_an_answer_stays(self, control: Control) -> None:
        put(control.signals, Signal("1", "log", at=OLD))
        assert maintain(control) == {}

    def test_no_answer_goes_before_its_signal(self, control: Control) -> None:
        """Killed in between, the signal must not be acted on again."""
        put(control.signals, Signal("1", "log", at=OLD))
        put(control.answers, Answer("1", "accepted", "", at=OLD))
        first, *_ = expired(control, BEFORE)
        first.carry_out()
        assert control.signals.load() == []
        assert control.answers.ids() == {"1"}
        assert maintain(control) == {"signal_answers": 1}

    def test_one_for_any_pipeline_stays_and_so_does_its_answer(self, lake: Lake, control: Control) -> None:
        lake.append_rows(control.signals.ref, [{"id": "all", "type": "log", "data": "", "at": OLD}])
        put(control.answers, Answer("all", "accepted", "", at=OLD))
        assert maintain(control) == {}


def test_chunks_of_the_newest_snapshot_of_a_table_stay(control: Control) -> None:
    def chunk(snapshot: str, table: str, state: str, day: int) -> ChunkRow:
        at = OLD + timedelta(hours=day)
        return ChunkRow(snapshot, table, 0, None, None, state, None, None, at)  # type: ignore[arg-type]

    put(control.watermarks, mark(0, "start"))
    put(control.chunks, chunk("s1", "a", "planned", 1), chunk("s1", "a", "done", 2))
    put(control.chunks, chunk("s2", "a", "planned", 3), chunk("s2", "b", "planned", 3))
    put(control.chunks, chunk("s3", "a", "planned", 4), chunk("", "b", "done", 5))
    assert maintain(control) == {"chunks": 2}
    assert {row.snapshot for row in control.chunks.load()} == {"s2", "s3", ""}


def test_reports_go_by_age_and_the_newest_run_stays(control: Control) -> None:
    put(control.watermarks, mark(0, "start"))
    put(control.runs, *(Run(f"{n}", "run", OLD, OLD + timedelta(hours=n), "done") for n in range(3)))
    put(control.incidents, *(Incident("k", "", "", 0, "m", "r", at=at) for at in (OLD, NOW)))
    assert maintain(control) == {"runs": 2, "incidents": 1}
    assert [run.run_id for run in control.runs.load()] == ["2"]


def test_what_the_source_said_stays(control: Control) -> None:
    """Messages and changes of structure are the source's own, as bronze is."""
    put(control.watermarks, mark(0, "start"))
    put(control.messages, MessageRow("p", b"x", True, "1", 1, 1, at=OLD))
    put(control.transactions, TransactionRow("1", 1, "1", OLD, 1))
    put(control.schema_changes, SchemaChangeRow("t", "public.t", 1, "added", "c", "", 1, at=OLD))
    put(control.schema_history, SchemaRow("t", 1, 1, "r", "{}", at=OLD))
    control.tables.save([TableState("t", "public", "t", "t", "t", State.STREAMING)])
    before = counts(control)
    assert maintain(control) == {}
    assert counts(control) == before


def test_rows_are_deleted_beside_a_run_that_adds_others(control: Control) -> None:
    """Each is told by batch: what is added meanwhile stays, and neither gets in the other's way."""
    caught_up(control, [seal(n, "t") for n in range(1, 4)], t=3)
    found = expired(control, BEFORE)
    put(control.batches, seal(4, "t"))
    put(control.watermarks, mark(4, "batch", "4"), mark(4, "applied", applied={"t": 4}))
    for each in found:
        each.carry_out()
    latest = control.watermarks.latest()
    assert latest is not None
    assert latest.batch == 4
    assert control.watermarks.applied() == {"t": 4}
    assert sorted(each.batch for each in control.batches.load()) == [3, 4]
