"""A server that forgets, fails over or restarts under us: one clear error, its remedy, and nothing lost.

The server is this module's own, since it is stopped, set back and run out of log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill
from tests.engines.conformance import assert_same, ops
from tests.engines.connect_server import Outcome
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase
from tests.servers import postgresql

pytestmark = pytest.mark.timeout(300)

BRONZE = "public_t"
WIDE = "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 64) FROM generate_series(1000, 40999) i"
"""80 MB on the wire: more than the buffers between server and reader hold."""


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with postgresql.running("16") as made:
        assert isinstance(made, EmbeddedPostgres)
        yield made


@dataclass
class Case:
    """A pipeline over ``t``, and the server below it."""

    server: EmbeddedPostgres
    database: PostgresDatabase
    pipeline: PipelineUnderTest

    def assert_resnapshot(self, outcome: Outcome, *words: str) -> None:
        assert (outcome.error, outcome.exit_code) == ("ResnapshotNeeded", 5), outcome.trace or outcome.text
        for word in (*words, "cdc snapshot"):
            assert word in outcome.text

    def assert_taken_again(self) -> None:
        """The remedy: silver equals the source, and goes on following it."""
        self.pipeline.run("snapshot")
        assert_same(self.pipeline, self.database, "t")
        assert [row["kind"] for row in self.pipeline.control("incidents")] == ["gap in the log"]
        self.database.execute("UPDATE t SET n = 77 WHERE id = 2", "INSERT INTO t VALUES (77, 77)")
        self.assert_good()

    def assert_good(self) -> None:
        self.pipeline.run()
        assert_same(self.pipeline, self.database, "t")

    def end_sessions(self) -> None:
        self.database.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = %s AND pid <> pg_backend_pid()",
            (self.database.name,),
        )

    def copying(self) -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%'"
        [(count,)] = self.database.database.rows(query)
        return bool(count)


@pytest.fixture
def case(server: EmbeddedPostgres, make_pipeline: MakePipeline) -> Iterator[Case]:
    with PostgresDatabase(server) as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n int, wide text)",
            "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
        )
        yield Case(server, database, make_pipeline(database.database))


def test_a_slot_that_the_server_invalidated(case: Case) -> None:
    """It fell further behind than ``max_slot_wal_keep_size`` allows."""
    case.pipeline.run()
    case.database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
    case.database.execute("DELETE FROM t WHERE id = 1")
    for _ in range(4):
        case.database.execute("UPDATE t SET n = n + 1 WHERE id = 2", "SELECT pg_switch_wal()")
    case.database.execute("CHECKPOINT")
    assert case.database.database.rows("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
    before = ops(case.pipeline, BRONZE)
    case.assert_resnapshot(case.pipeline.attempt(), "log behind the slot", "max_slot_wal_keep_size")
    assert ops(case.pipeline, BRONZE) == before, "nothing was written"
    case.assert_taken_again()
    marks = case.pipeline.rows("bronze", BRONZE, "source.snapshot", "WHERE op = 'd'").to_pylist()
    assert [mark["snapshot"] for mark in marks] == ["vanished"]


# -- a server that was set back


@dataclass
class Backup:
    """A copy of the server's files, from before the changes that we captured last."""

    server: EmbeddedPostgres
    files: Path

    def take(self) -> None:
        self.server.stop()
        subprocess.run(["cp", "-a", str(self.server.data), str(self.files)], check=True)
        self.server.start()

    def put_back(self, *, promoted: bool) -> None:
        """Start from the copy: as it was, or as a standby that is promoted, which opens a new timeline."""
        self.server.stop("immediate")
        subprocess.run(["rm", "-r", str(self.server.data)], check=True)
        subprocess.run(["cp", "-a", str(self.files), str(self.server.data)], check=True)
        if promoted:
            self.server.settings = {**self.server.settings, "restore_command": "false"}
            wanted = self.server.data / "recovery.signal"
            wanted.touch()
            owner = self.server.data.stat()
            os.chown(wanted, owner.st_uid, owner.st_gid)
        self.server.start()


@pytest.mark.slow
@pytest.mark.parametrize("promoted", [False, True])
def test_a_server_that_lost_the_end_of_its_log(case: Case, tmp_path: Path, promoted: bool) -> None:
    case.pipeline.run()
    backup = Backup(case.server, tmp_path / "backup")
    backup.take()
    case.database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (4, 4)", "UPDATE t SET n = 5")
    case.pipeline.run()
    backup.put_back(promoted=promoted)
    case.database.execute("UPDATE t SET n = 30 WHERE id = 3")
    if promoted:
        # It has written more than was lost, so that its log is past where we are.
        case.database.execute("SELECT pg_switch_wal()", "INSERT INTO t VALUES (5, 5)")
        words = ["gone on from a point before", "timeline 1 was left"]
    else:
        words = ["log ends before what we have already read", "older backup"]
    before = ops(case.pipeline, BRONZE)
    case.assert_resnapshot(case.pipeline.attempt(), *words)
    assert ops(case.pipeline, BRONZE) == before, "nothing was written"
    case.assert_taken_again()


# -- restarts and lost connections in the middle


def _restart(case: Case) -> None:
    case.server.restart("immediate")


@pytest.mark.slow
@pytest.mark.parametrize("strike", [Case.end_sessions, _restart], ids=["sessions end", "server restarts"])
def test_in_the_middle_of_a_piece(case: Case, strike: Callable[[Case], None]) -> None:
    case.database.execute(WIDE, "ANALYZE t")
    process = case.pipeline.start("run")
    until = time.monotonic() + kill.SECONDS
    while not case.copying():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    kill.wait_until_stopped(process)
    assert case.copying(), "the server waits for its reader"
    strike(case)
    code, output = kill.woken(process)
    assert code == 3, output
    assert "to do: " in output
    case.assert_good()
    assert ops(case.pipeline, BRONZE) == ["r"] * 40_003, "nothing twice"


@pytest.mark.slow
@pytest.mark.parametrize("strike", [Case.end_sessions, _restart], ids=["sessions end", "server restarts"])
def test_in_the_middle_of_applying(case: Case, strike: Callable[[Case], None]) -> None:
    case.pipeline.run()
    case.database.execute("UPDATE t SET n = 10 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    process = kill.paused(case.pipeline, "silver.merged.one", "run")
    strike(case)
    code, output = kill.woken(process)
    # What is left to do needs no source; if the run asks it once more, it says so.
    assert code in (0, 3), output
    case.database.execute("INSERT INTO t VALUES (4, 4)")
    case.assert_good()
    assert ops(case.pipeline, BRONZE) == ["r", "r", "r", "u", "d", "c"]
