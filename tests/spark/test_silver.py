"""Silver tables: replays, truncates, tables without a key, names, structures that change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from model import Change, held, sequence, table, target, write
from pyspark.sql import SparkSession

from cdc_lib import silver
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.silver import SilverTable

TYPES = {"id": pa.int32(), "v": pa.string()}


def create(key: int | None, value: str | None, op: str = "c", **more: Any) -> Change:
    return Change(op, {"id": key, "v": value}, **more)


def delete(key: int, **more: Any) -> Change:
    return Change("d", before={"id": key, "v": None}, before_unavailable=["v"], **more)


def left(key: int | None, value: str | None, **more: Any) -> Change:
    """A delete that says all of the old row."""
    return Change("d", before={"id": key, "v": value}, **more)


def changed(old: tuple[Any, Any], new: tuple[Any, Any], **more: Any) -> Change:
    """An update that says all of the old row."""
    before, after = ({"id": key, "v": value} for key, value in (old, new))
    return Change("u", after, before, **more)


def ready(
    lake: Lake, types: dict[str, pa.DataType] = TYPES, key: tuple[str, ...] = ("id",), **more: Any
) -> SilverTable:
    kept = target(lake, table("t", types, key), **more)
    silver.ensure(lake, kept, "one")
    return kept


def apply(lake: Lake, kept: SilverTable, after: int, upto: int, incarnation: str = "one") -> silver.Applied:
    return silver.apply(lake, kept, after=after, upto=upto, incarnation=incarnation)


def shown(lake: Lake, kept: SilverTable, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names or ("id", "v")) for row in held(lake, kept)), key=repr)


class TestReplay:
    """Delta skips a MERGE whose transaction version it has seen; ``__sequence`` alone would not do."""

    BATCHES = {1: [create(1, "a"), create(9, "z")], 2: [create(2, "b"), create(1, "c", "u")], 3: [delete(2)]}

    @pytest.fixture
    def kept(self, spark: SparkSession, lake: Lake) -> SilverTable:
        kept = ready(lake)
        write(spark, lake, kept.bronze, self.BATCHES)
        for upto in (1, 2, 3):
            apply(lake, kept, upto - 1, upto)
        assert shown(lake, kept) == [(1, "c"), (9, "z")]
        return kept

    def test_a_merge_replayed_after_a_hard_delete_changes_nothing(
        self, lake: Lake, kept: SilverTable
    ) -> None:
        apply(lake, kept, 1, 2)
        assert shown(lake, kept) == [(1, "c"), (9, "z")]

    def test_it_is_the_transaction_version_that_holds_it_back(self, lake: Lake, kept: SilverTable) -> None:
        # Under another transaction id nothing is skipped, and the deleted row comes back.
        apply(lake, kept, 1, 2, incarnation="two")
        assert shown(lake, kept) == [(1, "c"), (2, "b"), (9, "z")]

    def test_a_range_that_starts_lower_changes_nothing(self, lake: Lake, kept: SilverTable) -> None:
        apply(lake, kept, 0, 3, incarnation="two")
        assert shown(lake, kept) == [(1, "c"), (9, "z")]

    def test_sequence_and_counts(self, spark: SparkSession, lake: Lake) -> None:
        kept = ready(lake)
        write(spark, lake, kept.bronze, self.BATCHES)
        assert apply(lake, kept, 0, 1) == silver.Applied(rows=2)
        assert apply(lake, kept, 1, 3) == silver.Applied(rows=3, inserted=0, updated=1, deleted=0)
        assert shown(lake, kept, "id", "__sequence") == [(1, sequence(2, 2)), (9, sequence(1, 2))]
        assert silver.applied(lake, kept) == 2


class TestTruncate:
    BATCHES = {
        1: [create(1, "a"), create(2, "b", commit=1)],
        2: [create(3, "c"), create(1, "gone", "u"), Change("t", commit=20), create(1, "new", commit=30)],
        3: [create(4, "d"), Change("t", commit=40), create(5, "e"), Change("t", commit=50), create(4, "f")],
    }

    @pytest.mark.parametrize("ranges", [[(0, 1), (1, 2), (1, 3)], [(0, 3)], [(0, 1), (0, 3), (0, 3)]])
    def test_removes_what_was_before_it(
        self, spark: SparkSession, lake: Lake, ranges: list[tuple[int, int]]
    ) -> None:
        kept = ready(lake)
        write(spark, lake, kept.bronze, self.BATCHES)
        for after, upto in ranges:
            apply(lake, kept, after, upto)
        assert shown(lake, kept) == [(4, "f")]

    @pytest.mark.parametrize("ranges", [[(0, 1), (1, 2), (1, 3)], [(0, 3)]])
    def test_soft_delete_marks_with_the_first_truncate_after_the_row(
        self, spark: SparkSession, lake: Lake, ranges: list[tuple[int, int]]
    ) -> None:
        kept = ready(lake, delete="soft")
        write(spark, lake, kept.bronze, self.BATCHES)
        for after, upto in ranges:
            apply(lake, kept, after, upto)
        assert shown(lake, kept, "id", "v", "__deleted_at", "__sequence") == [
            (1, "new", 40, sequence(3, 2)),
            (2, "b", 20, sequence(2, 3)),
            (3, "c", 20, sequence(2, 3)),
            (4, "f", None, sequence(3, 5)),
            (5, "e", 50, sequence(3, 4)),
        ]


class TestWithoutKey:
    def test_rows_are_added_once_and_truncated(self, spark: SparkSession, lake: Lake) -> None:
        kept = ready(lake, key=())
        batches = {1: [create(1, "a", "r"), create(1, "a", "r")], 2: [create(1, "a"), create(None, None)]}
        write(spark, lake, kept.bronze, batches)
        apply(lake, kept, 0, 1)
        assert silver.applied(lake, kept) == 1
        # A new incarnation has no transaction version: silver's own rows are the proof.
        apply(lake, kept, 0, 2, incarnation="two")
        apply(lake, kept, 0, 2, incarnation="three")
        assert shown(lake, kept) == [(1, "a"), (1, "a"), (1, "a"), (None, None)]
        write(spark, lake, kept.bronze, {3: [create(2, "b"), Change("t"), create(3, "c")]})
        apply(lake, kept, 2, 3)
        apply(lake, kept, 0, 3, incarnation="four")
        assert shown(lake, kept) == [(3, "c")]

    def test_equal_rows_are_counted_where_the_log_has_whole_old_rows(
        self, spark: SparkSession, lake: Lake
    ) -> None:
        kept = ready(lake, key=())
        odd = {"special": {"v": "text"}}
        batches = {
            1: [create(1, "a", "r"), create(1, "a", "r"), create(1, "a", "r"), create(2, None)],
            2: [left(1, "a"), changed((1, "a"), (1, "b")), create(2, None, **odd), create(2, None, **odd)],
            3: [left(2, None), left(2, None, **odd), create(1, "b"), changed((1, "b"), (1, "b"))],
            4: [left(1, "a"), Change("t"), create(5, "e"), create(5, "e"), left(5, "e")],
        }
        expected = {
            1: [(1, "a"), (1, "a"), (1, "a"), (2, None)],
            2: [(1, "a"), (1, "b"), (2, None), (2, None), (2, None)],
            3: [(1, "a"), (1, "b"), (1, "b"), (2, None)],
            4: [(5, "e")],
        }
        write(spark, lake, kept.bronze, batches)
        # Each incarnation is without a transaction version, so what was applied is applied again.
        for turn, (after, upto) in enumerate(
            [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (0, 3), (3, 4), (0, 4)]
        ):
            apply(lake, kept, after, upto, incarnation=str(turn))
            assert shown(lake, kept) == expected[upto], (after, upto)
            if upto == 3:
                texts = {tuple(row["__special"].items()) for row in held(lake, kept) if row["__special"]}
                assert texts == {(("v", "text"),)}

    def test_a_new_row_leaves_out_what_the_old_one_carries(self, spark: SparkSession, lake: Lake) -> None:
        kept = ready(lake, key=())
        update = changed((1, "large"), (2, None), after_unavailable=["v"])
        write(spark, lake, kept.bronze, {1: [create(1, "large")], 2: [update]})
        apply(lake, kept, 0, 2)
        assert shown(lake, kept) == [(2, "large")]

    def test_copies_cannot_be_marked_as_deleted(self, spark: SparkSession, lake: Lake) -> None:
        kept = ready(lake, key=(), delete="soft")
        write(spark, lake, kept.bronze, {1: [create(1, "a"), left(1, "a")]})
        with pytest.raises(silver.KeylessUpdate, match="marked as deleted"):
            apply(lake, kept, 0, 1)

    @pytest.mark.parametrize("change", [create(1, "b", "u"), delete(1)], ids=["update", "delete"])
    def test_an_update_or_delete_is_refused(self, spark: SparkSession, lake: Lake, change: Change) -> None:
        kept = ready(lake, key=())
        write(spark, lake, kept.bronze, {1: [create(1, "a")], 2: [change]})
        apply(lake, kept, 0, 1)
        with pytest.raises(silver.KeylessUpdate, match="has no key"):
            apply(lake, kept, 1, 2)
        assert shown(lake, kept) == [(1, "a")]


def test_a_key_value_that_the_column_cannot_hold_is_refused(spark: SparkSession, lake: Lake) -> None:
    kept = ready(lake)
    write(spark, lake, kept.bronze, {1: [create(None, "a", special={"id": "infinity"})]})
    with pytest.raises(silver.KeylessUpdate, match="cannot hold"):
        apply(lake, kept, 0, 1)


def test_names_are_taken_as_they_are(spark: SparkSession, lake: Lake) -> None:
    odd = ["Mixed", "a.b", "sp ace;(x)", "back`tick", "quo'te", 'dou"ble', "bäck\\slash"]
    types = {"The.Key `1`": pa.int32(), **dict.fromkeys(odd, pa.string())}
    kept = target(lake, table("t", types, ("The.Key `1`",)))
    silver.ensure(lake, kept, "one")
    first = {"The.Key `1`": 1, **{name: f"1 {name}" for name in odd}}
    second = {**first, **dict.fromkeys(odd), "Mixed": "2"}
    changes = (
        [Change("c", first)],
        [Change("u", second, after_unavailable=odd[1:], special={"Mixed": "text"})],
    )
    write(spark, lake, kept.bronze, dict(enumerate(changes, start=1)))
    apply(lake, kept, 0, 1)
    apply(lake, kept, 1, 2)
    assert [field.name for field in lake.fields(kept.silver)][: len(types)] == list(types)
    assert shown(lake, kept, *types, "__special") == [
        (1, "2", *[f"1 {name}" for name in odd[1:]], {"Mixed": "text"})
    ]


class TestEnsure:
    def test_meta_columns_come_when_they_are_needed(self, spark: SparkSession, lake: Lake) -> None:
        kept = ready(lake)
        plain = ["id", "v", "__sequence", "__committed_at"]
        assert [field.name for field in lake.fields(kept.silver)] == plain
        lacking = create(2, None, "u", after_unavailable=["v"])
        write(
            spark,
            lake,
            kept.bronze,
            {1: [create(1, "a"), create(1, None, "u", after_unavailable=["v"])], 2: [lacking]},
        )
        assert apply(lake, kept, 0, 1).unavailable == 0
        assert [field.name for field in lake.fields(kept.silver)] == plain
        assert apply(lake, kept, 1, 2).unavailable == 1
        assert [field.name for field in lake.fields(kept.silver)] == [*plain, "__unavailable"]

    def test_new_columns_wider_types_and_comments(self, spark: SparkSession, lake: Lake) -> None:
        ready(lake)
        newer = table(
            "t", {"id": pa.int64(), "n;ew": pa.string(), "v": pa.string(), "last": pa.date32()}, ("id",)
        )
        kept = target(lake, newer)
        silver.ensure(lake, kept, "one")
        silver.ensure(lake, kept, "one")
        found = [(field.name, field.type) for field in lake.fields(kept.silver)]
        assert found == [
            ("id", "BIGINT"),
            ("n;ew", "STRING"),
            ("v", "STRING"),
            ("last", "DATE"),
            ("__sequence", "BIGINT"),
            ("__committed_at", "TIMESTAMP"),
        ]

    def test_a_type_that_cannot_follow_is_refused(self, lake: Lake) -> None:
        ready(lake)
        with pytest.raises(FixConfiguration, match="cannot become DATE"):
            silver.ensure(
                lake, target(lake, table("t", {"id": pa.int32(), "v": pa.date32()}, ("id",))), "one"
            )

    def test_a_column_called_like_a_meta_column_is_refused(self, lake: Lake) -> None:
        with pytest.raises(FixConfiguration, match="__SEQUENCE"):
            ready(lake, {"id": pa.int32(), "__SEQUENCE": pa.string()})
