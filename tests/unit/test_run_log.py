"""What a run writes of itself: once at its end, and of one that goes on, every few minutes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cdc_lib import runner
from cdc_lib.capture import Context
from cdc_lib.config import parse
from cdc_lib.control import Control
from cdc_lib.delta import Lake
from cdc_lib.metrics import Metrics
from cdc_lib.progress import Progress
from cdc_lib.runner import RunLog


@pytest.fixture
def context(tmp_path: Path) -> Context:
    pipeline = parse(
        {
            "name": "shop",
            "source": {
                "connector.class": "postgresql",
                "database.hostname": "localhost",
                "database.user": "cdc",
                "database.password": "x",
                "database.dbname": "shop",
            },
            "target": {"path": str(tmp_path)},
        }
    )
    lake = Lake(pipeline.target)
    control = Control(lake, "shop")
    control.create()
    return Context(pipeline, lake, control, Progress(), Metrics(), threading.Event())


def test_a_run_that_goes_on_is_told_in_parts_that_add_up(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog("run", context)
    context.metrics.count("bronze", "public.t", 5)
    log.write_if_due()
    assert context.control.runs.load() == []
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)
    log.write_if_due()
    context.metrics.count("bronze", "public.t", 2)
    log.write("interrupted", "stopped", "run again")
    first, second = sorted(context.control.runs.load(), key=lambda run: run.ended_at)
    assert [(run.outcome, run.metrics["bronze.rows.public.t"]) for run in (first, second)] == [
        ("going on", 5),
        ("interrupted", 2),
    ]
    assert second.started_at >= first.ended_at
    assert (second.error, second.remedy) == ("stopped", "run again")
    assert first.run_id != second.run_id
