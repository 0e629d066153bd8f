"""A runner that dies at any point, on its first start and again while it recovers, loses and repeats nothing.

A snapshot is half done and writes of every kind go on while the runner is killed twice. The third run must
bring bronze to the true history, which the server's triggers recorded, and silver to the source.
"""

from __future__ import annotations

import shutil
import time

import pytest

from cdc_lib.config import load
from tests.engines import kill
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.workload import Workload
from tests.servers.postgresql import Database

LIMITS = {"batch_rows": 450, "chunk_rows": 160, "threads": 2}
"""Small, so that the snapshot is several batches and the log more than one."""
BY_SPARK = ("bronze.appended",)
"""First points of the cases in which Spark writes bronze; in the others this process does."""


def assert_nothing_lost(pipeline: PipelineUnderTest, database: Database) -> None:
    found = kill.differences(pipeline, database)
    assert not found, kill.shown(found)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("first", "second"), kill.pairs(), ids=lambda point: point)
def test_killed_on_the_first_start_and_while_recovering(
    recorded_database: Database, make_pipeline: MakePipeline, first: str, second: str
) -> None:
    pipeline = make_pipeline(recorded_database, LIMITS)
    if first in BY_SPARK:
        pipeline.writer = "spark"
    with Workload(recorded_database, seed=sum(map(ord, first))) as writes:
        # Silver is the dearest step, and the run that follows brings it up whatever happened before.
        verb = "run" if "silver" in first + second else "capture"
        kill.killed(pipeline, f"{first}:{kill.FIRST_START.get(first, 1)}", verb)
        kill.killed(pipeline, second, verb)
    assert writes.transactions > 10
    # Whoever writes bronze from here on, what the dead had sealed is finished.
    pipeline.writer = "direct"
    pipeline.run()
    assert_nothing_lost(pipeline, recorded_database)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_together_with_its_jvm(recorded_database: Database, make_pipeline: MakePipeline) -> None:
    """Also what the JVM had begun is cut short: half-written files, a commit that was never made."""
    pipeline = make_pipeline(recorded_database, LIMITS)
    pipeline.writer = "spark"
    with Workload(recorded_database, seed=20):
        kill.killed_with_its_jvm(pipeline, "bronze.appended.one:2")
    pipeline.run()
    assert_nothing_lost(pipeline, recorded_database)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sealed_window_whose_staging_is_gone(
    recorded_database: Database, make_pipeline: MakePipeline
) -> None:
    """The log of the window is read again, exactly as it was sealed; its pieces are, in a later window."""
    pipeline = make_pipeline(recorded_database, LIMITS)
    with Workload(recorded_database, seed=5, pace=0.01):
        kill.killed(pipeline, "sealed:2", "capture")
        (folder,) = load(pipeline.write()).staging.glob("*2")
        shutil.rmtree(folder)
        seal = max(pipeline.control("batches"), key=lambda row: int(row["batch"]))
        assert any(table["chunks"] for table in seal["tables"])
        assert any(table["log_rows"] for table in seal["tables"])
    pipeline.run()
    assert_nothing_lost(pipeline, recorded_database)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "point",
    [
        "sealed",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("bronze.appended.one", "committed")),
    ],
)
def test_a_paused_runner_that_wakes_up_after_another_took_over(
    recorded_database: Database, make_pipeline: MakePipeline, point: str
) -> None:
    """It is past its snapshot: in one, its own sessions would go on locking the tables while it is paused."""
    pipeline = make_pipeline(recorded_database, {**LIMITS, "lease_seconds": 3})
    pipeline.run("capture")
    with Workload(recorded_database, seed=len(point)):
        paused = kill.paused(pipeline, point)
        early = pipeline.attempt("capture")
        time.sleep(4)
        pipeline.run("capture")
        code, output = kill.woken(paused)
    assert early.error in ("RetryLater", ""), "it waits for the lease, unless that ran out meanwhile"
    if point == "committed":
        # Its batch was whole before the pause. Whether it notices depends on whether it had more to do.
        assert code in (0, 3), output
    else:
        assert code == 3, output
        assert "lease" in output or "another runner" in output, output
    pipeline.run()
    assert_nothing_lost(pipeline, recorded_database)
