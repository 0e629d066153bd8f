"""What the bundle deploys for each captured database, called by ``databricks bundle`` (see databricks.yml).

A file under ``pipelines/`` is all it takes: three schemas, a staging volume, jobs for capture, upkeep and
maintenance, and for silver, if that is apart, a job with a schedule of its own or a declarative pipeline;
with a warehouse, a dashboard and alerts. What these look like stands in YAML: ``per_pipeline/`` has one
resource a file, ``parts/`` what jobs or alerts share. What there is one of for all stands beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from databricks.bundles.alerts import Alert
from databricks.bundles.core import Bundle, Location, Resources
from databricks.bundles.dashboards import Dashboard
from databricks.bundles.jobs import Job
from databricks.bundles.pipelines import Pipeline
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from cdc_lib.errors import FixConfiguration
from resources.captured import Captured, key_of, pipeline_files, read_captured
from resources.fan_out import FanOut
from resources.templates import FOLDER, filled, joined, read, without_nobody

WRITES_SILVER = frozenset({"run", "apply", "reconcile"})
"""Commands that have no place where a declarative pipeline keeps silver."""
PIPELINES = FOLDER.parent / "pipelines"
ALERTS = ("lag", "silence", "errored", "retention", "structure")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "staging": ("operators",),
    "prod": ("operators", "service_principal"),
}
"""Variables without which a target would deploy something that nobody may touch."""


def load_resources(bundle: Bundle) -> Resources:
    """The resources of all pipeline files; mistakes in them are reported with the file they are in."""
    resources = Resources()
    for name in NEEDED.get(bundle.target, ()):
        if not bundle.variables.get(name):
            resources.add_diagnostic_error(
                f"variable {name} is empty", detail=f"target {bundle.target} needs it: --var {name}=..."
            )
    many: dict[str, FanOut] = {}
    for path in pipeline_files(PIPELINES):
        try:
            _Deployment(read_captured(path), bundle, resources, many).add()
        except FixConfiguration as error:
            resources.add_diagnostic_error(
                error.what, detail=f"{error.why}. To do: {error.remedy}", location=_location(path)
            )
    for engine, fan_out in many.items():
        content = without_nobody(fan_out.job(), bundle.variables)
        place = _location(FOLDER / "fan_out" / "capture.job.yml")
        resources.add_job(f"many_{engine}_capture", Job.from_dict(content), location=place)
    return resources


class _Deployment:
    """The resources of one captured database."""

    def __init__(
        self, captured: Captured, bundle: Bundle, resources: Resources, many: dict[str, FanOut]
    ) -> None:
        self._captured = captured
        self._bundle = bundle
        self._resources = resources
        self._many = many
        self._key = key_of(captured.name)
        self._apart = self._is_in("separate_silver")
        self._declared = self._is_in("declarative_silver") or captured.declarative
        self._names = {
            "name": captured.name,
            "key": self._key,
            "file": captured.file.name,
            "engine": captured.engine,
            "catalog": captured.catalog or "${var.catalog}",
            "verb": "capture" if self._apart or self._declared else "run",
            **captured.schemas,
            **{f"{layer}_key": key_of(schema) for layer, schema in captured.schemas.items()},
        }

    def add(self) -> None:
        """Put all of them into the bundle.

        :raises FixConfiguration: another pipeline has the same name, or a schema of it, or its variables
            contradict each other.
        """
        self._refuse_twins()
        self._refuse_contradictions()
        for layer, schema in self._captured.schemas.items():
            content, location = self._content(f"{layer}.schema.yml")
            self._resources.add_schema(key_of(schema), Schema.from_dict(content), location=location)
        content, location = self._content("staging.volume.yml")
        key = f"{self._names['control_key']}_staging"
        self._resources.add_volume(key, Volume.from_dict(content), location=location)
        if shared := self._is_in("fan_out"):
            self._fan_out()
        own = () if shared else ("capture",)
        for verb in (*own, "upkeep", "maintain", *(("apply",) if self._apart else ())):
            content, location = self._content(f"{verb}.job.yml", self._parts())
            self._resources.add_job(f"{self._key}_{verb}", Job.from_dict(content), location=location)
        if self._declared:
            content, location = self._content("silver.pipeline.yml")
            pipeline = Pipeline.from_dict(content)
            self._resources.add_pipeline(f"{self._key}_silver", pipeline, location=location)
        if self._bundle.variables.get("warehouse_id"):
            self._add_monitoring()

    def _add_monitoring(self) -> None:
        """What asks the control tables by SQL, for which there must be a warehouse."""
        content, location = self._content("monitoring.dashboard.yml")
        dashboard = Dashboard.from_dict(content)
        self._resources.add_dashboard(f"{self._key}_monitoring", dashboard, location=location)
        for name in ALERTS:
            if self._declared and name == "structure":
                continue  # It asks what a merge applied.
            content, location = self._content(f"{name}.alert.yml", base=read("parts/every_alert.yml"))
            self._resources.add_alert(f"{self._key}_{name}", Alert.from_dict(content), location=location)

    def _fan_out(self) -> None:
        parts, engine = filled(self._parts(), self._names), self._captured.engine
        fan_out = self._many.setdefault(engine, FanOut(engine, self._parts()))
        fan_out.add(self._captured.file.name, self._names["verb"], parts)

    def _refuse_twins(self) -> None:
        taken = {f"{self._key}_capture"} & self._resources.jobs.keys()
        taken |= {
            key_of(schema) for schema in self._captured.schemas.values()
        } & self._resources.schemas.keys()
        if taken:
            raise FixConfiguration(
                f"{self._captured.file} cannot be deployed",
                why=f"another pipeline has {', '.join(sorted(taken))} already",
                remedy="give each pipeline a name and schemas of its own",
            )

    def _refuse_contradictions(self) -> None:
        shared, on_cluster = self._is_in("fan_out"), self._is_in("on_cluster")
        contradictions = (
            (
                self._apart and self._declared,
                "its silver is to have a job of its own, and to be a declarative pipeline",
                "leave it out of one of separate_silver and declarative_silver",
            ),
            (
                shared and on_cluster,
                "it is in fan_out and in on_cluster, and runs that share a job would share one machine",
                "take it out of one of these variables",
            ),
            (
                shared and self._declared,
                "it is in fan_out, and a job that many share starts no update of a declarative pipeline",
                "take it out of fan_out, or let the merge keep its silver",
            ),
            (
                self._captured.on_executors and not on_cluster,
                "run.snapshot_on is executors, and on serverless compute these have no network",
                f"--var on_cluster={self._captured.name}, with --var workers=N, or leave it at driver",
            ),
        )
        for wrong, why, remedy in contradictions:
            if wrong:
                raise FixConfiguration(f"{self._captured.file} cannot be deployed", why=why, remedy=remedy)

    def _content(
        self, name: str, parts: Mapping[str, Any] | None = None, base: Mapping[str, Any] | None = None
    ) -> tuple[Any, Location]:
        path = FOLDER / "per_pipeline" / name
        content = joined(base or {}, read(f"per_pipeline/{name}"))
        if parts:
            tasks = [joined(parts["task"], task) for task in self._tasks(content.pop("tasks"))]
            if self._declared and name == "capture.job.yml":
                tasks.append(read("parts/declarative.yml"))
            content = {**joined(parts["job"], content), "tasks": tasks}
        if self._bundle.target == "dev":
            # A developer's copy may go; elsewhere, who destroys data has to say so in the file.
            content.pop("lifecycle", None)
        content = without_nobody(filled(content, self._names), self._bundle.variables)
        return content, _location(path)

    def _tasks(self, tasks: list[Any]) -> list[Any]:
        """The tasks of a job, without those that would write to what a declarative pipeline keeps."""
        if not self._declared:
            return tasks
        return [task for task in tasks if task["python_wheel_task"]["parameters"][0] not in WRITES_SILVER]

    def _parts(self) -> Mapping[str, Any]:
        every = read("parts/every_job.yml")
        if self._declared:
            # The file may say otherwise, for those who run it elsewhere.
            every = joined(every, {"task": {"python_wheel_task": {"parameters": ["--apply=declarative"]}}})
        if not self._is_in("on_cluster"):
            return _mapping(joined(every, read("parts/serverless.yml")))
        packages = [{"pypi": {"package": name}} for name in extras(self._captured.engine, "databricks")]
        cluster = read("parts/cluster.yml")
        if str(self._bundle.variables.get("workers") or 0) != "0":
            for each in cluster["job"]["job_clusters"]:
                del each["new_cluster"]["is_single_node"]
                each["new_cluster"]["num_workers"] = "${var.workers}"
        return _mapping(joined(joined(every, cluster), {"task": {"libraries": packages}}))

    def _is_in(self, variable: str) -> bool:
        """Whether a variable that lists pipelines lists this one."""
        words = str(self._bundle.variables.get(variable) or "").replace(",", " ").split()
        return any(fnmatchcase(self._captured.name, word) for word in words)


def extras(*names: str) -> list[str]:
    """What these extras of the package stand for, as pip takes it."""
    found = []
    for requirement in requires("cdc-lib") or []:
        package, _, marker = requirement.partition(";")
        if any(marker.strip() in (f'extra == "{name}"', f"extra == '{name}'") for name in names):
            found.append(package.strip())
    return found


def _mapping(content: Any) -> Mapping[str, Any]:
    assert isinstance(content, Mapping)
    return content


def _location(path: Path) -> Location:
    return Location(file=str(path), line=1, column=1)
