"""Writes ``docs/properties.md`` and ``docs/pipeline.schema.json`` from what pipeline files are checked with.

Written by hand they would soon describe another program. A test compares them with what this module gives;
``make docs`` brings them up to date.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cdc_lib.json_schema import json_schema
from cdc_lib.pipeline import ApplyConfig, Limits, TableRule, Target
from cdc_lib.properties import Property, Status, property_groups, property_table

_ENGINE = "postgresql"
_WORDS: Mapping[Status, str] = {
    "implemented": "works",
    "notice": "no effect",
    "not yet": "not yet",
    "refused": "refused",
}
_SECTIONS: Mapping[str, type[BaseModel]] = {
    "target": Target,
    "tables (a list of rules; the first that matches holds)": TableRule,
    "apply": ApplyConfig,
    "run": Limits,
}

_HEAD = """\
# Properties

What a pipeline file may say, made from the code by `make docs`. `pipelines/shop.yml` is an example with
comments; `cdc check` names every mistake in a file with its line. Editors that know YAML schemas complete and
check the names while you type, given a first line

    # yaml-language-server: $schema=<path>/docs/pipeline.schema.json

and, for `!file`, the tag `!file scalar` in their list of custom tags.

## source, for PostgreSQL

Names and meanings are Debezium's. An existing connector can be used as it is: `source: !file connector.json`,
or its JSON pasted under `source:`, with or without the `name` and `config` of Kafka Connect around it.

Any value may be a reference, looked up when it is needed: `${env:NAME}`, `${file:/path}`, `${file:/path:key}`
or, on Databricks, `"{{secrets/scope/key}}"`. Lists are separated by commas (a comma inside an expression is
written `\\,`) or are YAML lists. Filters are regular expressions, matched against the whole name without
regard to case.
"""
_DIFFERENCES = """
### Defaults that differ from Debezium's

Left out of a file, these do not mean what they mean in Debezium. How much is read, kept or waited for at once
has no counterpart of the same unit and is not listed; see `run` below.
"""


def properties_page(engine: str = _ENGINE) -> str:
    """The reference page, in Markdown."""
    rows = property_table(engine).rows
    lines = [*_HEAD.splitlines(), "", *_statuses(rows), *_DIFFERENCES.splitlines(), "", *_differing(rows)]
    for title, group in property_groups(engine).items():
        cells = map(_cells, group)
        lines += ["", f"### {title}", "", *_table("property | status | value | default | meaning", cells)]
    for title, model in _SECTIONS.items():
        lines += ["", f"## {title}", "", *_table("key | value | default | meaning", _fields(model))]
    return "\n".join(lines) + "\n"


def pages() -> Mapping[str, str]:
    """The generated files of ``docs/``, by name."""
    schema = json.dumps(json_schema(_ENGINE), indent=2, ensure_ascii=False)
    return {"properties.md": properties_page(), "pipeline.schema.json": schema + "\n"}


def _statuses(rows: Iterable[Property]) -> Iterator[str]:
    count = Counter(row.status for row in rows)
    yield "Every property of Debezium's guide is in one of the tables below; none is ignored in silence:"
    yield ""
    yield f"- **works** ({count['implemented']}): it has the effect described."
    yield f"- **no effect** ({count['notice']}): accepted, since it only has a meaning with Kafka, or only"
    yield "  concerns operations that are done otherwise here; `cdc check` repeats why."
    yield f"- **not yet** ({count['not yet']}): refused until it works, since ignoring it would change"
    yield "  what is written, or how."
    yield f"- **refused** ({count['refused']}): it will not work, for the reason given."


def _differing(rows: Iterable[Property]) -> list[str]:
    cells = [
        (f"`{row.name}`", f"`{row.differs.debezium}`", row.differs.here or _default(row), row.differs.why)
        for row in rows
        if row.differs
    ]
    return _table("property | Debezium | here | why", cells)


def _cells(row: Property) -> tuple[str, ...]:
    return f"`{row.name}`", _WORDS[row.status], _values(row), _default(row), _meaning(row)


def _values(row: Property) -> str:
    if row.kind is None:
        return f"only {_code(row.accepts)}" if row.accepts else ""
    aliases = [f"`{alias}` (taken as `{meant}`)" for alias, (meant, _) in row.aliases.items()]
    return "; ".join([row.kind.expects + (", secret" if row.secret else ""), *aliases])


def _default(row: Property) -> str:
    if row.required:
        return "required"
    if row.derived:
        return "from `name`"
    if isinstance(row.default, bool):
        return f"`{str(row.default).lower()}`"
    if isinstance(row.default, frozenset):
        return f"`{','.join(sorted(row.default)) or 'none'}`"
    return "" if row.default in (None, ()) else f"`{row.default}`"


def _meaning(row: Property) -> str:
    reasons: dict[str, list[str]] = {}
    for value, reason in row.declined.items():
        reasons.setdefault(reason, []).append(value)
    refused = "".join(f" {_code(values)}: {reason}." for reason, values in reasons.items())
    return row.doc + ("" if row.doc.endswith(".") else ".") + refused


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    schema = model.model_json_schema()
    for name, about in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _plain(about.get("default"))
        yield f"`{name}`", _accepted(about), default, about.get("description", "")


def _accepted(about: Mapping[str, Any]) -> str:
    """The values that a field takes, from its JSON schema."""
    if "anyOf" in about:
        return " or ".join(_accepted(one) for one in about["anyOf"] if one.get("type") != "null")
    if "enum" in about or "const" in about:
        return _code(map(str, about.get("enum") or [about["const"]]))
    least = f" above {about['exclusiveMinimum']}" if "exclusiveMinimum" in about else ""
    words = {"integer": "a whole number", "string": "a text", "object": "keys with values", "array": "a list"}
    return ("a path" if about.get("format") == "path" else words[about["type"]]) + least


def _plain(default: Any) -> str:
    return "" if default in (None, {}, [], ()) else f"`{default}`"


def _code(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _table(heads: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    columns = heads.count("|") + 1
    cells = (" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows)
    return [f"| {heads} |", "|---" * columns + "|", *(f"| {line} |" for line in cells)]


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for file, text in pages().items():
        (folder / file).write_text(text, encoding="utf-8")
