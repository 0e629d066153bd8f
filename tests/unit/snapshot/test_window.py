"""Which rows of a piece stay, against a plain model of the rule."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lib.change import change_schema
from cdc_lib.schema import Column, Table, TableId
from cdc_lib.snapshot.window import Changes, key_bytes

SOURCE = pa.struct([pa.field("ts_ms", pa.int64())])
COLUMNS = (Column("a", pa.int32(), "x", id=1), Column("b", pa.string(), "x", id=2))
COLUMNS += (Column("v", pa.string(), "x", id=3),)
TABLE = Table(TableId("public", "t"), COLUMNS, ("a", "b"), version=1)

keys = st.tuples(st.integers(0, 2) | st.none(), st.sampled_from(["x", "x:1", "", "1"]) | st.none())
events = st.lists(st.tuples(st.sampled_from("crudt"), keys, st.booleans()), max_size=12)


def rows(*found: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), change_schema(TABLE, SOURCE))


def image(key: tuple[Any, Any]) -> dict[str, Any]:
    return {"a": key[0], "b": key[1], "v": "?"}


def event(op: str, key: tuple[Any, Any], partial: bool) -> dict[str, Any]:
    if op == "t":
        return {"op": op}
    if op == "d":
        return {"op": op, "before": image(key), "before_unavailable": ["v"]}
    lacking = ["v"] if partial and op == "u" else None
    return {"op": op, "after": image(key), "after_unavailable": lacking}


def model(happened: list[tuple[str, Any, bool]], read: list[tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    """Key and value of the rows that stay; a row stays for a column that no change of its key carries."""
    if any(op == "t" for op, _, _ in happened):
        return []
    kept = []
    for key in read:
        own = [(op, partial and op == "u") for op, other, partial in happened if other == key]
        untouched = not own
        only_lacking = bool(own) and all(op in "ud" for op, _ in own) and any(op == "u" for op, _ in own)
        if untouched or (only_lacking and all(partial for op, partial in own if op == "u")):
            kept.append((*key, "?"))
    return kept


@given(events, st.lists(keys, max_size=8), st.integers(1, 4))
def test_only_what_no_change_says_is_kept(
    happened: list[tuple[str, Any, bool]], read: list[tuple[Any, Any]], cut: int
) -> None:
    changes = Changes(TABLE)
    for start in range(0, len(happened), cut):
        changes.add(rows(*(event(*one) for one in happened[start : start + cut])))
    piece = rows(*({"op": "r", "after": image(key)} for key in read))
    kept = changes.kept().rows(piece)
    assert [(row["a"], row["b"], row["v"]) for row in kept.column("after").to_pylist()] == model(
        happened, read
    )
    if changes.kept().everything:
        assert kept.equals(piece)


def test_what_a_change_carries_is_listed_as_not_known() -> None:
    wide = Table(TABLE.id, (*COLUMNS, Column("w", pa.int32(), "x", id=4)), ("a", "b"), version=1)
    schema = change_schema(wide, SOURCE)
    update = {"op": "u", "after": {"a": 1, "b": "x", "w": 5}, "after_unavailable": ["v"]}
    read = {"op": "r", "after": {"a": 1, "b": "x", "v": "large", "w": 5}}
    other = {"op": "r", "after": {"a": 2, "b": "x", "v": "large", "w": 5}}
    changes = Changes(wide)
    changes.add(pa.RecordBatch.from_pylist([update], schema))
    kept = changes.kept().rows(pa.RecordBatch.from_pylist([read, other], schema))
    assert kept.column("after").to_pylist() == [{**read["after"], "w": None}, other["after"]]
    assert kept.column("after_unavailable").to_pylist() == [["w"], None]


def test_a_row_that_moved_without_a_column_stays_under_its_old_key() -> None:
    changes = Changes(TABLE)
    moved = {
        "op": "c",
        "after": {"a": 2, "b": "x"},
        "after_unavailable": ["v"],
        "previous_key": {"a": 1, "b": "x"},
    }
    changes.add(rows(event("d", (1, "x"), False), moved, event("d", (3, "x"), False)))
    piece = rows(*({"op": "r", "after": image((number, "x"))} for number in (1, 2, 3)))
    assert [row["a"] for row in changes.kept().rows(piece).column("after").to_pylist()] == [1]


def test_a_key_that_the_after_image_lacks_is_taken_from_before() -> None:
    lacking = {"op": "u", "after": {"a": 1}, "after_unavailable": ["b"], "before": image((1, "large"))}
    changes = Changes(TABLE)
    changes.add(rows(lacking))
    kept = changes.kept().rows(
        rows({"op": "r", "after": image((1, "large"))}, {"op": "r", "after": image((1, "x"))})
    )
    assert [row["b"] for row in kept.column("after").to_pylist()] == ["x"]


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, None), (None, "1")), ((1, "1:1"), (11, ":1")), ((None, None), (None, "")), ((0, "-"), (0, None))],
)
def test_different_keys_have_different_bytes(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    found = key_bytes(
        rows(*({"op": "r", "after": image(key)} for key in (one, other))).column("after"), ("a", "b")
    )
    assert found[0] != found[1]


def test_equal_values_have_equal_bytes_whatever_their_type() -> None:
    types = [
        pa.float32(),
        pa.float64(),
        pa.decimal128(10, 2),
        pa.timestamp("us", "UTC"),
        pa.binary(),
        pa.bool_(),
    ]
    values: list[list[Any]] = [
        [1.5, None],
        [float("nan"), -0.0],
        [None, 1],
        [0, 5],
        [b"\xff\x00", None],
        [True, None],
    ]
    for kind, pair in zip(types, values, strict=True):
        struct = pa.StructArray.from_arrays([pa.array(pair, kind)], ["k"])
        assert key_bytes(struct, ("k",)).equals(key_bytes(struct.take(pa.array([0, 1])), ("k",)))
        assert key_bytes(struct, ("k",))[0] != key_bytes(struct, ("k",))[1]
