"""What must hold for dashboards and alerts, without a workspace: each check yields its complaints as text.

A dashboard that is wrong deploys without an error, and shows empty panels. So its queries are resolved
against the control tables, and every widget against the columns of its query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp

from tests.bundle.merged import ROOT, resolved
from tests.bundle.quartz import mistake
from tests.bundle.queries import Unsound, columns_of, control_columns, dashboard, parameters_of

Config = Mapping[str, Any]
VERSIONS = {"counter": 2, "table": 2, "bar": 3, "line": 3, "pie": 3}
VERSIONS |= {"filter-multi-select": 2, "filter-single-select": 2, "filter-date-range-picker": 2}
"""Versions of widget specifications; another one is shown as an invalid widget."""
PAGES = {"PAGE_TYPE_CANVAS", "PAGE_TYPE_GLOBAL_FILTERS"}
COLUMNS = 12
_SCHEMA = re.compile(r"\$\{resources\.schemas\.(\w+)\.name\}")


def dashboard_complaints(content: Config) -> Iterator[str]:
    """Everything that is wrong with a dashboard's JSON."""
    tables = control_columns()
    columns: dict[str, list[str]] = {}
    for dataset in content["datasets"]:
        name, query = dataset["name"], "".join(dataset["queryLines"])
        if name in columns:
            yield f"two datasets are called {name}"
        try:
            columns[name] = columns_of(query, tables)
        except Unsound as error:
            yield f"dataset {name}: {error}"
            columns[name] = []
            continue
        yield from _parameters(dataset, query)
    yield from _unique("page", [page["name"] for page in content["pages"]])
    yield from _unique("widget", [widget["name"] for widget in widgets(content)])
    for page in content["pages"]:
        if page.get("pageType") not in PAGES:
            yield f"page {page['name']}: unknown type {page.get('pageType')}"
        yield from (f"page {page['name']}: {text}" for text in _layout(page))
    declared = {
        each["name"]: {one["keyword"] for one in each.get("parameters", [])} for each in content["datasets"]
    }
    for widget in widgets(content):
        yield from (f"widget {widget['name']}: {text}" for text in _widget(widget, columns, declared))
    used = {
        query["query"]["datasetName"] for widget in widgets(content) for query in widget.get("queries", [])
    }
    yield from (f"dataset {name} is not shown" for name in columns.keys() - used)


def widgets(content: Config) -> Iterator[Mapping[str, Any]]:
    for page in content["pages"]:
        for place in page["layout"]:
            yield place["widget"]


def _parameters(dataset: Config, query: str) -> Iterator[str]:
    declared = {each["keyword"] for each in dataset.get("parameters", [])}
    used = parameters_of(query)
    yield from (f"dataset {dataset['name']}: parameter {name} does not exist" for name in used - declared)
    yield from (f"dataset {dataset['name']}: parameter {name} is not used" for name in declared - used)


def _unique(what: str, names: list[str]) -> Iterator[str]:
    yield from (
        f"two of kind {what} are called {name}" for name in sorted({n for n in names if names.count(n) > 1})
    )


def _layout(page: Config) -> Iterator[str]:
    places = [(place["widget"]["name"], place["position"]) for place in page["layout"]]
    for name, at in places:
        if (
            at["x"] < 0
            or at["y"] < 0
            or min(at["width"], at["height"]) < 1
            or at["x"] + at["width"] > COLUMNS
        ):
            yield f"{name} is not within the {COLUMNS} columns"
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
        below = a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
        if not beside and not below:
            yield f"{one} and {other} overlap"


def _widget(
    widget: Config, columns: Mapping[str, list[str]], declared: Mapping[str, set[str]]
) -> Iterator[str]:
    if "spec" not in widget:
        if "multilineTextboxSpec" not in widget:
            yield "shows nothing"
        return
    spec = widget["spec"]
    if VERSIONS.get(spec["widgetType"]) != spec["version"]:
        yield f"{spec['widgetType']} has no version {spec['version']}"
    fields: dict[str, set[str]] = {}
    for query in widget["queries"]:
        asked = query["query"]
        if asked["datasetName"] not in columns:
            yield f"there is no dataset {asked['datasetName']}"
            continue
        fields[query["name"]] = {each["name"] for each in asked.get("fields", [])}
        yield from _fields(asked, columns[asked["datasetName"]])
        for each in asked.get("parameters", []):
            if each["keyword"] not in declared[asked["datasetName"]]:
                yield f"parameter {each['keyword']} does not exist"
    yield from _encodings(spec["encodings"], fields)


