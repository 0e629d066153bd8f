"""Snapshots whose pieces Spark's workers read: silver equals the source whatever happens to the workers.

By default in the workers of the one JVM that all tests share; what takes executors, in a local cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from cdc_lib.source import PieceRefused
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.engines import kill
from tests.engines.connect_server import ConnectServer, own_spark_home
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline, source_section
from tests.engines.postgresql.observing import spec, table
from tests.engines.workload import Workload
from tests.servers.postgresql import Database

LIMITS = {"batch_rows": 450, "chunk_rows": 160, "threads": 2, "snapshot_on": "executors"}
SECONDS = 120

Finish = Callable[[PipelineUnderTest], None]


def assert_nothing_lost(pipeline: PipelineUnderTest, database: Database) -> None:
    found = kill.differences(pipeline, database)
    assert not found, kill.shown(found)


# -- joining a view, without Spark


def source_of_t(database: Database) -> PostgresSource:
    """A table with a default, which the server cannot spell without a lock, and rows 1 to 100."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 7)",
        "INSERT INTO t SELECT generate_series(1, 100)",
    )
    return PostgresSource(database.config())


def test_another_process_reads_the_view_that_one_session_opened(database: Database) -> None:
    source = source_of_t(database)
    t = table("t")
    with source, source.snapshot(spec(t)) as session:
        database.execute("INSERT INTO t VALUES (1000)", "DELETE FROM t WHERE id <= 50")
        # Not connected: as in a process that has nothing but the name.
        other, view = PostgresSource(database.config()), session.share()
        batches = [
            batch for chunk in session.chunks(t) for batch in other.joined(view, chunk, session.table(t))
        ]
        session.assert_unchanged(t)
        here = [batch for chunk in session.chunks(t) for batch in session.rows(chunk)]
    ids = sorted(row["id"] for batch in batches for row in batch.rows.column("after").to_pylist())
    assert ids == list(range(1, 101))
    assert [batch.rows for batch in batches] == [batch.rows for batch in here], "the same, bit by bit"


def test_who_joins_does_not_wait_behind_a_truncate(database: Database) -> None:
    """The truncate waits for the session that shares its view, so waiting for that never ends."""
    source = source_of_t(database)
    t = table("t")
    with source, source.snapshot(spec(t)) as session:
        view, (chunk,) = session.share(), session.chunks(t)
        thread = threading.Thread(target=database.execute, args=["TRUNCATE t"])
        thread.start()
        until(lambda: waiting(database))
        with pytest.raises(PieceRefused):
            list(PostgresSource(database.config()).joined(view, chunk, session.table(t)))
        count = sum(batch.rows.num_rows for batch in session.rows(chunk))
    thread.join(SECONDS)
    assert count == 100


def waiting(database: Database) -> bool:
    """Whether somebody waits for a lock."""
    return database.rows("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted") == [(True,)]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- whole runs, in the workers of the shared JVM


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("snapshot", ["incremental", "consistent"])
def test_under_writes_of_every_kind(
    recorded_database: Database, make_pipeline: MakePipeline, snapshot: str
) -> None:
    pipeline = make_pipeline(recorded_database, {**LIMITS, "snapshot": snapshot})
    with Workload(recorded_database, seed=31) as writes:
        done = pipeline.run("capture")
    assert writes.transactions > 10
    assert done.metrics["executors.pieces"] > 3
    pipeline.run()
    assert_nothing_lost(pipeline, recorded_database)


# -- executors that are processes of their own


@dataclass
class Cluster:
    """A local cluster with two executors, and the folder where flags for its tasks lie."""

    server: ConnectServer
    folder: Path

    @property
    def flags(self) -> Path:
        return self.folder / "flags"

    def arm(self, point: str, action: str) -> None:
        """The first task to reach the point does this."""
        (self.flags / point).write_text(action, encoding="utf-8")

    def struck(self, point: str) -> int:
        """The process that it happened in."""
        (taken,) = self.flags.glob(f"{point}.*")
        taken.unlink()
        return int(taken.suffix[1:])

    def stopped(self, point: str) -> int:
        """The process that stands still at the point; waits for it."""
        until(lambda: any(self.flags.glob(f"{point}.*")))
        pid = self.struck(point)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        return pid

    def written(self) -> list[Path]:
        """All that Spark wrote down: its log, those of the executors, what they were sent, the event log."""
        places = [self.folder / "events", self.folder / "home" / "work", self.folder / "cdc-lib"]
        found = [file for place in places for file in place.rglob("*") if file.is_file()]
        assert {"stderr"} <= {file.name for file in found}
        return [self.folder / "spark.log", *found]

    def executors(self) -> list[int]:
        """Their JVMs."""
        children = psutil.Process(self.server.pid).children(recursive=True)
        return [one.pid for one in children if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]


def executor_of(worker: int) -> psutil.Process:
    """The JVM that a Python worker belongs to."""
    return next(one for one in psutil.Process(worker).parents() if one.name() == "java")


def wake(worker: int) -> None:
    """Let a stopped worker go on, if it is still there: its executor may have taken it along."""
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    for name in ("home", "flags", "events"):
        (folder / name).mkdir()
    environment = {**own_spark_home(folder / "home"), "CDC_FAULT_FLAGS": str(folder / "flags")}
    settings = {
        "spark.executor.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        # Attempts of one task at the same time, whenever an executor is idle.
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "50ms",
    }
    log = folder / "spark.log"
    with ConnectServer(log, "local-cluster[2,1,1024]", settings, environment) as server:
        yield Cluster(server, folder)


