"""A comparison of random tables says what a comparison of their multisets says; and the cells it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_lib.change import ChangeBatch, change_schema
from cdc_lib.reconcile import comparing
from cdc_lib.reconcile.columns import compared
from cdc_lib.reconcile.comparing import Found, compare
from cdc_lib.reconcile.differences import Sample
from cdc_lib.reconcile.result import Difference
from cdc_lib.reconcile.silver_rows import FileRows
from cdc_lib.reconcile.source_rows import SourceRows
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.silver.table import DELETED_AT, SPECIAL, UNAVAILABLE
from cdc_lib.source import Chunk

SOURCE = pa.struct([pa.field("ts_ms", pa.int64()), pa.field("snapshot", pa.string())])
ID = TableId("s", "t")
META = {
    SPECIAL: pa.map_(pa.string(), pa.string()),
    UNAVAILABLE: pa.list_(pa.string()),
    DELETED_AT: pa.timestamp("us", "UTC"),
}


def a_table(*key: str, **columns: pa.DataType) -> Table:
    return Table(ID, tuple(Column(name, kind, "x") for name, kind in columns.items()), key)


class Session:
    """A view of rows, in pieces of two."""

    def __init__(self, table: Table, rows: list[dict[str, Any]]) -> None:
        self._table = table
        self._rows = rows

    def chunks(self) -> list[Chunk]:
        return [Chunk(ID, number) for number in range(0, len(self._rows), 2)]

    def rows(self, chunk: Chunk) -> Iterator[ChangeBatch]:
        part = self._rows[chunk.number : chunk.number + 2]
        rows = [{"op": "r", "after": row, "special": row.get(SPECIAL)} for row in part]
        schema = change_schema(self._table, SOURCE)
        yield ChangeBatch(self._table, pa.RecordBatch.from_pylist(rows, schema))


def compare_rows(
    table: Table, source: list[dict[str, Any]], silver: list[dict[str, Any]], folder: Path, shown: int = 20
) -> tuple[Found, tuple[Difference, ...]]:
    schema = pa.schema([*table.row_type, *META.items()])
    files = []
    for number in range(0, max(len(silver), 1), 3):
        files.append(str(folder / f"{number}.parquet"))
        pq.write_table(pa.Table.from_pylist(silver[number : number + 3], schema), files[-1])
    columns = compared(table, schema)
    session = Session(table, source)
    ours = SourceRows(session, session.chunks(), columns.of_source, 2, lambda _: None)  # type: ignore[arg-type]
    theirs = FileRows(files, schema, columns.layout, lambda _: None)
    sample = Sample(shown)
    found = compare(ours, theirs, sample.take)
    return found, sample.differences(theirs, found.extras)


rows = st.lists(
    st.fixed_dictionaries({"id": st.integers(0, 3), "v": st.sampled_from([None, "", "a"])}), max_size=8
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, rows)
def test_without_a_key_rows_are_a_multiset(
    tmp_path: Path, source: list[dict[str, Any]], silver: list[dict[str, Any]]
) -> None:
    found, shown = compare_rows(a_table(id=pa.int32(), v=pa.string()), source, silver, tmp_path)
    one, other = (Counter((row["id"], row["v"]) for row in side) for side in (source, silver))
    assert (found.source, found.silver) == (len(source), len(silver))
    assert (found.lost, found.extra) == ((one - other).total(), (other - one).total())
    assert found.equal == (one & other).total()
    assert (found.wrong, found.unknown, shown) == (0, 0, ())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, rows, st.booleans())
def test_with_a_key_differences_are_sorted_by_kind(
    tmp_path: Path, source: list[dict[str, Any]], silver: list[dict[str, Any]], narrow: bool
) -> None:
    """Silver may hold a key twice. ``narrow``: each differing bucket in a round of its own."""
    source = list({row["id"]: row for row in source}.values())
    with pytest.MonkeyPatch.context() as patch:
        if narrow:
            patch.setattr(comparing, "ROUND", 1)
        found, shown = compare_rows(a_table("id", id=pa.int32(), v=pa.string()), source, silver, tmp_path)
    one, other = (Counter((row["id"], row["v"]) for row in side) for side in (source, silver))
    missing, left = one - other, other - one
    wrong = {key for key, _ in missing} & {key for key, _ in left}
    assert found.wrong == len(wrong)
    assert found.lost == missing.total() - len(wrong)
    assert found.extra == left.total() - len(wrong)
    doubled = {key for key, count in Counter(row["id"] for row in silver).items() if count > 1}
    differing = {key for key, _ in (*missing, *left)}
    # Keys that silver holds twice are only looked at where something differs.
    assert len(found.doubled) == len(doubled & differing) == len(doubled)
    assert {int(one.key["id"]) for one in shown} == differing
    assert {int(one.key["id"]) for one in shown if one.kind == "different"} == wrong


def test_what_is_said_of_each_kind(tmp_path: Path) -> None:
    table = a_table("id", id=pa.int64(), a=pa.string(), b=pa.list_(pa.float64()), c=pa.binary())
    same = {"id": 1, "a": "x", "b": [1.5, None], "c": b"\1"}
    long = "y" * 100 + "1" + "z" * 100
    source = [
        same,
        {**same, "id": 2},
        {**same, "id": 3, "a": None, SPECIAL: [("a", "infinity")]},
        {**same, "id": 4, "a": long},
        {**same, "id": 5},
        {**same, "id": 6},
        {**same, "id": 8},
    ]
    silver = [
        same,
        {**same, "id": 2, "b": [1.5, -0.0], "c": b""},
        {**same, "id": 3, "a": None},
        {**same, "id": 4, "a": long.replace("1", "2")},
        {**same, "id": 5, "a": None, UNAVAILABLE: ["a"]},
        {**same, "id": 6, DELETED_AT: 0},
        {**same, "id": 7, DELETED_AT: 0},
        {**same, "id": 9},
        {**same, "id": 8},
        {**same, "id": 8},
    ]
    found, shown = compare_rows(table, source, silver, tmp_path)
    assert (found.source, found.silver, found.equal) == (7, 8, 2)
    assert (found.wrong, found.unknown, found.lost, found.extra) == (3, 1, 1, 2)
    dots = f'…"{"y" * 20}%s{"z" * 39}"…'
    assert [(one.kind, one.key["id"], one.column, one.source, one.silver) for one in shown] == [
        ("different", "2", "b", "[1.5, NULL]", "[1.5, -0]"),
        ("different", "2", "c", "01", ""),
        ("different", "3", "a", "infinity (server text)", "NULL"),
        ("different", "4", "a", dots % "1", dots % "2"),
        ("not known", "5", "a", '"x"', None),
        ("missing in silver", "6", "", None, None),
        ("only in silver", "8", "", None, None),
        ("only in silver", "9", "", None, None),
    ]


def test_only_so_many_differences_are_shown(tmp_path: Path) -> None:
    source = [{"id": number, "v": "a"} for number in range(50)]
    silver = [{"id": number, "v": "b"} for number in range(50)]
    table = a_table("id", id=pa.int64(), v=pa.string())
    found, shown = compare_rows(table, source, silver, tmp_path, shown=3)
    assert (found.wrong, len(shown)) == (50, 3)


def test_an_error_on_the_way_ends_the_reading() -> None:
    table = a_table("id", id=pa.int64())
    session = Session(table, [{"id": number} for number in range(10)])
    layout = compared(table, pa.schema(list(table.row_type))).of_source
    seen: list[int] = []

    def check(rows: int) -> None:
        seen.append(rows)
        raise InterruptedError

    source = SourceRows(session, session.chunks(), layout, 1, check)  # type: ignore[arg-type]
    with pytest.raises(InterruptedError):
        source.scan(lambda *_: None)
    assert len(seen) == 1


def test_columns_are_compared_as_the_wider_type_of_both() -> None:
    table = a_table(
        "id", id=pa.int32(), n=pa.int64(), d=pa.decimal128(10, 2), new=pa.string(), odd=pa.string()
    )
    silver = pa.schema(
        [
            ("id", pa.int64()),
            ("n", pa.int32()),
            ("d", pa.decimal128(12, 3)),
            ("odd", pa.int32()),
            ("dropped", pa.string()),
            ("__sequence", pa.int64()),
        ]
    )
    columns = compared(table, silver)
    assert dict(columns.layout.columns) == {"id": pa.int64(), "n": pa.int64(), "d": pa.decimal128(12, 3)}
    assert (columns.kept, columns.lacking) == (("dropped",), ("new", "odd"))
    assert columns.layout.reads == ["id", "n", "d"]
