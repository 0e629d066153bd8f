"""Names in Spark's catalog: for tables that lie under a path, and for views."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lib.delta import Lake
from cdc_lib.nested_types import quoted
from cdc_lib.table_ref import LAYERS, TableRef, literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lib.config import Target


log = logging.getLogger("cdc_lib.named_tables")

_NAME = re.compile(r"\w+", re.ASCII)
"""What Spark's own catalog takes for a name."""


def register(lake: Lake, target: Target) -> list[TableRef]:
    """Make the tables under a path known by name in the session's catalog, as what is returned."""
    if target.path is None:
        return []
    named = []
    root = Path(target.path).absolute()
    for layer in LAYERS:
        schema = getattr(target, layer)
        location = literal(str(root / schema))
        lake.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)} LOCATION {location}").collect()
        for folder in sorted((root / schema).glob("*/_delta_log")):
            if not _NAME.fullmatch(folder.parent.name):
                log.warning("no name in SQL, query it as delta.`%s`", folder.parent)
                continue
            _register(lake.spark, quoted(schema), folder.parent)
            named.append(TableRef(layer, folder.parent.name, None, None, schema))
    return named


def _register(spark: SparkSession, schema: str, folder: Path) -> None:
    name = f"{schema}.{quoted(folder.name)}"
    if spark.catalog.tableExists(name):
        detail = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]
        if detail.location.rstrip("/") in (folder.as_uri(), f"file:{folder}"):
            return
        # A pipeline with the same layer names was looked at before; only the name goes, not its files.
        spark.sql(f"DROP TABLE {name}").collect()
    spark.sql(f"CREATE TABLE {name} USING DELTA LOCATION {literal(str(folder))}").collect()


def create_view(lake: Lake, ref: TableRef, query: str) -> None:
    """Create or replace a view in a catalog, unless a table has its name."""
    if lake.exists(ref) and lake.spark.catalog.getTable(ref.sql).tableType != "VIEW":
        return
    lake.execute(f"CREATE OR REPLACE VIEW {ref.sql} AS {query}")
