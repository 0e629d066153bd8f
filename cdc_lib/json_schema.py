"""The JSON schema of a pipeline file, for editors: completion, documentation and red underlines.

Made from the same tables that :func:`cdc_lib.config.load` checks with. It is more lenient: whether options
fit together is found by ``cdc check`` alone.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from cdc_lib.pipeline import ApplyConfig, Limits, TableRule, Target, Upkeep
from cdc_lib.properties import ENGINE_NAMES, Property, property_table

_REFERENCE = {"type": "string", "pattern": r"^\$\{\w+:[^{}]*\}$|^\{\{\s*secrets/"}


def json_schema(engine: str = "postgresql") -> dict[str, Any]:
    """The schema (draft 2020-12) of a pipeline file that reads from ``engine``."""
    rows = property_table(engine).rows
    source = {
        "type": "object",
        "properties": {row.name: _property(row) for row in rows if not row.is_pattern},
        "patternProperties": {f"^{row.expression}$": _property(row) for row in rows if row.is_pattern},
        "required": [row.name for row in rows if row.required],
        "additionalProperties": False,
    }
    properties = {"$ref": "#/$defs/source"}
    posted = {"type": "object", "properties": {"config": properties}, "required": ["config"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of cdc-lib",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The pipeline's name, fixed for life."},
            # As it is posted to Kafka Connect; and what an editor sees of `!file connector.json`.
            "source": {"anyOf": [properties, posted, {"type": "string"}]},
            "target": _model(Target),
            "tables": {"type": "array", "items": _model(TableRule)},
            "apply": _model(ApplyConfig),
            "run": _model(Limits),
            "maintain": _model(Upkeep),
        },
        "required": ["source", "target"],
        "additionalProperties": False,
        "$defs": {"source": source},
    }


def _property(row: Property) -> dict[str, Any]:
    if row.status != "implemented":
        effect = "Without effect" if row.status == "notice" else row.status.capitalize()
        return {"description": f"{effect}: {row.doc}", "deprecated": True}
    assert row.kind is not None
    value: dict[str, Any] = {"type": "string"} if row.secret else dict(row.kind.schema)
    if row.name == "connector.class":
        value = {"enum": list(ENGINE_NAMES)}
    if row.aliases and "enum" in value:
        value["enum"] = [*value["enum"], *row.aliases]
    schema: dict[str, Any] = {"description": row.doc, "anyOf": [value, _REFERENCE]}
    if isinstance(row.default, (str, int)):
        schema["default"] = row.default
    return schema


def _model(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()
