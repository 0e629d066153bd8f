"""What a silver table is: its source table, where it lies, and the meta columns behind the source's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cdc_lib.delta import Field, Lake, TableRef, literal
from cdc_lib.errors import CdcError, FixConfiguration
from cdc_lib.named_tables import create_view
from cdc_lib.nested_types import quoted
from cdc_lib.schema import Column, Table
from cdc_lib.types import arrow_type, spark_type, widens

SEQUENCE = "__sequence"
COMMITTED_AT = "__committed_at"
DELETED_AT = "__deleted_at"
START_AT = "__START_AT"
END_AT = "__END_AT"
ENDED_AT = "__ended_at"
UNAVAILABLE = "__unavailable"
SPECIAL = "__special"

META: Mapping[str, Field] = {
    each.name: each
    for each in (
        Field(SEQUENCE, "BIGINT", "order of the last change applied to this row: batch << 32 | ordinal"),
        Field(COMMITTED_AT, "TIMESTAMP", "when the source committed the last change applied to this row"),
        Field(START_AT, "BIGINT", "order of the change that began this version: batch << 32 | ordinal"),
        Field(END_AT, "BIGINT", "order of the change that ended this version; NULL: it is the current one"),
        Field(ENDED_AT, "TIMESTAMP", "when the source committed the change that ended this version"),
        Field(DELETED_AT, "TIMESTAMP", "when the source deleted this row; NULL while it lives"),
        Field(UNAVAILABLE, "ARRAY<STRING>", "columns whose value is not known, not NULL: nothing carried it"),
        Field(
            SPECIAL, "MAP<STRING,STRING>", "server text of values that their column cannot hold, by column"
        ),
    )
}
KEPT_BY = "cdc.declarative"
"""Property of silver tables that a declarative pipeline keeps, so that no run merges into them."""
LARGE_BYTES = 32 << 20
"""From this size on a MERGE marks rows as deleted instead of rewriting their files."""

MAPPING = "delta.columnMapping.mode"
_VECTORS = "delta.enableDeletionVectors"
_WIDENING = "delta.enableTypeWidening"
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters that Parquet columns of Delta may have only under column mapping (Delta's protocol)."""


class KeylessUpdate(CdcError):
    """Rows of this table cannot be told apart, so its changes cannot be applied: bronze only."""

    action = "bronze only"


@dataclass(frozen=True)
class SilverTable:
    """One table to keep. ``table`` is the newest structure; ``since`` the version each column appeared in."""

    table: Table
    bronze: TableRef
    silver: TableRef
    table_id: str
    delete: Literal["hard", "soft"] = "hard"
    since: Mapping[str, int] = field(default_factory=dict)
    scd: Literal[1, 2] = 1
    pipeline: str = ""

    @property
    def history(self) -> bool:
        """Whether all versions of a row are kept (SCD type 2)."""
        return self.scd == 2

    @property
    def soft(self) -> bool:
        """Whether deleted rows are marked. A history keeps them anyway, as versions that have ended."""
        return self.delete == "soft" and not self.history

    @property
    def sequence(self) -> str:
        """The column with the order of the change that made a row what it is."""
        return START_AT if self.history else SEQUENCE

    @property
    def gone(self) -> str | None:
        """The column that is NULL for rows that live at the source; None: all rows do."""
        return END_AT if self.history else DELETED_AT if self.soft else None


@dataclass(frozen=True)
class Applied:
    """What one :func:`~cdc_lib.silver.apply` did. ``rows`` were read from bronze, ``specials`` of them carry
    server text; ``unavailable`` rows were written with a column not known. None: Delta did not say."""

    rows: int
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    unavailable: int = 0
    specials: int = 0


def text(value: str) -> str:
    """A string literal for Spark SQL, whatever is in it and however the session reads backslashes."""
    if value.isascii() and value.replace("_", "").replace(".", "").isalnum():
        return f"'{value}'"
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"


def ensure(lake: Lake, target: SilverTable, incarnation: str) -> bool:
    """Create the silver table, or bring it to the newest structure: new columns, wider types, comments.

    Columns that the source dropped stay, with the values they had.

    :returns: whether it was created.
    :raises FixConfiguration: a source column is called like a meta column, its type cannot follow, or the
        table was made for another SCD type.
    """
    _refuse_meta_names(target.table)
    created = not lake.exists(target.silver)
    if not created and KEPT_BY in lake.properties(target.silver):
        raise FixConfiguration(
            f"{target.silver.sql} is kept by a declarative pipeline",
            why="what is merged into it would be undone, or keep that from working",
            remedy="say apply: {mode: declarative} in the file; or drop the declarative pipeline and "
            "its tables: the next run makes them anew from bronze",
        )
    if created:
        _create(lake, target, incarnation)
    else:
        _follow(lake, target)
    if target.history:
        show_current(lake, target.silver, target.silver)
    return created


