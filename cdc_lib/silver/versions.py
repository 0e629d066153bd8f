"""SCD type 2: every version of a row, from the change that began it to the one that ended it.

The versions that silver holds open take part as events of their own (``op`` ``b``), in front of all others:
so filling what a change does not carry, ending versions and telling what did not change are one thing.

Two rules for rows that a snapshot read (``r``). One that equals the version it finds begins none. One that
finds a version whose values are not all known, and equals it in those that are, completes it: had a value
changed since, a change would have said so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce as fold

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cdc_lib.nested_types import quoted
from cdc_lib.silver.events import TEXTS, Shape, carried, events, truncate_after
from cdc_lib.silver.moves import base_rows, lives, ordered, settled, traced, with_start
from cdc_lib.silver.reduce import missing, special
from cdc_lib.silver.table import COMMITTED_AT, END_AT, SEQUENCE, SPECIAL, START_AT, UNAVAILABLE

OPEN = "b"
"""``op`` of the versions that were open before the range."""


def after_batch(shape: Shape, after: int) -> Shape:
    """The shape without the truncates up to a batch, which silver has."""
    kept = tuple(each for each in shape.survey.truncates if each.sequence >= (after + 1) << 32)
    return replace(shape, survey=replace(shape.survey, truncates=kept))


def versions(rows: DataFrame, silver: DataFrame, shape: Shape) -> DataFrame:
    """The versions that ``rows`` of bronze begin, end or complete; nothing of them may be in silver yet.

    :returns: ``k<i>``, ``v<i>``, ``sq`` (its start), ``end_at`` and ``ended_at`` (NULL while it is open),
        ``at``, ``missing`` and ``special`` as in :func:`~cdc_lib.silver.reduce.outcomes`.
    """
    living = silver.where(F.col(END_AT).isNull())
    base = base_rows(living.withColumnRenamed(START_AT, SEQUENCE), shape)
    happened = events(rows, shape)
    if shape.rearranged:
        happened = settled(ordered(happened, shape, base))
    else:
        happened = with_start(happened.withColumn("o", F.col("sq") * 2), shape)
    own = happened.withColumn("listed", F.lit(None).cast("array<string>"))
    every = own.select(*_FIELDS, *shape.plain, *shape.held).unionByName(_open(living, happened, shape))
    stated = _stated(_filled(every, happened, base, shape), shape)
    return _ended(_without_repetitions(_completed(stated, shape), shape), shape)


_FIELDS = ("k", "sq", "op", "at", "special", "o", "start", "listed")


def _open(living: DataFrame, happened: DataFrame, shape: Shape) -> DataFrame:
    """Silver's open versions of the range's keys, as events."""
    has = set(living.columns)
    listed = F.col(UNAVAILABLE) if UNAVAILABLE in has else F.lit(None).cast("array<string>")
    texts = F.col(SPECIAL) if SPECIAL in has else F.lit(None).cast(TEXTS)
    known = {name: ~F.coalesce(F.array_contains(listed, name), F.lit(False)) for name in shape.held.values()}
    held = [
        F.when(known[name], carried(F.col(START_AT), F.col(quoted(name)), texts[name])).alias(h)
        for h, name in shape.held.items()
    ]
    rows = living.select(
        F.struct(*[F.col(quoted(name)).alias(k) for k, name in shape.keys.items()]).alias("k"),
        F.col(START_AT).alias("sq"),
        F.lit(OPEN).alias("op"),
        F.col(COMMITTED_AT).alias("at"),
        texts.alias("special"),
        (F.col(START_AT) * 2).alias("o"),
        F.lit(None).cast("bigint").alias("start"),
        F.coalesce(listed, F.array().cast("array<string>")).alias("listed"),
        *[F.col(quoted(name)).alias(v) for v, name in shape.plain.items()],
        *held,
    )
    asked = happened.select(F.col("k").alias("ak")).distinct()
    return rows.join(asked, F.col("k").eqNullSafe(F.col("ak"))).drop("ak")


def _filled(every: DataFrame, happened: DataFrame, base: DataFrame, shape: Shape) -> DataFrame:
    """Events whose ``h<i>`` are the newest values carried in their life so far, silver's included."""
    if not shape.held:
        return every
    so_far = Window.partitionBy("k", "start").orderBy("o").rowsBetween(Window.unboundedPreceding, 0)
    filled = every.withColumns({h: F.last(h, ignorenulls=True).over(so_far) for h in shape.held})
    if not shape.survey.chains:
        return filled
    births = happened.where(F.col("prev").isNotNull() & (F.size(missing(shape)) > 0))
    born = F.struct("k", "start").alias("child")
    chain = births.select(born, "prev", F.col("start").alias("since"), *shape.held)
    found = traced(chain, settled(lives(happened, shape)), base, shape)
    joined = filled.join(found, F.struct("k", "start").eqNullSafe(F.col("child")), "left").drop("child")
    return joined.withColumns({h: F.coalesce(h, f"found_{h}") for h in shape.held})


