"""The publication: which tables the server puts into our log.

A table outside it gives no changes and no error, so membership is proven before each run. Partitioned
tables are published through their root, so that a new partition changes nothing for us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_lib.errors import CdcError, FixSource
from cdc_lib.schema import TableId
from cdc_lib.sources.postgresql.connection import execute, rows
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.shape import quoted

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

OPERATIONS = ("insert", "update", "delete", "truncate")
_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
LOCK_MILLISECONDS = 10_000

_HEAD = """
    SELECT p.oid, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
           pg_catalog.pg_has_role(pubowner, 'USAGE')
    FROM pg_catalog.pg_publication p WHERE pubname = %s
"""
_MEMBERS = """
    SELECT n.nspname, c.relname, {restricted}
    FROM pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE r.prpubid = %s
"""
# Row filters, column lists and whole schemas came with PostgreSQL 15.
_RESTRICTED = "r.prqual IS NOT NULL OR r.prattrs IS NOT NULL"
_SCHEMAS = """
    SELECT n.nspname FROM pg_catalog.pg_publication_namespace p
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid WHERE p.pnpubid = %s
"""


@dataclass(frozen=True)
class Publication:
    """A publication as it is. ``restricted`` are tables with a row filter or a column list."""

    name: str
    all_tables: bool
    operations: frozenset[str]
    via_root: bool
    ours: bool
    """Whether our role may alter it."""
    tables: frozenset[TableId]
    restricted: frozenset[TableId]
    schemas: frozenset[str]

    def has(self, table: TableId) -> bool:
        return self.all_tables or table.schema in self.schemas or table in self.tables

    def complaints(self, tables: Iterable[TableId], partitioned: Iterable[TableId]) -> list[Complaint]:
        """What keeps changes of ``tables`` out of the log, each with the SQL that mends it."""
        name, tables = _quoted(self.name), list(tables)
        found = []
        if missing := [table for table in tables if not self.has(table)]:
            listed = ", ".join(map(quoted, missing))
            found.append(
                Complaint(
                    f"the publication {self.name} does not have {', '.join(map(str, missing))}",
                    f"ALTER PUBLICATION {name} ADD TABLE {listed}",
                )
            )
        if lacking := [operation for operation in OPERATIONS if operation not in self.operations]:
            found.append(
                Complaint(
                    f"the publication {self.name} does not publish {', '.join(lacking)}",
                    f"ALTER PUBLICATION {name} SET (publish = '{', '.join(OPERATIONS)}')",
                )
            )
        if list(partitioned) and not self.via_root:
            found.append(
                Complaint(
                    f"the publication {self.name} publishes partitions under their own names",
                    f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)",
                )
            )
        if cut := sorted(self.restricted & set(tables)):
            listed = ", ".join(map(quoted, cut))
            found.append(
                Complaint(
                    f"the publication {self.name} filters rows or columns of {', '.join(map(str, cut))}",
                    f"ALTER PUBLICATION {name} DROP TABLE {listed}; "
                    f"ALTER PUBLICATION {name} ADD TABLE {listed}",
                )
            )
        return found


@dataclass(frozen=True)
class Complaint:
    """What is wrong, and the SQL that mends it."""

    what: str
    remedy: str


def find(connection: Connection, name: str) -> Publication | None:
    """The publication of that name, None if there is none."""
    with translated("the publications cannot be read"):
        heads = rows(connection, _HEAD, (name,))
        if not heads:
            return None
        oid, everything, *published, via_root, ours = heads[0]
        recent = connection.server_version >= 150000
        members = rows(connection, _MEMBERS.format(restricted=_RESTRICTED if recent else "false"), (oid,))
        schemas = rows(connection, _SCHEMAS, (oid,)) if recent else []
    return Publication(
        name=name,
        all_tables=everything,
        operations=frozenset(one for one, yes in zip(OPERATIONS, published, strict=True) if yes),
        via_root=via_root,
        ours=ours,
        tables=frozenset(TableId(schema, table) for schema, table, _ in members),
        restricted=frozenset(TableId(schema, table) for schema, table, cut in members if cut),
        schemas=frozenset(schema for (schema,) in schemas),
    )


def prepare(connection: Connection, name: str, mode: str, tables: Sequence[TableId]) -> Publication:
    """Create or alter the publication as ``publication.autocreate.mode`` says.

    :raises FixSource: it does not exist and must not be created, or a right is missing.
    """
    found = find(connection, name)
    if found is None:
        if mode == "disabled":
            raise missing(name, tables)
        _create(connection, name, mode, tables)
    elif mode == "filtered" and not found.all_tables and found.tables != frozenset(tables):
        _change(connection, name, tables)
    after = find(connection, name)
    if after is None:
        raise missing(name, tables)
    return after


def missing(name: str, tables: Sequence[TableId]) -> CdcError:
    return FixSource(
        f"the publication {name} does not exist",
        why="publication.autocreate.mode is disabled, or it was dropped just now",
        remedy=create_text(name, tables),
    )


def create_text(name: str, tables: Sequence[TableId]) -> str:
    """The statement that makes the publication, for people to paste."""
    listed = f" FOR TABLE {', '.join(map(quoted, tables))}" if tables else ""
    return f"CREATE PUBLICATION {_quoted(name)}{listed} WITH ({_OPTIONS})"


def _create(connection: Connection, name: str, mode: str, tables: Sequence[TableId]) -> None:
    from psycopg2 import sql

    members = {
        "all_tables": sql.SQL(" FOR ALL TABLES"),
        "filtered": sql.SQL(" FOR TABLE ") + _listed(tables) if tables else sql.SQL(""),
        "no_tables": sql.SQL(""),
    }[mode]
    query = sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(
        sql.Identifier(name), members, sql.SQL(_OPTIONS)
    )
    _alter(connection, query, f"the publication {name} cannot be created")


def _change(connection: Connection, name: str, tables: Sequence[TableId]) -> None:
    from psycopg2 import sql

    query = sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(sql.Identifier(name), _listed(tables))
    _alter(connection, query, f"the publication {name} cannot be altered")


def _alter(connection: Connection, query: Any, doing: str) -> None:
    with translated(doing):
        execute(
            connection, "SELECT pg_catalog.set_config('lock_timeout', %s, false)", (str(LOCK_MILLISECONDS),)
        )
        try:
            execute(connection, query)
        finally:
            execute(connection, "SELECT pg_catalog.set_config('lock_timeout', '0', false)")


def _listed(tables: Sequence[TableId]) -> Any:
    from psycopg2 import sql

    return sql.SQL(", ").join(sql.SQL("ONLY ") + sql.Identifier(table.schema, table.name) for table in tables)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
