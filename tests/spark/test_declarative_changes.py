"""Rows of bronze as AUTO CDC gets them. What it then does is played here by its documentation: the rows of a
key in the order of their sequence, each setting the columns it names; deletes and truncates by conditions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from model import Change, Row, SourceTable, frame, sequence, table, target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdc_lib.declarative.changes import Changes, Engine
from cdc_lib.declarative.specification import TableFlow
from cdc_lib.delta import Lake
from cdc_lib.pipeline import TableRule
from cdc_lib.schema import Identity, Table

LAKEFLOW = Engine(truncates=True, partial=True, history=True)
OPEN_SOURCE = Engine()
TYPES = {"id": pa.int32(), "a": pa.string(), "n": pa.list_(pa.int32())}


def flow(lake: Lake, of: Table, since: dict[str, int] | None = None, **rule: Any) -> TableFlow:
    kept = target(lake, of)
    return TableFlow(of, kept.bronze, kept.silver, TableRule(match=".*", **rule), since or {})


def changes(
    spark: SparkSession,
    lake: Lake,
    flow: TableFlow,
    batches: dict[int, list[Change]],
    engine: Engine = LAKEFLOW,
    *,
    listed: bool = False,
) -> list[dict[str, Any]]:
    found = Changes(flow, engine, listed).of(rows_of(spark, lake, flow, batches))
    return [row.asDict() for row in found.orderBy("__sequence").collect()]


def rows_of(spark: SparkSession, lake: Lake, flow: TableFlow, batches: dict[int, list[Change]]) -> DataFrame:
    """The batches as bronze has them; writing them would take most of the time of these tests."""
    rows = [
        change.bronze(batch, ordinal)
        for batch, made in batches.items()
        for ordinal, change in enumerate(made, start=1)
    ]
    return frame(spark, lake, flow.bronze, rows)


def played(rows: list[dict[str, Any]], key: tuple[str, ...], soft: bool = False) -> dict[Any, dict[str, Any]]:
    """What AUTO CDC makes of the rows, SCD type 1."""
    state: dict[Any, dict[str, Any]] = {}
    for row in rows:
        place = tuple(row[name] for name in key)
        if row["__op"] == "t":
            state.clear()
        elif row["__op"] == "d" and not soft:
            state.pop(place, None)
        else:
            held = state.setdefault(place, dict.fromkeys(row))
            held.update({name: row[name] for name in row.get("__carried") or row})
    return state


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_end_as_the_source(spark: SparkSession, lake: Lake, seed: int) -> None:
    """Also partial rows and moved keys: what AUTO CDC cannot know is listed, all else is equal."""
    chance = random.Random(seed)
    source = SourceTable(chance, full=seed == 1)
    for number in range(1, 4):
        source.batch = number
        source.batches[number] = []
        for _ in range(60):
            step(chance, source)
        if number == 2:
            source.truncate()
    kept = flow(lake, table("t", source.table_types, ("grp", "id")))
    found = played(changes(spark, lake, kept, source.batches, listed=True), ("grp", "id"))
    expected = {(row["grp"], row["id"]): row for row in source.rows()}
    assert found.keys() == expected.keys()
    assert len(expected) > 5
    listed = 0
    for key, row in expected.items():
        mine = found[key]
        unknown = set(mine["__unavailable"] or ())
        assert unknown >= set(row["__unavailable"] or ())
        known = {"__sequence", *source.columns} - unknown
        assert {name: mine[name] for name in known} == {name: row[name] for name in known}
        listed += bool(unknown)
    assert 0 < listed < len(expected)


def step(chance: random.Random, source: SourceTable) -> None:
    key = (chance.randrange(20), chance.randrange(3))
    if key not in source.live:
        source.insert(key)
    elif chance.random() < 0.7:
        source.update(key)
    elif chance.random() < 0.5:
        source.delete(key)
    elif (free := (key[0], 10 + chance.randrange(90))) not in source.live:
        source.move(key, free)


class TestValuesThatAreNotKnown:
    ORDERS = table("orders", TYPES, ("id",))
    PARTIAL = Change("u", {"id": 1, "a": None, "n": [2]}, after_unavailable=["a"])

    def test_a_row_names_the_columns_it_carries(self, spark: SparkSession, lake: Lake) -> None:
        (row,) = changes(spark, lake, flow(lake, self.ORDERS), {1: [self.PARTIAL]})
        assert set(row["__carried"]) == {"id", "n", "__sequence", "__committed_at", "__special"}

    def test_an_error_where_rows_cannot_name_them(self, spark: SparkSession, lake: Lake) -> None:
        with pytest.raises(PySparkException, match=r"public\.orders: a change lacks values"):
            changes(spark, lake, flow(lake, self.ORDERS), {1: [self.PARTIAL]}, OPEN_SOURCE)

    def test_listed_if_the_user_wants_that(self, spark: SparkSession, lake: Lake) -> None:
        (row,) = changes(spark, lake, flow(lake, self.ORDERS), {1: [self.PARTIAL]}, OPEN_SOURCE, listed=True)
        assert (row["a"], row["__unavailable"]) == (None, ["a"])
        assert "__carried" not in row

    def test_what_may_have_server_text_cannot_stay(self, spark: SparkSession, lake: Lake) -> None:
        lacking = Change("u", {"id": 1, "a": "x", "n": None}, after_unavailable=["n"])
        with pytest.raises(PySparkException, match="a change lacks values"):
            changes(spark, lake, flow(lake, self.ORDERS), {1: [lacking]})

    def test_taken_from_before_where_that_has_them(self, spark: SparkSession, lake: Lake) -> None:
        whole = replace(self.PARTIAL, before={"id": 1, "a": "old", "n": [1]})
        (row,) = changes(spark, lake, flow(lake, self.ORDERS), {1: [whole]}, OPEN_SOURCE)
        assert (row["a"], row["n"], row["__unavailable"]) == ("old", [2], None)

    def test_a_column_that_did_not_exist_yet_is_null(self, spark: SparkSession, lake: Lake) -> None:
        kept = flow(lake, self.ORDERS, since={"id": 1, "a": 3, "n": 1})
        before = Change("c", {"id": 1, "a": "of a dropped column", "n": [1]}, version=2)
        listed = Change("u", {"id": 2, "a": None, "n": [1]}, after_unavailable=["a"], version=2)
        rows = changes(spark, lake, kept, {1: [before, listed]}, OPEN_SOURCE)
        assert [(row["a"], row["__unavailable"]) for row in rows] == [(None, None), (None, None)]


def test_a_column_that_bronze_has_not_yet_is_null(spark: SparkSession, lake: Lake) -> None:
    kept = flow(lake, table("orders", TYPES, ("id",)))
    bronze = rows_of(spark, lake, kept, {1: [Change("c", {"id": 1, "a": "x", "n": None})]})
    more = replace(kept, table=table("orders", {**TYPES, "later": pa.decimal128(9, 2)}, ("id",)))
    found = Changes(replace(more, absent=frozenset({"later"})), OPEN_SOURCE).of(bronze)
    assert found.select("later").dtypes == [("later", "decimal(9,2)")]
    assert [row.later for row in found.collect()] == [None]


class TestDeletesAndTruncates:
    ORDERS = table("orders", TYPES, ("id",))

    def test_the_key_of_a_deleted_row(self, spark: SparkSession, lake: Lake) -> None:
        gone = Change("d", before={"id": 7, "a": None, "n": None}, before_unavailable=["a", "n"])
        (row,) = changes(spark, lake, flow(lake, self.ORDERS), {3: [gone]}, OPEN_SOURCE)
        assert (row["id"], row["__op"], row["__sequence"]) == (7, "d", sequence(3, 1))

    def test_a_soft_delete_keeps_the_last_values(self, spark: SparkSession, lake: Lake) -> None:
        full = replace(self.ORDERS, identity=Identity.FULL)
        gone = Change("d", before={"id": 7, "a": "last", "n": [1]}, commit=5)
        (row,) = changes(spark, lake, flow(lake, full, delete="soft"), {1: [gone]}, OPEN_SOURCE)
        assert (row["a"], row["n"], row["__deleted_at"].timestamp()) == ("last", [1], 5)

    @pytest.mark.parametrize("rule", [{"scd": 2}, {"delete": "soft"}])
    def test_a_truncate_that_cannot_be_expressed_is_an_error(
        self, spark: SparkSession, lake: Lake, rule: dict[str, Any]
    ) -> None:
        with pytest.raises(PySparkException, match=r"public\.orders: the table was truncated"):
            changes(spark, lake, flow(lake, self.ORDERS, **rule), {1: [Change("t")]})


def test_server_text_of_values_that_their_column_cannot_hold(spark: SparkSession, lake: Lake) -> None:
    orders = table("orders", TYPES, ("id",))
    after: Row = {"id": 1, "a": "x", "n": None}
    special = {"n": "[0:1]={1,2}", "before.n": "[5:5]={1}"}
    batches = {1: [Change("u", after, special=special), Change("u", after)]}
    kept = flow(lake, orders)
    rows = changes(spark, lake, kept, batches)
    assert [row["__special"] for row in rows] == [{"n": "[0:1]={1,2}"}, None]
    # A map cannot be compared, and a history compares versions.
    history = replace(kept, rule=TableRule(match=".*", scd=2))
    found = Changes(history, LAKEFLOW).of(rows_of(spark, lake, kept, batches)).orderBy("__sequence").first()
    assert found is not None
    assert found["__special"] == '{"n":"[0:1]={1,2}"}'


def test_a_key_that_cannot_be_held_is_an_error(spark: SparkSession, lake: Lake) -> None:
    dates = table("dates", {"day": pa.date32(), "a": pa.string()}, ("day",))
    infinite = Change("c", {"day": None, "a": "x"}, special={"day": "infinity"})
    with pytest.raises(PySparkException, match="a key has a value that its column cannot hold"):
        changes(spark, lake, flow(lake, dates), {1: [infinite]})
