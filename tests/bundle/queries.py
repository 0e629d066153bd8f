"""The SQL of the dashboard and of the alerts, as a warehouse would get it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from cdc_lib.config import parse
from cdc_lib.control import Control
from cdc_lib.control.row import ControlTable, fields_of
from cdc_lib.delta import Lake
from resources import ALERTS
from resources.templates import FOLDER, filled, joined, read
from tests.bundle.merged import databricks_yml, resolved, values_of

DASHBOARD = FOLDER / "dashboards" / "pipeline.lvdash.json"
_OPERATORS = {
    "GREATER_THAN": lambda value, limit: value > limit,
    "GREATER_THAN_OR_EQUAL": lambda value, limit: value >= limit,
}


@dataclass(frozen=True)
class AlertQuery:
    """An alert's query, and when its answer is an alert."""

    sql: str
    column: str
    operator: str
    limit: float

    def fires(self, rows: list[dict[str, Any]]) -> bool:
        """What Databricks makes of the answer: the first row counts; nothing is fine."""
        value = rows[0][self.column] if rows else None
        return value is not None and _OPERATORS[self.operator](float(value), self.limit)


def dashboard(path: Path = DASHBOARD) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def datasets(content: Mapping[str, Any]) -> dict[str, str]:
    """The queries by name."""
    return {each["name"]: "".join(each["queryLines"]) for each in content["datasets"]}


def alerts(pipeline: str, catalog: str, control: str, **variables: str) -> dict[str, AlertQuery]:
    """The alerts of a pipeline, by name."""
    values = values_of({**databricks_yml(), "target_variables": {}}, variables)
    names = {"name": pipeline, "catalog": catalog, "control_key": "control"}
    found = {}
    for name in ALERTS:
        content = joined(read("parts/every_alert.yml"), read(f"per_pipeline/{name}.alert.yml"))
        content = filled(content, names)
        query = resolved(content["query_text"], values).replace("${resources.schemas.control.name}", control)
        evaluation = content["evaluation"]
        limit = resolved(str(evaluation["threshold"]["value"]["double_value"]), values)
        column = evaluation["source"]["name"]
        found[name] = AlertQuery(query, column, evaluation["comparison_operator"], float(limit))
    return found


def control_columns() -> dict[str, dict[str, str]]:
    """The control tables with their columns, as the package makes them."""
    pipeline = parse(
        {
            "name": "any",
            "source": {
                "connector.class": "postgresql",
                "database.hostname": "localhost",
                "database.user": "any",
                "database.password": "any",
                "database.dbname": "any",
            },
            "target": {"path": "unused"},
        }
    )
    tables = vars(Control(Lake(pipeline.target), "any")).values()
    return {
        table.name: {column.name: column.type for column in fields_of(table.row)}
        for table in tables
        if isinstance(table, ControlTable)
    }


class Unsound(Exception):
    """A query that asks for what is not there."""


def columns_of(query: str, tables: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The columns of a query's answer.

    :raises Unsound: it cannot be parsed, or names a table or a column that does not exist.
    """
    try:
        parsed = sqlglot.parse_one(query, read="databricks")
        made = {each.alias for each in parsed.find_all(exp.CTE)}
        for table in parsed.find_all(exp.Table):
            if table.name not in {*tables, *made}:
                raise Unsound(f"there is no control table {table.name}")
            table.set("db", None)
            table.set("catalog", None)
        answered = qualify(parsed, schema=dict(tables), dialect="databricks")
        assert isinstance(answered, exp.Query)
        return list(answered.named_selects)
    except SqlglotError as error:
        raise Unsound(re.sub(r"\x1b\[\d*m", "", str(error))) from None


def parameters_of(query: str) -> set[str]:
    """Names behind a colon."""
    return {each.name for each in sqlglot.parse_one(query, read="databricks").find_all(exp.Placeholder)}
