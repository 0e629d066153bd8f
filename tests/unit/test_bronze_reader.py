"""Rows of an older structure brought to the newest one, whole columns at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc_lib.bronze_reader import conform
from cdc_lib.change import change_schema
from cdc_lib.schema import Column, Table, TableId

SOURCE = pa.struct([pa.field("ts_ms", pa.int64())])


def a_table(**columns: pa.DataType) -> Table:
    return Table(TableId("s", "t"), tuple(Column(n, kind, "x") for n, kind in columns.items()), ("id",))


OLD = a_table(id=pa.int32(), gone=pa.string())
NEW = a_table(id=pa.int64(), a=pa.string(), b=pa.list_(pa.int32()))
TARGET = change_schema(NEW, SOURCE).append(pa.field("_schema_version", pa.int32()))

images = st.none() | st.fixed_dictionaries(
    {"id": st.none() | st.integers(-5, 5), "gone": st.none() | st.text(max_size=3)}
)
lists = st.none() | st.lists(st.sampled_from(["id", "gone"]), max_size=2)
rows = st.lists(
    st.fixed_dictionaries(
        {"before": images, "after": images, "before_unavailable": lists, "after_unavailable": lists}
    ),
    max_size=8,
)


def expected(row: dict[str, Any], image: str) -> tuple[object, object]:
    value, listed = row[image], row[f"{image}_unavailable"]
    if value is None:
        return None, listed
    return {"id": value["id"], "a": None, "b": None}, [*(listed or []), "a", "b"]


@given(rows, st.integers(0, 8))
def test_as_a_row_by_row_rewrite_would_do(data: list[dict[str, Any]], start: int) -> None:
    batch = pa.RecordBatch.from_pylist(data, change_schema(OLD, SOURCE)).slice(start)
    found = conform(batch, TARGET, 3)
    found.validate(full=True)
    assert found.schema == TARGET
    for row, conformed in zip(data[start:], found.to_pylist(), strict=True):
        for image in ("before", "after"):
            assert (conformed[image], conformed[f"{image}_unavailable"]) == expected(row, image)
        assert conformed["_schema_version"] == 3


def test_the_newest_structure_passes_unchanged() -> None:
    data = [{"op": "c", "after": {"id": 1, "a": "x", "b": [1]}, "after_unavailable": ["a"]}]
    batch = pa.RecordBatch.from_pylist(data, change_schema(NEW, SOURCE))
    found = conform(batch, TARGET, 1)
    assert found.select(batch.schema.names).equals(batch)


def test_ordinals_move_up_by_what_stands_below_the_file() -> None:
    data = [{"op": "r", "after": {"id": at}, "ordinal": at} for at in range(3)]
    batch = pa.RecordBatch.from_pylist(data, change_schema(NEW, SOURCE))
    assert conform(batch, TARGET, 1, 1000).column("ordinal").to_pylist() == [1000, 1001, 1002]
