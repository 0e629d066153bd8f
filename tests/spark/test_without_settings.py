"""Silver and leases where Spark takes no transaction ids for DML, has no siblings of a session and no global
views: serverless compute. The lease must do what the ids do elsewhere (``silver/fence.py``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from model import held, table, target, write
from pyspark.sql import DataFrame, SparkSession
from test_silver import TYPES, changed, create, delete
from test_silver import apply as apply_unfenced

from cdc_lib import silver
from cdc_lib.control import Control
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration, RetryLater
from cdc_lib.silver import Fence, SilverTable
from tests.serverless import COPED_WITH, Asked, refusing

pytestmark = pytest.mark.skipif(
    os.environ.get("CDC_TEST_SPARK", "connect") != "connect", reason="serverless compute is Spark Connect"
)


@pytest.fixture
def asked() -> Iterator[Asked]:
    with refusing() as found:
        yield found


def owner(lake: Lake, runner: str, *, takes_over: bool = False) -> Fence:
    """A runner that has the lease, at once or by taking it from another that is still at work."""
    control = Control(lake, "p")
    control.leases.create()
    if takes_over:
        held = control.leases.current()
        assert held is not None
        control.leases.release(held)
    control.leases.acquire(runner, 60)
    return Fence(control.leases.held, control.leases.holder)


def apply(lake: Lake, kept: SilverTable, after: int, upto: int, fence: Fence) -> silver.Applied:
    return silver.apply(lake, kept, after=after, upto=upto, incarnation="one", fence=fence)


def ready(lake: Lake, key: tuple[str, ...] = ("id",), **more: object) -> SilverTable:
    kept = target(lake, table("t", TYPES, key), **more)
    silver.ensure(lake, kept, "one")
    return kept


def rows(lake: Lake, kept: SilverTable) -> list[tuple[object, object]]:
    return sorted((row["id"], row["v"]) for row in held(lake, kept))


BATCHES = {
    1: [create(1, "a"), create(9, "z")],
    2: [create(2, "b"), create(1, "c", "u")],
    3: [delete(2)],
    4: [create(4, "d")],
}


@pytest.fixture
def kept(spark: SparkSession, catalog_lake: Lake, asked: Asked) -> SilverTable:
    kept = ready(catalog_lake)
    write(spark, catalog_lake, kept.bronze, BATCHES)
    return kept


class TestMerge:
    def test_it_needs_no_setting_no_sibling_and_no_global_view(
        self, catalog_lake: Lake, kept: SilverTable, asked: Asked
    ) -> None:
        fence = owner(catalog_lake, "a")
        for after, upto in ((0, 1), (1, 3)):
            apply(catalog_lake, kept, after, upto, fence)
        assert rows(catalog_lake, kept) == [(1, "c"), (9, "z")]
        assert any(kept.silver.sql in statement for statement in asked.merged)
        assert set(asked.refused) <= COPED_WITH
        assert not asked.settings

    @pytest.mark.slow
    def test_a_client_with_siblings_but_without_the_settings(
        self, spark: SparkSession, catalog_lake: Lake
    ) -> None:
        with refusing(clones=True) as asked:
            kept = ready(catalog_lake)
            write(spark, catalog_lake, kept.bronze, BATCHES)
            fence = owner(catalog_lake, "a")
            for after, upto in ((0, 1), (1, 3)):
                apply(catalog_lake, kept, after, upto, fence)
            assert rows(catalog_lake, kept) == [(1, "c"), (9, "z")]
            assert set(asked.settings) == {"spark.databricks.delta.write.txnAppId"}

    @pytest.mark.slow
    def test_the_same_range_again(self, catalog_lake: Lake, kept: SilverTable) -> None:
        fence = owner(catalog_lake, "a")
        for after, upto in ((0, 1), (0, 1), (1, 3), (1, 3), (0, 3), (3, 4), (0, 4)):
            apply(catalog_lake, kept, after, upto, fence)
        assert rows(catalog_lake, kept) == [(1, "c"), (4, "d"), (9, "z")]

    @pytest.mark.slow
    def test_history_names_the_batch(self, catalog_lake: Lake, kept: SilverTable) -> None:
        """Rebuilding lost control tables reads it there."""
        fence = owner(catalog_lake, "a")
        for upto in (1, 2, 3):
            apply(catalog_lake, kept, upto - 1, upto, fence)
        noted = [commit.metadata["batch"] for commit in catalog_lake.history(kept.silver) if commit.metadata]
        assert noted == [3, 2, 1]

    @pytest.mark.slow
    def test_without_a_fence_it_is_refused(self, catalog_lake: Lake, kept: SilverTable) -> None:
        apply_unfenced(catalog_lake, kept, 0, 1)
        with pytest.raises(FixConfiguration, match="transaction ids"):
            apply_unfenced(catalog_lake, kept, 1, 2)


class TestAfterATakeover:
    """Runner a is paused, b takes the lease and goes further; then a wakes up."""

    def test_an_older_merge_does_not_bring_a_deleted_row_back(
        self, catalog_lake: Lake, kept: SilverTable
    ) -> None:
        first = owner(catalog_lake, "a")
        apply(catalog_lake, kept, 0, 1, first)
        apply(catalog_lake, kept, 1, 3, owner(catalog_lake, "b", takes_over=True))
        with pytest.raises(RetryLater, match="does not hold the lease"):
            apply(catalog_lake, kept, 1, 2, first)
        assert rows(catalog_lake, kept) == [(1, "c"), (9, "z")]

    @pytest.mark.slow
    def test_without_the_lease_as_a_source_it_would(
        self, catalog_lake: Lake, kept: SilverTable, spark: SparkSession
    ) -> None:
        first = owner(catalog_lake, "a")
        apply(catalog_lake, kept, 0, 1, first)
        apply(catalog_lake, kept, 1, 3, owner(catalog_lake, "b", takes_over=True))
        always = Fence(lambda: spark.range(1).toDF("runner"), "a")
        apply(catalog_lake, kept, 1, 2, always)
        assert rows(catalog_lake, kept) == [(1, "c"), (2, "b"), (9, "z")]

    @pytest.mark.slow
    def test_a_merge_that_is_under_way_fails_when_the_new_owner_begins(
        self, catalog_lake: Lake, kept: SilverTable, at_once: Callable[..., list[object]]
    ) -> None:
        fence = owner(catalog_lake, "a")
        apply(catalog_lake, kept, 0, 1, fence)
        slow = (
            f"MERGE INTO {kept.silver.sql} t "
            "USING (SELECT CAST(reflect('java.lang.Thread', 'sleep', 3000L) AS STRING) AS x) s "
            "ON t.v = s.x WHEN NOT MATCHED THEN INSERT (id, v) VALUES (5, 'old')"
        )
        raised = owner(catalog_lake, "b", takes_over=True)

        def begin() -> None:
            time.sleep(1)
            apply(catalog_lake, kept, 1, 3, raised)

        old, new = at_once(lambda: catalog_lake.execute(slow), begin)
        assert new is None
        assert type(old).__name__ == "Conflict", old
        assert rows(catalog_lake, kept) == [(1, "c"), (9, "z")]

    @pytest.mark.slow
    def test_an_older_append_does_not_repeat_rows(self, spark: SparkSession, catalog_lake: Lake) -> None:
        """Of a table without a key, whose rows have nothing else to know them by."""
        with refusing():
            kept = ready(catalog_lake, key=())
            write(
                spark,
                catalog_lake,
                kept.bronze,
                {1: [create(1, "a")], 2: [create(1, "a")], 3: [changed((1, "a"), (1, "b"))]},
            )
            first = owner(catalog_lake, "a")
            apply(catalog_lake, kept, 0, 1, first)
            apply(catalog_lake, kept, 1, 3, owner(catalog_lake, "b", takes_over=True))
            apply(catalog_lake, kept, 1, 2, first)
            assert rows(catalog_lake, kept) == [(1, "a"), (1, "b")]


@pytest.mark.slow
def test_an_append_whose_version_was_only_claimed_is_made_up_for(
    spark: SparkSession, catalog_lake: Lake, asked: Asked
) -> None:
    """A run died between the claim and its MERGE, then somebody emptied silver: the append is skipped."""
    kept = ready(catalog_lake)
    write(spark, catalog_lake, kept.bronze, BATCHES)
    fence = owner(catalog_lake, "a")
    apply(catalog_lake, kept, 0, 1, fence)

    def dies() -> DataFrame:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(catalog_lake, kept, 1, 3, Fence(dies, "a"))
    catalog_lake.execute(f"DELETE FROM {kept.silver.sql}")
    apply(catalog_lake, kept, 0, 3, owner(catalog_lake, "b", takes_over=True))
    assert rows(catalog_lake, kept) == [(1, "c"), (9, "z")]


def test_of_two_runners_that_read_the_same_lease_the_second_loses(catalog_lake: Lake, asked: Asked) -> None:
    """Compare and swap by the row's number, since the transaction id is not there to do it."""
    first, second = Control(catalog_lake, "p").leases, Control(catalog_lake, "p").leases
    first.create()
    offers = [first.offered("a", 60), second.offered("b", 60)]
    assert first._swap(offers[0]).runner == "a"
    with pytest.raises(RetryLater, match="does not hold the lease"):
        second._swap(offers[1])
    assert [lease.runner for lease in first.load()] == ["a"]
