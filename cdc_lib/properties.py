"""The source properties as one table: name, type, default, what becomes of it, and a line of documentation.

Names and meanings are Debezium's. An engine keeps its rows in ``sources/<engine>/properties.py``; rows that
every connector file may hold, since Kafka Connect reads them, are in ``kafka_properties.py``. The check of
a pipeline file, the JSON schema for editors and the reference page are all made from these rows.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Literal

Status = Literal["implemented", "notice", "refused", "not yet"]
"""What becomes of a property that is set.

``notice``    accepted without effect; the reason is shown by ``cdc check``
``refused``   will never be supported, for the reason given
``not yet``   refused until it works, since ignoring it would change the data or the behaviour
"""

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A type of value. ``parse`` takes the text as written and raises ValueError with what is wrong.

    ``expects`` completes "expected ..."; it is all that is said where the text came from a reference, so
    that what an environment variable holds is never repeated.
    """

    expects: str
    parse: Callable[[str], Any]
    schema: Schema = field(default_factory=lambda: MappingProxyType({"type": "string"}))
    is_list: bool = False


@dataclass(frozen=True)
class Differs:
    """Debezium's default, as its guide writes it, where leaving the property out does something else here.

    ``here`` is what it is with us, where the row's own default does not say it. ``tell``: whether
    ``cdc check`` says so for a connector file that leaves the property out.
    """

    debezium: str
    why: str
    here: str = ""
    tell: bool = False


@dataclass(frozen=True)
class Property:
    """One row. A name with ``<part>`` or ``*`` stands for all names of that shape.

    ``default`` holds for every pipeline, ``derived`` makes one from the pipeline's name. ``shapes``: the
    value decides what rows look like, so it is part of the fingerprint sealed with every batch.
    ``accepts``: values of a property that is not yet supported which ask for what happens anyway.
    ``aliases``: values that stand for another one, with the notice to give.
    ``declined``: values that are known and refused, with the reason.
    ``differs``: our default, or what happens in place of the property, is not what Debezium does by default.
    """

    name: str
    doc: str
    kind: Kind | None = None
    default: Any = None
    status: Status = "implemented"
    derived: Callable[[str], Any] | None = None
    required: bool = False
    secret: bool = False
    shapes: bool = False
    accepts: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    declined: Mapping[str, str] = field(default_factory=dict)
    differs: Differs | None = None

    @property
    def is_pattern(self) -> bool:
        return "<" in self.name or "*" in self.name

    @property
    def expression(self) -> str:
        """Regular expression of the names this row stands for."""
        return re.sub(r"<\w+>|\\\*", ".+", re.escape(self.name))


def notice(name: str, reason: str, *, differs: Differs | None = None) -> Property:
    return Property(name, reason, status="notice", differs=differs)


def refused(
    name: str, reason: str, *, accepts: tuple[str, ...] = (), differs: Differs | None = None
) -> Property:
    return Property(name, reason, status="refused", accepts=accepts, differs=differs)


def not_yet(
    name: str, reason: str, *, accepts: tuple[str, ...] = (), differs: Differs | None = None
) -> Property:
    return Property(name, reason, status="not yet", accepts=accepts, differs=differs)


# -- kinds ---------------------------------------------------------------------------------------------


