"""The statements by which tables are locked and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdc_lib.sources.postgresql import catalog, chunks
from cdc_lib.sources.postgresql.connection import execute

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

_PLAIN = "{0}::text"
_BY_OUTPUT_FUNCTION = "CASE WHEN {0} IS NOT NULL THEN concat({0}) END"
_CHEAPER = {16: "CASE WHEN {0} THEN 't' WHEN NOT {0} THEN 'f' END"}
"""By type: boolean, whose output is short to write down."""


def lock_tables(connection: Connection, relations: Sequence[catalog.Relation], how: str = "") -> None:
    """The lock of any SELECT. LOCK TABLE takes no view, so the transaction can still import one."""
    from psycopg2 import sql

    for relation in relations:
        query = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE" + how)
        execute(connection, query.format(chunks.source_of(relation)))


def copy_query(
    connection: Connection,
    relation: catalog.Relation,
    names: Sequence[str],
    special: frozenset[int],
    condition: Any,
) -> str:
    """COPY of columns as text.

    :param special: types whose cast to text differs from what the log carries (``catalog.text_forms``).
    :param condition: WHERE clause.
    """
    from psycopg2 import sql

    columns = sql.SQL(", ").join(_as_text(name, relation.attribute(name).type_oid, special) for name in names)
    query = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT binary)").format(
        columns, chunks.source_of(relation), condition
    )
    text: str = query.as_string(connection)
    return text


def _as_text(name: str, type_oid: int, special: frozenset[int]) -> Any:
    """The column as its type's output function writes it, which is what the log carries."""
    from psycopg2 import sql

    form = _CHEAPER.get(type_oid, _BY_OUTPUT_FUNCTION) if type_oid in special else _PLAIN
    return sql.SQL(form).format(sql.Identifier(name))
