"""The server's catalog: which tables there are, what they look like, and which types they use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_lib.schema import Identity, TableId
from cdc_lib.sources.postgresql.connection import rows
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.types import Kind, PgType, TypeCatalog

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

# Partitions are captured through their root. Temporary and unlogged tables are not in the log.
_TABLES = """
    SELECT n.nspname, c.relname
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
      AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
    ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""
_RELATIONS = """
    SELECT n.nspname, c.relname, c.oid, c.relkind, c.relreplident,
           pg_catalog.obj_description(c.oid, 'pg_class'), pg_catalog.pg_get_userbyid(c.relowner),
           pg_catalog.has_table_privilege(c.oid, 'SELECT'), c.relrowsecurity
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND (n.nspname, c.relname) IN %s
"""
_COLUMNS = """
    SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated,
           pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.col_description(a.attrelid, a.attnum),
           CASE WHEN a.attidentity <> '' THEN 'GENERATED AS IDENTITY'
                WHEN %s THEN coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attmissingval::text) END
    FROM pg_catalog.pg_attribute a
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
"""
_KEYS = """
    SELECT i.indrelid, i.indisprimary, i.indisreplident,
           array_agg(a.attname::text ORDER BY k.place)
    FROM pg_catalog.pg_index i
    CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = ANY(%s) AND (i.indisprimary OR i.indisreplident) AND i.indisvalid
      AND k.place <= i.indnkeyatts
    GROUP BY i.indexrelid, i.indrelid, i.indisprimary, i.indisreplident
"""
_TYPE = """
    SELECT t.oid, pg_catalog.format_type(t.oid, NULL), t.typtype::text,
           CASE WHEN e.typarray = t.oid THEN e.oid ELSE 0 END, t.typbasetype, t.typtypmod
    FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem
    WHERE t.oid = %s
"""
# The files behind a table, all of its partitions included. A rewrite or TRUNCATE gives new ones.
_STORAGE = """
    SELECT coalesce(t.relid, r.oid)::oid::bigint,
           pg_catalog.pg_relation_filenode(coalesce(t.relid, r.oid))::bigint
    FROM unnest(%s::oid[]) r(oid) LEFT JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) t ON true
    ORDER BY 1
"""
_KINDS: Mapping[str, Kind] = {
    "b": "base",
    "e": "enum",
    "d": "domain",
    "r": "range",
    "m": "multirange",
    "c": "composite",
    "p": "pseudo",
}
_IDENTITIES = {"d": Identity.KEY, "i": Identity.KEY, "f": Identity.FULL, "n": Identity.NOTHING}


@dataclass(frozen=True)
class Attribute:
    """A column as ``pg_attribute`` has it; ``spelled`` is the type's name for a cast."""

    name: str
    type_oid: int
    typmod: int
    not_null: bool
    generated: bool
    spelled: str
    comment: str | None
    default: str | None


@dataclass(frozen=True)
class Relation:
    """A table as the catalog has it, before any filter.

    ``primary_key`` and ``identity_key`` are the columns of the primary key and of the index named by
    REPLICA IDENTITY USING INDEX, in key order.
    """

    id: TableId
    oid: int
    partitioned: bool
    replica_identity: str
    comment: str | None
    owner: str
    readable: bool
    row_security: bool
    attributes: tuple[Attribute, ...]
    primary_key: tuple[str, ...] = ()
    identity_key: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """What the log says of old rows; a default identity without a primary key says nothing."""
        if self.replica_identity == "d" and not self.primary_key:
            return Identity.NOTHING
        if self.replica_identity == "i" and not self.identity_key:
            return Identity.NOTHING
        return _IDENTITIES[self.replica_identity]

    @property
    def logged_key(self) -> tuple[str, ...]:
        """Columns that the log carries for every update and delete, with an identity that is not FULL."""
        return self.identity_key if self.replica_identity == "i" else self.primary_key

    @property
    def natural_key(self) -> tuple[str, ...]:
        """The primary key, unless the log carries the columns of another index instead."""
        if self.replica_identity == "i" and not set(self.primary_key) <= set(self.identity_key):
            return self.identity_key
        return self.primary_key or self.identity_key

    @property
    def range_key(self) -> tuple[str, ...]:
        """Columns that tell rows apart and order them: unique and never NULL; empty if there are none."""
        return self.primary_key or self.identity_key

    def attribute(self, name: str) -> Attribute:
        return next(attribute for attribute in self.attributes if attribute.name == name)


