"""What is read of a pipeline to be shown: committed batches, their operations, how far snapshots are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cdc_lib.cli.published import Published
from cdc_lib.config import Pipeline, parse
from cdc_lib.control import Control
from cdc_lib.control.batches import Seal, SealedTable
from cdc_lib.control.tables import State, TableState
from cdc_lib.control.watermarks import Watermark
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.facts import Facts
from cdc_lib.monitoring.overview import read_overview
from cdc_lib.schema import TableId
from cdc_lib.source import Chunk, Span
from cdc_lib.sources.postgresql.position import PostgresPosition
from tests.unit.monitoring.overviews import NOW, ago

HERE = PostgresPosition("7001", 1, 0x5000)
ORDERS = TableId("public", "orders")


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setattr("cdc_lib.status.ask", lambda source: Span(None, HERE, 5, 7))
    return parse(
        {
            "name": "shop",
            "source": {
                "connector.class": "postgresql",
                "database.hostname": "localhost",
                "database.user": "cdc",
                "database.password": "x",
                "database.dbname": "shop",
            },
            "target": {"path": str(tmp_path / "lake")},
        }
    )


@pytest.fixture
def control(pipeline: Pipeline) -> Control:
    made = Control(Lake(pipeline.target), "shop")
    made.create()
    made.tables.save([TableState("o", "public", "orders", "b", "s", State.SNAPSHOT)])
    return made


def seal(control: Control, number: int, rows: int, log_rows: int, **counts: int) -> None:
    json = HERE.to_json()
    facts = Facts(rows=rows, counts=counts).to_json()
    table = SealedTable("o", "public", "orders", 1, rows, log_rows, "", False, [], facts)
    control.batches.seal(Seal(number, 1, "r", "i", json, json, [table], "hash", "/staging", ago(minutes=9)))


def commit(control: Control, number: int) -> None:
    mark = Watermark(number, HERE.to_json(), HERE.sort_key, "batch", ago(minutes=5), {}, "r", ago(minutes=4))
    control.watermarks.commit(mark)


def test_only_committed_batches_are_shown(pipeline: Pipeline, control: Control) -> None:
    seal(control, 1, 100, 0, r=100)
    commit(control, 1)
    seal(control, 2, 8, 8, c=5, u=3)
    commit(control, 2)
    seal(control, 3, 99, 99, d=99)
    found = read_overview(pipeline, now=NOW)
    shown = [(each.number, each.snapshot_rows, each.log_rows, each.delay) for each in found.batches]
    assert shown == [(1, 100, 0, 60.0), (2, 0, 8, 60.0)]
    assert found.events == {"public.orders": {"r": 100, "c": 5, "u": 3}}
    assert (found.status.retained_bytes, found.status.headroom_bytes) == (5, 7)
    assert not found.running


def test_a_snapshot_counts_the_pieces_that_are_done(pipeline: Pipeline, control: Control) -> None:
    control.chunks.plan({"o": [Chunk(ORDERS, number, rows=100) for number in range(4)]})
    control.chunks.done([("o", 0), ("o", 2)], batch=1)
    found = read_overview(pipeline, now=NOW).snapshots["public.orders"]
    assert (found.pieces, found.done, found.rows, found.rows_done) == (4, 2, 400, 200)


def test_a_new_snapshot_replaces_the_old_and_a_restart_has_no_progress(
    pipeline: Pipeline, control: Control
) -> None:
    control.chunks.plan({"o": [Chunk(ORDERS, 0), Chunk(ORDERS, 1)]})
    control.chunks.done([("o", 0), ("o", 1)], batch=1)
    control.chunks.plan({"o": [Chunk(ORDERS, 0), Chunk(ORDERS, 1), Chunk(ORDERS, 2)]})
    found = read_overview(pipeline, now=NOW).snapshots["public.orders"]
    assert (found.pieces, found.done, found.rows) == (3, 0, None)
    control.chunks.restart(["o"])
    assert read_overview(pipeline, now=NOW).snapshots == {}


def test_pieces_below_a_gap_in_the_log_do_not_count(control: Control) -> None:
    control.chunks.plan({"o": [Chunk(ORDERS, 0), Chunk(ORDERS, 1)]})
    control.chunks.done([("o", 0)], batch=3)
    control.chunks.done([("o", 1)], batch=5)
    assert control.chunks.progress(started=3)["o"].done == 1


def test_a_run_under_way_holds_the_lease(pipeline: Pipeline, control: Control) -> None:
    lease = control.leases.acquire("r", 60)
    assert read_overview(pipeline, now=NOW).running
    control.leases.release(lease)
    assert not read_overview(pipeline, now=NOW).running


def test_the_page_is_written_where_it_was_asked_for(
    pipeline: Pipeline, control: Control, tmp_path: Path
) -> None:
    Published(tmp_path / "status.html", None, False).publish([pipeline])
    assert "captured up to" not in (tmp_path / "status.html").read_text(encoding="utf-8")
    with pytest.raises(FixConfiguration, match="cannot be written"):
        Published(tmp_path / "missing" / "status.html", None, False).publish([pipeline])


@pytest.mark.parametrize(
    ("module", "extra", "wanted"),
    [
        ("prometheus_client", "prometheus", (None, Path("-"), False)),
        ("opentelemetry.sdk.metrics", "otel", (None, None, True)),
    ],
)
def test_a_missing_library_is_named_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str, wanted: tuple[None, Path | None, bool]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FixConfiguration) as caught:
        Published(*wanted)
    assert f"cdc-lib[{extra}]" in caught.value.remedy
