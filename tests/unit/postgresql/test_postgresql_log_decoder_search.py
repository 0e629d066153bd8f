"""Random logs in random chunks: the vectorised decoder against the scalar one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pgoutput_messages import (
    SIGNATURE,
    TRAILER,
    UNCHANGED,
    Cell,
    Log,
    WireColumn,
    WireTable,
    delete,
    insert,
    truncate,
    update,
)
from scalar_decoder import MISFIT, Row, ScalarDecoder

from cdc_lib.change import ChangeBatch, LogEvent, SchemaChange, TransactionEnd
from cdc_lib.schema import Identity, Table, TableId
from cdc_lib.sources.postgresql.decode import LogDecoder
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.relations import CaptureRules

UTC = dt.timezone.utc
INT8, TEXT, NUMERIC, TIMESTAMPTZ, INT4_ARRAY = 20, 25, 1700, 1184, 1007
NUMERIC_6_2 = (6 << 16 | 2) + 4

TEXTS: dict[int, dict[str, Any]] = {
    INT8: {str(number): number for number in (0, 1, 2, 3, -7, 2**63 - 1)},
    TEXT: {text: text for text in ("", "a", "exactly 12 b", "more than twelve", "é€😀", "NULL", "x" * 300)},
    NUMERIC: {"1.50": Decimal("1.50"), "-9999.99": Decimal("-9999.99"), "NaN": MISFIT},
    TIMESTAMPTZ: {
        "2026-03-01 12:30:00.25+00": dt.datetime(2026, 3, 1, 12, 30, 0, 250_000, UTC),
        "0001-01-01 00:00:00+00": dt.datetime(1, 1, 1, tzinfo=UTC),
        "infinity": MISFIT,
        "0044-03-15 00:00:00+00 BC": MISFIT,
    },
    INT4_ARRAY: {"{}": [], "{1,NULL,-3}": [1, None, -3], "{{1},{2}}": MISFIT, "[0:1]={7,8}": MISFIT},
}
VALUES: dict[int, Callable[[str], Any]] = {oid: texts.__getitem__ for oid, texts in TEXTS.items()}

ORDERS = WireTable(
    11,
    "orders",
    "d",
    (
        WireColumn("id", INT8, key=True),
        WireColumn("note", TEXT),
        WireColumn("amount", NUMERIC, NUMERIC_6_2),
        WireColumn("region", TEXT, key=True),
    ),
)
ORDERS_WIDER = WireTable(11, "orders", "d", (*ORDERS.columns, WireColumn("tags", INT4_ARRAY)))
EVENTS = WireTable(
    12, "events", "f", (WireColumn("at", TIMESTAMPTZ), WireColumn("id", INT8), WireColumn("body", TEXT))
)
EVENTS_NARROW = WireTable(12, "events", "f", EVENTS.columns[:2])
OTHER = WireTable(13, "not_captured", "d", (WireColumn("id", INT8, key=True), WireColumn("body", TEXT)))
VERSIONS = {11: (ORDERS, ORDERS_WIDER), 12: (EVENTS, EVENTS_NARROW), 13: (OTHER, OTHER)}
KEYS = {"events": ("id",)}
CAPTURED = {"orders", "events"}


def cell(column: WireColumn, key: bool) -> st.SearchStrategy[Cell]:
    values: st.SearchStrategy[Cell] = st.sampled_from(sorted(TEXTS[column.type_oid]))
    return values if key else st.one_of(values, st.none())


def cells(table: WireTable) -> st.SearchStrategy[list[Cell]]:
    keys = KEYS.get(table.name, ())
    return st.tuples(*(cell(one, one.key or one.name in keys) for one in table.columns)).map(list)


@st.composite
def change(draw: st.DrawFn, table: WireTable) -> bytes:
    kind = draw(st.sampled_from("IIUUUDT"))
    new = draw(cells(table))
    if kind == "I":
        return insert(table, new)
    if kind == "T":
        return truncate(table)
    old = draw(cells(table))
    full = table.identity == "f"
    if kind == "D":
        return delete(table, old=old) if full else delete(table, key=table.key_only(old))
    if draw(st.booleans()):  # the key stays as it is
        keys = KEYS.get(table.name, ())
        for place, column in enumerate(table.columns):
            if column.key or column.name in keys:
                new[place] = old[place]
    for place, column in enumerate(table.columns):
        if column.type_oid == TEXT and draw(st.booleans()):
            new[place] = UNCHANGED
    if full:
        return update(table, new, old=old)
    return update(table, new, key=table.key_only(old) if draw(st.booleans()) else None)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """Rows of a log, and the places where a commit record ends."""
    log, ends = Log(), [0x100]
    version: dict[int, int] = {}
    for xid in range(2**32 - 3, 2**32 - 3 + draw(st.integers(0, 5))):
        messages = []
        for _ in range(draw(st.integers(0, 8))):
            oid = draw(st.sampled_from(sorted(VERSIONS)))
            fresh = oid not in version
            if fresh or draw(st.integers(0, 5)) == 0:
                version[oid] = draw(st.integers(0, 1))
                messages.append(VERSIONS[oid][version[oid]].describe())
            table = VERSIONS[oid][version[oid]]
            messages.append(draw(change(table)))
            both = [VERSIONS[one][version[one]] for one in version]
            if draw(st.integers(0, 9)) == 0:
                messages.append(truncate(*both))
        origin = draw(st.sampled_from([None, None, "other_server"]))
        ends.append(log.transaction(xid % 2**32, messages, 1_700_000_000_000_000 + xid, origin)[1])
    return log.rows, ends


def position(lsn: int) -> PostgresPosition:
    return PostgresPosition("7000", 3, lsn)


def known() -> dict[TableId, Table]:
    """The catalog's key of the table whose identity is FULL; its columns are found out from the log."""
    events = TableId("public", "events")
    return {events: Table(events, (), ("id",), Identity.FULL)}