def all_tables(connection: Connection) -> list[TableId]:
    """Every table that can be captured, in order of name."""
    with translated("the list of tables cannot be read"):
        return [TableId(*row) for row in rows(connection, _TABLES)]


def relations(
    connection: Connection, tables: Sequence[TableId], *, defaults: bool = True
) -> dict[TableId, Relation]:
    """The named tables as of now; those that do not exist are missing from the result.

    :param defaults: with the columns' defaults. To spell them the server locks the table, which waits behind
        a TRUNCATE that waits for a snapshot: leave them out where a snapshot may be waiting for the answer.
    """
    if not tables:
        return {}
    with translated("the structure of the tables cannot be read"):
        names = tuple((table.schema, table.name) for table in tables)
        heads = rows(connection, _RELATIONS, (names,))
        oids = [head[2] for head in heads]
        attributes = _grouped(rows(connection, _COLUMNS, (defaults, oids)))
        keys = _grouped(rows(connection, _KEYS, (oids,)))
    found = (_relation(head, attributes.get(head[2], []), keys.get(head[2], [])) for head in heads)
    return {relation.id: relation for relation in found}


def fetch_type(connection: Connection, oid: int) -> PgType | None:
    """One type by its OID."""
    with translated(f"the type with OID {oid} cannot be looked up"):
        found = rows(connection, _TYPE, (oid,))
    if not found:
        return None
    _, name, typtype, element, base, typmod = found[0]
    kind: Kind = "array" if element else _KINDS[typtype]
    return PgType(oid, name, kind, element_oid=element, base_oid=base, base_typmod=typmod)


def type_catalog(connection: Connection) -> TypeCatalog:
    """Types looked up at the server as they are met."""
    return TypeCatalog(fetch=lambda oid: fetch_type(connection, oid))


def storage(connection: Connection, relation: Relation) -> tuple[tuple[int, int | None], ...]:
    """The files behind a table; equal before and after means that it was not rewritten in between."""
    with translated(f"the storage of {relation.id} cannot be looked up"):
        return tuple(rows(connection, _STORAGE, ([relation.oid],)))


def _relation(head: tuple[Any, ...], columns: list[tuple[Any, ...]], keys: list[tuple[Any, ...]]) -> Relation:
    schema, name, oid, kind, identity, comment, owner, readable, secured = head
    return Relation(
        id=TableId(schema, name),
        oid=oid,
        partitioned=kind == "p",
        replica_identity=identity,
        comment=comment,
        owner=owner,
        readable=readable,
        row_security=secured,
        attributes=tuple(
            Attribute(name, type_oid, typmod, not_null, generated != "", spelled, comment, default)
            for name, type_oid, typmod, not_null, generated, spelled, comment, default in columns
        ),
        primary_key=next((tuple(columns) for primary, _, columns in keys if primary), ()),
        identity_key=next((tuple(columns) for _, chosen, columns in keys if chosen), ()),
    )


def _grouped(found: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    groups: dict[int, list[tuple[Any, ...]]] = {}
    for first, *rest in found:
        groups.setdefault(first, []).append(tuple(rest))
    return groups


def text_forms(connection: Connection, types: Sequence[int]) -> Iterator[int]:
    """Those of ``types`` whose cast to text differs from what the log carries.

    A plain ``::text`` runs a type's output function, which is also what pgoutput does, unless ``pg_cast`` has
    a function or a binary coercion to text for it: ``char(n)`` loses its padding, ``true`` is not ``t``,
    ``inet`` gains a mask. Domains are resolved to their base.
    """
    query = """
        WITH RECURSIVE base(oid, at) AS (
            SELECT t.oid, t.oid FROM unnest(%s::oid[]) t(oid)
            UNION ALL
            SELECT b.oid, t.typbasetype
            FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.at WHERE t.typtype = 'd'
        )
        SELECT DISTINCT b.oid::bigint FROM base b
        JOIN pg_catalog.pg_cast c ON c.castsource = b.at AND c.casttarget = 'text'::pg_catalog.regtype
        WHERE b.at NOT IN ('text'::pg_catalog.regtype, 'varchar'::pg_catalog.regtype)
    """
    with translated("the casts to text cannot be looked up"):
        yield from (oid for (oid,) in rows(connection, query, (list(types),)))
