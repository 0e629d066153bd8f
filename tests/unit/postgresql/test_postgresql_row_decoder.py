"""The row decoder, and that snapshot and log hold equal values for equal server text."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_messages import SIGNATURE, TRAILER, Cell, Log, WireColumn, WireTable, copy_row, insert

from cdc_lib.change import ChangeBatch
from cdc_lib.schema import Table
from cdc_lib.sources.postgresql.decode import LogDecoder
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.relations import CaptureRules
from cdc_lib.sources.postgresql.rows import RowDecoder
from cdc_lib.sources.postgresql.types import Handling, TypeCatalog, column_type

NUMERIC_8_3 = (8 << 16 | 3) + 4
WIRE = WireTable(
    11,
    "values",
    "d",
    (
        WireColumn("id", 20, key=True),
        WireColumn("text", 25),
        WireColumn("amount", 1700, NUMERIC_8_3),
        WireColumn("at", 1184),
        WireColumn("data", 17),
        WireColumn("score", 701),
        WireColumn("days", 1182),
    ),
)
TEXTS = st.tuples(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40)),
    st.one_of(
        st.none(), st.just("NaN"), st.integers(-99_999_999, 99_999_999).map(lambda n: f"{n / 1000:.3f}")
    ),
    st.sampled_from(["infinity", "2026-03-01 01:02:03.4+00", "0001-01-01 00:00:00 BC", None]),
    st.one_of(st.none(), st.binary(max_size=30).map(lambda data: "\\x" + data.hex())),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False).map(repr), st.just("-Infinity")),
    st.sampled_from(["{}", "{2026-03-01,NULL}", "{infinity}", "[2:2]={2026-03-01}", None]),
).map(list)


def position(lsn: int) -> PostgresPosition:
    return PostgresPosition("7000", 1, lsn)


def logged(rows: list[list[Cell]]) -> ChangeBatch:
    log = Log()
    log.transaction(1, [WIRE.describe(), *(insert(WIRE, row) for row in rows)])
    decoder = LogDecoder(CaptureRules(lambda table: True), {}, after=position(0), upto=position(1 << 50))
    (batch,) = [event for event in decoder.feed(log.rows) if isinstance(event, ChangeBatch)]
    return batch


def row_decoder(table: Table) -> RowDecoder:
    types = [column_type(one.type_oid, one.typmod, TypeCatalog(), Handling()) for one in WIRE.columns]
    return RowDecoder(table, types, position(0x1234), 1_772_368_200_123_456)


@settings(deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=12), st.integers(0, 12))
def test_snapshot_and_log_hold_the_same(rows: list[list[Cell]], cut: int) -> None:
    batch = logged(rows)
    decoder = row_decoder(batch.table)
    made = [copy_row(row) for row in rows]
    parts = [decoder.feed([SIGNATURE, *made[:cut]]).rows, decoder.feed([*made[cut:], TRAILER]).rows]
    for part in parts:
        part.validate(full=True)
    snapshot = pa.Table.from_batches(parts)
    log = pa.Table.from_batches([batch.rows])
    assert snapshot.schema == log.schema
    for name in ("after", "special", "before_unavailable", "after_unavailable", "previous_key", "ordinal"):
        assert snapshot[name].to_pylist() == log[name].to_pylist(), name


def test_a_snapshots_row_with_all_its_stamps() -> None:
    table = logged([["1", *[None] * 6]]).table
    batch = row_decoder(table).feed([copy_row(["7", "a", "NaN", None, None, None, None])])
    (row,) = batch.rows.to_pylist()
    assert batch.table is table
    assert not batch.partial
    assert (row["op"], row["before"], row["transaction"], row["previous_key"]) == ("r", None, None, None)
    assert row["after"] == dict.fromkeys(table.names) | {"id": 7, "text": "a"}
    assert dict(row["special"]) == {"amount": "NaN"}
    assert row["position"] == position(0x1234).sort_key
    assert row["source"] == {
        "snapshot": "true",
        "ts_ms": 1_772_368_200_123,
        "ts_us": 1_772_368_200_123_456,
        "ts_ns": 1_772_368_200_123_456_000,
        "txId": None,
        "lsn": 0x1234,
        "commit_lsn": None,
        "origin": None,
    }


def test_an_empty_copy_gives_an_empty_batch() -> None:
    table = logged([["1", *[None] * 6]]).table
    assert row_decoder(table).feed([SIGNATURE + TRAILER]).rows.num_rows == 0
    assert row_decoder(table).feed([]).rows.num_rows == 0
