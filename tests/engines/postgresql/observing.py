"""What a source gave, in a form that a test can compare with what the server itself says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from cdc_lib.change import ChangeBatch, LogEvent, Progress
from cdc_lib.position import Position
from cdc_lib.schema import Table, TableId
from cdc_lib.source import SnapshotSession, SnapshotSpec
from cdc_lib.sources.postgresql.source import PostgresSource
from tests.servers.postgresql import Database

Row = dict[str, Any]


def table(name: str, schema: str = "public") -> TableId:
    return TableId(schema, name)


@contextmanager
def streaming(database: Database, **properties: Any) -> Iterator[tuple[PostgresSource, Position]]:
    """A source that is ready to stream all captured tables, and where it starts."""
    with PostgresSource(database.config(**properties)) as source:
        source.prepare(source.tables(), None)
        yield source, source.start()


def structures(source: PostgresSource) -> dict[TableId, Table]:
    return {one: source.describe(one) for one in source.tables()}


def events(
    source: PostgresSource,
    after: Position,
    upto: Position | None = None,
    schemas: Mapping[TableId, Table] | None = None,
) -> list[LogEvent]:
    """Everything the log has after a position, up to its present end if no other is given."""
    end = upto or source.span().newest
    reader = source.log(source.tables(), structures(source) if schemas is None else schemas)
    return list(reader.read(after, end))


def changes(found: Sequence[LogEvent], of: TableId) -> list[Row]:
    """Rows of one table, in log order."""
    batches = [event.rows for event in found if isinstance(event, ChangeBatch) and event.table.id == of]
    return [row for batch in batches for row in batch.to_pylist()]


def end_of(found: Sequence[LogEvent]) -> Position:
    last = found[-1]
    assert isinstance(last, Progress)
    return last.position


def snapshot_rows(session: SnapshotSession, of: TableId) -> list[Row]:
    """The rows of all pieces of a table."""
    return [row["after"] for row in snapshot_batches(session, of).to_pylist()]


def snapshot_batches(session: SnapshotSession, of: TableId) -> pa.Table:
    batches = [batch.rows for chunk in session.chunks(of) for batch in session.rows(chunk)]
    return pa.Table.from_batches(batches)


def spec(*tables: TableId, chunk_rows: int = 250_000, threads: int = 2) -> SnapshotSpec:
    return SnapshotSpec(tables, chunk_rows, threads)
