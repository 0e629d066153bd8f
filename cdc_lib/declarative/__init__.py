"""Silver as a declarative pipeline: AUTO CDC flows over bronze, instead of the merge of ``cdc apply``.

``specification`` reads pipeline file and control tables and says what each table needs, ``changes`` turns
rows of bronze into rows that AUTO CDC takes, ``flows`` registers both with the engine that runs the pipeline:
Databricks Lakeflow, or ``spark-pipelines`` as far as open-source Spark goes. What differs from the merge is
in ``docs/declarative.md``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lib.config import load_layout
from cdc_lib.control import Control
from cdc_lib.declarative.specification import Plan, plan_of
from cdc_lib.delta import Lake
from cdc_lib.errors import FixConfiguration
from cdc_lib.table_ref import LAYERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Plan", "register"]

log = logging.getLogger("cdc_lib.declarative")


def register(spark: SparkSession) -> Plan:
    """Define the streaming tables of the pipeline file that the session's configuration names.

    ``cdc.pipeline``: path of the file. ``cdc.catalog``, ``cdc.bronze``, ``cdc.silver``, ``cdc.control``:
    where its tables are, instead of what its ``target:`` says. ``cdc.not_known``: ``fail`` (default) or
    ``list``, see :mod:`cdc_lib.declarative.changes`.

    :returns: what was defined, and which tables were left out, and why.
    :raises FixConfiguration: a setting is missing, nothing was captured yet, or this engine cannot keep
        tables as the file wants them.
    """
    from cdc_lib.declarative.flows import Flows

    file = spark.conf.get("cdc.pipeline", None)
    if not file:
        raise FixConfiguration(
            "the setting cdc.pipeline is missing",
            why="it names the pipeline file whose silver this declarative pipeline keeps",
            remedy="configuration: {cdc.pipeline: /path/to/pipelines/shop.yml}",
        )
    names = {name: spark.conf.get(f"cdc.{name}", None) for name in ("catalog", *LAYERS)}
    given = {name: value for name, value in names.items() if value}
    if given:
        # Nothing is staged here, but a target in a catalog must say where.
        given["staging"] = "/tmp"
    layout = load_layout(Path(file), target=given or None)
    lake = Lake(layout.target, lambda: spark)
    plan = plan_of(layout, lake, Control(lake, layout.name))
    Flows(spark, unknown_listed=_listed(spark.conf.get("cdc.not_known", "fail"))).register(plan)
    for left in plan.left_out:
        log.warning("no silver table=%s reason=%s", left.table, left.reason)
    return plan


def _listed(setting: str) -> bool:
    if setting not in ("fail", "list"):
        raise FixConfiguration("the setting cdc.not_known is neither fail nor list", remedy="correct it")
    return setting == "list"
