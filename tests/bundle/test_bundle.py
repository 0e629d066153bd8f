"""What is deployed, for each target and each choice, without a workspace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from databricks.bundles.core import Bundle

import resources
from cdc_lib.monitoring import attention
from tests.bundle.built import Wheel
from tests.bundle.checks import complaints, loops, texts
from tests.bundle.merged import ROOT, LoadError, bundle_for, databricks_yml, values_of

FILLED = {
    "operators": "cdc-operators",
    "service_principal": "b5a2",
    "notify": "a@example.com",
    "analysts": "all",
}
CHOICES = [
    {},
    {"separate_silver": "*"},
    {"on_cluster": "*"},
    {"separate_silver": "shop", "on_cluster": "shop"},
    {"fan_out": "*"},
    {"fan_out": "sh*", "separate_silver": "*"},
    {"warehouse_id": "4b9b953939869799"},
]

SECOND = """\
name: stock
source:
  connector.class: postgresql
  database.hostname: ${env:STOCK_HOST}
  database.user: cdc
  database.password: ${env:STOCK_PASSWORD}
  database.dbname: goods
target: {path: ./lake}
"""


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for pipeline files, used instead of the repository's."""
    monkeypatch.setattr(resources, "PIPELINES", tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["dev", "staging", "prod"])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_nothing_to_complain_about(target: str, choice: dict[str, str], wheel: Wheel) -> None:
    assert complaints(bundle_for(target, **FILLED, **choice), wheel) == []


def test_nothing_to_complain_about_when_nobody_is_named(wheel: Wheel) -> None:
    """The first deployment of a person who has set nothing."""
    config = bundle_for("dev")
    assert complaints(config, wheel) == []
    assert (
        config["resources"]["jobs"]["shop_capture"].get("email_notifications", {}).get("on_failure", []) == []
    )
    assert "${var.analysts}" not in set(texts(config["resources"]))


def test_what_a_pipeline_file_gives() -> None:
    found = {kind: set(kept) for kind, kept in bundle_for("dev")["resources"].items()}
    assert found == {
        "schemas": {"shop_bronze", "shop", "shop_cdc"},
        "volumes": {"shop_cdc_staging"},
        "secret_scopes": {"cdc"},
        "jobs": {"shop_capture", "shop_upkeep", "shop_maintain"},
    }


def test_with_a_warehouse_there_are_a_dashboard_and_alerts() -> None:
    config = bundle_for("prod", **FILLED, warehouse_id="4b9b")
    found = config["resources"]
    assert set(found["dashboards"]) == {"shop_monitoring"}
    assert set(found["alerts"]) == {f"shop_{name}" for name in resources.ALERTS}
    assert {alert["schedule"]["pause_status"] for alert in found["alerts"].values()} == {"${var.alert_pause}"}
    assert config["values"]["alert_pause"] == "UNPAUSED"
    assert bundle_for("dev", warehouse_id="4b9b")["values"]["alert_pause"] == "PAUSED"


def test_alerts_that_tell_nobody_are_deployed_all_the_same() -> None:
    alert = bundle_for("dev", warehouse_id="4b9b")["resources"]["alerts"]["shop_lag"]
    assert alert["evaluation"]["notification"].get("subscriptions", []) == []


def test_the_page_on_a_laptop_has_the_limits_of_the_alerts() -> None:
    defaults: dict[str, Any] = dict(values_of({**databricks_yml(), "target_variables": {}}, {}))
    assert (
        defaults["alert_lag_minutes"],
        defaults["alert_silence_minutes"],
        defaults["alert_retention_percent"],
        defaults["alert_retained_gib"],
    ) == (
        attention.LAG_MINUTES,
        attention.SILENCE_MINUTES,
        attention.RETENTION_PERCENT,
        attention.RETAINED_GIB,
    )


def verbs(config: dict[str, object]) -> dict[str, str]:
    jobs = config["resources"]["jobs"]  # type: ignore[index]
    found = {}
    for key, job in jobs.items():
        given = {f"{{{{job.parameters.{item['name']}}}}}": item["default"] for item in job["parameters"]}
        for task in job["tasks"]:
            word = task["python_wheel_task"]["parameters"][-2]
            found[f"{key}.{task['task_key']}"] = given.get(word, word)
    return found