def decode(chunks: list[list[bytes]], after: int, upto: int) -> list[LogEvent]:
    rules = CaptureRules(
        captured=lambda table: table.name in CAPTURED, catalog_key=lambda table: KEYS.get(table.name)
    )
    decoder = LogDecoder(rules, known(), after=position(after), upto=position(upto))
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [*events, *decoder.finish()]


def as_rows(events: list[LogEvent]) -> list[Row]:
    """Rows in order of ordinal, after checking what the order of events promises."""
    structure = known()
    rows: list[Row] = []
    last: dict[TableId, int] = {}
    for event in events:
        if isinstance(event, SchemaChange):
            assert event.before == structure.get(event.table.id)
            structure[event.table.id] = event.table
        elif isinstance(event, TransactionEnd):
            assert event.ordinal == len(rows)
        elif isinstance(event, ChangeBatch):
            assert event.table == structure[event.table.id]
            event.rows.validate(full=True)
            found = [plain(event, row) for row in event.rows.to_pylist()]
            assert [row["ordinal"] for row in found] == sorted(row["ordinal"] for row in found)
            assert found[0]["ordinal"] > last.get(event.table.id, -1)
            last[event.table.id] = found[-1]["ordinal"]
            partial = any(row["after_unavailable"] or row["previous_key"] for row in found)
            assert event.partial == partial
            rows += found
    return sorted(rows, key=lambda row: row["ordinal"])


def plain(batch: ChangeBatch, row: Row) -> Row:
    """A decoded row in the words of the scalar decoder."""
    source, transaction = row.pop("source"), row.pop("transaction")
    assert row.pop("position") == position(source["commit_lsn"]).sort_key
    assert source["snapshot"] == "false"
    assert (source["ts_ms"], source["ts_ns"]) == (source["ts_us"] // 1000, source["ts_us"] * 1000)
    names = ("lsn", "commit_lsn", "ts_us", "txId", "origin")
    return {
        **row,
        **{name: source[name] for name in names},
        "special": row["special"] and sorted(row["special"]),
        "transaction": tuple(transaction.values()),
        "table": batch.table.id.name,
        "columns": list(batch.table.names),
    }


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_agrees_with_the_scalar_decoder_however_the_log_is_cut(
    made: tuple[list[bytes], list[int]], data: st.DataObject
) -> None:
    log, ends = made
    after, upto = sorted(data.draw(st.tuples(st.sampled_from(ends), st.sampled_from(ends))))
    scalar = ScalarDecoder(VALUES, KEYS, CAPTURED, after, upto)
    scalar.read(log)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    chunks = [log[start:end] for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    events = decode(chunks, after, upto)
    assert as_rows(events) == scalar.rows
    reported = [(event.position.lsn, event.ordinal) for event in events if isinstance(event, TransactionEnd)]  # type: ignore[attr-defined]
    assert set(reported) <= set(scalar.ends)
    assert reported[-1:] == scalar.ends[-1:]


@settings(max_examples=20, deadline=None)
@given(logs())
def test_header_and_trailer_of_the_format_change_nothing(made: tuple[list[bytes], list[int]]) -> None:
    log, ends = made
    bare = as_rows(decode([log], 0, ends[-1]))
    glued = [SIGNATURE + log[0], *log[1:], TRAILER] if log else [SIGNATURE + TRAILER]
    assert as_rows(decode([glued], 0, ends[-1])) == bare
    assert as_rows(decode([[SIGNATURE], log, [TRAILER]], 0, ends[-1])) == bare


def test_rows_have_the_promised_schema() -> None:
    log = Log()
    _, end = log.transaction(1, [ORDERS.describe(), insert(ORDERS, ["1", "a", "1.50", "eu"])])
    (batch,) = [event for event in decode([log.rows], 0, end) if isinstance(event, ChangeBatch)]
    assert batch.rows.schema.field("after").type == pa.struct(
        [("id", pa.int64()), ("note", pa.string()), ("amount", pa.decimal128(6, 2)), ("region", pa.string())]
    )
    assert batch.table.key == ("id", "region")
