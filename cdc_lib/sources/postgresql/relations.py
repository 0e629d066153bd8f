"""From a Relation message to the table that bronze and silver see: filters, types, key, identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdc_lib.schema import Column, Identity, Table, TableId
from cdc_lib.sources.postgresql.pgoutput import Relation, RelationColumn
from cdc_lib.sources.postgresql.types import ColumnType, Handling, TypeCatalog, column_type


def _no_key(table: TableId) -> tuple[str, ...] | None:
    return None


def _no_override(table: TableId, column: str) -> pa.DataType | None:
    return None


def _every_column(table: TableId, column: str) -> bool:
    return True


def _every_message(prefix: str) -> bool:
    return True


@dataclass(frozen=True)
class CaptureRules:
    """What is captured of which table, and how it is held.

    ``message_key`` is ``message.key.columns``: it wins over the source's own key. ``catalog_key`` is the
    primary key as the catalog has it; it is asked where the log does not tell (identity FULL or NOTHING).
    Key columns are kept even when ``includes`` leaves them out (``column.exclude.list`` in the guide).
    ``message`` says whether logical messages with a prefix are captured.
    """

    captured: Callable[[TableId], bool]
    includes: Callable[[TableId, str], bool] = _every_column
    override: Callable[[TableId, str], pa.DataType | None] = _no_override
    message_key: Callable[[TableId], tuple[str, ...] | None] = _no_key
    catalog_key: Callable[[TableId], tuple[str, ...] | None] = _no_key
    message: Callable[[str], bool] = _every_message
    catalog: TypeCatalog = field(default_factory=TypeCatalog)
    handling: Handling = field(default_factory=Handling)

    def column_type(self, table: TableId, column: RelationColumn) -> ColumnType:
        override = self.override(table, column.name)
        return column_type(column.type_oid, column.typmod, self.catalog, self.handling, override)


@dataclass(frozen=True)
class CapturedRelation:
    """A captured table under one structure, and where its columns stand in the log's tuples.

    ``places`` and ``types`` go with ``table.columns``. ``carried`` names the columns of the replica
    identity, which a key-only old tuple has.
    """

    table: Table
    width: int
    places: tuple[int, ...]
    types: tuple[ColumnType, ...]
    carried: frozenset[str]


def capture(
    relation: Relation, rules: CaptureRules, known: Table | None, type_names: Mapping[int, str]
) -> CapturedRelation:
    """The table behind a relation. ``known`` is its structure so far, which has the key's order;
    ``type_names`` are the names that the log gave for types that the catalog does not know."""
    key = _key(relation, rules, known)
    chosen = [
        (place, column, _named(rules.column_type(relation.table, column), column.type_oid, type_names))
        for place, column in enumerate(relation.columns)
        if column.name in key or rules.includes(relation.table, column.name)
    ]
    columns = tuple(Column(column.name, held.arrow, held.source_type) for _, column, held in chosen)
    return CapturedRelation(
        table=Table(relation.table, columns, key, _identity(relation)),
        width=len(relation.columns),
        places=tuple(place for place, _, _ in chosen),
        types=tuple(held for _, _, held in chosen),
        carried=frozenset(_flagged(relation)),
    )


def _identity(relation: Relation) -> Identity:
    if relation.identity == "f":
        return Identity.FULL
    # DEFAULT without a primary key and a dropped identity index log nothing of the old row.
    return Identity.KEY if relation.identity in "di" and _flagged(relation) else Identity.NOTHING


def _key(relation: Relation, rules: CaptureRules, known: Table | None) -> tuple[str, ...]:
    names = {column.name for column in relation.columns}
    asked = rules.message_key(relation.table)
    if asked and names.issuperset(asked):
        return asked
    candidates = [rules.catalog_key(relation.table) or (), known.key if known is not None else ()]
    if _identity(relation) is Identity.KEY:
        return _logged_key(relation, candidates)
    return next((key for key in candidates if key and names.issuperset(key)), ())


def _logged_key(relation: Relation, candidates: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The key that old tuples carry, in the order of a candidate that speaks of the same columns.

    Under DEFAULT it is the primary key. Under an identity index it is the index, unless the primary key
    lies within it.
    """
    flagged = _flagged(relation)
    for key in candidates:
        if key and ({*key} == {*flagged} if relation.identity == "d" else {*key} <= {*flagged}):
            return key
    return flagged


def _flagged(relation: Relation) -> tuple[str, ...]:
    return tuple(column.name for column in relation.columns if column.identity)


def _named(held: ColumnType, oid: int, type_names: Mapping[int, str]) -> ColumnType:
    unnamed = held.source_type == f"oid {oid}" and oid in type_names
    return replace(held, source_type=type_names[oid]) if unnamed else held
