"""Bring one silver table up to a batch: survey the range of bronze, reduce it, write it as one commit."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lib import bronze
from cdc_lib.delta import Lake, Txn
from cdc_lib.facts import Facts
from cdc_lib.nested_types import quoted
from cdc_lib.silver import keyless
from cdc_lib.silver.events import Shape, events, facts_of_bronze
from cdc_lib.silver.moves import base_rows, filled, last_of_each_key, lives, ordered, settled
from cdc_lib.silver.reduce import last_lives, outcomes
from cdc_lib.silver.statement import CHANGES, Merge
from cdc_lib.silver.table import (
    DELETED_AT,
    META,
    SEQUENCE,
    SPECIAL,
    UNAVAILABLE,
    Applied,
    KeylessUpdate,
    SilverTable,
    add_meta,
    use_vectors_if_large,
)


def apply(
    lake: Lake, target: SilverTable, *, after: int, upto: int, incarnation: str, facts: Facts | None
) -> Applied:
    """See :func:`cdc_lib.silver.apply`."""
    rows = bronze.batches(lake, target.bronze, after, upto)
    empty = Shape(target.table, target.soft, target.since)
    shape = empty.surveyed(facts_of_bronze(rows, target.table) if facts is None else facts)
    if not shape.survey.rows:
        return Applied(rows=0)
    txn = Txn(f"{incarnation}/silver/{target.table_id}", upto)
    marks = {"incarnation": incarnation, "after": after, "batch": upto}
    _refuse_keys_not_held(shape)
    silver = lake.table(target.silver)
    changes = reduced(rows, silver, shape)
    if shape.held:
        # Read three times from here on: for what stays unknown, and by both passes of the MERGE.
        changes = settled(changes)
    meta = _with_lazy_columns(lake, target, changes, shape)
    merge = Merge(target.silver.sql, shape, meta)
    only_adds = not target.table.key and not shape.survey.truncates
    if only_adds or (after == 0 and _is_empty(lake, target)):
        written = changes if target.soft else changes.where(~F.col("deleted"))
        row = [F.expr(value).alias(name) for name, value in merge.inserts().items()]
        lake.append(target.silver, written.alias("s").select(*row), txn=txn, metadata=marks)
        counts: dict[str, int] = {}
    else:
        use_vectors_if_large(lake, target)
        # Delta says nothing at all about a MERGE that it skipped because of its transaction version.
        said = lake.execute(merge.sql(), txn=txn, metadata=marks, views={CHANGES: changes})
        counts = next(iter(said), {})
    return Applied(
        rows=shape.survey.rows,
        inserted=counts.get("num_inserted_rows"),
        updated=counts.get("num_updated_rows"),
        deleted=counts.get("num_deleted_rows"),
        unavailable=_not_known(lake, target, after) if shape.held and UNAVAILABLE in meta else 0,
        specials=shape.survey.specials,
    )


def older(lake: Lake, target: SilverTable, batch: int) -> pa.Table:
    """See :func:`cdc_lib.silver.older`."""
    if not lake.exists(target.silver):
        return pa.table({})
    return _keys(lake, target, F.coalesce(F.col(SEQUENCE), F.lit(-1)) < batch << 32)


def incomplete(lake: Lake, target: SilverTable) -> pa.Table:
    """See :func:`cdc_lib.silver.incomplete`."""
    if not lake.exists(target.silver) or UNAVAILABLE not in {
        each.name for each in lake.fields(target.silver)
    }:
        return pa.table({})
    return _keys(lake, target, F.size(UNAVAILABLE) > 0)


def _keys(lake: Lake, target: SilverTable, which: Column) -> pa.Table:
    """Keys of the living rows that meet a condition, in order."""
    rows = lake.table(target.silver).where(which)
    if target.soft:
        rows = rows.where(F.col(DELETED_AT).isNull())
    key = [F.col(quoted(name)) for name in target.table.key]
    found: pa.Table = rows.select(*key).sort(*key).toArrow()
    return found


def applied(lake: Lake, target: SilverTable) -> int | None:
    """See :func:`cdc_lib.silver.applied`."""
    row = lake.table(target.silver).agg(F.max(SEQUENCE).alias("newest")).head()
    newest: int | None = None if row is None else row.newest
    return None if newest is None else newest >> 32


def reduced(rows: DataFrame, silver: DataFrame, shape: Shape) -> DataFrame:
    """One row per key that ``rows`` of bronze change; ``silver`` is asked only where keys moved.

    :raises KeylessUpdate: the table has no key and rows were updated or deleted.
    """
    if not shape.table.key:
        return keyless.added(rows, silver, shape)
    happened = events(rows, shape)
    if not shape.rearranged:
        return outcomes(last_lives(happened, shape), shape)
    base = base_rows(silver, shape)
    every = settled(lives(ordered(happened, shape, base), shape))
    return outcomes(filled(last_of_each_key(every), every, base, shape), shape)


def _is_empty(lake: Lake, target: SilverTable) -> bool:
    # Nothing was written yet to the version that its creation made.
    return lake.version(target.silver) == 0 or lake.table(target.silver).select(SEQUENCE).isEmpty()


def _refuse_keys_not_held(shape: Shape) -> None:
    if shape.survey.key_specials:
        raise KeylessUpdate(
            f"{shape.survey.key_specials} rows have a key value that its column cannot hold (see special)",
            why="silver would take two different rows for one",
            remedy="keep the table in bronze only, or change the key's type at the source",
        )


def _with_lazy_columns(lake: Lake, target: SilverTable, changes: DataFrame, shape: Shape) -> frozenset[str]:
    """Meta columns that silver has, after those that this range is the first to need were added."""
    has = frozenset(each.name for each in lake.fields(target.silver)) & META.keys()
    new = set()
    if shape.survey.specials and SPECIAL not in has:
        new.add(SPECIAL)
    if shape.held and UNAVAILABLE not in has and _unresolved(lake, target, changes, shape):
        new.add(UNAVAILABLE)
    for name in sorted(new):
        add_meta(lake, target, name)
    return frozenset(has | new)


def _unresolved(lake: Lake, target: SilverTable, changes: DataFrame, shape: Shape) -> bool:
    """Whether some row would be written with a column that neither the range nor silver knows."""
    lacking = changes.where(F.size("missing") > 0)
    if not shape.soft:
        lacking = lacking.where(~F.col("deleted"))
    names = [*shape.table.key, SEQUENCE, *([DELETED_AT] if shape.soft else [])]
    silver = lake.table(target.silver).select(*map(quoted, names)).alias("t")
    merge = Merge(target.silver.sql, shape, frozenset())
    knows = F.expr(f"{merge.on()} AND {merge.fills()}")
    return not lacking.alias("s").join(silver, knows, "left_anti").isEmpty()


def _not_known(lake: Lake, target: SilverTable, after: int) -> int:
    """Living rows last changed after batch ``after`` that list a column as not known."""
    fresh = lake.table(target.silver).where(F.col(SEQUENCE) >= (after + 1) << 32)
    living = fresh.where(F.col(DELETED_AT).isNull()) if target.soft else fresh
    return int(living.where(F.size(UNAVAILABLE) > 0).count())
