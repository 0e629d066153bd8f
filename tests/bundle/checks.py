"""What must hold for the bundle, checked without a workspace: each check yields its complaints as text.

``databricks bundle validate`` logs in before it looks at anything, so it cannot be a test. These checks find
what it would find, and what it would not: words that ``cdc`` does not know, a pipeline file not synced.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import typer
from databricks.bundles.alerts import Alert
from databricks.bundles.dashboards import Dashboard
from databricks.bundles.jobs import Job
from databricks.bundles.pipelines import Pipeline
from databricks.bundles.schemas import Schema
from databricks.bundles.secret_scopes import SecretScope
from databricks.bundles.volumes import Volume
from typer.main import get_command

from cdc_lib.cli.app import app
from cdc_lib.config import load
from cdc_lib.errors import FixConfiguration
from tests.bundle.built import Wheel
from tests.bundle.dashboards import monitoring
from tests.bundle.declarative import declarative
from tests.bundle.merged import ROOT, resolved
from tests.bundle.quartz import mistake

Config = Mapping[str, Any]
KINDS: Mapping[str, Any] = {
    "alerts": Alert,
    "dashboards": Dashboard,
    "jobs": Job,
    "pipelines": Pipeline,
    "schemas": Schema,
    "secret_scopes": SecretScope,
    "volumes": Volume,
}
TOP = {"bundle", "include", "python", "artifacts", "sync", "variables", "targets", "resources", "permissions"}
TOP |= {"run_as", "presets", "workspace", "mode", "default", "target_variables", "values"}
PRESETS = {
    "name_prefix",
    "trigger_pause_status",
    "artifacts_dynamic_version",
    "tags",
    "jobs_max_concurrent_runs",
}
LEVELS = {"CAN_MANAGE", "CAN_VIEW", "CAN_RUN"}
READ_BY_PYTHON = {"separate_silver", "declarative_silver", "on_cluster", "fan_out", "workers"}
INPUTS = 5000
"""Characters that the inputs of a loop may have (documentation of for_each_task, the lowest figure in it)."""
PREFIXES = 4 * 20
"""Characters that a developer's prefix can add to one input: four names of schemas."""
KNOWN = {
    "bundle.name",
    "bundle.target",
    "workspace.file_path",
    "workspace.current_user.userName",
    "workspace.current_user.short_name",
}
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_PARAMETER = re.compile(r"\{\{([^{}]*)\}\}")
_WHEEL = re.compile(r"(?P<path>[^\[\]]+\.whl)(\[(?P<extras>[^\]]*)\])?")


# typer brings a click of its own or uses the installed one; either way this is its class of bad words.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def complaints(config: Config, wheel: Wheel) -> list[str]:
    """Everything that is wrong."""
    return [*(text for check in CHECKS for text in check(config)), *installs(config, wheel)]


def texts(content: Any) -> Iterator[str]:
    """Every text in a structure."""
    if isinstance(content, Mapping):
        for value in content.values():
            yield from texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from texts(value)
    elif isinstance(content, str):
        yield content


