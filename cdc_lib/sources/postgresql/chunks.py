"""Cutting a table into pieces of about even row counts, each read by one query.

With a primary key (or the index of the replica identity) by ranges of that key, its bounds taken from a
sample of the table's pages and compared by the server; without one by ranges of the rows' place in the
table (``ctid``), which is only good within one view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_lib.source import Chunk
from cdc_lib.sources.postgresql.catalog import Relation
from cdc_lib.sources.postgresql.connection import rows

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

SAMPLE_ROWS = 30_000
SAMPLE_ROWS_PER_CHUNK = 1_000

# Types of extensions have operators of their own, which our empty search_path does not find; the text
# operators it finds instead may order differently. Enums, domains and ranges use built-in ones.
_BUILT_IN_ORDER = """
    WITH RECURSIVE base(at) AS (
        SELECT unnest(%s::oid[])
        UNION ALL
        SELECT t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.at WHERE t.typtype = 'd'
    )
    SELECT bool_and(t.typtype <> 'b' OR t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace)
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.at
"""


@dataclass(frozen=True)
class Cut:
    """How a table is cut: the columns whose values bound the pieces, and their types as the server spells
    them. ``ctid`` is the row's place."""

    relation: Relation
    columns: tuple[str, ...] = ("ctid",)
    types: tuple[str, ...] = ("tid",)

    @property
    def by_key(self) -> bool:
        return self.columns == self.relation.range_key

    @property
    def names(self) -> list[Any]:
        from psycopg2 import sql

        return [sql.Identifier(name) for name in self.columns]

    def condition(self, chunk: Chunk) -> Any:
        """The WHERE clause of a piece, its values bound and cast to the columns' types."""
        from psycopg2 import sql

        parts = [
            sql.SQL("{} {} {}").format(_row(self.names), sql.SQL(sign), _row(self._values(bound)))
            for sign, bound in ((">=", chunk.lower), ("<", chunk.upper))
            if bound is not None
        ]
        return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(parts) if parts else sql.SQL("")

    def _values(self, bound: tuple[str, ...]) -> list[Any]:
        from psycopg2 import sql

        pairs = zip(bound, self.types, strict=True)
        return [sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(spelled)) for text, spelled in pairs]


def cut_of(connection: Connection, relation: Relation) -> Cut:
    """By the key where there is one that the server orders with built-in operators, else by place."""
    key = [relation.attribute(name) for name in relation.range_key]
    if key:
        [(ordered,)] = rows(connection, _BUILT_IN_ORDER, ([attribute.type_oid for attribute in key],))
        if ordered:
            return Cut(relation, relation.range_key, tuple(attribute.spelled for attribute in key))
    return Cut(relation)


def plan(connection: Connection, cut: Cut, chunk_rows: int) -> list[Chunk]:
    """Pieces that cover the table exactly once, within the transaction's view."""
    estimate = _estimated_rows(connection, cut.relation)
    bounds = _bounds(connection, cut, estimate, max(1, math.ceil(estimate / chunk_rows)))
    lowers: list[tuple[str, ...] | None] = [None, *bounds]
    uppers: list[tuple[str, ...] | None] = [*bounds, None]
    each = math.ceil(estimate / len(lowers))
    return [
        Chunk(cut.relation.id, number, lower, upper, rows=each)
        for number, (lower, upper) in enumerate(zip(lowers, uppers, strict=True))
    ]


def plan_windows(connection: Connection, relation: Relation, chunk_rows: int) -> list[Chunk]:
    """Pieces that cover the table exactly once although it changes between them."""
    cut = cut_of(connection, relation)
    if not cut.by_key:
        # A row's place changes with every update, so only all places together are the table.
        return [Chunk(relation.id, 0)]
    return plan(connection, cut, chunk_rows)


def _bounds(connection: Connection, cut: Cut, estimate: int, count: int) -> list[tuple[str, ...]]:
    if count == 1:
        return []
    if cut.by_key:
        return _key_bounds(connection, cut, estimate, count)
    # A partitioned table's rows have one ctid in each partition.
    return [] if cut.relation.partitioned else _page_bounds(connection, cut.relation, count)


def source_of(relation: Relation) -> Any:
    """The table for FROM and LOCK: with its partitions, but without tables that inherit from it, which are
    tables of their own in the log."""
    from psycopg2 import sql

    name = sql.Identifier(relation.id.schema, relation.id.name)
    return name if relation.partitioned else sql.SQL("ONLY ") + name


def _estimated_rows(connection: Connection, relation: Relation) -> int:
    """The planner's guess: it scales the last statistics with the table's present size."""
    from psycopg2 import sql

    query = sql.SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {}").format(source_of(relation))
    [(plans,)] = rows(connection, query)
    return int(plans[0]["Plan"]["Plan Rows"])


def _key_bounds(connection: Connection, cut: Cut, estimate: int, count: int) -> list[tuple[str, ...]]:
    from psycopg2 import sql

    wanted = max(SAMPLE_ROWS, count * SAMPLE_ROWS_PER_CHUNK)
    percent = min(100.0, 100.0 * wanted / max(estimate, 1))
    keys = sql.SQL(", ").join(cut.names)
    texts = sql.SQL(", ").join(sql.SQL("concat({})").format(name) for name in cut.names)
    query = sql.SQL(
        """
        SELECT {texts} FROM (
            SELECT {keys}, row_number() OVER (ORDER BY {keys}) cdc_place, count(*) OVER () cdc_total
            FROM {table} TABLESAMPLE SYSTEM ({percent}) REPEATABLE (1)
        ) sample
        WHERE cdc_place * {count} / cdc_total > (cdc_place - 1) * {count} / cdc_total
          AND cdc_place < cdc_total
        ORDER BY cdc_place
        """
    ).format(
        texts=texts,
        keys=keys,
        table=source_of(cut.relation),
        percent=sql.Literal(percent),
        count=sql.Literal(count),
    )
    return list(dict.fromkeys(rows(connection, query)))


def _page_bounds(connection: Connection, relation: Relation, count: int) -> list[tuple[str, ...]]:
    query = """
        SELECT pg_catalog.pg_relation_size(%s::oid::regclass)
               / pg_catalog.current_setting('block_size')::bigint
    """
    [(pages,)] = rows(connection, query, (relation.oid,))
    starts = sorted({pages * part // count for part in range(1, count)} - {0})
    return [(f"({page},0)",) for page in starts]


def _row(parts: list[Any]) -> Any:
    from psycopg2 import sql

    return sql.SQL("(") + sql.SQL(", ").join(parts) + sql.SQL(")")
