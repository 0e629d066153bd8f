"""Bring one silver table up to a batch: survey the range of bronze, reduce it, write it as one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lib import bronze
from cdc_lib.delta import Lake, Txn, view_name
from cdc_lib.facts import Facts
from cdc_lib.nested_types import quoted
from cdc_lib.silver import keyless
from cdc_lib.silver.events import Shape, events, facts_of_bronze
from cdc_lib.silver.fence import Fence, has_batch
from cdc_lib.silver.moves import base_rows, filled, last_of_each_key, lives, ordered, settled
from cdc_lib.silver.reduce import last_lives, outcomes
from cdc_lib.silver.statement import CountMerge, Merge, VersionMerge
from cdc_lib.silver.table import (
    DELETED_AT,
    END_AT,
    META,
    SEQUENCE,
    SPECIAL,
    START_AT,
    UNAVAILABLE,
    Applied,
    KeylessUpdate,
    SilverTable,
    add_meta,
    use_vectors_if_large,
)
from cdc_lib.silver.versions import after_batch, versions

MAX_BATCH = 1 << 31
"""Above every batch: its number is the upper half of a sequence."""


def apply(
    lake: Lake,
    target: SilverTable,
    *,
    after: int,
    upto: int,
    incarnation: str,
    facts: Facts | None,
    fence: Fence | None,
) -> Applied:
    """See :func:`cdc_lib.silver.apply`."""
    txn = Txn(f"{incarnation}/silver/{target.table_id}", upto)
    if target.history:
        # A version that was begun and ended may not come again.
        after = max(after, _proven(lake, target, txn.app_id))
    rows = bronze.batches(lake, target.bronze, after, upto)
    empty = Shape(target.table, target.soft, target.history, target.since)
    shape = empty.surveyed(facts_of_bronze(rows, target.table) if facts is None else facts)
    if not shape.survey.rows or after >= upto:
        return Applied(rows=0)
    marks = {"incarnation": incarnation, "after": after, "batch": upto}
    _refuse_history_without_key(shape)
    _refuse_keys_not_held(shape)
    changes, shape, statement = _reduced(lake, target, rows, (after, upto), shape)
    if shape.held:
        # Read three times from here on: for what stays unknown, and by both passes of the MERGE.
        changes = settled(changes)
    meta = _with_lazy_columns(lake, target, changes, shape)
    merge = statement(target.silver.sql, shape, meta, view_name())
    only_adds = not target.table.key and statement is Merge and not shape.survey.truncates
    appends = only_adds or (after == 0 and _is_empty(lake, target))
    counts = _write(lake, target, (merge, changes), (txn, marks), appends=appends, fence=fence)
    return Applied(
        rows=shape.survey.rows,
        inserted=counts.get("num_inserted_rows"),
        updated=counts.get("num_updated_rows"),
        deleted=counts.get("num_deleted_rows"),
        unavailable=_not_known(lake, target, after) if shape.held and UNAVAILABLE in meta else 0,
        specials=shape.survey.specials,
    )


def _write(
    lake: Lake,
    target: SilverTable,
    work: tuple[Merge | VersionMerge, DataFrame],
    commit: tuple[Txn, Mapping[str, Any]],
    *,
    appends: bool,
    fence: Fence | None,
) -> Mapping[str, int]:
    """One commit of what changes; what Delta says of it, if anything."""
    (merge, changes), (txn, marks) = work, commit
    fenced = fence is not None and not lake.supports_dml_txn
    if appends:
        written = changes if target.soft or target.history else changes.where(~F.col("deleted"))
        row = [F.expr(value).alias(name) for name, value in merge.inserts().items()]
        lake.append(target.silver, written.alias("s").select(*row), txn=txn, metadata=marks)
        if not fenced or has_batch(lake, target.silver, marks):
            return {}
    use_vectors_if_large(lake, target)
    if fence is not None and fenced:
        said = fence.merge(lake, target.silver, merge, changes, commit)
    else:
        # Delta says nothing at all about a MERGE that it skipped because of its transaction version.
        said = lake.execute(merge.sql(), txn=txn, metadata=marks, views={merge.changes: changes})
    return next(iter(said), {})


def older(lake: Lake, target: SilverTable, batch: int) -> pa.Table:
    """See :func:`cdc_lib.silver.older`."""
    if not lake.exists(target.silver):
        return pa.table({})
    if not target.history:
        return _keys(lake, target, F.coalesce(F.col(SEQUENCE), F.lit(-1)) < batch << 32)
    # A row that is as it was begins no version; bronze says whether it was seen.
    seen = events(
        bronze.batches(lake, target.bronze, batch - 1, MAX_BATCH), Shape(target.table, history=True)
    )
    keys = F.struct(*[F.col(quoted(name)).alias(f"k{i}") for i, name in enumerate(target.table.key)])
    rows = _living(lake, target).join(seen.select("k").distinct(), keys.eqNullSafe(F.col("k")), "left_anti")
    return _sorted_keys(rows, target)


def vanished(lake: Lake, target: SilverTable, batch: int) -> pa.Table:
    """See :func:`cdc_lib.silver.vanished`."""
    shape = Shape(target.table, history=True)
    before = bronze.batches(lake, target.bronze, 0, batch - 1)
    seen = events(bronze.batches(lake, target.bronze, batch - 1, MAX_BATCH), shape).select("k").distinct()
    emptied = before.where(F.col("op") == "t").agg(F.coalesce(F.max("_sequence"), F.lit(0)).alias("at"))
    last = events(before, shape).groupBy("k").agg(F.max_by("op", "sq").alias("op"), F.max("sq").alias("sq"))
    living = last.crossJoin(emptied).where((F.col("op") != "d") & (F.col("sq") > F.col("at")))
    rows = living.alias("old").join(seen.alias("new"), F.expr("old.k <=> new.k"), "left_anti")
    key = [F.col("k")[k].alias(name) for k, name in shape.keys.items()]
    found: pa.Table = rows.select(*key).sort(*map(quoted, target.table.key)).toArrow()
    return found


def incomplete(lake: Lake, target: SilverTable) -> pa.Table:
    """See :func:`cdc_lib.silver.incomplete`."""
    if not lake.exists(target.silver) or UNAVAILABLE not in {
        each.name for each in lake.fields(target.silver)
    }:
        return pa.table({})
    return _keys(lake, target, F.size(UNAVAILABLE) > 0)


def _keys(lake: Lake, target: SilverTable, which: Column) -> pa.Table:
    """Keys of the living rows that meet a condition, in order."""
    return _sorted_keys(_living(lake, target).where(which), target)


def _living(lake: Lake, target: SilverTable) -> DataFrame:
    rows = lake.table(target.silver)
    return rows if target.gone is None else rows.where(F.col(target.gone).isNull())


def _sorted_keys(rows: DataFrame, target: SilverTable) -> pa.Table:
    key = [F.col(quoted(name)) for name in target.table.key]
    found: pa.Table = rows.select(*key).sort(*key).toArrow()
    return found


def applied(lake: Lake, target: SilverTable) -> int | None:
    """See :func:`cdc_lib.silver.applied`."""
    columns = [START_AT, END_AT] if target.history else [SEQUENCE]
    row = lake.table(target.silver).agg(*map(F.max, columns)).head()
    newest = max((each for each in row or () if each is not None), default=None)
    return None if newest is None else newest >> 32


def _proven(lake: Lake, target: SilverTable, app_id: str) -> int:
    """The batch that silver surely holds; those behind it that it holds too began and ended nothing."""
    noted = lake.transaction_version(target.silver, app_id)
    return (applied(lake, target) or 0) if noted is None else noted


def _reduced(
    lake: Lake, target: SilverTable, rows: DataFrame, batches: tuple[int, int], shape: Shape
) -> tuple[DataFrame, Shape, type[Merge | VersionMerge]]:
    """What to write, the shape of that, and the statement for it.

    :param batches: the range that ``rows`` are of, its begin not included.
    :raises KeylessUpdate: the table has no key, and it cannot be told which rows are meant.
    """
    after, upto = batches
    silver = lake.table(target.silver)
    if target.history:
        shape = after_batch(shape, after)
        return versions(rows, silver, shape), shape, VersionMerge
    if target.table.key:
        return by_key(rows, silver, shape), shape, Merge
    if not shape.survey.ops & {"u", "d"}:
        return keyless.added(rows, silver, shape), shape, Merge
    keyless.refuse_unless_counted(rows, shape)
    every = bronze.batches(lake, target.bronze, 0, upto)
    shape = keyless.with_last_truncate(every, shape)
    return keyless.counted(every, after, shape), shape, CountMerge


def by_key(rows: DataFrame, silver: DataFrame, shape: Shape) -> DataFrame:
    """One row per key that ``rows`` of bronze change; ``silver`` is asked only where keys moved."""
    happened = events(rows, shape)
    if not shape.rearranged:
        return outcomes(last_lives(happened, shape), shape)
    base = base_rows(silver, shape)
    every = settled(lives(ordered(happened, shape, base), shape))
    return outcomes(filled(last_of_each_key(every), every, base, shape), shape)


def _is_empty(lake: Lake, target: SilverTable) -> bool:
    # Nothing was written yet to the version that its creation made.
    return lake.version(target.silver) == 0 or lake.table(target.silver).select(target.sequence).isEmpty()


def _refuse_history_without_key(shape: Shape) -> None:
    if shape.history and not shape.table.key:
        raise KeylessUpdate(
            f"{shape.table.id} has no key, and SCD type 2 needs one",
            why="versions of rows that cannot be told apart have no order",
            remedy="give the table a primary key, name one in message.key.columns, or use scd: 1",
        )


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
    if target.history:
        return not lacking.isEmpty()
    if not shape.soft:
        lacking = lacking.where(~F.col("deleted"))
    names = [*shape.table.key, SEQUENCE, *([DELETED_AT] if shape.soft else [])]
    silver = lake.table(target.silver).select(*map(quoted, names)).alias("t")
    merge = Merge(target.silver.sql, shape, frozenset())
    knows = F.expr(f"{merge.on()} AND {merge.fills()}")
    return not lacking.alias("s").join(silver, knows, "left_anti").isEmpty()


def _not_known(lake: Lake, target: SilverTable, after: int) -> int:
    """Living rows last changed after batch ``after`` that list a column as not known."""
    fresh = _living(lake, target).where(F.col(target.sequence) >= (after + 1) << 32)
    return int(fresh.where(F.size(UNAVAILABLE) > 0).count())
