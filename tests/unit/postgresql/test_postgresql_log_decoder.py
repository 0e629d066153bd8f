"""The log decoder, one rule at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pgoutput_messages import (
    UNCHANGED,
    Cell,
    Log,
    WireColumn,
    WireTable,
    begin,
    commit,
    delete,
    insert,
    message,
    truncate,
    type_name,
    update,
)

from cdc_lib.change import ChangeBatch, LogEvent, Message, SchemaChange, TransactionEnd
from cdc_lib.errors import CdcError, RetryLater
from cdc_lib.schema import Column, Identity, Table, TableId
from cdc_lib.sources.postgresql import decode as decoding
from cdc_lib.sources.postgresql.decode import LogDecoder
from cdc_lib.sources.postgresql.position import PostgresPosition
from cdc_lib.sources.postgresql.relations import CaptureRules

INT4, TEXT, DATE = 23, 25, 1082
COLUMNS = (WireColumn("id", INT4, key=True), WireColumn("note", TEXT), WireColumn("day", DATE))
ORDERS = WireTable(11, "orders", "d", COLUMNS)
ORDERS_FULL = replace(ORDERS, identity="f")
ITEMS = WireTable(12, "items", "d", COLUMNS)
ORDERS_ID = TableId("public", "orders")
END = 1 << 40


def at(lsn: int) -> PostgresPosition:
    return PostgresPosition("7000", 1, lsn)


def everything(table: TableId) -> bool:
    return True


def id_key(table: TableId) -> tuple[str, ...]:
    return ("id",)


RULES = CaptureRules(everything, catalog_key=id_key)


def decode(
    log: Log, rules: CaptureRules = RULES, known: Sequence[Table] = (), after: int = 0, upto: int = END
) -> list[LogEvent]:
    decoder = LogDecoder(rules, {table.id: table for table in known}, after=at(after), upto=at(upto))
    return [*decoder.feed(log.rows), *decoder.finish()]


def batches(events: Sequence[LogEvent]) -> list[ChangeBatch]:
    return [event for event in events if isinstance(event, ChangeBatch)]


def rows(events: Sequence[LogEvent]) -> list[dict[str, Any]]:
    return [row for batch in batches(events) for row in batch.rows.to_pylist()]


def of(*messages: bytes) -> Log:
    """A log of one transaction, 700."""
    log = Log()
    log.transaction(700, messages)
    return log


def image(id_: int | None, note: str | None = None) -> dict[str, Any]:
    return {"id": id_, "note": note, "day": None}


def cells(id_: str, note: Cell = None, day: Cell = None) -> list[Cell]:
    return [id_, note, day]


def test_an_insert_with_all_its_stamps() -> None:
    log = Log(lsn=0x1000)
    time = 1_772_368_200_123_456
    final, end = log.transaction(
        2**32 - 2, [ORDERS.describe(), insert(ORDERS, cells("1", "a"))], time, origin="other"
    )
    announced, batch, finish = decode(log)
    assert isinstance(announced, SchemaChange)
    assert isinstance(batch, ChangeBatch)
    assert announced == SchemaChange(None, batch.table)
    assert batch.table == Table(
        ORDERS_ID,
        (
            Column("id", pa.int32(), "integer"),
            Column("note", pa.string(), "text"),
            Column("day", pa.date32(), "date"),
        ),
        ("id",),
        Identity.KEY,
    )
    assert batch.rows.to_pylist() == [
        {
            "op": "c",
            "before": None,
            "after": image(1, "a"),
            "before_unavailable": None,
            "after_unavailable": None,
            "special": None,
            "previous_key": None,
            "source": {
                "snapshot": "false",
                "ts_ms": 1_772_368_200_123,
                "ts_us": time,
                "ts_ns": 1_772_368_200_123_456_000,
                "txId": 2**32 - 2,
                "lsn": 0x1020,
                "commit_lsn": final,
                "origin": "other",
            },
            "transaction": {"id": "4294967294", "total_order": 1, "data_collection_order": 1},
            "position": at(final).sort_key,
            "ordinal": 0,
        }
    ]
    assert not batch.partial
    assert finish == TransactionEnd(at(end), 1, time)


def test_unchanged_toast_is_unavailable_under_key_identity() -> None:
    events = decode(of(ORDERS.describe(), update(ORDERS, cells("1", UNCHANGED, None))))
    (row,) = rows(events)
    assert (row["op"], row["before"], row["after"]) == ("u", None, image(1))
    assert (row["before_unavailable"], row["after_unavailable"]) == (None, ["note"])
    assert batches(events)[0].partial


def test_unchanged_toast_is_taken_from_a_full_old_row() -> None:
    old = cells("1", "x" * 9000)
    change = update(ORDERS_FULL, cells("1", UNCHANGED, "2026-03-01"), old=old)
    events = decode(of(ORDERS_FULL.describe(), change))
    (row,) = rows(events)
    assert row["after"]["note"] == "x" * 9000
    assert row["after_unavailable"] is None
    assert not batches(events)[0].partial


def test_a_null_of_the_full_old_row_is_known_too() -> None:
    change = update(ORDERS_FULL, cells("1", UNCHANGED), old=cells("1", None))
    (row,) = rows(decode(of(ORDERS_FULL.describe(), change)))
    assert (row["after"], row["after_unavailable"]) == (image(1), None)


def test_a_changed_key_is_a_delete_and_a_create_that_knows_the_old_key() -> None:
    events = decode(
        of(
            ORDERS.describe(),
            insert(ORDERS, cells("5")),
            update(ORDERS, cells("2", UNCHANGED), key=["1", None, None]),
            insert(ORDERS, cells("6")),
        )
    )
    first, gone, come, last = rows(events)
    assert (first["op"], last["op"]) == ("c", "c")
    assert (gone["op"], gone["before"], gone["after"]) == ("d", image(1), None)
    assert (gone["before_unavailable"], gone["after_unavailable"]) == (["note", "day"], None)
    assert (come["op"], come["before"], come["after"]) == ("c", None, image(2))
    assert (come["before_unavailable"], come["after_unavailable"]) == (None, ["note"])
    assert [row["previous_key"] for row in rows(events)] == [None, None, {"id": 1}, None]
    assert [row["ordinal"] for row in rows(events)] == [0, 1, 2, 3]
    assert [row["transaction"]["total_order"] for row in rows(events)] == [1, 2, 3, 4]
    assert gone["source"] == come["source"]
    assert batches(events)[0].partial


@pytest.mark.parametrize(
    ("old", "new"), [("1", "2"), ("1", "11"), ("a" * 8 + "b", "a" * 8 + "c"), ("a" * 20, "a" * 16)]
)
def test_keys_are_compared_as_bytes(old: str, new: str) -> None:
    table = WireTable(11, "orders", "f", (WireColumn("id", TEXT), WireColumn("note", TEXT)))
    log = of(
        table.describe(), update(table, [new, "x"], old=[old, "x"]), update(table, [old, "y"], old=[old, "x"])
    )
    assert [row["op"] for row in rows(decode(log))] == ["d", "c", "u"]


def test_a_key_tuple_with_an_unchanged_key_is_a_plain_update() -> None:
    # The server also logs the old key when it is stored out of line.
    (row,) = rows(decode(of(ORDERS.describe(), update(ORDERS, cells("1", "b"), key=["1", None, None]))))
    assert (row["op"], row["before"], row["after"]) == ("u", image(1), image(1, "b"))
    assert row["before_unavailable"] == ["note", "day"]
    assert row["previous_key"] is None


def test_a_chosen_key_that_the_old_tuple_lacks_does_not_count_as_changed() -> None:
    rules = CaptureRules(everything, message_key=lambda table: ("note",))
    (row,) = rows(
        decode(of(ORDERS.describe(), update(ORDERS, cells("2", "b"), key=["1", None, None])), rules)
    )
    assert (row["op"], row["before"], row["after"]) == ("u", image(1), image(2, "b"))


def test_a_value_that_even_the_old_row_lacks_stays_unavailable() -> None:
    change = update(ORDERS_FULL, cells("1", UNCHANGED), old=cells("1", UNCHANGED))
    (row,) = rows(decode(of(ORDERS_FULL.describe(), change)))
    assert (row["before_unavailable"], row["after_unavailable"]) == (["note"], ["note"])


def test_special_values_stand_under_the_image_they_are_of() -> None:
    log = of(
        ORDERS_FULL.describe(),
        update(ORDERS_FULL, cells("1", None, "infinity"), old=cells("1", None, "-infinity")),
        delete(ORDERS_FULL, old=cells("1", None, "0044-03-15 BC")),
        insert(ORDERS_FULL, cells("2", None, "2026-03-01")),
    )
    found = rows(decode(log))
    assert [row["special"] and dict(row["special"]) for row in found] == [
        {"day": "infinity", "before.day": "-infinity"},
        {"day": "0044-03-15 BC"},
        None,
    ]
    assert [row["after"] and row["after"]["day"] is None for row in found] == [True, None, False]


def test_a_key_that_its_column_cannot_hold_is_not_lost() -> None:
    table = WireTable(11, "days", "d", (WireColumn("day", DATE, key=True),))
    gone, come = rows(decode(of(table.describe(), update(table, ["2026-03-01"], key=["infinity"]))))
    assert dict(gone["special"]) == {"day": "infinity"}
    assert come["previous_key"] == {"day": None}
    assert dict(come["special"]) == {"previous_key.day": "infinity"}


def test_truncate_gives_each_captured_table_a_row_in_its_place() -> None:
    rules = replace(RULES, captured=lambda table: table.name != "hidden")
    hidden = replace(ORDERS, oid=13, name="hidden")
    events = decode(
        of(
            *(table.describe() for table in (ORDERS, ITEMS, hidden)),
            insert(ORDERS, cells("1")),
            insert(ITEMS, cells("1")),
            truncate(hidden, ITEMS, ORDERS),
            insert(hidden, cells("1")),
            insert(ORDERS, cells("2")),
        ),
        rules,
    )
    found = {
        batch.table.id.name: [
            (row["op"], row["ordinal"], *list(row["transaction"].values())[1:])
            for row in batch.rows.to_pylist()
        ]
        for batch in batches(events)
    }
    assert found == {
        "orders": [("c", 0, 1, 1), ("t", 3, 4, 2), ("c", 4, 5, 3)],
        "items": [("c", 1, 2, 1), ("t", 2, 3, 2)],
    }
    for batch in batches(events):
        row = batch.rows.slice(1, 1).to_pylist()[0]
        assert (row["before"], row["after"]) == (None, None)


def test_a_column_added_inside_a_transaction() -> None:
    wider = replace(ORDERS, columns=(*COLUMNS, WireColumn("extra", TEXT)))
    log = of(
        ORDERS.describe(),
        ITEMS.describe(),
        insert(ORDERS, cells("1")),
        insert(ITEMS, cells("1")),
        wider.describe(),
        insert(wider, [*cells("2"), "new"]),
        insert(ITEMS, cells("2")),
    )
    events = decode(log)
    kinds = [
        (type(event).__name__, event.table.id.name, len(event.table.columns))
        for event in events
        if isinstance(event, (SchemaChange, ChangeBatch))
    ]
    orders = [kind for kind in kinds if kind[1] == "orders"]
    assert orders == [
        ("SchemaChange", "orders", 3),
        ("ChangeBatch", "orders", 3),
        ("SchemaChange", "orders", 4),
        ("ChangeBatch", "orders", 4),
    ]
    assert [kind for kind in kinds if kind[1] == "items"] == [
        ("SchemaChange", "items", 3),
        ("ChangeBatch", "items", 3),
    ]
    changes = [event for event in events if isinstance(event, SchemaChange) and event.table.id == ORDERS_ID]
    assert changes[1].before == changes[0].table
    by_ordinal = sorted(rows(events), key=lambda row: row["ordinal"])
    assert [row["after"]["id"] for row in by_ordinal] == [1, 1, 2, 2]
    assert by_ordinal[2]["after"] == {**image(2), "extra": "new"}
    assert by_ordinal[2]["transaction"] == {"id": "700", "total_order": 3, "data_collection_order": 2}


def test_a_repeated_description_announces_nothing_and_a_known_table_is_used() -> None:
    (announced, *_) = decode(of(ORDERS.describe(), insert(ORDERS, cells("1"))))
    assert isinstance(announced, SchemaChange)
    numbered = announced.table.numbered(
        4, tuple(replace(column, id=7, nullable=False) for column in announced.table.columns)
    )
    log = of(ORDERS.describe(), insert(ORDERS, cells("1")), ORDERS.describe(), insert(ORDERS, cells("2")))
    events = decode(log, known=[numbered])
    assert not [event for event in events if isinstance(event, SchemaChange)]
    (batch,) = batches(events)
    assert batch.table is numbered
    assert batch.rows.num_rows == 2


def test_what_unwanted_transactions_bring_is_not_announced_before_a_wanted_row_has_it() -> None:
    log = Log()
    log.transaction(1, [ORDERS.describe(), insert(ORDERS, cells("1"))])
    after = log.lsn
    wider = replace(ORDERS, columns=(*COLUMNS, WireColumn("extra", TEXT)))
    log.transaction(2, [insert(ORDERS, cells("2"))])
    upto = log.lsn
    log.transaction(3, [wider.describe(), insert(wider, [*cells("3"), None])])
    events = decode(log, after=after, upto=upto)
    announced = [event.table.names for event in events if isinstance(event, SchemaChange)]
    assert announced == [("id", "note", "day")]
    assert [row["after"]["id"] for row in rows(events)] == [2]


def test_exactly_the_transactions_behind_after_and_not_behind_upto() -> None:
    log = Log()
    ends = [
        log.transaction(xid, [ORDERS.describe(), insert(ORDERS, cells(str(xid)))])[1] for xid in range(1, 6)
    ]
    for first in range(5):
        for last in range(first, 5):
            events = decode(log, after=ends[first], upto=ends[last])
            assert [row["after"]["id"] for row in rows(events)] == list(range(first + 2, last + 2))
            finished = [event.position for event in events if isinstance(event, TransactionEnd)]
            assert finished == ([at(ends[last])] if last > first else [])


def test_commits_that_touch_each_other_are_told_apart_by_the_bounds() -> None:
    # Two transactions ran side by side, so that one commit record starts where the other ends.
    log = Log()
    for xid, final in ((1, 0x500), (2, 0x530)):
        messages = (begin(final, 0, xid), ORDERS.describe(), insert(ORDERS, cells(str(xid))))
        for one in (*messages, commit(final, final + 0x30, 0)):
            log.write(one)
    for after, upto, found in ((0, 0x530, [1]), (0x530, 0x560, [2]), (0, 0x560, [1, 2]), (0x560, 0x560, [])):
        assert [row["after"]["id"] for row in rows(decode(log, after=after, upto=upto))] == found


def test_a_transaction_over_many_chunks_is_decoded_as_it_comes() -> None:
    log = Log()
    log.transaction(1, [ORDERS.describe(), insert(ORDERS, cells("0"))])
    final, end = log.transaction(
        2,
        [
            message
            for n in range(1, 501)
            for message in (insert(ORDERS, cells(str(n))), insert(ITEMS, cells("1")))
        ],
    )
    log.rows.insert(1, describe_row(ITEMS))
    decoder = LogDecoder(RULES, {}, after=at(0), upto=at(END))
    waiting, seen, finished = [], [], []
    for start in range(0, len(log.rows), 100):
        for event in decoder.feed(log.rows[start : start + 100]):
            if isinstance(event, ChangeBatch):
                seen += [row for row in event.rows.to_pylist() if event.table.id == ORDERS_ID]
            if isinstance(event, TransactionEnd):
                finished.append((event.position, event.ordinal))
        waiting.append(len(seen))
    assert [*decoder.finish()] == []
    assert finished[-1] == (at(end), 1001)
    # Nothing but the tail of the chunk with the first commit is ever held back.
    assert waiting[1:] == sorted(set(waiting[1:]))
    assert [row["after"]["id"] for row in seen] == list(range(501))
    big = seen[1:]
    assert [row["transaction"]["data_collection_order"] for row in big] == list(range(1, 501))
    assert [row["transaction"]["total_order"] for row in big] == list(range(1, 1001, 2))
    assert [row["ordinal"] for row in big] == list(range(1, 1001, 2))
    assert {row["position"] for row in big} == {at(final).sort_key}


def describe_row(table: WireTable) -> bytes:
    log = Log()
    log.write(table.describe())
    return log.rows[0]


def test_more_than_a_buffer_holds_is_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.transaction(1, [ORDERS.describe(), *(insert(ORDERS, cells(str(n), "x" * 50)) for n in range(100))])
    whole = rows(decode(log))
    monkeypatch.setattr(decoding, "STRETCH_BYTES", 500)
    assert len(batches(decode(log))) > 10
    assert rows(decode(log)) == whole


def test_a_log_that_ends_inside_a_transaction_is_an_error() -> None:
    log = Log()
    log.write(begin(0x900, 0, 5))
    log.write(ORDERS.describe())
    log.write(insert(ORDERS, cells("1")))
    with pytest.raises(RetryLater, match="ends inside transaction 5"):
        decode(log)


def test_changes_without_description_or_transaction_are_errors() -> None:
    with pytest.raises(CdcError, match="before its description"):
        decode(of(insert(ORDERS, cells("1"))))
    log = Log()
    log.write(insert(ORDERS, cells("1")))
    with pytest.raises(CdcError, match="outside of any transaction"):
        decode(log)


def test_messages_inside_and_outside_of_transactions() -> None:
    log = Log()
    log.transaction(1, [message("early", b"", True, 0)])
    after = log.lsn
    log.write(message("too early", b"", False, after))
    log.write(message("now", b"\x00\xff", False, after + 1))
    final, end = log.transaction(2, [message("with", b"content", True, 0)])
    log.write(message("at the end", b"", False, end))
    log.write(message("too late", b"", False, end + 1))
    log.transaction(3, [message("late", b"", True, 0)])
    found = [event for event in decode(log, after=after, upto=end) if isinstance(event, Message)]
    assert found == [
        Message("now", b"\x00\xff", False, at(after + 1), None),
        Message("with", b"content", True, at(final), 2),
        Message("at the end", b"", False, at(end), None),
    ]


def test_messages_are_filtered_by_prefix() -> None:
    rules = replace(RULES, message={"wanted"}.__contains__)
    loose = Log()
    loose.write(message("unwanted", b"", False, 1))
    loose.write(message("wanted", b"a", False, 2))
    loose.transaction(1, [message("unwanted", b"", True, 0), message("wanted", b"b", True, 0)])
    found = [event for event in decode(loose, rules) if isinstance(event, Message)]
    assert [(event.prefix, event.content) for event in found] == [("wanted", b"a"), ("wanted", b"b")]


def test_identities() -> None:
    plain = tuple(replace(column, key=False) for column in COLUMNS)
    for table, identity, key in [
        (ORDERS, Identity.KEY, ("id",)),
        (replace(ORDERS, identity="i"), Identity.KEY, ("id",)),
        (replace(ORDERS, identity="f"), Identity.FULL, ("id",)),
        (replace(ORDERS, identity="n", columns=plain), Identity.NOTHING, ("id",)),
        (replace(ORDERS, columns=plain), Identity.NOTHING, ("id",)),
        (replace(ORDERS, identity="i", columns=plain), Identity.NOTHING, ("id",)),
    ]:
        (batch,) = batches(decode(of(table.describe(), insert(table, cells("1")))))
        assert (batch.table.identity, batch.table.key) == (identity, key), table.identity


def test_the_key_is_in_the_catalogs_order_where_the_log_agrees() -> None:
    both = tuple(replace(column, key=column.name != "note") for column in COLUMNS)
    table = replace(ORDERS, columns=both)
    log = of(table.describe(), insert(table, cells("1", None, "2026-03-01")))

    def key(catalog: tuple[str, ...] | None, identity: str = "d") -> tuple[str, ...]:
        made = replace(table, identity=identity)
        wire = of(made.describe(), insert(made, cells("1", None, "2026-03-01")))
        return batches(decode(wire, CaptureRules(everything, catalog_key=lambda table: catalog)))[0].table.key

    assert key(("day", "id")) == ("day", "id")
    assert key(None) == ("id", "day")
    assert key(("id",)) == ("id", "day"), "a primary key that the log no longer knows"
    assert key(("id",), "i") == ("id",), "a primary key within the identity index"
    assert key(("note",), "i") == ("id", "day")
    known = Table(ORDERS_ID, (), ("day", "id"))
    assert batches(decode(log, CaptureRules(everything), [known]))[0].table.key == ("day", "id")


def test_chosen_keys_filters_and_types() -> None:
    rules = CaptureRules(
        everything,
        includes=lambda table, column: column != "note",
        override=lambda table, column: pa.int64() if column == "id" else None,
        message_key=lambda table: ("note",),
    )
    (batch,) = batches(decode(of(ORDERS_FULL.describe(), insert(ORDERS_FULL, cells("1", "a"))), rules))
    assert batch.table.key == ("note",)
    assert batch.table.names == ("id", "note", "day"), "key columns stay"
    assert batch.table.column("id") == Column("id", pa.int64(), "integer")
    fewer = replace(rules, message_key=lambda table: ("id",))
    (batch,) = batches(
        decode(of(ORDERS_FULL.describe(), insert(ORDERS_FULL, cells("1", "a", "2026-03-01"))), fewer)
    )
    assert batch.table.names == ("id", "day")
    assert str(batch.rows.to_pylist()[0]["after"]["day"]) == "2026-03-01"


def test_types_that_only_the_log_names() -> None:
    table = replace(ORDERS, columns=(*COLUMNS, WireColumn("shade", 70_000)))
    log = of(type_name(70_000, "public", "colour"), table.describe(), insert(table, [*cells("1"), "red"]))
    (batch,) = batches(decode(log))
    assert batch.table.column("shade") == Column("shade", pa.string(), "public.colour")


def test_a_name_that_two_tables_bore_in_turn_keeps_rows_in_order() -> None:
    other = replace(ORDERS, oid=99)
    log = of(
        ORDERS.describe(),
        insert(ORDERS, cells("1")),
        other.describe(),
        insert(other, cells("2")),
        ORDERS.describe(),
        insert(ORDERS, cells("3")),
    )
    assert [row["ordinal"] for row in rows(decode(log))] == [0, 1, 2]


def test_origins_are_told_apart() -> None:
    log = Log()
    for xid, origin in enumerate([None, "a", None, "b"]):
        log.transaction(xid, [ORDERS.describe(), insert(ORDERS, cells("1"))], origin=origin)
    assert [row["source"]["origin"] for row in rows(decode(log))] == [None, "a", None, "b"]


def test_an_empty_transaction_moves_the_position() -> None:
    log = Log()
    log.write(begin(0x500, 1000, 5), lsn=0x400)
    log.write(commit(0x500, 0x530, 1000), lsn=0x530)
    assert decode(log) == [TransactionEnd(at(0x530), 0, 1000)]
    assert decode(Log()) == []
