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


def model(happened: list[tuple[str, Any, bool]], read: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    if any(op == "t" for op, _, _ in happened):
        return []
    first: dict[Any, bool] = {}
    for op, key, partial in happened:
        first.setdefault(key, not (op == "u" and partial))
    return [key for key in read if not first.get(key, False)]


@given(events, st.lists(keys, max_size=8), st.integers(1, 4))
def test_what_the_first_change_says_wholly_is_dropped(
    happened: list[tuple[str, Any, bool]], read: list[tuple[Any, Any]], cut: int
) -> None:
    changes = Changes(TABLE)
    for start in range(0, len(happened), cut):
        changes.add(rows(*(event(*one) for one in happened[start : start + cut])))
    piece = rows(*({"op": "r", "after": image(key)} for key in read))
    kept = changes.keeps(piece, changes.superseded()).column("after").to_pylist()
    assert [(row["a"], row["b"]) for row in kept] == model(happened, read)


def test_a_key_that_the_after_image_lacks_is_taken_from_before() -> None:
    lacking = {"op": "u", "after": {"a": 1}, "after_unavailable": ["b"], "before": image((1, "large"))}
    changes = Changes(TABLE)
    changes.add(rows(lacking, event("d", (1, "large"), False)))
    assert len(changes.superseded()) == 0, "its first change is partial"


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
