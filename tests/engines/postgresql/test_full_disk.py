"""A staging disk that is full: the run ends, says where and what to do, leaves nothing behind, goes on later.

The disk is a file system of a megabyte in memory, which only root may mount.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines import kill
from tests.engines.conformance import assert_same, ops
from tests.engines.connect_server import Outcome
from tests.engines.pipelines import PipelineUnderTest
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

WIDE = "INSERT INTO t SELECT i, repeat(md5(i::text), 64) FROM generate_series(%d, %d) i"
"""Rows of two kilobytes."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of staging: a megabyte fits, and no more."""
    folder = tmp_path / "lake" / "_staging"
    folder.mkdir(parents=True)
    if not _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)):
        pytest.skip("mounting a small file system takes root and the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def enlarge(disk: Path) -> None:
    assert _mount("-o", "remount,size=64m", str(disk))


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        made.execute("CREATE TABLE t (id int PRIMARY KEY, wide text)")
        # Not compressed, so that the log is as wide.
        made.execute("ALTER TABLE t ALTER wide SET STORAGE EXTERNAL", WIDE % (1, 10))
        yield made


@pytest.fixture
def pipeline(database: PostgresDatabase, make_pipeline: MakePipeline, disk: Path) -> PipelineUnderTest:
    return make_pipeline(database.database, {"batch_rows": 200, "chunk_rows": 100})


def assert_says_so(outcome: Outcome, disk: Path) -> None:
    assert (outcome.error, outcome.exit_code) == ("RetryLater", 3), outcome.trace or outcome.text
    assert str(disk) in outcome.what
    assert "No space left" in outcome.why
    assert "target.staging" in outcome.remedy


def staged(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if path.is_file()]


def test_while_the_log_is_read(database: PostgresDatabase, pipeline: PipelineUnderTest, disk: Path) -> None:
    """Batches before the one that does not fit are committed."""
    pipeline.run()
    database.execute(WIDE % (11, 60), WIDE % (61, 2000), "DELETE FROM t WHERE id = 1")
    pipeline.run_limits |= {"batch_rows": 40, "window_mb": 1}
    assert_says_so(pipeline.attempt(), disk)
    assert not staged(disk)
    assert ops(pipeline, "public_t").count("c") == 50
    enlarge(disk)
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t").count("c") == 1990, "nothing twice"


@pytest.mark.slow
def test_while_pieces_are_read(database: PostgresDatabase, pipeline: PipelineUnderTest, disk: Path) -> None:
    database.execute(WIDE % (11, 2000), "ANALYZE t")
    pipeline.run_limits |= {"chunk_rows": 1000, "batch_rows": 5000}
    assert_says_so(pipeline.attempt(), disk)
    assert not staged(disk)
    enlarge(disk)
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t") == ["r"] * 2000, "nothing twice"


@pytest.mark.slow
def test_while_a_consistent_view_is_read(
    database: PostgresDatabase, pipeline: PipelineUnderTest, disk: Path
) -> None:
    database.execute(WIDE % (11, 2000), "ANALYZE t")
    pipeline.run_limits |= {"chunk_rows": 500, "batch_rows": 1000, "snapshot": "consistent"}
    assert_says_so(pipeline.attempt(), disk)
    assert not staged(disk)
    enlarge(disk)
    pipeline.run()
    assert_same(pipeline, database, "t")


@pytest.mark.slow
def test_while_a_sealed_batch_is_read_again(
    database: PostgresDatabase, pipeline: PipelineUnderTest, disk: Path
) -> None:
    pipeline.run()
    enlarge(disk)
    pipeline.run_limits["batch_rows"] = 5000
    database.execute(WIDE % (11, 1000))
    kill.killed(pipeline, "sealed", "capture")
    for file in staged(disk):
        file.unlink()
    assert _mount("-o", "remount,size=1m", str(disk))
    assert_says_so(pipeline.attempt(), disk)
    assert not staged(disk)
    enlarge(disk)
    pipeline.run()
    assert_same(pipeline, database, "t")
    assert ops(pipeline, "public_t").count("c") == 990, "nothing twice"
