"""A long run lets the source forget what is committed while it reads on, and nothing that is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc_lib import capture
from cdc_lib.change import ChangeBatch
from cdc_lib.config import parse
from cdc_lib.embedded import EmbeddedPostgres
from cdc_lib.pipeline import Pipeline
from cdc_lib.position import Position
from cdc_lib.runner import Runner
from cdc_lib.sources.postgresql.incremental import PostgresIncremental
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.engines.postgresql.conftest import source_section
from tests.servers import postgresql
from tests.servers.postgresql import Database

LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))"
"""About 3 kB that do not compress."""


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[Database]:
    """On one server: nothing here depends on its version."""
    with postgresql.database(recording_postgres) as made:
        yield made


@pytest.fixture
def pipeline(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setattr(capture, "RELEASE_BYTES", 50_000)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return parse(
        {
            "name": database.name,
            "source": source_section(database, tmp_path),
            "target": {"path": str(tmp_path / "lake")},
            "run": {"batch_rows": 20, "chunk_rows": 20, "window_mb": 1},
        }
    )


@pytest.fixture
def released(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Position, Position]]:
    """What the source was allowed to forget, and what was committed then."""
    found: list[tuple[Position, Position]] = []
    release = PostgresSource.release

    def noted(source: PostgresSource, upto: Position) -> None:
        committed = Runner(pipeline)._context.control.watermarks.latest()
        assert committed is not None
        found.append((upto, type(upto).from_json(committed.position)))
        release(source, upto)

    monkeypatch.setattr(PostgresSource, "release", noted)
    return found


def captured(pipeline: Pipeline, released: list[tuple[Position, Position]]) -> list[int]:
    """The keys that bronze got, by a run that let go in between; no change of one is there twice."""
    before = len(released)
    Runner(pipeline).capture()
    assert len(released) > before + 1, "only at the start"
    assert all(not committed < upto for upto, committed in released), "more than what is committed"
    assert pipeline.target.path is not None
    table = DeltaTable(pipeline.target.path / "bronze" / "public_t").to_pyarrow_table()
    rows = [(row["op"], row["after"]["id"]) for row in table.to_pylist()]
    assert len(rows) == len(set(rows))
    return sorted({key for _, key in rows})


def test_in_a_long_log(
    pipeline: Pipeline, released: list[tuple[Position, Position]], database: Database
) -> None:
    Runner(pipeline).capture()
    # Several windows of log, each of several batches.
    database.execute(*(f"INSERT INTO t SELECT {n}, {LARGE}" for n in range(1, 1_001)))
    assert captured(pipeline, released) == list(range(1, 1_001))


def test_in_a_long_log_of_what_is_not_captured(
    pipeline: Pipeline, released: list[tuple[Position, Position]], database: Database
) -> None:
    """No batch comes of it, so where it ends is written down for its own sake."""
    Runner(pipeline).capture()
    database.execute("CREATE SCHEMA other", "CREATE TABLE other.t (id int, v text)")
    database.execute(*(f"INSERT INTO other.t SELECT {n}, {LARGE}" for n in range(1, 1_001)))
    database.execute("INSERT INTO t VALUES (1, 'x')")
    assert captured(pipeline, released) == [1]


def test_between_the_windows_of_a_snapshot(
    pipeline: Pipeline,
    released: list[tuple[Position, Position]],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 200) i", "ANALYZE t")
    rows = PostgresIncremental.rows
    keys = iter(range(1_001, 2_000))
    written = []

    def while_others_write(*arguments: Any) -> Iterator[ChangeBatch]:
        yield from rows(*arguments)
        new = [next(keys) for _ in range(20)]
        database.execute(*(f"INSERT INTO t SELECT {n}, {LARGE}" for n in new))
        written.extend(new)

    monkeypatch.setattr(PostgresIncremental, "rows", while_others_write)
    assert captured(pipeline, released) == [*range(1, 201), *sorted(written)]
