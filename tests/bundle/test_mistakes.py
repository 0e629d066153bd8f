"""The checks bite: each mistake below is planted into a bundle that is right, and must be found, alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.bundle.built import Wheel
from tests.bundle.checks import complaints
from tests.bundle.merged import bundle_for
from tests.bundle.test_bundle import FILLED

Config = dict[str, Any]


@pytest.fixture(scope="module")
def right() -> Config:
    return bundle_for("prod", **FILLED, separate_silver="shop")


def job(config: Config) -> Any:
    return config["resources"]["jobs"]["shop_capture"]


def task(config: Config) -> Any:
    return job(config)["tasks"][0]


def words(config: Config) -> list[str]:
    found: list[str] = task(config)["python_wheel_task"]["parameters"]
    return found


def schema(config: Config) -> Any:
    return config["resources"]["schemas"]["shop"]


def scope(config: Config) -> Any:
    return config["resources"]["secret_scopes"]["cdc"]


def parameter(config: Config, name: str, default: str) -> None:
    next(item for item in job(config)["parameters"] if item["name"] == name)["default"] = default


MISTAKES: dict[str, tuple[Callable[[Config], object], str]] = {
    "unknown field of a job": (lambda c: job(c).update(max_concurent_runs=1), "max_concurent_runs"),
    "unknown field of a task": (lambda c: task(c).update(retries=3), "retries"),
    "unknown field of a schema": (lambda c: schema(c).update(catalog="main"), "catalog"),
    "field that is missing": (lambda c: schema(c).pop("name"), "name"),
    "wrong type": (lambda c: job(c).update(timeout_seconds="never"), "'never'"),
    "wrong performance target": (lambda c: job(c).update(performance_target="FAST"), "FAST"),
    "wrong privilege": (lambda c: schema(c)["grants"][0].update(privileges=["READ"]), "READ"),
    "wrong health metric": (lambda c: job(c)["health"]["rules"][0].update(metric="LAG"), "LAG"),
    "wrong volume type": (
        lambda c: c["resources"]["volumes"]["shop_cdc_staging"].update(volume_type="TEMPORARY"),
        "TEMPORARY",
    ),
    "wrong permission on the scope": (
        lambda c: scope(c).update(permissions=[{"group_name": "x", "level": "VIEW"}]),
        "VIEW",
    ),
    "permission that stands in two places": (
        lambda c: scope(c).update(permissions=[{"group_name": "cdc-operators", "level": "WRITE"}]),
        "cdc-operators has a permission of the bundle already",
    ),
    "the runner may not read secrets": (lambda c: c["permissions"].pop(), "b5a2 runs the jobs without"),
    "wrong level of the bundle": (lambda c: c["permissions"][0].update(level="CAN_DO"), "CAN_DO"),
    "unknown key at the top": (lambda c: c.update(resource={}), "unknown key resource"),
    "unknown preset": (lambda c: c["presets"].update(prefix="x"), "unknown key prefix"),
    "unknown kind of resource": (lambda c: c["resources"].update(job={}), "unknown kind job"),
    "variable that is not declared": (lambda c: c["variables"].pop("catalog"), "${var.catalog}"),
    "variable that nobody uses": (
        lambda c: c["variables"].update(region={"description": "x", "default": "y"}),
        "variable region is not used",
    ),
    "variable without a default": (
        lambda c: c["variables"]["catalog"].pop("default"),
        "catalog has no default",
    ),
    "target sets no variable": (lambda c: c["target_variables"].update(catalogue="x"), "catalogue"),
    "resource that does not exist": (
        lambda c: parameter(c, "bronze", "${resources.schemas.shop_bronz.name}"),
        "shop_bronz.name",
    ),
    "field that a resource has not": (
        lambda c: parameter(c, "silver", "${resources.schemas.shop.full}"),
        "schemas.shop.full",
    ),
    "reference that is not closed": (lambda c: job(c).update(name="cdc ${var.catalog"), "not closed"),
    "workspace has no such field": (
        lambda c: parameter(c, "pipeline", "${workspace.files}/pipelines/shop.yml"),
        "${workspace.files}",
    ),
    "job parameter that is missing": (
        lambda c: job(c)["parameters"].pop(),
        "no parameter behind job.parameters.command",
    ),
    "job parameter that nobody uses": (
        lambda c: job(c)["parameters"].append({"name": "mode", "default": "x"}),
        "parameter mode is not used",
    ),
    "two runs at once": (lambda c: job(c).update(max_concurrent_runs=2), "max_concurrent_runs must be 1"),
    "no queue": (lambda c: job(c).pop("queue"), "is not queued"),
    "no timeout": (lambda c: job(c).pop("timeout_seconds"), "has no timeout"),
    "no health rule": (lambda c: job(c).pop("health"), "has no health rule"),
    "no tags": (lambda c: job(c)["tags"].pop("pipeline"), "lacks tags"),
    "nobody hears of failures": (lambda c: job(c).pop("email_notifications"), "tells nobody"),
    "cron with five fields": (lambda c: c["values"].update(capture_schedule="0/15 * * * ?"), "got 5"),
    "cron with both days": (
        lambda c: c["values"].update(apply_schedule="0 7 * * * *"),
        "day of week must be ?",
    ),
    "cron with minute 60": (
        lambda c: c["values"].update(capture_schedule="0 60 * * * ?"),
        "60 is not possible",
    ),
    "another time zone": (lambda c: job(c)["schedule"].update(timezone_id="Europe/Berlin"), "not UTC"),
    "environment that the job has not": (lambda c: task(c).update(environment_key="default"), "runs on"),
    "nowhere to run": (lambda c: task(c).pop("environment_key"), "runs on nothing"),
    "waits for nobody": (
        lambda c: task(c).update(depends_on=[{"task_key": "check"}]),
        "waits for check",
    ),
    "retries by the platform": (lambda c: task(c).update(max_retries=3), "would be retried"),
    "retries by serverless": (lambda c: task(c).pop("disable_auto_optimization"), "would be retried"),
    "granted to nobody": (lambda c: c["values"].update(analysts=""), "granted to nobody"),
    "the runner may not write": (lambda c: schema(c)["grants"].pop(0), "whom the jobs run as"),
    "unknown command": (lambda c: parameter(c, "command", "ingest"), "No such command"),
    "command that reads no pipeline": (lambda c: parameter(c, "command", "demo"), "extra argument"),
    "unknown option": (lambda c: words(c).insert(0, "--scope=x"), "No such option"),
    "option of another command": (lambda c: words(c).append("--continuous"), "No such option"),
    "a word too many": (lambda c: words(c).append("public.orders"), "extra argument"),
    "pipeline file that does not exist": (
        lambda c: parameter(c, "pipeline", "${workspace.file_path}/pipelines/shopp.yml"),
        "there is no",
    ),
    "pipeline file that is not synced": (lambda c: c["sync"]["exclude"].append("pipelines/**"), "not synced"),
    "secret scope that is not deployed": (
        lambda c: parameter(c, "secrets", "cdc"),
        "secret scope cdc is none",
    ),
    "target without a volume": (
        lambda c: (words(c).pop(5), job(c)["parameters"].pop(6)),
        "its target has ['bronze', 'catalog', 'control', 'silver']",
    ),
    "target with one schema twice": (
        lambda c: parameter(c, "silver", "${resources.schemas.shop_bronze.name}"),
        "must be three different names",
    ),
    "entry point that the wheel has not": (
        lambda c: task(c)["python_wheel_task"].update(entry_point="main"),
        "no entry point main",
    ),
    "another package": (
        lambda c: task(c)["python_wheel_task"].update(package_name="cdc"),
        "not called cdc",
    ),
    "wheel in another folder": (
        lambda c: job(c)["environments"][0]["spec"].update(
            dependencies=["build/*.whl[postgresql,databricks]"]
        ),
        "no artifact is built into build",
    ),
    "extra that the wheel has not": (
        lambda c: job(c)["environments"][0]["spec"].update(dependencies=["dist/*.whl[postgres,databricks]"]),
        "no extras ['postgres']",
    ),
    "no driver": (
        lambda c: job(c)["environments"][0]["spec"].update(dependencies=["dist/*.whl"]),
        "psycopg2",
    ),
    "no wheel": (
        lambda c: job(c)["environments"][0]["spec"].update(dependencies=[]),
        "does not install the wheel",
    ),
    "function that does not exist": (
        lambda c: c["python"].update(resources=["resources:load"]),
        "there is no resources:load",
    ),
    "venv that is not the one that builds": (
        lambda c: c["python"].update(venv_path="venv"),
        "not built by venv",
    ),
    "include that matches nothing": (lambda c: c["include"].append("jobs/*.yml"), "matches nothing"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str, right: Config, wheel: Wheel) -> None:
    plant, said = MISTAKES[name]
    config = deepcopy(right)
    plant(config)
    assert config != right, "the mistake was not made"
    found = complaints(config, wheel)
    assert any(said in complaint for complaint in found), found


def loop(config: Config) -> Any:
    return config["resources"]["jobs"]["many_postgresql_capture"]["tasks"][0]["for_each_task"]


def rename(config: Config, old: str, new: str) -> None:
    loop(config)["inputs"] = loop(config)["inputs"].replace(f'"{old}"', f'"{new}"')


LOOP_MISTAKES: dict[str, tuple[Callable[[Config], object], str]] = {
    "inputs that are no list": (lambda c: loop(c).update(inputs="shop"), "no list"),
    "no inputs": (lambda c: loop(c).update(inputs="[]"), "an empty one"),
    "inputs that are too long": (
        lambda c: loop(c).update(inputs=json.dumps(json.loads(loop(c)["inputs"]) * 30)),
        "longer than 5000",
    ),
    "input that is not there": (lambda c: rename(c, "bronze", "brnze"), "nothing behind {{input.bronze}}"),
    "input that nobody uses": (lambda c: rename(c, "bronze", "brnze"), "input brnze is not used"),
    "file of an input that does not exist": (lambda c: rename(c, "shop.yml", "shp.yml"), "there is no"),
    "unknown field of a loop": (lambda c: loop(c).update(parallel=3), "parallel"),
    "unknown verb in a loop": (lambda c: rename(c, "run", "sync"), "cdc does not take"),
    "retries inside a loop": (lambda c: loop(c)["task"].update(max_retries=2), "would be retried"),
}


@pytest.mark.parametrize("name", LOOP_MISTAKES)
def test_a_planted_mistake_in_a_loop_is_found(name: str, wheel: Wheel) -> None:
    plant, said = LOOP_MISTAKES[name]
    config = bundle_for("dev", fan_out="shop")
    assert complaints(config, wheel) == []
    plant(config)
    assert any(said in complaint for complaint in complaints(config, wheel))


def test_without_a_mistake_there_is_no_complaint(right: Config, wheel: Wheel) -> None:
    assert complaints(right, wheel) == []


def test_a_mistake_in_a_template_stops_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates go through the same classes while they are loaded, before the CLI sees them."""
    import resources
    from resources import templates

    def read(name: str) -> Any:
        content = templates.read(name)
        return {**content, "grnats": []} if name.endswith("bronze.schema.yml") else content

    monkeypatch.setattr(resources, "read", read)
    with pytest.raises(ValueError, match="grnats"):
        bundle_for("dev")


def test_a_name_that_templates_do_not_have_stops_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    import resources

    monkeypatch.setattr(resources, "read", lambda name: {"name": "${pipeline.nmae}"})
    with pytest.raises(KeyError, match="nmae"):
        bundle_for("dev")
