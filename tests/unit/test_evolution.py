"""Column identity over structure changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc_lib.errors import ResnapshotNeeded
from cdc_lib.evolution import first_version, next_version, refuse_incompatible
from cdc_lib.schema import Column, Table, TableId


def table(*columns: tuple[str, pa.DataType]) -> Table:
    named = tuple(Column(name, kind, str(kind)) for name, kind in columns)
    return Table(TableId("public", "t"), named, ("id",))


ID, A, B = ("id", pa.int64()), ("a", pa.string()), ("b", pa.int32())


def ids(of: Table) -> dict[str, int]:
    return {column.name: column.id for column in of.columns}


def ever(*tables: Table) -> dict[str, Column]:
    return {column.name: column for version in tables for column in version.columns}


def test_added_column_gets_a_new_id_and_the_version_rises() -> None:
    one = first_version(table(ID, A))
    two, changes = next_version(one, table(ID, A, B), ever(one))
    assert (two.version, ids(two)) == (2, {"id": 1, "a": 2, "b": 3})
    assert [(change.kind, change.column) for change in changes] == [("added", "b")]


def test_dropped_and_added_again_is_another_column() -> None:
    one = first_version(table(ID, A, B))
    two, _ = next_version(one, table(ID, B), ever(one))
    three, changes = next_version(two, table(ID, B, A), ever(one, two))
    assert ids(three) == {"id": 1, "b": 3, "a": 4}
    assert {change.kind for change in changes} == {"added", "readded"}


def test_drop_and_add_between_two_looks_shows_in_the_order() -> None:
    one = first_version(table(ID, A, B))
    two, changes = next_version(one, table(ID, B, A), ever(one))
    assert ids(two) == {"id": 1, "b": 3, "a": 4}
    assert {(change.kind, change.column) for change in changes} == {
        ("dropped", "a"),
        ("added", "a"),
        ("readded", "a"),
    }


@pytest.mark.parametrize(
    ("old", "new", "renamed"),
    [
        (("a", "b"), ("c", "b"), {"c": "from a"}),
        (("a", "b"), ("a", "c"), {"c": "from b"}),
        (("a", "b"), ("c", "d"), {"c": "from a", "d": "from b"}),
        (("a", "b"), ("c", "b", "d"), {"c": "from a"}),
        (("a", "b"), ("b", "c"), {}),
        (("a",), ("a", "c"), {}),
    ],
)
def test_a_column_that_stands_where_another_went_may_be_the_same(
    old: tuple[str, ...], new: tuple[str, ...], renamed: dict[str, str]
) -> None:
    """PostgreSQL adds columns at the end alone."""
    one = first_version(table(ID, *((name, pa.int32()) for name in old)))
    two, changes = next_version(one, table(ID, *((name, pa.int32()) for name in new)), ever(one))
    assert {change.column: change.detail for change in changes if change.kind == "renamed"} == renamed
    assert not {ids(two)[name] for name in renamed} & set(ids(one).values()), (
        "bronze has it as a column of its own"
    )


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (pa.int32(), pa.int64(), "widened"),
        (pa.int16(), pa.int32(), "widened"),
        (pa.float32(), pa.float64(), "widened"),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), "widened"),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), "widened"),
        (pa.decimal128(10, 2), pa.decimal128(11, 4), "incompatible"),
        (pa.int64(), pa.int32(), "incompatible"),
        (pa.int64(), pa.string(), "incompatible"),
        (pa.string(), pa.int32(), "incompatible"),
    ],
)
def test_type_changes(old: pa.DataType, new: pa.DataType, kind: str) -> None:
    one = first_version(table(ID, ("v", old)))
    two, changes = next_version(one, table(ID, ("v", new)), ever(one))
    assert [change.kind for change in changes] == [kind]
    if kind == "incompatible":
        with pytest.raises(ResnapshotNeeded, match="v "):
            refuse_incompatible(two, changes)


def test_added_again_with_another_type_is_refused() -> None:
    one = first_version(table(ID, A))
    two, _ = next_version(one, table(ID), ever(one))
    _, changes = next_version(two, table(ID, ("a", pa.int32())), ever(one, two))
    assert "incompatible" in {change.kind for change in changes}
