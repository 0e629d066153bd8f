"""Hashes of rows: equal where all values are, type for type and bit for bit, and nowhere else."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_lib.reconcile.buckets import Sums
from cdc_lib.reconcile.hashing import FIRST, KEY, LONG, SECOND, UNKNOWN, Layout, Words, lanes
from cdc_lib.types import TIMESTAMP, TIMESTAMP_NTZ

SPECIAL = pa.map_(pa.string(), pa.string())
NAMES = pa.list_(pa.string())

few_texts = st.sampled_from(
    ["", " ", "a", "a ", "ab", "a\0", "é", "x" * 8, "x" * 9, "x" * LONG, "x" * (LONG + 1)]
)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-2, 2),
    pa.int64(): st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")]),
    pa.float64(): st.sampled_from([0.0, -0.0, 0.1, 0.1 + 2**-56, float("-inf"), float("nan")]),
    pa.decimal128(38, 2): st.sampled_from(
        [Decimal("0.00"), Decimal("0.01"), Decimal("-0.01"), Decimal(10) ** 35]
    ),
    pa.string(): few_texts,
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0", b"a"]),
    TIMESTAMP: st.integers(-1, 1),
    TIMESTAMP_NTZ: st.integers(-1, 1),
    pa.date32(): st.integers(-1, 1),
    pa.list_(pa.string()): st.lists(st.none() | st.sampled_from(["", "a", "b"]), max_size=3),
    pa.list_(pa.float64()): st.lists(st.sampled_from([0.0, -0.0, float("nan")]), max_size=2),
}
LAYOUT = Layout((("id", pa.int64()), *((f"c{n}", kind) for n, kind in enumerate(VALUES))), ("id",))


def canonical(value: Any) -> str:
    """Text that tells apart what hashes must tell apart: 0.0 and -0.0, NULL and empty."""
    return repr(value)


def batch(rows: list[tuple[Any, ...]], layout: Layout = LAYOUT) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], kind) for place, (_, kind) in enumerate(layout.columns)]
    return pa.RecordBatch.from_arrays(columns, names=[name for name, _ in layout.columns])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), *(st.none() | values for values in VALUES.values())),
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_rows_are_equal_where_their_hashes_are(rows: list[tuple[Any, ...]], cut: int) -> None:
    whole = LAYOUT.hashed_rows(batch(rows))
    for one, row in enumerate(rows):
        for other, same in enumerate(rows):
            equal = list(map(canonical, row)) == list(map(canonical, same))
            assert (whole[FIRST, one] == whole[FIRST, other]) == equal
            assert (whole[SECOND, one] == whole[SECOND, other]) == equal
            assert (whole[KEY, one] == whole[KEY, other]) == (row[0] == same[0])
    made = batch(rows)
    parts = [LAYOUT.hashed_rows(made.slice(0, cut)), LAYOUT.hashed_rows(made.slice(cut))]
    assert (np.concatenate(parts, axis=1) == whole).all()


@settings(deadline=None)
@given(st.binary(max_size=2 * LONG), st.integers(0, 2 * LONG), st.integers(1, 255))
@example(b"x" * LONG, LONG - 1, 1)
@example(b"x" * (LONG + 1), LONG, 1)
@example(b"x" * 8, 7, 128)
def test_every_bit_of_a_text_counts(text: bytes, place: int, flip: int) -> None:
    if not text:
        return
    place %= len(text)
    other = text[:place] + bytes([text[place] ^ flip]) + text[place + 1 :]
    found = lanes(pa.array([text, other, text, text + b"\0", text[:-1]], pa.binary()))
    assert found[0, 0] == found[0, 2]
    assert len(np.unique(found[0])) == len(np.unique(found[1])) == 4


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.string(), "", None),
        (pa.string(), "paid", "paid "),
        (pa.binary(), b"", None),
        (pa.list_(pa.int32()), [], None),
        (pa.list_(pa.int32()), [None], []),
        (pa.list_(pa.int32()), [1, 2], [2, 1]),
        (pa.list_(pa.string()), ["ab", ""], ["a", "b"]),
        (pa.decimal128(38, 9), Decimal("1.000000001"), Decimal("1.000000002")),
        (pa.decimal128(38, 0), Decimal(2**64), Decimal(0)),
        (pa.float64(), 0.0, -0.0),
        (pa.float64(), float("nan"), None),
        (
            TIMESTAMP,
            datetime(2024, 1, 1, 12, tzinfo=timezone.utc),
            datetime(2024, 1, 1, 13, tzinfo=timezone.utc),
        ),
    ],
)
def test_values_that_differ(kind: pa.DataType, one: Any, other: Any) -> None:
    found = lanes(pa.array([one, other, one], kind))
    assert (found[:, 0] == found[:, 2]).all()
    assert (found[:, 0] != found[:, 1]).all()


def test_all_that_are_not_numbers_are_one_value() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64)
    found = lanes(pa.array(bits.view(np.float64)))
    assert (found[:, 0] == found[:, 1]).all()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.string()), pa.bool_()])
def test_what_lies_under_a_null_does_not_count(kind: pa.DataType) -> None:
    values = {pa.int64(): [1, 2], pa.string(): ["abc", "d"], pa.bool_(): [True, False]}.get(kind, [["a"], []])
    full = pa.array(values, kind)
    masked = (
        pa.Array.from_buffers(
            kind, 2, [pa.array([False, True]).buffers()[1], *full.buffers()[1:2], *full.buffers()[2:3]]
        )
        if not pa.types.is_list(kind)
        else pa.ListArray.from_arrays(full.offsets, full.values, mask=pa.array([True, False]))
    )
    assert masked.null_count == 1
    assert (lanes(masked) == lanes(pa.array([None, values[1]], kind))).all()


def with_meta(
    special: list[Any], unavailable: list[Any] | None = None, value: list[Any] | None = None
) -> Words:
    layout = Layout(
        (("id", pa.int64()), ("a", pa.string()), ("b", pa.string())), ("id",), "__special", "__unavailable"
    )
    count = len(special)
    values = {
        "id": pa.array([1] * count, pa.int64()),
        "a": pa.array(value or [None] * count, pa.string()),
        "b": pa.nulls(count, pa.string()),
        "__special": pa.array(special, SPECIAL),
        "__unavailable": pa.array(unavailable or [None] * count, NAMES),
    }
    return layout.hashed(values, count)


def test_server_texts_belong_to_the_row() -> None:
    found = with_meta(
        [
            None,
            [],
            [("elsewhere", "x")],
            [("a", "infinity")],
            [("a", "-infinity")],
            [("b", "infinity")],
            [("a", "infinity"), ("b", "NaN")],
            [("b", "NaN"), ("a", "infinity")],
        ]
    )[FIRST]
    assert found[0] == found[1] == found[2]
    assert found[6] == found[7]
    assert len(np.unique(found)) == 5
    assert found[0] != with_meta([None], value=["infinity"])[FIRST, 0]


def test_columns_that_are_not_known_make_a_row_differ() -> None:
    found = with_meta([None] * 4, [None, [], ["gone"], ["a"]])
    assert found[UNKNOWN].tolist() == [0, 0, 0, 1]
    assert found[FIRST, 0] == found[FIRST, 1] == found[FIRST, 2] != found[FIRST, 3]


@given(st.text(max_size=9), st.text(max_size=9))
def test_exchanged_values_do_not_cancel_out(one: str, other: str) -> None:
    """Neither between two keys nor between two columns, and the order of rows does not matter."""
    layout = Layout((("id", pa.int64()), ("a", pa.string()), ("b", pa.string())), ("id",))

    def summed(*rows: tuple[int, str, str]) -> Sums:
        sums = Sums()
        sums.add(layout.hashed_rows(batch(list(rows), layout)))
        return sums

    true = summed((1, one, other), (2, other, one))
    swapped = summed((1, other, other), (2, one, one))
    crossed = summed((1, other, one), (2, one, other))
    again = summed((2, other, one), (1, one, other))
    assert true.differing(swapped).any() == true.differing(crossed).any() == (one != other)
    assert not true.differing(again).any()


def test_two_copies_of_a_row_are_not_two_of_another() -> None:
    """An exclusive or of their hashes would be nothing, both times."""
    layout = Layout((("n", pa.int64()),), ())
    one, other = Sums(), Sums()
    hashed = layout.hashed_rows(batch([(5,), (6,)], layout))
    hashed[KEY] = 0
    for copies, place in ((one, 0), (other, 1)):
        copies.add(hashed[:, [place, place]])
    assert one.differing(other).any()


def test_sums_come_back_from_the_form_in_which_workers_hand_them_over() -> None:
    sums = Sums()
    rows = np.random.default_rng(1).integers(0, 2**64, (4, 5000), np.uint64)
    sums.add(rows)
    halves = [Sums(), Sums()]
    for place, half in enumerate(halves):
        half.add(rows[:, place::2])
    parts = pa.Table.from_batches([half.to_batch() for half in halves])
    added = parts.group_by("bucket").aggregate([(name, "sum") for name in ("rows", "a", "b", "c", "d")])
    table = added.rename_columns([name.removesuffix("_sum") for name in added.column_names])
    assert not sums.differing(Sums.from_table(table)).any()
    assert table.num_rows > 4000