def jobs(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from config["resources"].get("jobs", {}).items()


def tasks(config: Config) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """The tasks that run ``cdc``, of a loop what it repeats; for those that start a declarative pipeline, see
    ``declarative``."""
    for key, job in jobs(config):
        for task in job["tasks"]:
            inner = task.get("for_each_task", {}).get("task", task)
            if "pipeline_task" not in inner:
                yield f"{key}.{inner['task_key']}", job, inner


def loops(config: Config) -> Iterator[tuple[str, Mapping[str, Any], list[Mapping[str, str]]]]:
    """Loops over inputs, with these, unless they are no list of mappings (see :func:`inputs`)."""
    for key, job in jobs(config):
        for task in job["tasks"]:
            if "for_each_task" in task:
                loop = task["for_each_task"]
                try:
                    yield f"{key}.{task['task_key']}", loop, json.loads(loop["inputs"])
                except ValueError:
                    yield f"{key}.{task['task_key']}", loop, []


# -- structure


def known_keys(config: Config) -> Iterator[str]:
    yield from (f"databricks.yml: unknown key {key}" for key in config.keys() - TOP)
    yield from (f"presets: unknown key {key}" for key in config.get("presets", {}).keys() - PRESETS)
    yield from (f"resources: unknown kind {kind}" for kind in config["resources"].keys() - KINDS.keys())
    for permission in config.get("permissions", []):
        if permission.get("level") not in LEVELS:
            yield f"permissions: unknown level {permission.get('level')}"


def strict(config: Config) -> Iterator[str]:
    """Unknown fields, wrong types and enum values, missing fields: Databricks' own classes know."""
    for kind, kept in KINDS.items():
        for key, content in config["resources"].get(kind, {}).items():
            try:
                kept.from_dict(content)
            except (ValueError, TypeError) as error:
                yield f"{kind}.{key}: {error} {error.__cause__ or ''}"


# -- references


def references(config: Config) -> Iterator[str]:
    """``${...}`` that nothing stands behind."""
    for text in texts({key: value for key, value in config.items() if key != "targets"}):
        for found in _REFERENCE.findall(text):
            if not _stands(found, config):
                yield f"nothing stands behind ${{{found}}}"
        if "${" in _REFERENCE.sub("", text):
            yield f"a reference that is not closed: {text}"


def _stands(path: str, config: Config) -> bool:
    area, _, rest = path.partition(".")
    if area == "var":
        return rest in config["variables"]
    if area == "resources":
        kind, _, name = rest.partition(".")
        key, _, field = name.partition(".")
        known = {found.name for found in fields(KINDS[kind])} if kind in KINDS else set()
        return field in known and key in config["resources"].get(kind, {})
    return path in KNOWN


def variables(config: Config) -> Iterator[str]:
    """Variables that nobody uses, that say nothing of themselves, or that a target makes up."""
    templates = (path.read_text() for path in (ROOT / "resources").rglob("*.yml"))
    used = set(re.findall(r"\$\{var\.(\w+)\}", "\n".join([*texts(config), *templates])))
    for name, declared in config["variables"].items():
        if name not in used | READ_BY_PYTHON:
            yield f"variable {name} is not used"
        if not declared.get("description"):
            yield f"variable {name} has no description"
        if "default" not in declared:
            yield f"variable {name} has no default: nothing could be deployed without it"
    yield from (
        f"target sets {name}, no variable"
        for name in config["target_variables"].keys() - config["variables"].keys()
    )


def parameters(config: Config) -> Iterator[str]:
    """``{{job.parameters.x}}`` that is not declared; parameters that no task looks at."""
    for key, job in jobs(config):
        declared = {parameter["name"] for parameter in job.get("parameters", [])}
        used = {found.strip() for text in texts(job["tasks"]) for found in _PARAMETER.findall(text)}
        used = {name for name in used if not name.startswith("input.")}
        yield from (
            f"{key}: no parameter behind {name}"
            for name in used - {f"job.parameters.{name}" for name in declared}
        )
        yield from (
            f"{key}: parameter {name} is not used"
            for name in declared - {name.rpartition(".")[2] for name in used}
        )


def inputs(config: Config) -> Iterator[str]:
    """Inputs of a loop: a list, short enough, with what its task asks for, and nothing that it does not."""
    for name, loop, items in loops(config):
        if not items:
            yield f"{name}: its inputs are no list, or an empty one"
        if len(_sample(loop["inputs"], {}, config)) + PREFIXES * len(items) > INPUTS:
            yield f"{name}: its inputs are longer than {INPUTS} characters"
        asked = {found.strip() for text in texts(loop["task"]) for found in _PARAMETER.findall(text)}
        asked = {found.removeprefix("input.") for found in asked if found.startswith("input.")}
        for item in items:
            yield from (f"{name}: nothing behind {{{{input.{field}}}}}" for field in asked - item.keys())
            yield from (f"{name}: input {field} is not used" for field in item.keys() - asked)


# -- jobs


def job_rules(config: Config) -> Iterator[str]:
    """What every job that owns a pipeline must say."""
    for key, job in jobs(config):
        if job.get("max_concurrent_runs") != 1:
            yield f"{key}: max_concurrent_runs must be 1"
        if not job.get("queue", {}).get("enabled"):
            yield f"{key}: is not queued"
        if job.get("timeout_seconds") not in range(1, 86_401):
            yield f"{key}: has no timeout"
        if not job.get("health", {}).get("rules"):
            yield f"{key}: has no health rule"
        if not {"product", "pipeline", "engine"} <= job.get("tags", {}).keys():
            yield f"{key}: lacks tags"
        if resolved("${var.notify}", config["values"]) and not job.get("email_notifications", {}).get(
            "on_failure"
        ):
            yield f"{key}: tells nobody of a failure"


def schedules(config: Config) -> Iterator[str]:
    for key, job in jobs(config):
        schedule = job.get("schedule", {})
        found = mistake(resolved(schedule.get("quartz_cron_expression", ""), config["values"]))
        if found:
            yield f"{key}: bad cron: {found}"
        if schedule.get("timezone_id") != "UTC":
            yield f"{key}: time zone is not UTC"


def compute(config: Config) -> Iterator[str]:
    """Each task runs somewhere, once, and on something that its job has."""
    for name, job, task in tasks(config):
        environments = {item["environment_key"] for item in job.get("environments", [])}
        clusters = {item["job_cluster_key"] for item in job.get("job_clusters", [])}
        given = {task.get("environment_key"), task.get("job_cluster_key")} - {None}
        if len(given) != 1 or not given <= environments | clusters:
            yield f"{name}: runs on {given or 'nothing'}, its job has {environments | clusters}"
        others = {other["task_key"] for other in job["tasks"]}
        missing = {needed["task_key"] for needed in task.get("depends_on", [])} - others
        yield from (f"{name}: waits for {needed}, which its job has not" for needed in missing)
        if task.get("max_retries") != 0 or (
            "environment_key" in task and not task.get("disable_auto_optimization")
        ):
            yield f"{name}: would be retried whatever its exit code"


def grants(config: Config) -> Iterator[str]:
    """Nothing is granted to nobody, and whoever runs the jobs may write."""
    for kind in ("schemas", "volumes"):
        for key, content in config["resources"].get(kind, {}).items():
            holders = {resolved(grant["principal"], config["values"]) for grant in content.get("grants", [])}
            if "" in holders:
                yield f"{kind}.{key}: granted to nobody"
            if resolved("${var.runner}", config["values"]) not in holders:
                yield f"{kind}.{key}: nothing granted to whom the jobs run as"


def permissions(config: Config) -> Iterator[str]:
    """The CLI gives the bundle's permissions to each resource and refuses another one for a principal.
    Whom the jobs run as needs one, to read the pipeline file and the secrets."""
    given = {who for permission in config.get("permissions", []) for who in _principals(permission, config)}
    for kind, kept in config["resources"].items():
        for key, content in kept.items():
            twice = {
                who for item in content.get("permissions", []) for who in _principals(item, config)
            } & given
            yield from (f"{kind}.{key}: {who} has a permission of the bundle already" for who in twice)
    runners = _principals(config.get("run_as", {}), config)
    yield from (f"{who} runs the jobs without a permission" for who in runners - given)
    if "" in given:
        yield "permissions: for nobody"


def _principals(item: Config, config: Config) -> set[str]:
    names = ("user_name", "group_name", "service_principal_name")
    return {resolved(item[name], config["values"]) for name in names if name in item}


# -- what a task's words mean


def words(config: Config) -> Iterator[str]:
    """The words of a task, parsed by our own command line; its pipeline file, read with its target."""
    command = get_command(app)
    for name, job, task in tasks(config):
        given = {f"job.parameters.{item['name']}": item["default"] for item in job.get("parameters", [])}
        repeated = [items for _, loop, items in loops(config) if loop["task"] is task]
        for item in repeated[0] if repeated else [{}]:
            values = given | {f"input.{field}": value for field, value in item.items()}
            line = [_sample(text, values, config) for text in task["python_wheel_task"].get("parameters", [])]
            try:
                group = command.make_context("cdc", list(line))
                verb, inner, rest = command.resolve_command(group, [*group._protected_args, *group.args])
                asked = inner.make_context(verb, rest, parent=group).params
            except UsageError as error:
                yield f"{name}: cdc does not take {' '.join(line)}: {error}"
                continue
            yield from (f"{name}: {text}" for text in _opened(group.params, asked, config))


def _sample(text: str, given: Mapping[str, str], config: Config) -> str:
    """A word as the task would get it, with the names that resources have before a target prefixes them."""
    for name, value in given.items():
        text = text.replace("{{" + name + "}}", value)
    for path in re.findall(r"\$\{resources\.([^{}]*)\}", text):
        kind, key, field = path.split(".")
        value = config["resources"].get(kind, {}).get(key, {}).get(field, "")
        text = text.replace("${resources." + path + "}", value)
    return resolved(text, config["values"]).replace("${workspace.file_path}", str(ROOT))


def _opened(options: Mapping[str, Any], asked: Mapping[str, Any], config: Config) -> Iterator[str]:
    scopes = {
        resolved(scope["name"], config["values"]) for scope in config["resources"]["secret_scopes"].values()
    }
    if options["secrets"] not in scopes:
        yield f"secret scope {options['secrets']} is none of {scopes}"
    path = Path(asked.get("pipeline") or asked["words"][0])
    if not path.is_file():
        yield f"there is no {path}"
        return
    relative = path.relative_to(ROOT).as_posix()
    if any(fnmatch(relative, pattern) for pattern in config.get("sync", {}).get("exclude", [])):
        yield f"{relative} is not synced to the workspace"
    target = dict(text.split("=", 1) for text in options["target"] or [])
    if target.keys() != {"catalog", "bronze", "silver", "control", "staging"}:
        yield f"its target has {sorted(target)}"
    try:
        load(path, _Anything(), target)
    except FixConfiguration as error:
        yield f"{relative} does not hold with its target: {error.what}"


class _Anything(dict[str, str]):
    """An environment that has whatever is asked for."""

    def get(self, name: str, default: Any = None) -> Any:
        return "1"


# -- the package


def built(config: Config) -> Iterator[str]:
    """The venv that Python's part runs in is the one that builds; its function is there."""
    venv = config["python"]["venv_path"]
    for key, artifact in config["artifacts"].items():
        if f"{venv}/bin/python" not in artifact["build"].split():
            yield f"artifact {key} is not built by {venv}"
    for function in config["python"]["resources"]:
        module, _, name = function.partition(":")
        if not hasattr(importlib.import_module(module), name):
            yield f"there is no {function}"
    for pattern in config["include"]:
        if not list(ROOT.glob(pattern)):
            yield f"include {pattern} matches nothing"


def installs(config: Config, wheel: Wheel) -> Iterator[str]:
    """Tasks call what the wheel has, and install the wheel that the bundle builds, with extras it has."""
    for name, job, task in tasks(config):
        called = task["python_wheel_task"]
        if called["entry_point"] not in wheel.entry_points:
            yield f"{name}: the wheel has no entry point {called['entry_point']}"
        if called["package_name"].replace("_", "-") != wheel.name:
            yield f"{name}: the wheel is not called {called['package_name']}"
        lines = [item for env in job.get("environments", []) for item in env["spec"].get("dependencies", [])]
        lines += [library["whl"] for library in task.get("libraries", []) if "whl" in library]
        found = [match for line in lines if (match := _WHEEL.fullmatch(line))]
        if not found:
            yield f"{name}: does not install the wheel"
        for match in found:
            yield from (f"{name}: {text}" for text in _wheel_line(match, config, wheel))
        yield from (f"{name}: {text}" for text in _driver(job, task, found, wheel))


def _wheel_line(match: re.Match[str], config: Config, wheel: Wheel) -> Iterator[str]:
    folder, _, pattern = match["path"].rpartition("/")
    builds = [item["build"] for item in config["artifacts"].values() if item["type"] == "whl"]
    if not any(f"--wheel-dir {folder} " in build for build in builds):
        yield f"no artifact is built into {folder}"
    if not fnmatch(wheel.path.name, pattern):
        yield f"the wheel is not called {pattern}"
    unknown = _extras(match) - wheel.extras.keys()
    if unknown:
        yield f"the wheel has no extras {sorted(unknown)}"


def _driver(
    job: Mapping[str, Any], task: Mapping[str, Any], found: list[re.Match[str]], wheel: Wheel
) -> Iterator[str]:
    """What the engine's extra stands for is installed: by its name, or package by package on a cluster."""
    wanted = {job.get("tags", {}).get("engine", ""), "databricks"}
    if any(wanted <= _extras(match) for match in found):
        return
    packages = {library["pypi"]["package"] for library in task.get("libraries", []) if "pypi" in library}
    missing = {package for extra in wanted for package in wheel.extras.get(extra, {extra})} - packages
    if missing:
        yield f"{sorted(missing)} not installed"


def _extras(match: re.Match[str]) -> set[str]:
    return {extra for extra in (match["extras"] or "").split(",") if extra}


CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    known_keys,
    strict,
    references,
    variables,
    parameters,
    inputs,
    job_rules,
    schedules,
    compute,
    grants,
    permissions,
    words,
    monitoring,
    built,
    declarative,
)
