"""What must hold for declarative pipelines: that one finds its files, its tables, and who starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cdc_lib.config import load_layout
from cdc_lib.errors import FixConfiguration
from tests.bundle.merged import ROOT, resolved

Config = Mapping[str, Any]
SETTINGS = {"cdc.pipeline", "cdc.catalog", "cdc.bronze", "cdc.silver", "cdc.control"}
_KEEPS = {"run", "apply", "reconcile"}
_STARTED = re.compile(r"\$\{resources\.pipelines\.(\w+)\.id\}")


def declarative(config: Config) -> Iterator[str]:
    """Everything that is wrong with the bundle's declarative pipelines."""
    for key, pipeline in config["resources"].get("pipelines", {}).items():
        yield from (f"{key}: {text}" for text in _engine(pipeline))
        yield from (f"{key}: {text}" for text in _files(pipeline, config))
        yield from (f"{key}: {text}" for text in _tables(pipeline, config))
        yield from (f"{key}: {text}" for text in _one_keeper(key, pipeline, config))


def _engine(pipeline: Mapping[str, Any]) -> Iterator[str]:
    if not pipeline.get("serverless"):
        yield "is not serverless, and names no cluster"
    if pipeline.get("continuous"):
        yield "would never end, so neither would the job that starts it"
    if pipeline.get("development"):
        yield "development: true is refused in prod"


def _files(pipeline: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Its code, and the package that this imports, are synced."""
    for library in pipeline.get("libraries", []):
        pattern = _local(library["glob"]["include"])
        root = Path(pattern.removesuffix("/**"))
        if not [path for path in root.rglob("*.py") if path.is_file()]:
            yield f"{pattern} has no code"
        elif _excluded(root / "silver.py", config):
            yield f"{root.relative_to(ROOT)} is not synced to the workspace"
    wanted = pipeline.get("environment", {}).get("dependencies", [])
    folders = [line.removeprefix("--editable ") for line in wanted if line.startswith("--editable ")]
    if not any((Path(_local(folder)) / "pyproject.toml").is_file() for folder in folders):
        yield "does not install the package"
    if _excluded(ROOT / "cdc_lib" / "declarative" / "__init__.py", config):
        yield "the package is not synced to the workspace"


def _tables(pipeline: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Its settings name the pipeline file, and the schemas that were deployed for it."""
    given = pipeline.get("configuration", {})
    if given.keys() != SETTINGS:
        yield f"its settings are {sorted(given)}"
        return
    file = Path(_local(given["cdc.pipeline"]))
    if not file.is_file():
        yield f"there is no {file}"
        return
    if _excluded(file, config):
        yield f"{file.name} is not synced to the workspace"
    names = {name.removeprefix("cdc."): _named(text, config) for name, text in given.items()}
    names["staging"] = "/tmp"
    names.pop("pipeline")
    try:
        load_layout(file, target=names)
    except FixConfiguration as error:
        yield f"{file.name} does not hold with its schemas: {error.what}"
    if pipeline.get("schema") != given["cdc.silver"] or pipeline.get("catalog") != given["cdc.catalog"]:
        yield "publishes elsewhere than to silver"


def _one_keeper(key: str, pipeline: Mapping[str, Any], config: Config) -> Iterator[str]:
    """One task starts it, after a capture that leaves silver alone, and no other job writes to its tables."""
    jobs = config["resources"]["jobs"].values()
    mine = [job for job in jobs if job["tags"]["pipeline"] == pipeline.get("tags", {}).get("pipeline")]
    starts = [task for job in mine for task in job["tasks"] if _starts(task, key)]
    if len(starts) != 1:
        yield f"is started by {len(starts)} tasks"
    if any(not task.get("depends_on") for task in starts):
        yield "is started before anything was captured"
    for job in mine:
        yield from (f"{job['name']} does not say who keeps silver" for task in job["tasks"] if _silent(task))
        defaults = {parameter["name"]: parameter["default"] for parameter in job.get("parameters", [])}
        for task in job["tasks"]:
            words = task.get("python_wheel_task", {}).get("parameters", [])
            said = {defaults.get(word[len("{{job.parameters.") : -2], word) for word in words}
            yield from (f"{job['name']} also writes to silver by {verb}" for verb in sorted(said & _KEEPS))


def _silent(task: Mapping[str, Any]) -> bool:
    words = task.get("python_wheel_task", {}).get("parameters")
    return words is not None and "--apply=declarative" not in words


def _starts(task: Mapping[str, Any], key: str) -> bool:
    found = _STARTED.fullmatch(task.get("pipeline_task", {}).get("pipeline_id", ""))
    return found is not None and found[1] == key


def _local(text: str) -> str:
    return text.replace("${workspace.file_path}", str(ROOT))


def _named(text: str, config: Config) -> str:
    schema = re.fullmatch(r"\$\{resources\.schemas\.(\w+)\.name\}", text)
    found = config["resources"]["schemas"].get(schema[1], {}).get("name", "") if schema else text
    return resolved(found, config["values"])


def _excluded(path: Path, config: Config) -> bool:
    relative = path.relative_to(ROOT).as_posix()
    return any(fnmatch(relative, pattern) for pattern in config.get("sync", {}).get("exclude", []))
