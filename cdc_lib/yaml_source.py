"""Reads a pipeline file and remembers where everything stood, so that complaints can name path and line.

YAML's conversions are kept out of the source's properties: Debezium's are all text, and a password 0123
must not become the number 83. So scalars keep the text they were written as (:class:`Scalar`).

A YAML library's own messages quote the file, passwords included. None of them is passed on: what is
reported is the place and one of a few fixed sentences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cdc_lib.errors import FixConfiguration

Place = tuple[str, ...]
"""Where a value stands: keys from the top; the places of list items as ``[0]``."""

_MAX_DEPTH = 12
_STANDARD_TAG = "tag:yaml.org,2002:"
_FILE_TAG = "!file"
_SAFE_PROBLEMS = frozenset(
    {
        "mapping values are not allowed here",
        "could not find expected ':'",
        "found unexpected end of stream",
        "found character '\\t' that cannot start any token",
    }
)
_SALT = re.compile(r"(\.salt\.).+")
"""Debezium writes the salt of a hash mask into the property's name."""
_QUOTES = "values with special characters (@ * & % ! { # :) must stand in quotes"


@dataclass(frozen=True, order=True)
class Remark:
    """A complaint or a notice about one place of the file. Never holds a value from a reference."""

    line: int | None
    path: str
    message: str

    def __str__(self) -> str:
        place = self.path or "the file"
        return f"{place}{f' (line {self.line})' if self.line else ''}: {self.message}"


@dataclass(frozen=True)
class Scalar:
    """One value: as YAML understands it, and the text it was written as."""

    value: Any = field(repr=False)
    text: str = field(repr=False)


@dataclass
class Document:
    """The content of a pipeline file: mappings, lists and :class:`Scalar`, with the line of each path."""

    data: dict[str, Any] = field(default_factory=dict, repr=False)
    lines: dict[Place, int] = field(default_factory=dict)
    complaints: list[Remark] = field(default_factory=list)
    files: dict[Place, Path] = field(default_factory=dict)
    """Sections that were read from another file, given as ``!file path``."""
    bad: set[Place] = field(default_factory=set)
    """Places with a complaint already; what stands there is not worth a second one."""

    def line(self, path: Place) -> int | None:
        """The line of a path, or of the nearest thing around it."""
        return next(
            (self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), None
        )

    def remark(self, path: Place, message: str) -> Remark:
        name = "".join(part if part.startswith("[") else f".{part}" for part in path).lstrip(".")
        name = _SALT.sub(r"\1***", name)
        inside = next((file for where, file in self.files.items() if path[: len(where)] == where), None)
        return Remark(self.line(path), name, f"{f'in {inside.name}: ' if inside else ''}{message}")

    def replace(self, section: str, content: dict[str, Any]) -> None:
        """Put ``content`` in the place of a section; forget where that stood and what was wrong with it."""
        self.data[section] = content
        self.lines = {place: line for place, line in self.lines.items() if place[0] != section}
        self.bad = {place for place in self.bad if place[:1] != (section,)}
        self.complaints = [
            remark for remark in self.complaints if re.split(r"[.\[]", remark.path)[0] != section
        ]

    def complain(self, path: Place, message: str) -> None:
        self.bad.add(path)
        self.complaints.append(self.remark(path, message))


def read_text(path: Path) -> str:
    """The text of a configuration file.

    :raises FixConfiguration: it cannot be read or is not UTF-8.
    """
    why = ""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        why = error.strerror or type(error).__name__
    except UnicodeDecodeError as error:
        # Raised below, unchained: the decoder's error carries the whole file.
        why = f"byte {error.start} is not UTF-8"
    raise FixConfiguration(
        f"{path} cannot be read", why=why, remedy="correct the path, its rights or its encoding (UTF-8)"
    )


def parse_yaml(text: str, where: str, folder: Path) -> Document:
    """The document of a YAML text; ``folder`` is where the files it names are looked up.

    :raises FixConfiguration: not YAML, empty, or not a mapping. Anything smaller is in ``complaints``.
    """
    problem = ""
    root: yaml.Node | None = None
    try:
        _refuse_aliases(text, where)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        problem = _problem(error)
    except RecursionError:
        problem = "it is nested too deeply"
    if problem:
        raise FixConfiguration(f"{where} is not valid YAML: {problem}", remedy=_QUOTES)
    if root is None or not isinstance(root, yaml.MappingNode):
        found = "is empty" if root is None else "is not a mapping of keys to values"
        raise FixConfiguration(
            f"{where} {found}", remedy="a pipeline file has name, source and target; see pipelines/shop.yml"
        )
    document = Document()
    document.data = _Reader(document, folder).mapping(root, ())
    return document


def from_mapping(data: Mapping[str, Any]) -> Document:
    """The same of values that are in memory already; there are no lines."""
    return Document(data={str(key): _located(value) for key, value in data.items()})


