"""Rows whose key was updated: their missing columns are taken from the row they were under the old key.

A key update is a delete of the old key and a create of the new one that names the old key. The row may have
moved several times in a range (1 to 2 to 3), and two rows may have swapped keys; so lives are linked into
chains, and each round of the loop takes all moved rows one link back.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cdc_lib.nested_types import quoted
from cdc_lib.silver.events import TEXTS, Shape, carried, truncate_before
from cdc_lib.silver.reduce import missing, newest
from cdc_lib.silver.table import DELETED_AT, SEQUENCE, SPECIAL, UNAVAILABLE


def ordered(events: DataFrame, shape: Shape, base: DataFrame) -> DataFrame:
    """Events with ``o``, their order within the key, and ``start`` of the life each belongs to.

    Where constraints are deferred, a row may move to a key before the row there has left it; the delete that
    follows is the old row's, since of two rows under a key the older one is taken to leave. It is put in
    front of the create. (The log of such a commit does not always say which of the two is meant.)

    Was there a row before the create? Such a pair of create and delete leaves that as it was, so the last
    event that is not of a pair says it, or else silver.
    """
    by_key = Window.partitionBy("k").orderBy("sq")
    earlier = by_key.rowsBetween(Window.unboundedPreceding, -1)
    later = by_key.rowsBetween(1, Window.unboundedFollowing)
    bounds = F.col("op").isin("c", "r", "d")

    boundary = F.last(F.when(bounds, F.struct("sq", "pos", "prev")), ignorenulls=True).over(earlier)
    moved_in = (F.col("op") == "d") & _moved_in_by_same_commit(boundary)
    seen = events.withColumn("moved_in", moved_in)
    leaves = F.first(F.when(bounds, F.col("moved_in")), ignorenulls=True).over(later)
    paired = F.col("moved_in") | ((F.col("op") == "c") & F.coalesce(leaves, F.lit(False)))
    seen = seen.withColumn("paired", paired)
    single = F.last(F.when(~F.col("paired"), F.struct("sq", "op")), ignorenulls=True).over(earlier)
    seen = seen.withColumn("single", single)
    crowd = F.when(bounds, F.struct("sq", "single"))
    seen = seen.withColumn("boundary", F.last(crowd, ignorenulls=True).over(earlier))
    emptied = truncate_before(shape, F.col("boundary.sq")) > F.col("boundary.single.sq")
    there = (F.col("boundary.single.op") != "d") & ~F.coalesce(emptied, F.lit(False))
    seen = seen.withColumn("live", F.when(F.col("moved_in"), there))
    seen = _look_up_liveness(seen, shape, base).drop("paired", "single")
    order = F.when(F.col("live"), F.col("boundary.sq") * 2 - 1).otherwise(F.col("sq") * 2)
    return with_start(seen.withColumn("o", order), shape)


def _moved_in_by_same_commit(boundary: Column) -> Column:
    moved = boundary["prev"].isNotNull() & (boundary["pos"] == F.col("pos"))
    return F.coalesce(moved, F.lit(False))


def _look_up_liveness(seen: DataFrame, shape: Shape, base: DataFrame) -> DataFrame:
    """Whether silver has a row under a key whose first event is a row moving in."""
    truncated = truncate_before(shape, F.col("boundary.sq")).isNotNull()
    unknown = F.col("moved_in") & F.col("live").isNull() & ~truncated
    asked = seen.where(unknown).select(F.col("k").alias("bk")).distinct()
    found = base.select("bk").join(asked.withColumnRenamed("bk", "ak"), F.col("bk").eqNullSafe(F.col("ak")))
    marked = seen.join(found.select("bk"), F.col("k").eqNullSafe(F.col("bk")), "left")
    live = F.coalesce(F.col("live"), unknown & F.col("bk").isNotNull())
    return marked.withColumn("live", live).drop("bk")


def with_start(seen: DataFrame, shape: Shape) -> DataFrame:
    """Events in their order ``o`` with ``start``, the sequence at which their life began; NULL: before."""
    earlier = Window.partitionBy("k").orderBy("o").rowsBetween(Window.unboundedPreceding, -1)
    begins = F.col("op").isin("c", "r")
    edge = F.when(begins, F.col("sq")).when(F.col("op") == "d", F.col("sq") + 1)
    inherited = F.last(edge, ignorenulls=True).over(earlier)
    start = F.greatest(F.when(begins, F.col("sq")).otherwise(inherited), truncate_before(shape, F.col("sq")))
    return seen.withColumn("start", start)


def lives(events: DataFrame, shape: Shape) -> DataFrame:
    """All lives of the range: ``k``, ``start``, ``last``, ``h<i>``, ``ended`` (sequence of its delete),
    ``prev`` (the key it came from) and ``o`` (order of its last event)."""
    ended = F.max(F.when(F.col("op") == "d", F.col("sq"))).alias("ended")
    prev = F.max_by("prev", F.when(F.col("prev").isNotNull(), F.col("sq"))).alias("prev")
    return events.groupBy("k", "start").agg(*newest(shape, "o"), ended, prev, F.max("o").alias("o"))


def settled(frame: DataFrame) -> DataFrame:
    """The frame computed once, where Spark can keep it; serverless compute cannot, and computes it again."""
    try:
        return frame.localCheckpoint()
    except PySparkException:
        return frame


def last_of_each_key(lives: DataFrame) -> DataFrame:
    latest = F.max_by(F.struct("*"), F.col("o")).alias("life")
    return lives.groupBy("k").agg(latest).select("life.*")


def filled(last: DataFrame, lives: DataFrame, base: DataFrame, shape: Shape) -> DataFrame:
    """``last`` with the missing columns of moved rows taken from where they came from.

    :param base: :func:`base_rows`, as silver has them now.
    """
    if not shape.survey.chains:
        return last
    moved = last.where(F.col("prev").isNotNull() & (F.size(missing(shape)) > 0))
    moved = moved.select(F.col("k").alias("child"), "prev", F.col("start").alias("since"), *shape.held)
    found = traced(moved, lives, base, shape)
    joined = last.join(found, F.col("k").eqNullSafe(F.col("child")), "left")
    return joined.select("k", "start", "last", *[F.coalesce(h, f"found_{h}").alias(h) for h in shape.held])


def traced(chain: DataFrame, lives: DataFrame, base: DataFrame, shape: Shape) -> DataFrame:
    """For each ``child``, which came from the key ``prev`` at ``since``, ``found_h<i>``: its values, the
    missing ones from where it came from, link by link."""
    # Few of silver's rows are asked for; without this, every round of the loop would move all of them.
    asked = lives.where(F.col("prev").isNotNull()).select(F.col("prev").alias("ak")).distinct()
    base = base.join(asked, F.col("bk").eqNullSafe(F.col("ak"))).drop("ak")
    chain, base = settled(chain), settled(base)
    while not chain.where(F.col("prev").isNotNull()).isEmpty():
        chain = settled(_one_link_back(chain, lives, base, shape))
    return chain.select("child", *[F.col(h).alias(f"found_{h}") for h in shape.held])


def _one_link_back(chain: DataFrame, lives: DataFrame, base: DataFrame, shape: Shape) -> DataFrame:
    parents = lives.where(F.col("ended").isNotNull()).select(
        F.col("k").alias("pk"),
        F.struct("start", "ended", "prev", *shape.held).alias("parent"),
    )
    link = F.col("prev").eqNullSafe(F.col("pk")) & (F.col("parent.ended") < F.col("since"))
    carried_along = [F.first(name).alias(name) for name in ("prev", "since", *shape.held)]
    nearest = F.max_by("parent", F.col("parent.ended")).alias("parent")
    linked = chain.join(parents, link, "left").groupBy("child").agg(*carried_along, nearest)
    # Silver's row counts only if it is of the parent's life: not older than it, not applied past its end.
    ours = (
        F.col("prev").eqNullSafe(F.col("bk"))
        & F.coalesce(F.col("bsq") >= F.col("parent.start"), F.lit(True))
        & (F.col("bsq") < F.coalesce(F.col("parent.ended"), F.col("since")))
    )
    joined = linked.join(base, ours, "left")
    values = [F.coalesce(F.col(h), F.col("parent")[h], F.col(f"base_{h}")).alias(h) for h in shape.held]
    onwards = F.when(F.col("bk").isNull(), F.col("parent.prev"))
    step = joined.select("child", onwards.alias("prev"), F.col("parent.start").alias("since"), *values)
    return step.withColumn("prev", F.when(F.size(missing(shape)) > 0, F.col("prev")))


def base_rows(silver: DataFrame, shape: Shape) -> DataFrame:
    """Silver's living rows: ``bk`` key, ``bsq`` sequence, ``base_h<i>`` values of the partial columns."""
    has = set(silver.columns)
    rows = silver.where(F.col(DELETED_AT).isNull()) if DELETED_AT in has else silver
    listed = F.col(UNAVAILABLE) if UNAVAILABLE in has else F.lit(None).cast("array<string>")
    texts = F.col(SPECIAL) if SPECIAL in has else F.lit(None).cast(TEXTS)
    sequence = F.col(SEQUENCE)
    values = []
    for h, name in shape.held.items():
        known = ~F.coalesce(F.array_contains(listed, name), F.lit(False))
        values.append(F.when(known, carried(sequence, F.col(quoted(name)), texts[name])).alias(f"base_{h}"))
    key = F.struct(*[F.col(quoted(name)).alias(k) for k, name in shape.keys.items()])
    return rows.select(key.alias("bk"), sequence.alias("bsq"), *values)
