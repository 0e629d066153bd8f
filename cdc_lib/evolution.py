"""From one structure of a table to the next: which columns are the same, and whether bronze can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cdc_lib.errors import ResnapshotNeeded
from cdc_lib.schema import Column, Table
from cdc_lib.types import spark_type, widens


@dataclass(frozen=True)
class ColumnChange:
    """``kind``: added, readded (had been dropped before), renamed (stands where a dropped column stood, and
    may have its values), dropped, widened, retyped (same bronze type), incompatible."""

    kind: str
    column: str
    detail: str = ""


def first_version(table: Table) -> Table:
    """The structure a table is first seen with, numbered."""
    columns = tuple(replace(column, id=number) for number, column in enumerate(table.columns, start=1))
    return table.numbered(1, columns)


def next_version(old: Table, new: Table, ever: Mapping[str, Column]) -> tuple[Table, list[ColumnChange]]:
    """``new`` with version and column ids that continue ``old``, and what changed.

    :param ever: the newest column of each name that the table ever had; bronze still has them all.

    A column keeps its id when it keeps its name and its place among the columns that both versions have.
    PostgreSQL never reorders columns, so one that moved behind others was dropped and added again; it adds
    columns at the end, so a new one between others had another name before.
    """
    kept = _kept(old, new)
    renamed = _renamed(old, new, kept)
    last_id = max((column.id for column in ever.values()), default=0)
    by_name = {column.name: column for column in old.columns}
    columns: list[Column] = []
    changes = [ColumnChange("dropped", name) for name in old.names if name not in kept]
    for column in new.columns:
        if column.name in kept:
            before = by_name[column.name]
            columns.append(replace(column, id=before.id))
            changes += _retyped(before, column)
        else:
            last_id += 1
            columns.append(replace(column, id=last_id))
            changes.append(ColumnChange("added", column.name, column.source_type))
            if column.name in renamed:
                changes.append(ColumnChange("renamed", column.name, f"from {renamed[column.name]}"))
            if column.name in ever:
                changes.append(ColumnChange("readded", column.name))
                changes += _retyped(ever[column.name], column)
    return new.numbered(old.version + 1, tuple(columns)), changes


def refuse_incompatible(table: Table, changes: list[ColumnChange]) -> None:
    """:raises ResnapshotNeeded: a column's new type does not fit the column that bronze has."""
    bad = [change for change in changes if change.kind == "incompatible"]
    if bad:
        details = ", ".join(f"{change.column} ({change.detail})" for change in bad)
        raise ResnapshotNeeded(
            f"{table.id}: the type of {details} changed in a way its bronze table cannot take",
            why="Delta widens types, but does not change them otherwise; nothing was written or released",
            remedy=f"leave {table.id} out (table.include.list or table.exclude.list) and capture it under a "
            "pipeline of another name, which starts with a new snapshot",
        )


def _kept(old: Table, new: Table) -> set[str]:
    """Names in both, in the longest run that kept its order from the front of the new table."""
    place = {name: index for index, name in enumerate(old.names)}
    kept: set[str] = set()
    last = -1
    for name in new.names:
        if name in place and place[name] > last:
            kept.add(name)
            last = place[name]
    return kept


def _renamed(old: Table, new: Table, kept: set[str]) -> dict[str, str]:
    """New names of columns, and the old. At the end of a table a column that was dropped and another that was
    added look the same as one that was renamed, and are taken for it: that costs time, and no values."""
    places = zip(_between(old.names, kept), _between(new.names, kept), strict=True)
    return {name: before for gone, come in places for before, name in zip(gone, come, strict=False)}


def _between(names: Sequence[str], kept: set[str]) -> list[list[str]]:
    """The names before, between and behind those that were kept."""
    places: list[list[str]] = [[]]
    for name in names:
        if name in kept:
            places.append([])
        else:
            places[-1].append(name)
    return places


def _retyped(old: Column, new: Column) -> list[ColumnChange]:
    if old.type == new.type:
        if old.source_type == new.source_type:
            return []
        return [ColumnChange("retyped", new.name, f"{old.source_type} to {new.source_type}")]
    kind = "widened" if widens(old.type, new.type) else "incompatible"
    return [ColumnChange(kind, new.name, f"{spark_type(old.type)} to {spark_type(new.type)}")]
