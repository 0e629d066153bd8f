"""Status and the demo's comparison: arithmetic on what control tables and rows say."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from cdc_lib.checking import worst
from cdc_lib.cli.output import stdout
from cdc_lib.cli.reports import show_status, show_tables
from cdc_lib.config import Pipeline, parse
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.runs import Run
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake
from cdc_lib.demo import MARK, Comparison, canonical, counted, prepare
from cdc_lib.errors import CdcError, FixConfiguration, RetryLater
from cdc_lib.source import Finding, Source, Span
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.status import ask, read_status, read_tables, read_throughput

NOW = datetime(2025, 6, 1, 12, 0, 0, tzinfo=timezone.utc)
HERE = PostgresPosition("7001", 1, 0x5000)


class AnsweringSource:
    """Stands in for a connected source: it waits, then answers or fails."""

    position_type = PostgresPosition

    def __init__(self, answer: Span | CdcError, seconds: float = 0.0) -> None:
        self._answer, self._seconds = answer, seconds

    def __enter__(self) -> AnsweringSource:
        time.sleep(self._seconds)
        if isinstance(self._answer, CdcError):
            raise self._answer
        return self

    def __exit__(self, *_: object) -> None: ...

    def span(self) -> Span:
        assert isinstance(self._answer, Span)
        return self._answer


def source(answer: Span | CdcError, seconds: float = 0.0) -> Source:
    return AnsweringSource(answer, seconds)  # type: ignore[return-value]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return parse(
        {
            "name": "shop",
            "source": {
                "connector.class": "postgresql",
                "database.hostname": "localhost",
                "database.user": "cdc",
                "database.password": "${env:NOT_NEEDED}",
                "database.dbname": "shop",
            },
            "target": {"path": str(tmp_path / "lake")},
        }
    )


@pytest.fixture
def control(pipeline: Pipeline) -> Control:
    """Two tables; batches 1 (snapshot) and 2 (log) are committed, 3 is only sealed."""
    control = Control(Lake(pipeline.target), pipeline.name)
    control.create()
    names = {"o": "orders", "e": "events"}
    states = [
        TableState(key, "public", name, f"public_{name}", f"public_{name}", State.STREAMING)
        for key, name in names.items()
    ]
    keyless = {"state": State.BRONZE_ONLY, "reason": "an update came", "remedy": "add a key"}
    control.tables.save([states[0], replace(states[1], **keyless)])

    def sealed(key: str, rows: int, log_rows: int) -> SealedTable:
        return SealedTable(
            key, "public", names[key], 1, rows, log_rows, log_hash="", partial=False, chunks=[]
        )

    parts = [[sealed("o", 100, 0), sealed("e", 7, 0)], [sealed("o", 30, 30)], [sealed("o", 999, 999)]]
    for number, tables in enumerate(parts, start=1):
        json = HERE.to_json()
        control.batches.seal(Seal(number, 1, "r", "i", json, json, tables, "hash", "/staging", NOW))
    made = NOW - timedelta(seconds=90)
    control.watermarks.commit(
        Watermark(
            2,
            HERE.to_json(),
            HERE.sort_key,
            "batch",
            made,
            tables={},
            runner="r",
            committed_at=made + timedelta(seconds=4),
        )
    )
    control.watermarks.commit_applied({"o": 2, "e": 1})
    metrics = {"seconds": 10.0, "bronze.rows.public.orders": 100.0, "bronze.rows.public.events": 7.0}
    control.runs.add(
        Run("a", "run", NOW, NOW, "done", metrics={**metrics, "silver.rows.public.orders": 100.0})
    )
    later = NOW + timedelta(seconds=1)
    failed = {"seconds": 3.0, "bronze.rows.public.orders": 30.0, "silver.rows.public.orders": 25.0}
    control.runs.add(Run("b", "run", later, later, "failed", "slot is gone", "cdc snapshot", failed))
    return control


def answering(monkeypatch: pytest.MonkeyPatch, answer: Span | CdcError) -> None:
    monkeypatch.setattr("cdc_lib.status.open_source", lambda config: source(answer))


@pytest.mark.usefixtures("control")
def test_status_counts_committed_batches_only(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, Span(None, HERE.at(0x5000 + 300), retained_bytes=4096, headroom_bytes=None))
    status = read_status(pipeline, now=NOW)
    assert (status.batch, status.position, status.lag_bytes) == (2, "0/5000", 300)
    assert (status.lag_seconds, status.delay_seconds) == (90.0, 4.0)
    assert status.retained_bytes == 4096
    assert [(t.table, t.state, t.rows, t.batch, t.applied) for t in status.tables] == [
        ("public.events", "bronze_only", 7, 1, 1),
        ("public.orders", "streaming", 130, 2, 2),
    ]
    assert status.last_run is not None
    assert (status.last_run.error, status.last_run.remedy) == ("slot is gone", "cdc snapshot")


@pytest.mark.usefixtures("control")
def test_nothing_behind_is_no_lag(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, Span(None, HERE))
    status = read_status(pipeline, now=NOW)
    assert (status.lag_bytes, status.lag_seconds) == (0, 0.0)


@pytest.mark.usefixtures("control")
def test_positions_of_another_server_are_not_subtracted(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, Span(None, PostgresPosition("other", 1, 0x9000)))
    assert read_status(pipeline, now=NOW).lag_bytes is None


@pytest.mark.usefixtures("control")
def test_status_without_the_source_says_why(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, RetryLater("connection refused"))
    status = read_status(pipeline, now=NOW)
    assert (status.source_error, status.lag_bytes) == ("connection refused", None)
    show_status(status, stdout())
    shown = capsys.readouterr().out
    for words in ("connection refused", "slot is gone", "cdc snapshot", "an update came", "add a key"):
        assert words in shown


def test_status_before_the_first_run(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, RetryLater("connection refused"))
    status = read_status(pipeline, now=NOW)
    assert (status.batch, status.committed_at, status.tables, status.last_run) == (0, None, [], None)


def test_a_silent_source_does_not_hold_up_the_status() -> None:
    begun = time.monotonic()
    assert ask(source(Span(None, HERE), seconds=5), patience=0.1) == "the source did not answer within 0.1 s"
    assert time.monotonic() - begun < 2


@pytest.mark.usefixtures("control")
def test_tables_name_both_layers(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    tables = read_tables(pipeline)
    assert [(t.table, t.bronze, t.silver, t.rows) for t in tables] == [
        ("public.events", "bronze.public_events", "silver.public_events", 7),
        ("public.orders", "bronze.public_orders", "silver.public_orders", 130),
    ]
    show_tables(tables)
    assert "silver.public_orders" in capsys.readouterr().out


@pytest.mark.usefixtures("control")
def test_throughput_tells_snapshot_from_log(pipeline: Pipeline) -> None:
    events, orders = read_throughput(pipeline)
    assert (orders.snapshot_rows, orders.log_rows, orders.silver_rows) == (100, 30, 125)
    assert (orders.seconds, orders.rate) == (13.0, 10.0)
    assert (events.snapshot_rows, events.log_rows, events.rate) == (7, 0, 0.7)


def test_the_worst_finding_decides() -> None:
    kinds = [Finding("notice", "a", ""), Finding("error", "b", ""), Finding("ok", "c", "")]
    assert worst(kinds) == "error"
    assert worst(kinds[:1]) == "notice"
    assert worst([]) == "ok"


# -- the demo's comparison


def test_values_are_equal_only_with_their_type_and_scale() -> None:
    different = [1, 1.0, True, "1", Decimal("1"), Decimal("1.0"), None, "None", ["1"], [1], b"1"]
    assert len({canonical(value) for value in different}) == len(different)


def test_one_instant_in_two_zones_is_one_value() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert canonical(NOW) == canonical(elsewhere)
    assert canonical(NOW) != canonical(NOW.replace(tzinfo=None))


def test_rows_are_compared_as_a_multiset() -> None:
    one, two = counted([(1, "a"), (1, "a")]), counted([(1, "a")])
    assert (one - two).total() == 1
    assert not Comparison("t", 2, 1, only_source=1, only_silver=0).equal


def test_the_demo_does_not_touch_a_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep")
    with pytest.raises(FixConfiguration, match="not empty"):
        prepare(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "keep"


def test_the_demo_makes_its_folder(tmp_path: Path) -> None:
    prepare(tmp_path / "demo")
    assert (tmp_path / "demo" / MARK).exists()