def _stated(filled: DataFrame, shape: Shape) -> DataFrame:
    """Events with ``s``, the state of the row behind them: all values, ``missing`` and ``special``."""
    values = [F.col(v) if v in shape.plain else F.col("h" + v[1:])["v"].alias(v) for v in shape.values]
    is_open = F.col("op") == OPEN
    lacking = F.when(is_open, F.col("listed")).otherwise(missing(shape))
    texts = F.when(is_open, F.col("special")).otherwise(special(shape, F.col("special")))
    state = F.struct(*values, lacking.alias("missing"), texts.alias("special"))
    return filled.select("k", "sq", "op", "at", "o", state.alias("s"))


def _completed(stated: DataFrame, shape: Shape) -> DataFrame:
    """Versions whose values are not all known, completed by the row that a snapshot read next. ``done`` says
    which.

    A row that was read and lacks values only holds those for the changes behind it in its window.
    """
    by_key = Window.partitionBy("k").orderBy("o")
    same_batch = F.lead("sq").over(by_key).bitwiseAND(F.lit(-1 << 32)) == F.col("sq").bitwiseAND(
        F.lit(-1 << 32)
    )
    carrier = (F.col("op") == "r") & (F.size("s.missing") > 0) & F.coalesce(same_batch, F.lit(False))
    kept = stated.withColumn("carrier", carrier).where(~F.col("carrier")).drop("carrier")
    following = F.struct("op", "sq", "s")
    seen = kept.withColumn("next", F.lead(following).over(by_key))
    read = (F.col("next.op") == "r") & (F.size("next.s.missing") == 0) & (F.col("op") != "d")
    truncated = truncate_after(shape, F.col("sq"))["sq"]
    untouched = F.coalesce(truncated > F.col("next.sq"), F.lit(True))
    lacks = F.size("s.missing") > 0
    done = lacks & read & untouched & _agrees(F.col("s"), F.col("next.s"), shape)
    done = F.coalesce(done, F.lit(False))
    return seen.withColumn("done", done).withColumn("s", F.when(done, F.col("next.s")).otherwise(F.col("s")))


def _agrees(state: Column, other: Column, shape: Shape) -> Column:
    """Whether two states are equal in all that the first one knows."""
    same = [
        F.array_contains(state["missing"], name)
        | (state[v].eqNullSafe(other[v]) & state["special"][name].eqNullSafe(other["special"][name]))
        for v, name in shape.values.items()
    ]
    return fold(lambda one, more: one & more, same, F.lit(True))


def _without_repetitions(completed: DataFrame, shape: Shape) -> DataFrame:
    """Without the rows that a snapshot read and that were so before."""
    by_key = Window.partitionBy("k").orderBy("o")
    before = F.lag(F.struct("op", "sq", "s")).over(by_key)
    seen = completed.withColumn("before", before)
    truncated = truncate_after(shape, F.col("before.sq"))["sq"]
    there = (F.col("before.op") != "d") & F.coalesce(truncated > F.col("sq"), F.lit(True))
    known = (F.size("before.s.missing") == 0) & (F.size("s.missing") == 0)
    repeats = (F.col("op") == "r") & there & known & _agrees(F.col("before.s"), F.col("s"), shape)
    return seen.where(~F.coalesce(repeats, F.lit(False)))


def _ended(kept: DataFrame, shape: Shape) -> DataFrame:
    """Versions with their ends; open ones of silver that stay as they are drop out."""
    by_key = Window.partitionBy("k").orderBy("o")
    # The place in the order, as a sequence: of two rows under a key the older leaves when the other comes.
    begins = F.shiftright(F.col("o") + 1, 1)
    ends = F.lead(F.struct(begins.alias("sq"), F.col("at"))).over(by_key)
    seen = kept.withColumn(
        "ends", F.array_min(F.array_compact(F.array(ends, truncate_after(shape, F.col("sq")))))
    )
    changed = (F.col("op") != OPEN) | F.col("ends").isNotNull() | F.col("done")
    return seen.where((F.col("op") != "d") & changed).select(
        *[F.col("k")[k].alias(k) for k in shape.keys],
        *[F.col("s")[v].alias(v) for v in shape.values],
        "sq",
        "at",
        F.col("ends.sq").alias("end_at"),
        F.col("ends.at").alias("ended_at"),
        F.col("s.missing").alias("missing"),
        F.col("s.special").alias("special"),
    )
