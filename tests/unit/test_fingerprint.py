"""The hash of a batch's rows: independent of the cut, dependent on everything else."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lib.fingerprint import RowHash

SCHEMA = pa.schema(
    [
        ("op", pa.string()),
        ("after", pa.struct([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2))])),
        ("flags", pa.list_(pa.string())),
        ("special", pa.map_(pa.string(), pa.string())),
        ("ok", pa.bool_()),
        ("raw", pa.binary()),
        ("ordinal", pa.int64()),
    ]
)
TEXT = st.one_of(st.none(), st.text(max_size=5))
ROW = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["c", "u", "d"]),
        "after": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "id": st.one_of(st.none(), st.integers(-5, 5)),
                    "name": TEXT,
                    "price": st.one_of(st.none(), st.sampled_from([Decimal("1.25"), Decimal("-0.01")])),
                }
            ),
        ),
        "flags": st.one_of(st.none(), st.lists(TEXT, max_size=3)),
        "special": st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=2), TEXT), max_size=2)),
        "ok": st.one_of(st.none(), st.booleans()),
        "raw": st.one_of(st.none(), st.binary(max_size=4)),
        "ordinal": st.integers(0, 100),
    }
)


def digest(rows: list[dict[str, object]], cuts: list[int]) -> str:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    running = RowHash()
    bounds = [0, *sorted(cuts), len(rows)]
    for start, end in itertools.pairwise(bounds):
        running.update(batch.slice(start, end - start))
    return running.hexdigest()


@given(st.lists(ROW, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_cut_does_not_matter(rows: list[dict[str, object]], random_: random.Random) -> None:
    cuts = [random_.randint(0, len(rows)) for _ in range(3)]
    assert digest(rows, []) == digest(rows, cuts)


@given(st.lists(ROW, min_size=1, max_size=10), ROW, st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_content_matters(rows: list[dict[str, object]], other: dict[str, object], at: int) -> None:
    changed = list(rows)
    changed[at % len(rows)] = other
    same = pa.RecordBatch.from_pylist(rows, SCHEMA).equals(pa.RecordBatch.from_pylist(changed, SCHEMA))
    assert (digest(rows, []) == digest(changed, [])) is same


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([{"op": None}], [{"op": ""}]),
        ([{"op": "ab"}, {"op": "c"}], [{"op": "a"}, {"op": "bc"}]),
        ([{"flags": []}], [{"flags": None}]),
        ([{"flags": [None]}], [{"flags": [""]}]),
        ([{"after": None}], [{"after": {"id": None, "name": None, "price": None}}]),
        ([{"ordinal": 1}, {"ordinal": 2}], [{"ordinal": 2}, {"ordinal": 1}]),
    ],
)
def test_near_misses_differ(left: list[dict[str, object]], right: list[dict[str, object]]) -> None:
    blank = dict.fromkeys(SCHEMA.names)
    assert digest([{**blank, **row} for row in left], []) != digest([{**blank, **row} for row in right], [])


def test_values_hidden_under_null_do_not_count() -> None:
    values = pa.array([1, 2], pa.int64())
    hidden = pa.StructArray.from_arrays([values], ["v"], mask=pa.array([False, True]))
    plain = pa.array([{"v": 1}, None], hidden.type)
    left, right = RowHash(), RowHash()
    left.update(pa.RecordBatch.from_arrays([hidden], ["s"]))
    right.update(pa.RecordBatch.from_arrays([plain], ["s"]))
    assert left.hexdigest() == right.hexdigest()
