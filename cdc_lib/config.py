"""A pipeline file, checked as a whole.

:func:`load` either returns a :class:`Pipeline` that holds or raises one error with every complaint, each
with its YAML path and line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import (
    LOCAL_CATALOG,
    ApplyConfig,
    Layout,
    Limits,
    Pipeline,
    SourceConfig,
    TableRule,
    Target,
    Upkeep,
)
from cdc_lib.properties import did_you_mean
from cdc_lib.source_section import SectionReader, SourceReader
from cdc_lib.yaml_source import Document, Place, Remark, Scalar, from_mapping, parse_yaml, read_text

__all__ = [
    "LOCAL_CATALOG",
    "ApplyConfig",
    "Layout",
    "Limits",
    "Pipeline",
    "Remark",
    "SourceConfig",
    "TableRule",
    "Target",
    "Upkeep",
    "layer_schemas",
    "load",
    "load_layout",
    "parse",
]

_SECTIONS = ("name", "source", "target", "tables", "apply", "run", "maintain")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_Model = TypeVar("_Model", bound=BaseModel)

# pydantic's words for what goes wrong most often, as a person would say it.
_MESSAGES: Mapping[str, str] = {
    "missing": "required, but not given",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "greater_than": "expected a number greater than 0",
    "string_type": "expected a text",
    "path_type": "expected a path",
    "tuple_type": "expected a list",
    "dict_type": "expected keys with values",
    "mapping_type": "expected keys with values",
    "model_type": "expected keys with values",
}


def load(
    path: Path,
    environ: Mapping[str, str] = os.environ,
    target: Mapping[str, str] | None = None,
    source: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline of a file.

    :param target: what to read as its ``target:`` section instead of what it says there.
    :param source: properties that are read as if they stood in its ``source:`` section.
    :raises FixConfiguration: with all complaints at once.
    """
    return parse(read_text(path), path=path, environ=environ, target=target, source=source)


