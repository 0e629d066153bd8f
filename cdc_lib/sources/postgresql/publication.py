"""The publication: which tables the server puts into our log.

A table outside it gives no changes and no error, so membership is proven before each run. Partitioned
tables are published through their root, so that a new partition changes nothing for us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cdc_lib.errors import CdcError, FixSource
from cdc_lib.schema import TableId
from cdc_lib.sources.postgresql.connection import execute, rows
from cdc_lib.sources.postgresql.errors import translated
from cdc_lib.sources.postgresql.shape import quoted
from cdc_lib.sources.postgresql.slot import naming_blockers

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

OPERATIONS = ("insert", "update", "delete", "truncate")
_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"

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
    due = alteration(find(connection, name), name, mode, tables)
    if due is not None:
        _execute(connection, due)
    after = find(connection, name)
    if after is None:
        raise missing(name, tables)
    return after


@dataclass(frozen=True)
class Alteration:
    """A statement that is due, and the publication as it will be behind it."""

    query: Any
    action: Literal["create", "alter"]
    after: Publication


def alteration(
    found: Publication | None, name: str, mode: str, tables: Sequence[TableId]
) -> Alteration | None:
    """What ``publication.autocreate.mode`` wants done to the publication as it is; None for nothing.

    :raises FixSource: it does not exist and must not be created.
    """
    if found is None:
        if mode == "disabled":
            raise missing(name, tables)
        members = frozenset(tables) if mode == "filtered" else frozenset()
        operations = frozenset(OPERATIONS)
        nothing: frozenset[Any] = frozenset()
        made = Publication(
            name, mode == "all_tables", operations, True, True, members, restricted=nothing, schemas=nothing
        )
        return Alteration(_creation(name, mode, tables), "create", made)
    if mode == "filtered" and not found.all_tables and found.tables != frozenset(tables):
        changed = replace(found, tables=frozenset(tables), restricted=frozenset(), schemas=frozenset())
        return Alteration(_change(found, tables), "alter", changed)
    return None


def refuse_incomplete(ready: Publication, tables: Sequence[TableId], partitioned: Sequence[TableId]) -> None:
    """:raises FixSource: changes of these tables would not reach us."""
    if complaints := ready.complaints(tables, partitioned):
        raise FixSource(
            "; ".join(complaint.what for complaint in complaints),
            why="changes of these tables would not reach us, and nothing would say so",
            remedy="; ".join(complaint.remedy for complaint in complaints),
        )


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


def _creation(name: str, mode: str, tables: Sequence[TableId]) -> Any:
    from psycopg2 import sql

    members = {
        "all_tables": sql.SQL(" FOR ALL TABLES"),
        "filtered": sql.SQL(" FOR TABLE ") + _listed(tables) if tables else sql.SQL(""),
        "no_tables": sql.SQL(""),
    }[mode]
    return sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(
        sql.Identifier(name), members, sql.SQL(_OPTIONS)
    )


def _change(found: Publication, tables: Sequence[TableId]) -> Any:
    """Only what differs, for it takes the ownership of every table that is named."""
    from psycopg2 import sql

    if found.restricted or found.schemas:
        steps = {"SET": tables}
    else:
        steps = {"ADD": sorted({*tables} - found.tables), "DROP": sorted(found.tables - {*tables})}
    head = sql.SQL("ALTER PUBLICATION {} ").format(sql.Identifier(found.name))
    return sql.SQL("; ").join(
        head + sql.SQL(step + " TABLE ") + _listed(listed) for step, listed in steps.items() if listed
    )


def _execute(connection: Connection, due: Alteration) -> None:
    """No lock that writers notice. So what open transactions wrote to an added table before is not in our
    log; whoever reads the table waits for them (``Source.with_open_writers``)."""
    done = {"create": "created", "alter": "altered"}[due.action]
    with translated(f"the publication {due.after.name} cannot be {done}"), naming_blockers(connection):
        execute(connection, due.query)


def _listed(tables: Sequence[TableId]) -> Any:
    from psycopg2 import sql

    return sql.SQL(", ").join(sql.SQL("ONLY ") + sql.Identifier(table.schema, table.name) for table in tables)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