def test_silver_is_made_by_the_run_or_by_a_job_of_its_own() -> None:
    upkeep = {"shop_upkeep.check": "check", "shop_upkeep.reconcile": "reconcile"}
    upkeep["shop_maintain.maintain"] = "maintain"
    assert verbs(bundle_for("dev")) == {"shop_capture.capture": "run", **upkeep}
    apart = {"shop_capture.capture": "capture", "shop_apply.apply": "apply", **upkeep}
    assert verbs(bundle_for("dev", separate_silver="stock, shop")) == apart


def test_serverless_or_a_cluster() -> None:
    serverless = bundle_for("dev")["resources"]["jobs"]["shop_capture"]
    assert serverless["environments"][0]["spec"]["dependencies"] == ["dist/*.whl[postgresql,databricks]"]
    assert "job_clusters" not in serverless
    cluster = bundle_for("dev", on_cluster="shop")["resources"]["jobs"]["shop_capture"]
    assert cluster["tasks"][0]["libraries"][0] == {"whl": "dist/*.whl"}
    assert any("psycopg2" in str(library) for library in cluster["tasks"][0]["libraries"])
    assert "environments" not in cluster


def test_a_cluster_with_workers_for_snapshots_on_executors(wheel: Wheel) -> None:
    alone, several = (
        config["resources"]["jobs"]["shop_capture"]["job_clusters"][0]["new_cluster"]
        for config in (bundle_for("dev", on_cluster="*"), bundle_for("dev", on_cluster="*", workers="4"))
    )
    assert (alone.get("is_single_node"), alone.get("num_workers")) == (True, None)
    assert (several.get("is_single_node"), several.get("num_workers")) == (None, "${var.workers}")
    assert complaints(bundle_for("dev", on_cluster="*", workers="4"), wheel) == []


def test_executors_need_a_cluster(pipelines: Path) -> None:
    """On serverless compute they have no network (its documented limitations)."""
    (pipelines / "stock.yml").write_text(SECOND + "run: {snapshot_on: executors}\n")
    with pytest.raises(LoadError, match=r"these have no network.*on_cluster=stock"):
        bundle_for("dev")
    assert "stock_capture" in bundle_for("dev", on_cluster="stock", workers="4")["resources"]["jobs"]


def test_data_is_kept_elsewhere_than_in_a_developers_copy() -> None:
    def kept(target: str) -> set[bool]:
        schemas = bundle_for(target, **FILLED)["resources"]["schemas"].values()
        return {schema.get("lifecycle", {}).get("prevent_destroy", False) for schema in schemas}

    assert kept("dev") == {False}
    assert kept("staging") == kept("prod") == {True}


@pytest.mark.parametrize(("target", "missing"), [("staging", "operators"), ("prod", "service_principal")])
def test_a_target_says_what_it_needs(target: str, missing: str) -> None:
    with pytest.raises(LoadError, match=f"variable {missing} is empty.*--var {missing}="):
        bundle_for(target, **{**FILLED, missing: ""})


def test_another_database_is_one_more_file(pipelines: Path, wheel: Wheel) -> None:
    (pipelines / "shop.yml").write_text((ROOT / "pipelines" / "shop.yml").read_text())
    (pipelines / "stock.yaml").write_text(SECOND)
    config = bundle_for("dev")
    assert {"shop_capture", "stock_capture"} <= config["resources"]["jobs"].keys()
    assert {"stock_bronze", "stock", "stock_cdc"} <= config["resources"]["schemas"].keys()
    # All but the file's being in the repository's folder, from which the workspace gets it.
    assert [text for text in complaints(config, wheel) if "there is no" not in text] == []


