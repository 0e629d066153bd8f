"""Reading in a view that a session of another process has opened and exported (``snapshot.py``).

The lock comes before the view, as there, but without waiting: the session that shares the view holds the
tables against DDL until the snapshot is whole, so whoever waits to alter one waits for it, and a lock behind
that one would never be granted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from cdc_lib.change import ChangeBatch
from cdc_lib.errors import RetryLater
from cdc_lib.pipeline import SourceConfig
from cdc_lib.schema import Table, TableId
from cdc_lib.source import Chunk, PieceRefused, SharedView
from cdc_lib.sources.postgresql import catalog, chunks
from cdc_lib.sources.postgresql.connection import connect, execute
from cdc_lib.sources.postgresql.copying import CopyStream
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.rows import RowDecoder
from cdc_lib.sources.postgresql.selecting import copy_query, lock_tables
from cdc_lib.sources.postgresql.shape import Shape

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection


def rows_of(config: SourceConfig, view: SharedView, chunk: Chunk, expected: Table) -> Iterator[ChangeBatch]:
    """See :meth:`cdc_lib.source.Source.joined`."""
    assert isinstance(view.position, PostgresPosition)
    shape = Shape(config)
    with closing(connect(config)) as connection:
        relation = _opened(connection, view, chunk.table)
        types = catalog.type_catalog(connection)
        if not expected.same_structure(shape.table(relation, types)):
            raise RetryLater(f"{chunk.table} changed its structure under its lock", remedy="run again")
        columns = [held for _, held in shape.columns(relation, types)]
        decoder = RowDecoder(expected, columns, view.position, view.captured_us)
        oids = [attribute.type_oid for attribute in relation.attributes]
        special = frozenset(catalog.text_forms(connection, oids))
        condition = chunks.cut_of(connection, relation).condition(chunk)
        query = copy_query(connection, relation, expected.names, special, condition)
        with CopyStream(connection, query, f"{chunk.table} cannot be read") as stream:
            for received in stream:
                batch = decoder.feed(received)
                if batch.rows.num_rows:
                    yield batch


def _opened(connection: Connection, view: SharedView, table: TableId) -> catalog.Relation:
    """The table, locked, in the shared view."""
    from psycopg2 import errors

    # Without defaults: to spell them the server locks the table, and would wait where we must not.
    before = _found(connection, table, defaults=False)
    with translated("the view of the snapshot cannot be joined"):
        execute(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            lock_tables(connection, [before], " NOWAIT")
        except errors.LockNotAvailable:
            raise PieceRefused(f"somebody waits to alter {table}", remedy="nothing") from None
        execute(connection, "SET TRANSACTION SNAPSHOT %s", (view.name,))
    return _found(connection, table)


def _found(connection: Connection, table: TableId, *, defaults: bool = True) -> catalog.Relation:
    found = catalog.relations(connection, [table], defaults=defaults).get(table)
    if found is None:
        raise RetryLater(f"the table {table} is gone although it is locked", remedy="run again")
    return found
