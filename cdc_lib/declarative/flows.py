"""Registers a plan's tables and flows with the engine that runs the declarative pipeline.

``create_auto_cdc_flow`` has more parameters on Databricks than in open-source Spark, and there more from one
version to the next. Those that are missing are not passed, and a table that needs one is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark import pipelines

from cdc_lib.declarative.changes import Changes, Engine, read_bronze
from cdc_lib.declarative.specification import CARRIED, OP, Plan, TableFlow
from cdc_lib.errors import FixConfiguration
from cdc_lib.nested_types import quoted
from cdc_lib.silver.table import COMMITTED_AT, KEPT_BY, MAPPING, SEQUENCE, needs_mapping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def engine_here() -> Engine:
    """What the installed ``create_auto_cdc_flow`` can be told."""
    parameters = inspect.signature(pipelines.create_auto_cdc_flow).parameters
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    def has(name: str) -> bool:
        return takes_all or name in parameters

    return Engine(
        truncates=has("apply_as_truncates"),
        partial=has("columns_to_update"),
        history=has("track_history_except_column_list"),
    )


class Flows:
    """Registers tables, views and flows. ``unknown_listed``: see :mod:`cdc_lib.declarative.changes`."""

    def __init__(
        self, spark: SparkSession, *, unknown_listed: bool = False, engine: Engine | None = None
    ) -> None:
        self._spark = spark
        self._unknown_listed = unknown_listed
        self._engine = engine or engine_here()

    def register(self, plan: Plan) -> None:
        """Define all of a plan.

        :raises FixConfiguration: tables want what cannot be told here; nothing is defined then.
        """
        refuse_missing(plan, self._engine)
        for flow in plan.flows:
            self._register(flow, Changes(flow, self._engine, self._unknown_listed))

    def _register(self, flow: TableFlow, changes: Changes) -> None:
        spark, view = self._spark, f"__changes_of_{flow.silver.name}"

        def rows() -> DataFrame:
            return changes.of(read_bronze(spark, flow))

        pipelines.temporary_view(name=_name(view))(rows)
        target = _target(flow)
        pipelines.create_streaming_table(
            name=target, comment=flow.table.comment, table_properties=_properties(flow)
        )
        pipelines.create_auto_cdc_flow(target=target, source=_name(view), **arguments(flow, changes))


def arguments(flow: TableFlow, changes: Changes) -> dict[str, Any]:
    """How ``create_auto_cdc_flow`` is told what a table wants."""
    given: dict[str, Any] = {
        "keys": [_name(name) for name in flow.table.key],
        "sequence_by": SEQUENCE,
        "except_column_list": [OP, *([CARRIED] if changes.carries else []), *([SEQUENCE] * flow.history)],
    }
    if not flow.soft:
        given["apply_as_deletes"] = f"{OP} = 'd'"
    if changes.truncates:
        given["apply_as_truncates"] = f"{OP} = 't'"
    if changes.carries:
        given["columns_to_update"] = CARRIED
    if flow.history:
        # A row that is read again as it was begins no version.
        given |= {"stored_as_scd_type": "2", "track_history_except_column_list": [COMMITTED_AT]}
    else:
        given["stored_as_scd_type"] = "1"
    return given


def refuse_missing(plan: Plan, engine: Engine) -> None:
    """:raises FixConfiguration: a specification needs a parameter that is missing here; all are named."""
    missing = []
    for flow in plan.flows:
        if flow.history and not engine.history:
            missing.append(f"{flow.table.id}: scd: 2 needs track_history_except_column_list")
        if flow.soft and not (flow.whole_before or engine.partial):
            missing.append(
                f"{flow.table.id}: delete: soft needs columns_to_update, or REPLICA IDENTITY FULL, because a "
                "deleted row keeps its last values and the log carries its key alone"
            )
    if missing:
        raise FixConfiguration(
            "the tables cannot be kept by AUTO CDC as the pipeline file wants them",
            why=f"create_auto_cdc_flow lacks parameters here: {'; '.join(missing)}",
            remedy="run the pipeline on Databricks, change these tables' rules, or leave silver to cdc apply",
        )


def _target(flow: TableFlow) -> str:
    """On a path there is no name of a schema, so that the pipeline's own is used."""
    ref = flow.silver
    parts = [ref.name] if ref.path is not None else [ref.catalog or "", ref.schema, ref.name]
    return ".".join(_name(part) for part in parts if part)


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _properties(flow: TableFlow) -> Mapping[str, str]:
    found = {KEPT_BY: "true", "cdc.source_table": str(flow.table.id)}
    if any(map(needs_mapping, flow.table.names)):
        found[MAPPING] = "name"
    return found