def _fields(asked: Config, columns: list[str]) -> Iterator[str]:
    for each in asked.get("fields", []):
        parsed = sqlglot.parse_one(each["expression"], read="databricks")
        unknown = {column.name for column in parsed.find_all(exp.Column)} - set(columns)
        yield from (f"dataset {asked['datasetName']} has no column {name}" for name in sorted(unknown))
        if asked.get("disaggregated") and parsed.find(exp.AggFunc):
            yield f"adds up {each['name']}, but shows rows one by one"


def _encodings(encodings: Any, fields: Mapping[str, set[str]]) -> Iterator[str]:
    """Whatever is drawn is a field of the widget's query."""
    if isinstance(encodings, list):
        for each in encodings:
            yield from _encodings(each, fields)
    elif isinstance(encodings, Mapping):
        asked = encodings.get("queryName")
        if asked is not None and asked not in fields:
            yield f"has no query {asked}"
        elif "fieldName" in encodings:
            known = fields[asked] if asked else set().union(*fields.values())
            if encodings["fieldName"] not in known:
                yield f"draws {encodings['fieldName']}, which it does not ask for"
        for value in encodings.values():
            yield from _encodings(value, fields)


# -- in the bundle


def _control_schemas(config: Config) -> set[str]:
    """Those that jobs are told to keep the state in."""
    given = (each for job in config["resources"]["jobs"].values() for each in job.get("parameters", []))
    return {key for each in given if each["name"] == "control" for key in _SCHEMA.findall(each["default"])}


def monitoring(config: Config) -> Iterator[str]:
    """Dashboards and alerts as they are deployed."""
    for key, deployed in config["resources"].get("dashboards", {}).items():
        path = ROOT / deployed.get("file_path", "")
        if not path.is_file():
            yield f"dashboards.{key}: there is no {deployed.get('file_path')}"
        elif path.suffixes == [".lvdash", ".json"]:
            yield from (f"dashboards.{key}: {text}" for text in dashboard_complaints(dashboard(Path(path))))
        yield from _asks(f"dashboards.{key}", deployed, config)
    for key, alert in config["resources"].get("alerts", {}).items():
        yield from _asks(f"alerts.{key}", alert, config)
        yield from (f"alerts.{key}: {text}" for text in _alert(alert, config))


def _asks(name: str, deployed: Config, config: Config) -> Iterator[str]:
    if not resolved(deployed.get("warehouse_id") or "", config["values"]):
        yield f"{name}: has no warehouse"


def _alert(alert: Config, config: Config) -> Iterator[str]:
    schedule = alert["schedule"]
    if found := mistake(resolved(schedule["quartz_cron_schedule"], config["values"])):
        yield f"bad cron: {found}"
    if schedule["timezone_id"] != "UTC":
        yield "time zone is not UTC"
    if resolved(schedule.get("pause_status", ""), config["values"]) not in ("PAUSED", "UNPAUSED"):
        yield "does not say whether it looks at all"
    schemas = set(_SCHEMA.findall(alert["query_text"]))
    if not schemas or not schemas <= _control_schemas(config):
        yield f"asks {sorted(schemas)}, no control schema"
    query = re.sub(r"`[^`]*`\.`\$\{resources[^`]*`\.", "", resolved(alert["query_text"], config["values"]))
    source = alert["evaluation"]["source"]["name"]
    try:
        columns = columns_of(query, control_columns())
    except Unsound as error:
        yield str(error)
        return
    if source not in columns:
        yield f"compares {source}, which its query has not"
    told = alert["evaluation"]["notification"].get("subscriptions", [])
    if resolved("${var.notify}", config["values"]) and not told:
        yield "tells nobody"
