"""The bundle as one mapping, for one target, as the CLI has it before it asks the workspace.

Static files and the target are merged here; what Python adds comes from the real ``load_resources``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from databricks.bundles.core import Bundle, Severity

import resources
from resources.templates import joined

ROOT = Path(__file__).resolve().parents[2]
_VARIABLE = re.compile(r"\$\{var\.(\w+)\}")


class LoadError(Exception):
    """``load_resources`` reported errors, and the CLI would stop there."""


def databricks_yml() -> dict[str, Any]:
    """The file, with those that it includes."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "databricks.yml").read_text())
    for pattern in config["include"]:
        for path in sorted(ROOT.glob(pattern)):
            config = joined(config, yaml.safe_load(path.read_text()))
    return config


def values_of(config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """The variables' values: given on the command line, by the target, or the default. Not resolved."""
    defaults = {name: declared.get("default") for name, declared in config["variables"].items()}
    return {**defaults, **config.get("target_variables", {}), **given}


def resolved(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with variables replaced, those in their values, too."""
    while (done := _VARIABLE.sub(lambda found: str(values.get(found[1], "")), text)) != text:
        text = done
    return text


def bundle_for(target: str, **given: str) -> dict[str, Any]:
    """Everything the bundle says for a target.

    :param given: variables, as by ``--var``.
    :raises LoadError: Python's part reported errors.
    """
    config = databricks_yml()
    chosen = dict(config["targets"][target])
    config["target_variables"] = chosen.pop("variables", {})
    config = joined(config, chosen)
    config["values"] = values_of(config, given)
    loaded = resources.load_resources(Bundle(target=target, variables=config["values"]))
    errors = [found for found in loaded.diagnostics.items if found.severity is Severity.ERROR]
    if errors:
        raise LoadError("; ".join(f"{found.summary}: {found.detail}" for found in errors))
    added = {
        kind: {key: resource.as_dict() for key, resource in getattr(loaded, kind).items()}
        for kind in ("jobs", "pipelines", "schemas", "volumes", "dashboards", "alerts")
        if getattr(loaded, kind)
    }
    config["resources"] = joined(config["resources"], added)
    return config
