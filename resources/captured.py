"""What the bundle has to know of a pipeline file: its name, its engine, and what its schemas are called.

The file is not read as a run reads it. References such as ``${env:SHOP_HOST}`` mean something where the job
runs, not where somebody deploys; ``cdc check`` finds what is wrong with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_lib.config import layer_schemas
from cdc_lib.errors import FixConfiguration
from cdc_lib.properties import ENGINE_NAMES
from cdc_lib.secrets import has_reference
from cdc_lib.yaml_source import Scalar, parse_yaml, read_text

SUFFIXES = (".yml", ".yaml")


@dataclass(frozen=True)
class Captured:
    """One captured database. The schemas are named without what a target puts in front.

    ``declarative``: the file leaves silver to a declarative pipeline.
    """

    file: Path
    name: str
    engine: str
    catalog: str | None
    bronze: str
    silver: str
    control: str
    on_executors: bool = False
    """Its snapshots are read by Spark's workers, which serverless compute keeps from any network."""
    declarative: bool = False

    @property
    def schemas(self) -> Mapping[str, str]:
        """The schema of each layer."""
        return {"bronze": self.bronze, "silver": self.silver, "control": self.control}


def pipeline_files(folder: Path) -> list[Path]:
    """The files that each describe one captured database, in a fixed order."""
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())


def read_captured(path: Path) -> Captured:
    """What a pipeline file says of itself.

    :raises FixConfiguration: it cannot be read, or lacks what a deployment needs.
    """
    document = parse_yaml(read_text(path), str(path), path.parent)
    if document.complaints:
        raise _unusable(path, str(document.complaints[0]))
    source = _section(document.data.get("source"))
    target = _section(document.data.get("target"))
    name = _text(path, document.data, "name") or _text(path, source, "topic.prefix")
    engine = _text(path, source, "connector.class")
    if name is None:
        raise _unusable(path, "it has neither name nor topic.prefix")
    if engine is None or engine not in ENGINE_NAMES:
        raise _unusable(path, "connector.class is missing, or no engine that can be captured")
    catalog = _text(path, target, "catalog")
    named = {layer: _text(path, target, layer) for layer in layer_schemas(name)} if catalog else {}
    schemas = {layer: named.get(layer) or schema for layer, schema in layer_schemas(name).items()}
    on_executors = _text(path, _section(document.data.get("run")), "snapshot_on") == "executors"
    declarative = _text(path, _section(document.data.get("apply")), "mode") == "declarative"
    return Captured(
        path,
        name,
        ENGINE_NAMES[engine],
        catalog,
        **schemas,
        on_executors=on_executors,
        declarative=declarative,
    )


def key_of(name: str) -> str:
    """``name`` as the key of a resource."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _section(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {}


def _text(path: Path, section: Mapping[str, Any], key: str) -> str | None:
    given = section.get(key)
    if not isinstance(given, Scalar) or not given.text.strip():
        return None
    if has_reference(given.text):
        raise _unusable(path, f"{key} is a reference, which has no value yet when the bundle is deployed")
    return given.text.strip()


def _unusable(path: Path, why: str) -> FixConfiguration:
    return FixConfiguration(
        f"{path} cannot be deployed", why=why, remedy=f"correct it, or move it out of {path.parent.name}/"
    )
