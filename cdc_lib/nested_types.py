"""Spark's DDL text for structs, maps and arrays, to and from Arrow.

Columns of source tables are flat (``types.py``); bronze nests them in its envelope, and control tables have
lists and maps.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cdc_lib.types import arrow_type, spark_type

_JSON_NAMES = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
}


def quoted(name: str) -> str:
    """A name for Spark SQL, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def ddl(arrow: pa.DataType) -> str:
    """Spark SQL DDL text of an Arrow type, nested ones too.

    :raises TypeError: Spark has no such type.
    """
    if pa.types.is_struct(arrow):
        fields = [f"{quoted(field.name)}: {ddl(field.type)}" for field in arrow]
        return f"STRUCT<{', '.join(fields)}>"
    if pa.types.is_map(arrow):
        return f"MAP<{ddl(arrow.key_type)}, {ddl(arrow.item_type)}>"
    if pa.types.is_list(arrow):
        return f"ARRAY<{ddl(arrow.value_type)}>"
    return spark_type(arrow)


def ddl_of_json(data: Any) -> str:
    """Spark SQL DDL text of a type in the JSON form that Spark and the Delta protocol share."""
    if isinstance(data, str):
        return _JSON_NAMES.get(data, data.upper())
    if data["type"] == "struct":
        fields = [f"{quoted(field['name'])}: {ddl_of_json(field['type'])}" for field in data["fields"]]
        return f"STRUCT<{', '.join(fields)}>"
    if data["type"] == "map":
        return f"MAP<{ddl_of_json(data['keyType'])}, {ddl_of_json(data['valueType'])}>"
    return f"ARRAY<{ddl_of_json(data['elementType'])}>"


def arrow_of_json(data: Any) -> pa.DataType:
    """The Arrow type of a type in that JSON form."""
    if isinstance(data, str):
        return arrow_type(_JSON_NAMES.get(data, data))
    if data["type"] == "struct":
        return pa.struct([pa.field(field["name"], arrow_of_json(field["type"])) for field in data["fields"]])
    if data["type"] == "map":
        return pa.map_(arrow_of_json(data["keyType"]), arrow_of_json(data["valueType"]))
    return pa.list_(arrow_of_json(data["elementType"]))


def arrow_of_ddl(text: str) -> pa.DataType:
    """The Arrow type of DDL text as :func:`ddl` writes it, for field names without brackets and commas.

    :raises ValueError: not a type of that form.
    """
    head, _, rest = text.strip().partition("<")
    inner = rest[:-1]
    kind = head.strip().upper()
    if kind == "ARRAY":
        return pa.list_(arrow_of_ddl(inner))
    if kind == "MAP":
        key, value = _split(inner)
        return pa.map_(arrow_of_ddl(key), arrow_of_ddl(value))
    if kind == "STRUCT":
        named = (part.split(":", 1) for part in _split(inner))
        return pa.struct([pa.field(name.strip().strip("`"), arrow_of_ddl(kind)) for name, kind in named])
    return arrow_type(text)


def _split(text: str) -> list[str]:
    """Parts between commas that stand outside all brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