def _flag(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


def _list(text: str) -> tuple[str, ...]:
    # A comma inside an expression, as in a{1,2}, is written \, as in Debezium.
    parts = re.split(r"(?<!\\),", text)
    return tuple(part.strip().replace(r"\,", ",") for part in parts if part.strip())


def _expressions(text: str) -> tuple[str, ...]:
    parts = _list(text)
    for part in parts:
        try:
            expression(part)
        except re.error as error:
            raise ValueError(f"{part!r} is not a regular expression: {error}") from None
    return parts


def _operations(text: str) -> frozenset[str]:
    parts = set(_list(text))
    if unknown := parts - {"c", "u", "d", "t", "none"}:
        raise ValueError(f"{', '.join(sorted(unknown))}: operations are c, u, d, t, or none")
    if "none" in parts and len(parts) > 1:
        raise ValueError("none cannot stand beside operations")
    return frozenset(parts - {"none"})


def _statements(text: str) -> tuple[str, ...]:
    # Two semicolons stand for one that separates nothing, as in Debezium.
    parts = re.split(r"(?<!;);(?!;)", text)
    return tuple(part.strip().replace(";;", ";") for part in parts if part.strip())


def _keys(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    return tuple(_key(entry) for entry in entries)


def _key(entry: str) -> tuple[str, tuple[str, ...]]:
    table, colon, columns = entry.rpartition(":")
    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    if not (colon and table.strip() and names):
        raise ValueError(f"{entry!r} is not of the form schema.table:column,column")
    if len(set(names)) < len(names):
        raise ValueError(f"{entry!r} names a column twice")
    return _expressions(table.replace(",", r"\,"))[0], names


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a text")
    return text


TEXT = Kind("a text", _text)
FLAG = Kind("true or false", _flag, MappingProxyType({"type": ["boolean", "string"]}))
EXPRESSIONS = Kind(
    "regular expressions, separated by commas",
    _expressions,
    MappingProxyType({"type": ["string", "array"], "items": {"type": "string"}}),
    is_list=True,
)
OPERATIONS = Kind(
    "c, u, d, t separated by commas, or none",
    _operations,
    MappingProxyType({"type": ["string", "array"], "items": {"enum": ["c", "u", "d", "t", "none"]}}),
    is_list=True,
)
KEYS = Kind("schema.table:column,column;...", _keys)
STATEMENTS = Kind("SQL statements, separated by semicolons", _statements)


def whole_number(least: int, most: int) -> Kind:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
            raise ValueError("expected a whole number")
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"expected a number from {least} to {most}")
        return number

    schema = {"type": ["integer", "string"], "minimum": least, "maximum": most}
    return Kind(f"a whole number from {least} to {most}", parse, MappingProxyType(schema))


def choice(*values: str) -> Kind:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in values:
            raise ValueError(f"expected {_either(values)}{did_you_mean(value, values)}")
        return value

    return Kind(_either(values), parse, MappingProxyType({"enum": list(values)}))


def matching(pattern: str, expects: str) -> Kind:
    """Text that matches a regular expression as a whole."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {expects}")
        return text

    return Kind(expects, parse, MappingProxyType({"type": "string", "pattern": f"^(?:{pattern})$"}))


def _either(values: tuple[str, ...]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"


# -- looking up ----------------------------------------------------------------------------------------

_ROWS: Mapping[str, str] = {"postgresql": "cdc_lib.sources.postgresql.properties"}
_SHARED_ROWS = "cdc_lib.kafka_properties"

ENGINE_NAMES: Mapping[str, str] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "io.debezium.connector.postgresql.PostgresConnector": "postgresql",
}

LATER_ENGINES: Mapping[str, str] = {
    "mysql": "MySQL",
    "io.debezium.connector.mysql.MySqlConnector": "MySQL",
    "mariadb": "MariaDB",
    "io.debezium.connector.mariadb.MariaDbConnector": "MariaDB",
    "sqlserver": "SQL Server",
    "io.debezium.connector.sqlserver.SqlServerConnector": "SQL Server",
    "oracle": "Oracle",
    "io.debezium.connector.oracle.OracleConnector": "Oracle",
    "db2": "Db2",
    "io.debezium.connector.db2.Db2Connector": "Db2",
    "mongodb": "MongoDB",
    "io.debezium.connector.mongodb.MongoDbConnector": "MongoDB",
}


class PropertyTable:
    """The rows of one engine, found by name."""

    def __init__(self, rows: Iterable[Property]) -> None:
        self.rows = tuple(rows)
        self._exact = {row.name: row for row in self.rows if not row.is_pattern}
        self._patterns = [(re.compile(row.expression), row) for row in self.rows if row.is_pattern]

    def __getitem__(self, name: str) -> Property:
        """:raises KeyError: no row has this name."""
        if row := self.find(name):
            return row
        raise KeyError(name)

    def find(self, name: str) -> Property | None:
        if name in self._exact:
            return self._exact[name]
        return next((row for pattern, row in self._patterns if pattern.fullmatch(name)), None)

    def suggestion(self, name: str) -> str:
        return did_you_mean(name, self._exact)


@cache
def property_groups(engine: str) -> Mapping[str, tuple[Property, ...]]:
    """The rows of an engine, by its canonical name, under the titles of the reference page.

    They are loaded by name, as the engine itself is: configuration stands below the engines and does not
    import them.
    """
    modules = (importlib.import_module(name) for name in (_ROWS[engine], _SHARED_ROWS))
    return {title: rows for module in modules for title, rows in module.GROUPS.items()}


@cache
def property_table(engine: str) -> PropertyTable:
    """The table of an engine, by its canonical name."""
    return PropertyTable(row for rows in property_groups(engine).values() for row in rows)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean x?"``, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


@lru_cache(maxsize=4096)
def expression(pattern: str) -> re.Pattern[str]:
    """A filter's expression as Debezium reads it: without regard to case; match it against whole names."""
    return re.compile(pattern, re.IGNORECASE)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the expressions matches the whole of ``name``."""
    return any(expression(pattern).fullmatch(name) for pattern in patterns)
