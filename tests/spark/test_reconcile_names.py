"""Names of columns that Spark takes for something else, where it reads silver for a comparison."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from cdc_lib.delta import Field, Lake
from cdc_lib.reconcile.buckets import Selection
from cdc_lib.reconcile.hashing import KEY, Layout
from cdc_lib.reconcile.silver_rows import SparkRows


def test_names_with_dots_blanks_and_backticks(spark: SparkSession, lake: Lake) -> None:
    names = ("id", "a.b", "c d", "ti`ck")
    ref = lake.ref("silver", "odd")
    lake.create(ref, [Field(name, "INT") for name in names], properties={"delta.columnMapping.mode": "name"})
    spark.sql(f"INSERT INTO {ref.sql} VALUES (1, 2, 3, 4), (5, 6, 7, NULL)").collect()
    layout = Layout(tuple((name, pa.int32()) for name in names), key=("id",))
    rows = SparkRows(lake, ref, layout, lambda _: None)
    assert int(rows.sums().rows.sum()) == 2
    hashes = rows.hashes(Selection(buckets=np.ones(1 << 16, np.bool_)))
    found = rows.rows(Selection(keys=np.sort(hashes[KEY]))).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        dict(zip(names, (1, 2, 3, 4), strict=True)),
        dict(zip(names, (5, 6, 7, None), strict=True)),
    ]