def show_current(lake: Lake, silver: TableRef, named: TableRef) -> None:
    """Give a history a view of its current versions, ``<name>_current``; other tables none.

    :param named: the table by its name in a catalog; without one there are no views.
    """
    names = [] if named.path is not None else [each.name for each in lake.fields(silver)]
    if END_AT in names:
        shown = ", ".join(quoted(name) for name in names if name not in (START_AT, END_AT, ENDED_AT))
        query = f"SELECT {shown} FROM {named.sql} WHERE {quoted(END_AT)} IS NULL"  # noqa: S608  names are quoted
        create_view(lake, replace(named, name=f"{named.name}_current"), query)


def _follow(lake: Lake, target: SilverTable) -> None:
    held = {each.name: each for each in lake.fields(target.silver)}
    _refuse_other_kind(target, held)
    place = "FIRST"
    for column in target.table.columns:
        if column.name in held:
            _evolve(lake, target, held[column.name], column)
        else:
            _add_column(lake, target, _field(column), place)
        place = f"AFTER {quoted(column.name)}"


def _refuse_other_kind(target: SilverTable, held: Collection[str]) -> None:
    if target.sequence not in held:
        raise FixConfiguration(
            f"{target.silver.sql} was not made for scd: {target.scd}",
            why=f"the pipeline file says scd: {target.scd} for {target.table.id} now, and rows of one kind "
            "do not become rows of the other",
            remedy=f"DROP TABLE {target.silver.sql}; the next run that applies changes to it makes it anew "
            "from bronze",
        )


def add_meta(lake: Lake, target: SilverTable, name: str) -> None:
    """Add a meta column whose first value is about to arrive."""
    _add_column(lake, target, META[name], "")


def _create(lake: Lake, target: SilverTable, incarnation: str) -> None:
    names = [SEQUENCE, COMMITTED_AT, *([DELETED_AT] if target.soft else [])]
    if target.history:
        names = [START_AT, END_AT, COMMITTED_AT, ENDED_AT]
    meta = [META[name] for name in names]
    properties = {
        "cdc.pipeline": target.pipeline,
        "cdc.incarnation": incarnation,
        "cdc.table_id": target.table_id,
        "cdc.source_table": str(target.table.id),
        "cdc.bronze": str(target.bronze),
    }
    if target.silver.path is None:
        properties[_VECTORS] = "true"
    if any(needs_mapping(name) for name in target.table.names):
        properties[MAPPING] = "name"
    fields = [_field(column) for column in target.table.columns] + meta
    lake.create(target.silver, fields, comment=target.table.comment, properties=properties)


def _refuse_meta_names(table: Table) -> None:
    taken = sorted(name for name in table.names if name.lower() in META)
    if taken:
        raise FixConfiguration(
            f"{table.id}: column {', '.join(taken)} has the name of one of silver's own columns",
            why="both would be the same column of the silver table",
            remedy="leave the column out (column.exclude.list) or rename it at the source",
        )


def _field(column: Column) -> Field:
    return Field(column.name, spark_type(column.type), column.comment)


def use_vectors_if_large(lake: Lake, target: SilverTable) -> None:
    """Deletion vectors spare a large table the rewriting of whole files. A small one is sooner rewritten, and
    readers of other makes understand it (``docs/decisions/0006``)."""
    size = lake.plain_bytes(target.silver)
    if size is not None and size > LARGE_BYTES:
        _set(lake, target, _VECTORS)


def _set(lake: Lake, target: SilverTable, name: str, value: str = "true") -> None:
    if lake.properties(target.silver).get(name) != value:
        lake.execute(f"ALTER TABLE {target.silver.sql} SET TBLPROPERTIES ('{name}' = '{value}')")


def needs_mapping(name: str) -> bool:
    return not _NEEDS_MAPPING.isdisjoint(name)


def _add_column(lake: Lake, target: SilverTable, new: Field, place: str) -> None:
    if needs_mapping(new.name):
        # Harmless where it is on already; only now does a name need it.
        _set(lake, target, MAPPING, "name")
    comment = f" COMMENT {literal(new.comment)}" if new.comment else ""
    lake.execute(
        f"ALTER TABLE {target.silver.sql} ADD COLUMNS ({quoted(new.name)} {new.type}{comment} {place})"
    )


def _evolve(lake: Lake, target: SilverTable, held: Field, column: Column) -> None:
    alter = f"ALTER TABLE {target.silver.sql} ALTER COLUMN {quoted(column.name)}"
    old, new = arrow_type(held.type), column.type
    if old != new and widens(old, new):
        _set(lake, target, _WIDENING)
        lake.execute(f"{alter} TYPE {spark_type(new)}")
    elif old != new and not widens(new, old):
        raise FixConfiguration(
            f"{target.table.id}: silver's {column.name} is {held.type} and cannot become {spark_type(new)}",
            why="Delta widens types, but does not change them otherwise",
            remedy=f"drop {target.silver.sql} and rebuild it from bronze",
        )
    if column.comment and column.comment != held.comment:
        lake.execute(f"{alter} COMMENT {literal(column.comment)}")
