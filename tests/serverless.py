"""A Spark Connect client that refuses what serverless compute refuses, and says what it was asked for.

There is no workspace here, so a local Connect server stands in for serverless; what it would accept and
serverless does not is refused on the client's side, by the names of Databricks' documentation:

* settings other than six: https://docs.databricks.com/aws/en/spark/conf
  (Configure Spark properties for serverless notebooks and jobs);
* global temporary views, caches and checkpoints:
  https://docs.databricks.com/aws/en/compute/serverless/limitations;
* ``cloneSession``: clients before Spark 4.1 have none, which are those of serverless environments up to 4.

``python -m tests.serverless run pipeline.yml`` is ``cdc`` in such a process; it leaves what was asked for, as
JSON, where ``CDC_TEST_ASKED`` says.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

ALLOWED_SETTINGS = frozenset(
    {
        "spark.databricks.execution.timeout",
        "spark.sql.ansi.enabled",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
    }
)
REFUSED_STATEMENTS = re.compile(
    r"\s*(SET\s+(?P<setting>spark\.[\w.]+)|(UN)?CACHE\s|CLEAR\s+CACHE|REFRESH\s+TABLE|"
    r"CREATE\s+(OR\s+REPLACE\s+)?GLOBAL\s)|.*\bglobal_temp\.",
    re.IGNORECASE | re.DOTALL,
)
COPED_WITH = frozenset({"cloneSession", "localCheckpoint"})
"""What the package asks for and does without: siblings of a session, and frames that are kept."""


@dataclass
class Asked:
    """What a process asked of Spark. ``connect``: whether each session was a Spark Connect client."""

    settings: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    appends: list[str] = field(default_factory=list)
    connect: bool = True


@contextmanager
def refusing(*, clones: bool = False) -> Iterator[Asked]:
    """Make the Spark Connect client of this process refuse. ``clones``: as in environment 5."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        asked = Asked()
        _refuse(patch, asked, clones=clones)
        yield asked


def _refuse(patch: Any, asked: Asked, *, clones: bool) -> None:
    from pyspark.errors import AnalysisException, UnsupportedOperationException
    from pyspark.sql.connect.conf import RuntimeConf
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.readwriter import DataFrameWriter
    from pyspark.sql.connect.session import SparkSession

    def refuse(name: str) -> Any:
        def call(*args: Any, **more: Any) -> NoReturn:
            asked.refused.append(name)
            raise UnsupportedOperationException(f"{name} is not supported on serverless compute")

        return call

    def set_(conf: Any, key: str, value: Any) -> None:
        asked.settings.append(key)
        if key not in ALLOWED_SETTINGS:
            raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available.")
        really_set(conf, key, value)

    def sql(spark: Any, query: str, *args: Any, **more: Any) -> Any:
        if query.lstrip().startswith("MERGE INTO"):
            asked.merged.append(query[:200])
        found = REFUSED_STATEMENTS.match(query)
        if found and found["setting"] not in ALLOWED_SETTINGS:
            refuse(found[0][:60])()
        return really_sql(spark, query, *args, **more)

    def save(really: Any) -> Any:
        def call(writer: Any, place: str, *args: Any, **more: Any) -> Any:
            asked.appends.append(place)
            return really(writer, place, *args, **more)

        return call

    really_set, really_sql = RuntimeConf.set, SparkSession.sql
    patch.setattr(RuntimeConf, "set", set_)
    patch.setattr(SparkSession, "sql", sql)
    for name in ("save", "saveAsTable"):
        patch.setattr(DataFrameWriter, name, save(getattr(DataFrameWriter, name)))
    if not clones:
        patch.delattr(SparkSession, "cloneSession")
        asked.refused.append("cloneSession")
    for name in (
        "createGlobalTempView",
        "createOrReplaceGlobalTempView",
        "cache",
        "persist",
        "checkpoint",
        "localCheckpoint",
    ):
        patch.setattr(DataFrame, name, refuse(name))


def _main() -> None:
    import pytest

    from cdc_lib import spark_session
    from cdc_lib.cli import main

    asked = Asked()
    _refuse(pytest.MonkeyPatch(), asked, clones=False)
    opened = spark_session.session

    def watched() -> Any:
        spark = opened()
        asked.connect = asked.connect and spark_session.is_connect(spark)
        return spark

    # Lake has it as a default argument, bound when the class was made.
    from cdc_lib.delta import Lake

    Lake.__init__.__defaults__ = (watched,)
    place = os.environ.get("CDC_TEST_ASKED")
    if place:
        atexit.register(lambda: Path(place).write_text(json.dumps(asdict(asked)), encoding="utf-8"))
    main()


if __name__ == "__main__":
    sys.exit(_main())