def parse(
    content: str | Mapping[str, Any],
    *,
    path: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    target: Mapping[str, str] | None = None,
    source: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline of a YAML text, or of the same as a mapping; ``path`` is where it came from.

    :param target: what to read as its ``target:`` section instead of what it says there.
    :param source: properties that are read as if they stood in its ``source:`` section.
    :raises FixConfiguration: with all complaints at once.
    """
    where = str(path or "the pipeline")
    document = _document(content, path, target)
    given = document.data.get("source")
    if source and isinstance(given, dict):
        document.data["source"] = given | {name: Scalar(text, text) for name, text in source.items()}
    return _PipelineReader(document, environ).pipeline(where, path)


def load_layout(
    path: Path, environ: Mapping[str, str] = os.environ, target: Mapping[str, str] | None = None
) -> Layout:
    """What a pipeline file says of its tables; its ``source:`` section is not looked at, so that nothing it
    refers to needs to be there.

    :raises FixConfiguration: with all complaints about the rest.
    """
    return _PipelineReader(_document(read_text(path), path, target), environ).layout(str(path))


def _document(
    content: str | Mapping[str, Any], path: Path | None, target: Mapping[str, str] | None
) -> Document:
    if isinstance(content, str):
        document = parse_yaml(content, str(path or "the pipeline"), path.parent if path else Path())
    else:
        document = from_mapping(content)
    if target:
        document.replace("target", {key: Scalar(text, text) for key, text in target.items()})
    return document


def layer_schemas(name: str) -> dict[str, str]:
    """The schemas that a pipeline's layers have in a catalog unless its file names others."""
    word = re.sub(r"[^a-z0-9_]", "_", name.lower())
    return {"bronze": f"{word}_bronze", "silver": word, "control": f"{word}_cdc"}


class _PipelineReader(SectionReader):
    """Turns a document into a pipeline."""

    def pipeline(self, where: str, path: Path | None) -> Pipeline:
        for key in self.document.data:
            if key not in _SECTIONS:
                self.document.complain((key,), f"unknown key{did_you_mean(key, _SECTIONS)}")
        name = self.name()
        source = SourceReader(self.document, self.environ, self.notices).source(name)
        target = self.target(name)
        rules = self.rules()
        apply = self.section("apply", ApplyConfig)
        run = self.section("run", Limits)
        maintain = self.section("maintain", Upkeep)
        if self.document.complaints or not (source and target and apply and run and maintain):
            raise _rejected(where, self.document.complaints)
        source = replace(source, rules=rules, window_bytes=run.window_mb << 20)
        return Pipeline(name, source, target, apply, run, path, tuple(self.notices), maintain)

    def layout(self, where: str) -> Layout:
        name = self.name()
        target = self.target(name)
        rules = self.rules()
        if self.document.complaints or target is None:
            raise _rejected(where, self.document.complaints)
        return Layout(name, target, rules)

    # -- name

    def name(self) -> str:
        """The name at the top, or topic.prefix; both must agree."""
        top = self._name_at(("name",), self.document.data.get("name"))
        properties = self.document.data.get("source")
        prefix_place = ("source", "topic.prefix")
        written = properties.get("topic.prefix") if isinstance(properties, dict) else None
        prefix = self._name_at(prefix_place, written)
        if top and prefix and top != prefix:
            self.document.complain(prefix_place, "not the same as name at the top; leave one of them out")
        if not (top or prefix or {("name",), prefix_place} & self.document.bad):
            self.document.complain(("name",), "required, but not given")
        return top or prefix or "unnamed"

    def _name_at(self, place: Place, written: Any) -> str | None:
        if written is None or place in self.document.bad:
            return None
        text = self.resolved(place, written) if isinstance(written, Scalar) else ""
        if text is None:
            return None
        if not _NAME.fullmatch(text):
            self.document.complain(
                place, "expected letters, digits, - . and _, starting with a letter or digit"
            )
            return None
        return text

    # -- the other sections

    def target(self, name: str) -> Target | None:
        given = self.document.data.get("target")
        if given is None and ("target",) not in self.document.bad:
            self.document.complain(
                ("target",), "required, but not given; for a laptop: target: {path: ./lake}"
            )
            return None
        if isinstance(given, dict) and "catalog" in given:
            defaults = {layer: Scalar(schema, schema) for layer, schema in layer_schemas(name).items()}
            given = {**defaults, **given}
        return self.model(("target",), Target, given)

    def rules(self) -> tuple[TableRule, ...]:
        given = self.document.data.get("tables")
        if given is None or (isinstance(given, Scalar) and given.value is None):
            return ()
        if not isinstance(given, list):
            self.document.complain(("tables",), "expected a list of rules, each with match")
            return ()
        rules = [self.model(("tables", f"[{index}]"), TableRule, item) for index, item in enumerate(given)]
        return tuple(rule for rule in rules if rule)

    def section(self, name: str, model: type[_Model]) -> _Model | None:
        given = self.document.data.get(name)
        if isinstance(given, Scalar) and given.value is None:
            given = None
        return self.model((name,), model, {} if given is None else given)

    def model(self, place: Place, model: type[_Model], given: Any) -> _Model | None:
        if any(bad[: len(place)] == place for bad in self.document.bad):
            return None
        before = len(self.document.complaints)
        content = self.plain(place, given)
        if len(self.document.complaints) > before:
            return None
        try:
            return model.model_validate(content)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
        for item in found:
            inner = tuple(f"[{part}]" if isinstance(part, int) else part for part in item["loc"])
            self.document.complain((*place, *inner), _message(item, model))
        return None

    def plain(self, place: Place, given: Any) -> Any:
        """Plain values with references resolved."""
        if isinstance(given, dict):
            return {key: self.plain((*place, key), item) for key, item in given.items()}
        if isinstance(given, list):
            return [self.plain((*place, f"[{index}]"), item) for index, item in enumerate(given)]
        return self.resolved(place, given) if isinstance(given.value, str) else given.value


def _message(item: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{did_you_mean(str(item['loc'][-1]), model.model_fields)}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"expected {context['expected']}"
    return _MESSAGES.get(kind, item["msg"])


def _rejected(where: str, complaints: list[Remark]) -> FixConfiguration:
    ordered = sorted(complaints, key=lambda remark: remark.line or 0)
    count = "one mistake" if len(ordered) == 1 else f"{len(ordered)} mistakes"
    lines = "".join(f"\n  {remark}" for remark in ordered)
    return FixConfiguration(
        f"{where} has {count}:{lines}", remedy="correct the lines named; nothing was started"
    )
