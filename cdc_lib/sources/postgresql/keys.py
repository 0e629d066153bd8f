"""Rows looked up by keys as silver holds them, which are written here as the server reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.sources.postgresql.catalog import Attribute, Relation
from cdc_lib.sources.postgresql.types import TypeCatalog

_INTEGERS = frozenset({20, 21, 23, 26})
"""bigint, smallint, integer, oid."""
_BYTEA = 17


def condition(relation: Relation, types: TypeCatalog, keys: pa.Table) -> Any:
    """The WHERE clause for these keys, values cast to the columns' types so that an index is of use.

    No row where a key is NULL, or held in a representation whose text the server does not read back (a
    timestamp as a number, ``bytea`` as base64): ``time.precision.mode``, ``binary.handling.mode``.
    """
    from psycopg2 import sql

    attributes = [relation.attribute(name) for name in keys.column_names]
    columns = [_texts(keys.column(attribute.name), attribute, types) for attribute in attributes]
    if any(column is None for column in columns):
        return sql.SQL(" WHERE false")
    rows = [row for row in zip(*(column or [] for column in columns), strict=True) if None not in row]
    if not rows:
        return sql.SQL(" WHERE false")
    names = sql.SQL(", ").join(sql.Identifier(attribute.name) for attribute in attributes)
    values = sql.SQL(", ").join(_row(row, attributes) for row in rows)
    return sql.SQL(" WHERE ({}) IN ({})").format(names, values)


def _row(values: Sequence[str | None], attributes: Sequence[Attribute]) -> Any:
    from psycopg2 import sql

    cast = [
        sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(attribute.spelled))
        for value, attribute in zip(values, attributes, strict=True)
    ]
    return sql.SQL("({})").format(sql.SQL(", ").join(cast))


def _texts(values: pa.ChunkedArray, attribute: Attribute, types: TypeCatalog) -> list[str | None] | None:
    """Values as the server reads them; None if their type has another form here than there."""
    oid = _base(attribute.type_oid, types)
    if pa.types.is_binary(values.type):
        return [None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()]
    if pa.types.is_list(values.type) or (pa.types.is_integer(values.type) and oid not in _INTEGERS):
        return None
    if pa.types.is_string(values.type) and oid == _BYTEA:
        return None
    texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    return texts


def _base(oid: int, types: TypeCatalog) -> int:
    """The type below a domain."""
    found = types.get(oid)
    return oid if found is None or found.kind != "domain" else _base(found.base_oid, types)
