"""Events of a range down to one row per key: what each key came to, and which of its columns are not known.

A key's *life* begins with a create or read and ends with a delete or truncate. A column that the last event
does not carry has the value of the newest event of the same life that does (DESIGN section 7). What no event
of the life carries is ``missing``: silver's own row fills it in the MERGE, if that row is of the same life
(``start``).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lib.silver.events import TEXTS, Shape, truncate_after, truncate_before


def last_lives(events: DataFrame, shape: Shape) -> DataFrame:
    """The last life of each key: ``k``, ``start``, ``last`` event, and ``h<i>`` newest carried values.

    ``start`` is the sequence from which on silver's row would be of this life; NULL: from the beginning.
    """
    created = F.max(F.when(F.col("op").isin("c", "r"), F.col("sq"))).alias("created")
    removed = F.max(F.when(F.col("op") == "d", F.col("sq"))).alias("removed")
    lives = events.groupBy("k").agg(*newest(shape), created, removed)
    ended = F.when(F.col("last.op") != "d", F.col("removed") + 1)
    start = F.greatest("created", ended, truncate_before(shape, F.col("last.sq")))
    lives = lives.withColumn("start", start)
    same_life = F.col("start").isNull()
    return lives.select(
        "k",
        "start",
        "last",
        *[F.when(same_life | (F.col(h)["sq"] >= F.col("start")), F.col(h)).alias(h) for h in shape.held],
    )


def newest(shape: Shape, order: str = "sq") -> list[Column]:
    """Aggregates of a group of events: the last one, and the newest carried value of each partial column."""
    fields = ["sq", "op", "at", "special", *shape.plain]
    last = F.max_by(F.struct(*fields), F.col(order)).alias("last")
    held = [F.max_by(F.col(h), F.when(F.col(h).isNotNull(), F.col("sq"))).alias(h) for h in shape.held]
    return [last, *held]


def outcomes(lives: DataFrame, shape: Shape) -> DataFrame:
    """What to write for each key: ``k<i>``, ``v<i>``, ``sq``, ``at``, ``deleted``, ``deleted_at``, ``start``,
    ``missing`` (names of columns that no event of this life carries) and ``special`` (NULL if empty)."""
    last = F.col("last")
    truncated = truncate_after(shape, last["sq"])
    deleted = (last["op"] == "d") | truncated.isNotNull()
    at = F.when(truncated.isNotNull() & (last["op"] != "d"), truncated["at"]).otherwise(last["at"])
    sq = F.when(truncated.isNotNull() & (last["op"] != "d"), truncated["sq"]).otherwise(last["sq"])
    return lives.select(
        *[F.col("k")[k].alias(k) for k in shape.keys],
        *[last[v].alias(v) if v in shape.plain else F.col("h" + v[1:])["v"].alias(v) for v in shape.values],
        sq.alias("sq"),
        at.alias("at"),
        deleted.alias("deleted"),
        F.when(deleted, at).alias("deleted_at"),
        F.col("start"),
        missing(shape).alias("missing"),
        special(shape, F.col("last.special")).alias("special"),
    )


def missing(shape: Shape) -> Column:
    """Names of the partial columns without a value, as an array."""
    names = [F.when(F.col(h).isNull(), F.lit(name)) for h, name in shape.held.items()]
    return F.array_compact(F.array(*names)) if names else F.array().cast("array<string>")


def special(shape: Shape, own_texts: Column) -> Column:
    """The server texts of the values chosen: an event's own, and those that travelled with a value."""
    if not shape.survey.specials and not shape.held:
        return F.lit(None).cast(TEXTS)
    own = [F.lit(name) for name in (*shape.table.key, *shape.plain.values())]
    texts = F.coalesce(own_texts, F.create_map().cast(TEXTS))
    kept = F.map_filter(texts, lambda name, _: F.array_contains(F.array(*own), name))
    travelled = [
        F.when(F.col(h)["x"].isNotNull(), F.struct(F.lit(name).alias("key"), F.col(h)["x"].alias("value")))
        for h, name in shape.held.items()
    ]
    if travelled:
        kept = F.map_concat(kept, F.map_from_entries(F.array_compact(F.array(*travelled))))
    return F.when(F.size(kept) > 0, kept)
