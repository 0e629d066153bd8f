"""What the bundle deploys for each captured database, called by ``databricks bundle`` (see databricks.yml).

A file under ``pipelines/`` is all it takes: three schemas, a staging volume, jobs for capture, upkeep and
maintenance, and one for silver if that has a schedule of its own. What these look like stands in YAML:
``per_pipeline/`` has one resource a file, ``parts/`` what jobs share. What there is one of for all stands
beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from databricks.bundles.core import Bundle, Location, Resources
from databricks.bundles.jobs import Job
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from cdc_lib.errors import FixConfiguration
from resources.captured import Captured, key_of, pipeline_files, read_captured
from resources.templates import FOLDER, filled, joined, read, without_nobody

PIPELINES = FOLDER.parent / "pipelines"
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
    for path in pipeline_files(PIPELINES):
        try:
            _Deployment(read_captured(path), bundle, resources).add()
        except FixConfiguration as error:
            resources.add_diagnostic_error(
                error.what, detail=f"{error.why}. To do: {error.remedy}", location=_location(path)
            )
    return resources


class _Deployment:
    """The resources of one captured database."""

    def __init__(self, captured: Captured, bundle: Bundle, resources: Resources) -> None:
        self._captured = captured
        self._bundle = bundle
        self._resources = resources
        self._key = key_of(captured.name)
        self._apart = self._is_in("separate_silver")
        self._names = {
            "name": captured.name,
            "file": captured.file.name,
            "engine": captured.engine,
            "catalog": captured.catalog or "${var.catalog}",
            "verb": "capture" if self._apart else "run",
            **captured.schemas,
            **{f"{layer}_key": key_of(schema) for layer, schema in captured.schemas.items()},
        }

    def add(self) -> None:
        """Put all of them into the bundle.

        :raises FixConfiguration: another pipeline has the same name, or a schema of it.
        """
        self._refuse_twins()
        for layer, schema in self._captured.schemas.items():
            content, location = self._content(f"{layer}.schema.yml")
            self._resources.add_schema(key_of(schema), Schema.from_dict(content), location=location)
        content, location = self._content("staging.volume.yml")
        key = f"{self._names['control_key']}_staging"
        self._resources.add_volume(key, Volume.from_dict(content), location=location)
        for verb in ("capture", "upkeep", "maintain", *(("apply",) if self._apart else ())):
            content, location = self._content(f"{verb}.job.yml", self._parts())
            self._resources.add_job(f"{self._key}_{verb}", Job.from_dict(content), location=location)

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

    def _content(self, name: str, parts: Mapping[str, Any] | None = None) -> tuple[Any, Location]:
        path = FOLDER / "per_pipeline" / name
        content = read(f"per_pipeline/{name}")
        if parts:
            tasks = [joined(parts["task"], task) for task in content.pop("tasks")]
            content = {**joined(parts["job"], content), "tasks": tasks}
        if self._bundle.target == "dev":
            # A developer's copy may go; elsewhere, who destroys data has to say so in the file.
            content.pop("lifecycle", None)
        content = without_nobody(filled(content, self._names), self._bundle.variables)
        return content, _location(path)

    def _parts(self) -> Mapping[str, Any]:
        every = read("parts/every_job.yml")
        if not self._is_in("on_cluster"):
            return _mapping(joined(every, read("parts/serverless.yml")))
        packages = [{"pypi": {"package": name}} for name in extras(self._captured.engine, "databricks")]
        return _mapping(joined(joined(every, read("parts/cluster.yml")), {"task": {"libraries": packages}}))

    def _is_in(self, variable: str) -> bool:
        """Whether a variable that lists pipelines lists this one."""
        words = str(self._bundle.variables.get(variable) or "").replace(",", " ").split()
        return "*" in words or self._captured.name in words


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
