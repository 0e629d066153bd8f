"""Tables without a key. Equal rows cannot be told apart, but they can be counted.

As long as rows are only added, they are appended; silver's greatest ``__sequence`` proves what it holds.
Once rows are updated or deleted, their whole before-images are needed (replica identity FULL): then a row
that the range touches has as many copies as bronze gives, those added since the last truncate less those
taken away. Its copies are the newest of those that were added, each known by its ``__sequence``; so setting
them twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cdc_lib.facts import Truncate
from cdc_lib.silver.events import TEXTS, Shape, events
from cdc_lib.silver.reduce import outcomes
from cdc_lib.silver.table import SEQUENCE, KeylessUpdate


def added(rows: DataFrame, silver: DataFrame, shape: Shape) -> DataFrame:
    """One outcome for each row of the range that silver does not have yet; the range only adds."""
    newest = silver.agg(F.max(SEQUENCE).alias("sequence")).head()
    if newest is not None and newest.sequence is not None:
        rows = rows.where(F.col("_sequence") > newest.sequence)
    happened = events(rows, shape)
    fields = ["sq", "op", "at", "special", *shape.plain]
    single = happened.select(
        "k", F.lit(None).cast("bigint").alias("start"), F.struct(*fields).alias("last"), *shape.held
    )
    return outcomes(single, shape)


def refuse_unless_counted(rows: DataFrame, shape: Shape) -> None:
    """:raises KeylessUpdate: a change of the range does not say which of silver's rows it means."""
    done = {"u": "updated", "d": "deleted"}
    what = f"{shape.table.id} has no key, and rows were " + " and ".join(
        done[op] for op in sorted(shape.survey.ops & done.keys())
    )
    remedy = "give the table a primary key, or have the log carry whole old rows (REPLICA IDENTITY FULL)"
    if shape.soft:
        raise KeylessUpdate(
            what, why="copies of a row cannot be marked as deleted", remedy="use delete: hard for this table"
        )
    # A column that is newer than the row has NULL in it, and one that was dropped before it is not compared.
    present = F.array(*map(F.lit, shape.table.names))
    listed = F.array_intersect(F.coalesce("before_unavailable", F.array().cast("array<string>")), present)
    since = [F.struct(F.lit(name).alias("name"), F.lit(at).alias("at")) for name, at in shape.since.items()]
    if since:
        newer = F.filter(F.array(*since), lambda each: each["at"] > F.col("_schema_version"))
        listed = F.array_except(listed, newer["name"])
    lacking = F.col("before").isNull() | (F.size(listed) > 0)
    if not rows.where(F.col("op").isin("u", "d") & lacking).isEmpty():
        raise KeylessUpdate(
            what,
            why="the log does not carry the whole old row, so nobody knows which one is meant",
            remedy=remedy,
        )


def with_last_truncate(every: DataFrame, shape: Shape) -> Shape:
    """The shape with the last truncate of all of bronze as its only one."""
    truncate = F.struct(F.col("_sequence").alias("sequence"), F.col("source.ts_us").alias("us"))
    row = every.where(F.col("op") == "t").agg(F.max(truncate).alias("last")).head()
    last = None if row is None else row.last
    truncates = () if last is None else (Truncate(last.sequence, last.us),)
    # Every image is whole, so no column is partial.
    return replace(shape, survey=replace(shape.survey, truncates=truncates, partial=frozenset()))


def counted(every: DataFrame, after: int, shape: Shape) -> DataFrame:
    """The rows that were ever added and that the range behind batch ``after`` touches; ``deleted`` are those
    that are not there any more.

    :param every: all rows of bronze up to the range's end.
    """
    for truncate in shape.survey.truncates:
        every = every.where(F.col("_sequence") > truncate.sequence)
    fresh = F.col("_batch") > after
    come = every.where(F.col("op").isin("c", "r", "u")).select(
        F.col("_sequence").alias("sq"),
        F.timestamp_micros("source.ts_us").alias("at"),
        F.lit(1).alias("sign"),
        fresh.alias("fresh"),
        *_image(shape, _after),
    )
    left = every.where(F.col("op").isin("u", "d")).select(
        F.col("_sequence").alias("sq"),
        F.lit(None).cast("timestamp").alias("at"),
        F.lit(-1).alias("sign"),
        fresh.alias("fresh"),
        *_image(shape, _before),
    )
    # Maps cannot be compared, their sorted entries can.
    alike = Window.partitionBy(*shape.values, F.array_sort(F.map_entries("special")))
    newest = alike.orderBy(F.col("sign").desc(), F.col("sq").desc())
    seen = come.unionByName(left).withColumns(
        {
            "copies": F.sum("sign").over(alike),
            "touched": F.max("fresh").over(alike),
            "place": F.row_number().over(newest),
        }
    )
    return seen.where((F.col("sign") > 0) & F.col("touched")).select(
        *shape.values,
        "sq",
        "at",
        (F.col("place") > F.col("copies")).alias("deleted"),
        F.lit(None).cast("timestamp").alias("deleted_at"),
        F.array().cast("array<string>").alias("missing"),
        "special",
    )


def _image(shape: Shape, value_and_text: Callable[[str], tuple[Column, Column]]) -> list[Column]:
    """All columns of an image, and the server texts of those that cannot hold their values."""
    values = {v: value_and_text(name) for v, name in shape.values.items()}
    texts = [
        F.when(text.isNotNull(), F.struct(F.lit(shape.values[v]).alias("key"), text.alias("value")))
        for v, (_, text) in values.items()
    ]
    special = F.map_from_entries(F.array_compact(F.array(*texts)))
    special = F.when(F.size(special) > 0, special).cast(TEXTS).alias("special")
    return [*[value.alias(v) for v, (value, _) in values.items()], special]


def _after(name: str) -> tuple[Column, Column]:
    """Value and server text of a column; what the new row leaves out is as in the old one."""
    kept = F.coalesce(F.array_contains("after_unavailable", name), F.lit(False))
    old, old_text = _before(name)
    value = F.when(kept, old).otherwise(F.col("after")[name])
    return value, F.when(kept, old_text).otherwise(F.col("special")[name])


def _before(name: str) -> tuple[Column, Column]:
    text = F.when(F.col("op") == "d", F.col("special")[name]).otherwise(F.col("special")[f"before.{name}"])
    return F.col("before")[name], text