@pytest.fixture
def finish(connect_server: ConnectServer, recorded_database: Database) -> Finish:
    """Bring the pipeline to its end in the JVM of the other tests, which is warm, and compare."""

    def end(pipeline: PipelineUnderTest) -> None:
        last = replace(pipeline, spark=connect_server)
        last.run()
        assert_nothing_lost(last, recorded_database)

    return end


@pytest.fixture
def pipeline(cluster: Cluster, recorded_database: Database, tmp_path: Path) -> PipelineUnderTest:
    source = source_section(recorded_database, tmp_path)
    return PipelineUnderTest(cluster.server, tmp_path, recorded_database.name, source, dict(LIMITS))


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestCluster:
    @pytest.mark.parametrize("writer", ["direct", "spark"])
    @pytest.mark.parametrize("snapshot", ["incremental", "consistent"])
    def test_a_snapshot_under_writes(
        self,
        cluster: Cluster,
        pipeline: PipelineUnderTest,
        recorded_database: Database,
        finish: Finish,
        snapshot: str,
        writer: str,
    ) -> None:
        until(lambda: len(cluster.executors()) == 2)
        pipeline.run_limits["snapshot"], pipeline.writer = snapshot, writer
        with Workload(recorded_database, seed=41) as writes:
            done = pipeline.run("capture")
        assert done.metrics["executors.pieces"] > 3
        assert writes.transactions > 10
        finish(pipeline)
        password = recorded_database.server.password.encode()
        assert not [file for file in cluster.written() if password in file.read_bytes()]

    @pytest.mark.parametrize("action", ["kill", "raise"])
    @pytest.mark.parametrize("point", ["piece.opened", "piece.written"])
    def test_a_task_dies_on_its_first_attempt(
        self,
        cluster: Cluster,
        pipeline: PipelineUnderTest,
        recorded_database: Database,
        finish: Finish,
        point: str,
        action: str,
    ) -> None:
        """With its file begun, or whole and never answered for."""
        cluster.arm(point, action)
        with Workload(recorded_database, seed=42):
            pipeline.run("capture")
        cluster.struck(point)
        finish(pipeline)

    def test_an_executor_dies(
        self, cluster: Cluster, pipeline: PipelineUnderTest, recorded_database: Database, finish: Finish
    ) -> None:
        cluster.arm("piece.opened", "stop")
        with Workload(recorded_database, seed=43):
            run = pipeline.start("capture")
            worker = cluster.stopped("piece.opened")
            executor_of(worker).kill()
            output = kill.finished(run)
            wake(worker)
        assert run.returncode == 0, output
        finish(pipeline)

    def test_the_run_is_killed_and_a_task_goes_on(
        self, cluster: Cluster, pipeline: PipelineUnderTest, recorded_database: Database, finish: Finish
    ) -> None:
        """Its file comes too late, beside those of the run that went on from there."""
        cluster.arm("piece.written", "stop")
        with Workload(recorded_database, seed=44):
            run = pipeline.start("capture")
            worker = cluster.stopped("piece.written")
            run.kill()
            run.wait(SECONDS)
            again = pipeline.start("capture")
            wake(worker)
            output = kill.finished(again)
        assert again.returncode == 0, output
        finish(pipeline)

    @pytest.mark.parametrize("point", ["chunks.staged:2", "sealed:2", "bronze.appended.one:2"])
    def test_the_run_is_killed_between_two_windows(
        self,
        cluster: Cluster,
        pipeline: PipelineUnderTest,
        recorded_database: Database,
        finish: Finish,
        point: str,
    ) -> None:
        with Workload(recorded_database, seed=45):
            kill.killed(pipeline, point, "capture")
        finish(pipeline)

    def test_somebody_waits_to_truncate_a_table_of_the_view(
        self, cluster: Cluster, pipeline: PipelineUnderTest, recorded_database: Database, finish: Finish
    ) -> None:
        """What workers cannot join any more is read by the run, so both come to their end."""
        pipeline.run_limits["snapshot"] = "consistent"
        cluster.arm("piece.opened", "stop")
        run = pipeline.start("capture")
        worker = cluster.stopped("piece.opened")
        truncate = threading.Thread(target=recorded_database.execute, args=["TRUNCATE stock"])
        truncate.start()
        until(lambda: waiting(recorded_database))
        wake(worker)
        output = kill.finished(run)
        truncate.join(SECONDS)
        assert run.returncode == 0, output
        finish(pipeline)

    def test_a_stop_ends_the_tasks(
        self, cluster: Cluster, pipeline: PipelineUnderTest, recorded_database: Database, finish: Finish
    ) -> None:
        cluster.arm("piece.opened", "stop")
        run = pipeline.start("capture")
        worker = cluster.stopped("piece.opened")
        started = time.monotonic()
        run.send_signal(signal.SIGTERM)
        output = ended(run)
        assert run.returncode == 130, output
        assert time.monotonic() - started < 60
        wake(worker)
        finish(pipeline)


def ended(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=SECONDS)[0]
