"""Runs whose wall clock jumps between them and while they hold the lease: nothing is lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill
from tests.engines.conformance import assert_same, ops
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

DAY = 86_400


@dataclass
class Case:
    """A pipeline over ``t`` of 300 rows, whose runs read their clock's error from ``shift``."""

    database: PostgresDatabase
    pipeline: PipelineUnderTest
    shift: Path

    def jump(self, days: float) -> None:
        """From now on the clock is off by so many days; also that of runs that are under way."""
        self.shift.write_text(str(days * DAY), encoding="ascii")

    def run(self, verb: str = "run") -> tuple[int, str]:
        process = self.pipeline.start(verb)
        output, _ = process.communicate(timeout=kill.SECONDS)
        return process.returncode, output

    def assert_good(self) -> None:
        code, output = self.run()
        assert code == 0, output
        assert_same(self.pipeline, self.database, "t")


@pytest.fixture
def case(
    recording_postgres: EmbeddedPostgres, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    with PostgresDatabase(recording_postgres) as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int)",
            "INSERT INTO t SELECT i, i FROM generate_series(1, 300) i",
            "ANALYZE t",
        )
        pipeline = make_pipeline(database.database, {"chunk_rows": 100, "batch_rows": 100})
        case = Case(database, pipeline, pipeline.folder / "shift")
        case.jump(0)
        # What the tests start inherits it; the process with Spark was started before and keeps the time.
        monkeypatch.setenv("CDC_CLOCK_SHIFT", str(case.shift))
        yield case


@pytest.mark.slow
def test_between_runs(case: Case) -> None:
    for number, days in enumerate((0, 2, -2, 1, -3), start=1):
        case.jump(days)
        case.database.execute(
            f"UPDATE t SET n = -{number} WHERE id = {number}", f"DELETE FROM t WHERE id = 10{number}"
        )
        case.assert_good()
    assert ops(case.pipeline, "public_t") == ["r"] * 299 + ["u", "d"] * 4, (
        "the first changes are in the snapshot"
    )


@pytest.mark.slow
def test_between_a_snapshot_and_the_next_which_is_interrupted(case: Case) -> None:
    """It goes on where it stood, although its plan seems to be the older one."""
    case.assert_good()
    case.jump(-1)
    kill.killed(case.pipeline, "committed", "snapshot")
    case.database.execute("DELETE FROM t WHERE id = 1", "UPDATE t SET n = 0 WHERE id = 300")
    case.assert_good()
    states = [row["state"] for row in case.pipeline.control("chunks")]
    assert (states.count("planned"), states.count("done")) == (6, 6), (
        "three pieces each time, none read twice"
    )


@pytest.mark.parametrize("days", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_while_a_runner_holds_the_lease(case: Case, days: int) -> None:
    """Set forward, its lease seems to have run out, and another takes over; it then commits nothing more. Set
    back, it holds the lease that it held."""
    case.assert_good()
    case.database.execute("DELETE FROM t WHERE id = 1")
    paused = kill.paused(case.pipeline, "log.staged")
    case.jump(days)
    code, output = case.run("capture")
    if days > 0:
        assert code == 0, output
        assert kill.woken(paused)[0] == 3
    else:
        assert code == 3, output
        assert "another runner" in output
        assert kill.woken(paused)[0] == 0
    case.assert_good()
    assert ops(case.pipeline, "public_t").count("d") == 1
