"""Silver as a declarative pipeline: what is deployed, and that mistakes in it are found."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import resources
from tests.bundle.built import Wheel
from tests.bundle.checks import complaints
from tests.bundle.merged import ROOT, LoadError, bundle_for
from tests.bundle.test_bundle import FILLED

Config = dict[str, Any]


@pytest.fixture(scope="module")
def right() -> Config:
    return bundle_for("prod", **FILLED, declarative_silver="shop")


@pytest.mark.parametrize("target", ["dev", "staging", "prod"])
@pytest.mark.parametrize("on_cluster", ["", "*"])
def test_nothing_to_complain_about(target: str, on_cluster: str, wheel: Wheel) -> None:
    config = bundle_for(target, **FILLED, declarative_silver="*", on_cluster=on_cluster)
    assert complaints(config, wheel) == []


def test_the_capture_job_starts_it_and_nothing_else_writes_to_silver(right: Config) -> None:
    jobs = right["resources"]["jobs"]
    assert jobs.keys() == {"shop_capture", "shop_maintain", "shop_upkeep"}
    assert [task["task_key"] for task in jobs["shop_capture"]["tasks"]] == ["capture", "silver"]
    assert next(item for item in jobs["shop_capture"]["parameters"] if item["name"] == "command") == {
        "name": "command",
        "default": "capture",
    }
    assert "reconcile" not in {task["task_key"] for task in jobs["shop_upkeep"]["tasks"]}


def test_without_the_variable_there_is_none() -> None:
    assert "pipelines" not in bundle_for("dev")["resources"]


def test_the_file_may_say_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "PIPELINES", tmp_path)
    text = (ROOT / "pipelines" / "shop.yml").read_text()
    assert "mode: merge" in text
    (tmp_path / "shop.yml").write_text(text.replace("mode: merge", "mode: declarative"))
    assert "shop_silver" in bundle_for("dev")["resources"]["pipelines"]


def test_silver_is_kept_in_one_way() -> None:
    with pytest.raises(LoadError, match=r"leave it out of one of separate_silver and declarative_silver"):
        bundle_for("dev", declarative_silver="shop", separate_silver="*")


def test_its_tables_are_kept_elsewhere_than_in_a_developers_copy(right: Config) -> None:
    assert pipeline(right)["lifecycle"] == {"prevent_destroy": True}
    assert "lifecycle" not in pipeline(bundle_for("dev", declarative_silver="*"))


def pipeline(config: Config) -> Any:
    return config["resources"]["pipelines"]["shop_silver"]


def settings(config: Config) -> dict[str, str]:
    found: dict[str, str] = pipeline(config)["configuration"]
    return found


def tasks(config: Config) -> list[Any]:
    found: list[Any] = config["resources"]["jobs"]["shop_capture"]["tasks"]
    return found


MISTAKES: dict[str, tuple[Callable[[Config], object], str]] = {
    "field that does not exist": (lambda c: pipeline(c).update(servrless=True), "servrless"),
    "not serverless": (lambda c: pipeline(c).update(serverless=False), "not serverless"),
    "continuous": (lambda c: pipeline(c).update(continuous=True), "would never end"),
    "development in prod": (lambda c: pipeline(c).update(development=True), "refused in prod"),
    "code in another folder": (
        lambda c: pipeline(c)["libraries"][0]["glob"].update(include="${workspace.file_path}/declarative/**"),
        "has no code",
    ),
    "code that is not synced": (
        lambda c: c["sync"]["exclude"].append("pipelines/declarative/**"),
        "declarative is not synced",
    ),
    "package that is not installed": (
        lambda c: pipeline(c)["environment"].update(dependencies=["cdc-lib"]),
        "does not install the package",
    ),
    "package that is not synced": (
        lambda c: c["sync"]["exclude"].append("cdc_lib/**"),
        "package is not synced",
    ),
    "pipeline file that does not exist": (
        lambda c: settings(c).update({"cdc.pipeline": "${workspace.file_path}/pipelines/shopp.yml"}),
        "there is no",
    ),
    "setting that is missing": (lambda c: settings(c).pop("cdc.control"), "its settings are"),
    "one schema twice": (
        lambda c: settings(c).update({"cdc.bronze": "${resources.schemas.shop.name}"}),
        "must be three different names",
    ),
    "another schema": (
        lambda c: pipeline(c).update(schema="${resources.schemas.shop_bronze.name}"),
        "publishes elsewhere",
    ),
    "schema that does not exist": (
        lambda c: pipeline(c).update(schema="${resources.schemas.shopp.name}"),
        "nothing stands behind",
    ),
    "nobody starts it": (lambda c: tasks(c).pop(), "started by 0 tasks"),
    "started at once": (lambda c: tasks(c)[1].pop("depends_on"), "before anything was captured"),
    "another pipeline is started": (
        lambda c: tasks(c)[1]["pipeline_task"].update(pipeline_id="${resources.pipelines.stock_silver.id}"),
        "nothing stands behind",
    ),
    "a task that knows nothing of it": (
        lambda c: tasks(c)[0]["python_wheel_task"]["parameters"].remove("--apply=declarative"),
        "does not say who keeps silver",
    ),
    "capture that merges": (
        lambda c: c["resources"]["jobs"]["shop_capture"]["parameters"][-1].update(default="run"),
        "also writes to silver by run",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str, right: Config, wheel: Wheel) -> None:
    plant, said = MISTAKES[name]
    config = deepcopy(right)
    plant(config)
    assert config != right, "the mistake was not made"
    found = complaints(config, wheel)
    assert any(said in complaint for complaint in found), found
