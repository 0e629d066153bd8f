"""Dashboards and alerts are right, and each mistake planted into them is found."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.bundle.checks import strict
from tests.bundle.dashboards import dashboard_complaints, monitoring, widgets
from tests.bundle.merged import bundle_for
from tests.bundle.queries import dashboard
from tests.bundle.test_bundle import FILLED

Config = dict[str, Any]


@pytest.fixture(scope="module")
def shown() -> Config:
    return dashboard()


@pytest.fixture(scope="module")
def deployed() -> Config:
    config = bundle_for("prod", **FILLED, warehouse_id="4b9b")
    # The dashboard's own content has tests of its own, and takes time.
    config["resources"]["dashboards"]["shop_monitoring"]["file_path"] = "databricks.yml"
    return config


def widget(content: Config, name: str) -> Any:
    return next(each for each in widgets(content) if each["name"] == name)


def asked(content: Config, name: str) -> Any:
    return widget(content, name)["queries"][0]["query"]


def place(content: Config, name: str) -> Any:
    places = (place for page in content["pages"] for place in page["layout"])
    return next(place["position"] for place in places if place["widget"]["name"] == name)


def query(content: Config, name: str, old: str, new: str) -> None:
    dataset = next(each for each in content["datasets"] if each["name"] == name)
    text = "".join(dataset["queryLines"])
    assert old in text
    dataset["queryLines"] = [text.replace(old, new)]


def column(content: Config) -> Any:
    return widget(content, "tables_list")["spec"]["encodings"]["columns"][0]


IN_A_DASHBOARD: dict[str, tuple[Callable[[Config], object], str]] = {
    "unknown column of a widget": (
        lambda c: asked(c, "lag")["fields"][0].update(expression="MAX(`lag_seconds`)"),
        "widget lag: dataset overview has no column lag_seconds",
    ),
    "column that is drawn and not asked for": (
        lambda c: column(c).update(fieldName="tabel"),
        "draws tabel, which it does not ask for",
    ),
    "unknown dataset": (lambda c: asked(c, "delay").update(datasetName="delay"), "there is no dataset delay"),
    "two datasets of one name": (
        lambda c: c["datasets"][1].update(name="overview"),
        "two datasets are called overview",
    ),
    "dataset that nobody shows": (
        lambda c: c["datasets"].append({"name": "more", "queryLines": ["SELECT batch FROM batches"]}),
        "dataset more is not shown",
    ),
    "unknown control table": (
        lambda c: query(c, "incidents", "FROM incidents", "FROM incident"),
        "there is no control table incident",
    ),
    "unknown column of a control table": (
        lambda c: query(c, "delays", "committed_at >=", "commited_at >="),
        "dataset delays: Column 'commited_at' could not be resolved",
    ),
    "query that is no SQL": (lambda c: query(c, "states", "SELECT", "SELECT FROM"), "dataset states:"),
    "parameter that does not exist": (
        lambda c: query(c, "delays", "30 DAYS", "30 DAYS AND batch > :first"),
        "parameter first does not exist",
    ),
    "parameter that is not used": (
        lambda c: c["datasets"][0].update(parameters=[{"keyword": "days", "dataType": "NUMBER"}]),
        "parameter days is not used",
    ),
    "filter on a parameter that does not exist": (
        lambda c: asked(c, "pipeline").update(parameters=[{"name": "days", "keyword": "days"}]),
        "parameter days does not exist",
    ),
    "filter of a query that it has not": (
        lambda c: widget(c, "time")["spec"]["encodings"]["fields"][0].update(queryName="time_rows"),
        "has no query time_rows",
    ),
    "widgets that overlap": (
        lambda c: place(c, "since_success").update(x=2),
        "lag and since_success overlap",
    ),
    "widget outside of the grid": (lambda c: place(c, "headroom").update(x=10), "not within the 12 columns"),
    "unknown kind of widget": (
        lambda c: widget(c, "delay")["spec"].update(widgetType="lines"),
        "lines has no version 3",
    ),
    "version of another kind": (
        lambda c: widget(c, "lag")["spec"].update(version=3),
        "counter has no version 3",
    ),
    "rows one by one, added up": (
        lambda c: asked(c, "lag").update(disaggregated=True),
        "adds up max(lag_minutes), but shows rows one by one",
    ),
    "two widgets of one name": (
        lambda c: widget(c, "delay").update(name="kept"),
        "two of kind widget are called kept",
    ),
    "unknown type of a page": (lambda c: c["pages"][0].update(pageType="PAGE"), "unknown type PAGE"),
    "widget that shows nothing": (
        lambda c: widget(c, "tables_title").pop("multilineTextboxSpec"),
        "widget tables_title: shows nothing",
    ),
}


def alert(config: Config, name: str) -> Any:
    return config["resources"]["alerts"][f"shop_{name}"]


def asks(config: Config, name: str, old: str, new: str) -> None:
    assert old in alert(config, name)["query_text"]
    alert(config, name)["query_text"] = alert(config, name)["query_text"].replace(old, new)


IN_THE_BUNDLE: dict[str, tuple[Callable[[Config], object], str]] = {
    "no file": (
        lambda c: c["resources"]["dashboards"]["shop_monitoring"].update(file_path="resources/x.lvdash.json"),
        "there is no resources/x.lvdash.json",
    ),
    "no warehouse": (lambda c: c["values"].update(warehouse_id=""), "alerts.shop_lag: has no warehouse"),
    "unknown field of a dashboard": (
        lambda c: c["resources"]["dashboards"]["shop_monitoring"].update(catalog="main"),
        "catalog",
    ),
    "unknown operator": (
        lambda c: alert(c, "lag")["evaluation"].update(comparison_operator="ABOVE"),
        "ABOVE",
    ),
    "column that the query has not": (
        lambda c: alert(c, "lag")["evaluation"]["source"].update(name="lag"),
        "alerts.shop_lag: compares lag, which its query has not",
    ),
    "unknown column": (lambda c: asks(c, "errored", "reason <> ''", "error <> ''"), "Column 'error'"),
    "unknown table": (lambda c: asks(c, "retention", ".runs", ".run"), "there is no control table run"),
    "another schema": (
        lambda c: asks(c, "silence", "schemas.shop_cdc.", "schemas.shop_bronze."),
        "shop_bronze",
    ),
    "bad cron": (lambda c: c["values"].update(alert_schedule="5 * * * ?"), "bad cron"),
    "another time zone": (lambda c: alert(c, "lag")["schedule"].update(timezone_id="CET"), "not UTC"),
    "neither paused nor not": (lambda c: c["values"].update(alert_pause="NO"), "whether it looks at all"),
    "tells nobody": (
        lambda c: alert(c, "lag")["evaluation"]["notification"].pop("subscriptions"),
        "alerts.shop_lag: tells nobody",
    ),
}


def test_the_dashboard_has_nothing_to_complain_about(shown: Config) -> None:
    assert list(dashboard_complaints(shown)) == []


@pytest.mark.parametrize("name", IN_A_DASHBOARD)
def test_a_mistake_in_a_dashboard_is_found(name: str, shown: Config) -> None:
    plant, said = IN_A_DASHBOARD[name]
    content = deepcopy(shown)
    plant(content)
    assert content != shown, "the mistake was not made"
    found = list(dashboard_complaints(content))
    assert any(said in complaint for complaint in found), found


@pytest.mark.parametrize("name", IN_THE_BUNDLE)
def test_a_mistake_in_the_bundles_monitoring_is_found(name: str, deployed: Config) -> None:
    plant, said = IN_THE_BUNDLE[name]
    assert [*strict(deployed), *monitoring(deployed)] == []
    config = deepcopy(deployed)
    plant(config)
    assert config != deployed, "the mistake was not made"
    found = [*strict(config), *monitoring(config)]
    assert any(said in complaint for complaint in found), found