def test_many_pipelines_share_a_job(pipelines: Path, wheel: Wheel) -> None:
    (pipelines / "shop.yml").write_text((ROOT / "pipelines" / "shop.yml").read_text())
    for number in range(30):
        name = f"tenant_with_a_long_name_{number:02}"
        (pipelines / f"{name}.yml").write_text(SECOND.replace("stock", name))
    config = bundle_for("dev", fan_out="tenant_*", separate_silver="*_07")
    found = config["resources"]["jobs"]
    assert not [key for key in found if key.startswith("tenant") and key.endswith("capture")]
    assert {"shop_capture", "many_postgresql_capture", "tenant_with_a_long_name_07_apply"} <= found.keys()
    inputs = [item for _, _, items in loops(config) for item in items]
    assert [item["file"] for item in inputs] == [f"tenant_with_a_long_name_{n:02}.yml" for n in range(30)]
    assert [item["command"] for item in inputs].count("capture") == 1
    assert inputs[3]["control"] == "${resources.schemas.tenant_with_a_long_name_03_cdc.name}"
    assert [text for text in complaints(config, wheel) if "there is no" not in text] == []


def test_runs_that_share_a_job_do_not_share_a_machine() -> None:
    with pytest.raises(LoadError, match="in fan_out and in on_cluster"):
        bundle_for("dev", fan_out="shop", on_cluster="shop")


def test_the_schemas_a_file_names_are_the_ones_deployed(pipelines: Path) -> None:
    named = "target: {catalog: ops, silver: Warehouse-1, staging: /Volumes/ops/x/y}"
    (pipelines / "stock.yml").write_text(SECOND.replace("target: {path: ./lake}", named))
    kept = bundle_for("dev")["resources"]["schemas"]
    assert {key: (schema["catalog_name"], schema["name"]) for key, schema in kept.items()} == {
        "stock_bronze": ("ops", "stock_bronze"),
        "warehouse_1": ("ops", "Warehouse-1"),
        "stock_cdc": ("ops", "stock_cdc"),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name: stock", "name: stock\nname: stock"), "given twice"),
        (("name: stock", ""), "neither name nor topic.prefix"),
        (("class: postgresql", "class: postgres9"), "no engine that can be captured"),
        (("name: stock", "name: ${env:NAME}"), "name is a reference"),
        (("name: stock", "name: [stock"), "stock.yml"),
        (("name: stock", "name: SHOP"), "another pipeline has"),
        (("{path: ./lake}", "{catalog: c, bronze: shop_cdc, staging: /x}"), "another pipeline has shop_cdc"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_pipeline_file_that_cannot_be_deployed(pipelines: Path, change: tuple[str, str], said: str) -> None:
    (pipelines / "shop.yml").write_text((ROOT / "pipelines" / "shop.yml").read_text())
    assert change[0] in SECOND
    (pipelines / "stock.yml").write_text(SECOND.replace(*change))
    with pytest.raises(LoadError, match=said):
        bundle_for("dev")


def test_the_cli_gets_the_same(tmp_path: Path) -> None:
    """The call that ``databricks bundle`` makes, with the configuration it would pass."""
    config = databricks_yml()
    values = values_of(config, {})
    given = {
        "bundle": {"name": "cdc", "target": "dev"},
        "python": config["python"],
        "resources": config["resources"],
        "variables": {name: {"value": value} for name, value in values.items()},
    }
    (tmp_path / "input.json").write_text(json.dumps(given))
    names = ("input", "output", "diagnostics", "locations")
    files = [word for name in names for word in (f"--{name}", str(tmp_path / f"{name}.json"))]
    command = [sys.executable, "-m", "databricks.bundles.build", "--phase", "load_resources", *files]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    assert (tmp_path / "diagnostics.json").read_text() == ""
    output = json.loads((tmp_path / "output.json").read_text())
    loaded = resources.load_resources(Bundle(target="dev", variables=values))
    assert output["resources"]["jobs"] == {key: job.as_dict() for key, job in loaded.jobs.items()}
    assert output["resources"]["secret_scopes"] == config["resources"]["secret_scopes"]
    places = [json.loads(line) for line in (tmp_path / "locations.json").read_text().splitlines()]
    assert "resources/per_pipeline/capture.job.yml" in {place["file"] for place in places}