def _located(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _located(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_located(item) for item in value]
    return Scalar(value, _text_of(value))


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _refuse_aliases(text: str, where: str) -> None:
    # An alias is nearly always a password that starts with *; and nested ones can fill the memory.
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            mark = event.start_mark
            raise FixConfiguration(
                f"{where} uses a YAML alias{f' in line {mark.line + 1}' if mark else ''}",
                why="a value that starts with * refers to another one; that is not supported here",
                remedy="put the value in quotes",
            )


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "it has characters YAML forbids"
    problem = getattr(error, "problem", None)
    return f"{place}: {problem}" if problem in _SAFE_PROBLEMS else place


class _Reader:
    """Walks YAML nodes; what is wrong goes to the document's complaints."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.document = document
        self.folder = folder
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, path: Place) -> Any:
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag == _FILE_TAG:
            return self.file(node, path)
        if reference := _unquoted_reference(node):
            return Scalar(reference, reference)
        if path == ("source",):
            node = self.unposted(node)
        if problem := _unreadable(node, path):
            self.document.complain(path, problem)
            return Scalar(None, "")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, f"[{index}]")) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.document.lines.setdefault(path, key.start_mark.line + 1)
                self.document.complain(path, f"a key must be a word; {_QUOTES}")
                continue
            here = (*path, key.value)
            if key.value in found:
                message = f"given twice, again in line {key.start_mark.line + 1}"
                self.document.complain(here, message)
                continue
            self.document.lines[here] = key.start_mark.line + 1
            found[key.value] = self.value(item, here)
        return found

    def unposted(self, node: yaml.Node) -> yaml.Node:
        """The properties of a connector that was pasted as it is posted, with ``config`` around them."""
        items = node.value if isinstance(node, yaml.MappingNode) else []
        found = {key.value: (key, item) for key, item in items if isinstance(key, yaml.ScalarNode)}
        config = found["config"][1] if "config" in found else None
        if len(found) < len(items) or not isinstance(config, yaml.MappingNode):
            return node
        if strange := found.keys() - _POSTED:
            self.document.complain(("source",), _strange(strange))
        # The posted name is that of the connector, which the configuration may hold as well.
        named = any(key.value == "name" for key, _ in config.value)
        name = [found["name"]] if "name" in found and not named else []
        return yaml.MappingNode(node.tag, [*name, *config.value], node.start_mark, node.end_mark)

    def scalar(self, node: yaml.Node, path: Place) -> Scalar:
        try:
            value = self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError, TypeError, KeyError):
            # A date like 2024-99-99, a bad !!int: the text is what counts, and its own check will complain.
            value = node.value
        return Scalar(value, "" if value is None else node.value)

    def file(self, node: yaml.Node, path: Place) -> Any:
        if path != ("source",) or not isinstance(node, yaml.ScalarNode) or not node.value:
            self.document.complain(path, "!file is for source alone: `source: !file connector.json`")
            return {}
        return _connector(self.document, self.folder / node.value, path)


def _unreadable(node: yaml.Node, path: Place) -> str | None:
    if len(path) > _MAX_DEPTH:
        return "nested too deeply"
    if not node.tag.startswith(_STANDARD_TAG):
        return f"unknown tag; {_QUOTES}"
    if path[0] == "source" and len(path) > 1 and isinstance(node, yaml.MappingNode):
        # Not looked into: the keys of {hunter2} are as secret as the text was meant to be.
        return f"properties are flat, as in database.hostname: localhost; {_QUOTES}"
    return None


def _unquoted_reference(node: yaml.Node) -> str | None:
    """``{{secrets/scope/key}}`` without quotes, which YAML takes for a mapping with a mapping as its key."""
    for _ in range(2):
        if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
            return None
        node, empty = node.value[0]
        if not isinstance(empty, yaml.ScalarNode) or empty.value:
            return None
    return f"{{{{{node.value}}}}}" if isinstance(node, yaml.ScalarNode) else None


_POSTED = {"name", "config", "tasks", "type", "initial_state"}
"""What Kafka Connect's REST interface takes and gives for a connector."""


class _BadConnector(Exception):
    """A connector file that cannot be used; the message holds no value of it."""


def _strange(keys: Iterable[str]) -> str:
    return f"{', '.join(sorted(keys))} stands beside config, where only name is expected"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if repeated := next((key for key in keys if keys.count(key) > 1), None):
        raise _BadConnector(f"{repeated} is given twice")
    return dict(pairs)


def _connector(document: Document, file: Path, path: Place) -> Any:
    """The properties of a Debezium connector's JSON: bare, or as it is posted, under ``config``."""
    try:
        text = read_text(file)
        data = _properties(text)
    except FixConfiguration as error:
        document.complain(path, f"{error.what}: {error.why}")
        return {}
    except _BadConnector as error:
        document.complain(path, f"{file.name}: {error}")
        return {}
    document.files[path] = file
    document.lines.update({(*path, key): line for key, line in _json_lines(text) if key in data})
    return {key: _located(value) for key, value in data.items()}


def _properties(text: str) -> dict[str, Any]:
    problem = ""
    data: Any = None
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        problem = f"not valid JSON at line {error.lineno}, column {error.colno}"
    except RecursionError:
        problem = "nested too deeply"
    if problem:
        # Unchained: the decoder's error carries the whole file.
        raise _BadConnector(problem)
    if not isinstance(data, dict):
        raise _BadConnector("not a JSON object of properties")
    if not isinstance(data.get("config"), dict):
        return data
    if strange := data.keys() - _POSTED:
        raise _BadConnector(_strange(strange))
    # The posted name is that of the connector, which a bare configuration holds as a property.
    return {**({"name": data["name"]} if "name" in data else {}), **data["config"]}


def _json_lines(text: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(text.splitlines(), start=1):
        for found in re.finditer(r'"((?:[^"\\]|\\.)*)"\s*:', line):
            yield found[1], number
