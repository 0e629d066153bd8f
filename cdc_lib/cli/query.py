"""``cdc sql``: one statement over the pipeline's tables, by the names an analyst would use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdc_lib.config import Pipeline
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.views import name_tables


@dataclass(frozen=True)
class Answer:
    """Rows of a statement; ``more`` says that there were others."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool = False

    def to_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def query(pipeline: Pipeline, statement: str, *, limit: int) -> Answer:
    """Run ``statement``; at most ``limit`` rows of its result.

    :raises FixConfiguration: Spark does not understand or cannot run it.
    """
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # PySpark logs the Java stack of every statement it refuses; the refusal below says what matters.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    lake = Lake(pipeline.target)
    try:
        name_tables(lake, pipeline.target)
        frame = lake.spark.sql(statement)
        found = frame.limit(limit + 1).collect() if frame.columns else []
    except PySparkException as error:
        raise FixConfiguration(
            "Spark cannot run the statement",
            why=_first_paragraph(error),
            remedy="cdc tables lists the tables; cdc sql 'show tables in control' those about the runs",
        ) from error
    rows = [[_plain(value) for value in row] for row in found[:limit]]
    return Answer(frame.columns, rows, more=len(found) > limit)


def _plain(value: Any) -> Any:
    """Rows within rows as dictionaries, so that their field names are shown."""
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    return value


def _first_paragraph(error: Exception) -> str:
    """Spark's message without the plan and the Java stack below it."""
    return str(error).strip().split("\n\n")[0].split("\nJVM stacktrace")[0].split(";\n'")[0]
