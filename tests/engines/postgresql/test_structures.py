"""Changes of structure that give rows values without an event in the log, from a real server to silver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc_lib.embedded import EmbeddedPostgres
from tests.engines.postgresql.conftest import MakePipeline
from tests.engines.postgresql.test_conformance import PostgresDatabase

pytestmark = pytest.mark.timeout(300)

CHANGES = {
    "middle": "ALTER TABLE middle RENAME COLUMN n TO other",
    "last": "ALTER TABLE last RENAME COLUMN label TO other",
    "keyed": "ALTER TABLE keyed RENAME COLUMN id TO other",
    # As migrations do: a default for the rows that are there, and none for those to come.
    "filled": "ALTER TABLE filled ADD other int DEFAULT 7; ALTER TABLE filled ALTER other DROP DEFAULT",
}


@pytest.fixture
def database(recording_postgres: EmbeddedPostgres) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(recording_postgres) as made:
        yield made


@pytest.mark.slow
def test_rows_that_no_event_tells_of(database: PostgresDatabase, make_pipeline: MakePipeline) -> None:
    for table in CHANGES:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, label text)",
            f"INSERT INTO {table} SELECT i, i, 'row ' || i FROM generate_series(1, 5) i",
        )
    pipeline = make_pipeline(database.database)
    pipeline.run()
    for table, change in CHANGES.items():
        # The log shows the new structure with the first row behind it.
        database.execute(change, f"DELETE FROM {table} WHERE other = (SELECT max(other) FROM {table})")
    pipeline.run()
    for table in CHANGES:
        names = [name for (name,) in database.database.rows(_NAMES, (table,))]
        true = database.database.rows(f"SELECT * FROM {table} ORDER BY 1")
        silver = pipeline.rows("silver", f"public_{table}").select(names).to_pylist()
        assert sorted(tuple(row.values()) for row in silver) == true, table
    incidents = {row["table"]: row["kind"] for row in pipeline.control("incidents")}
    assert incidents == {f"public.{table}": "rows recomputed" for table in CHANGES}


_NAMES = """
    SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
    ORDER BY attnum
"""
