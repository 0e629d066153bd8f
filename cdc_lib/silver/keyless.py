"""Tables without a key: rows can only be added, and all be truncated; anything else would be a guess.

The silver table proves by its greatest ``__sequence`` what it holds, so that a range that is applied again
adds nothing.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lib.silver.events import Shape, events
from cdc_lib.silver.reduce import outcomes
from cdc_lib.silver.table import SEQUENCE, KeylessUpdate


def added(rows: DataFrame, silver: DataFrame, shape: Shape) -> DataFrame:
    """One outcome for each row of the range that silver does not have yet.

    :raises KeylessUpdate: the range has an update or a delete.
    """
    refused = sorted(shape.survey.ops & {"u", "d"})
    if refused:
        raise KeylessUpdate(
            f"{shape.table.id} has no key, and rows were {' and '.join(_DONE[op] for op in refused)}",
            why="the change does not say which row of silver it means",
            remedy="give the table a primary key, or keep it in bronze only",
        )
    newest = silver.agg(F.max(SEQUENCE).alias("sequence")).head()
    if newest is not None and newest.sequence is not None:
        rows = rows.where(F.col("_sequence") > newest.sequence)
    happened = events(rows, shape)
    fields = ["sq", "op", "at", "special", *shape.plain]
    single = happened.select(
        "k", F.lit(None).cast("bigint").alias("start"), F.struct(*fields).alias("last"), *shape.held
    )
    return outcomes(single, shape)


_DONE = {"u": "updated", "d": "deleted"}
