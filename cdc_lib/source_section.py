"""Checks the ``source:`` section of a pipeline file, property by property, against the engine's table.

A message may repeat what the file says, unless it is a password or came from a reference; it never repeats
what a reference stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdc_lib.errors import FixConfiguration
from cdc_lib.pipeline import SourceConfig
from cdc_lib.properties import (
    ENGINE_NAMES,
    LATER_ENGINES,
    Property,
    PropertyTable,
    did_you_mean,
    property_table,
)
from cdc_lib.secrets import SecretRef, check_references, has_reference, resolve
from cdc_lib.yaml_source import Document, Place, Remark, Scalar


@dataclass
class SectionReader:
    """A document under check: complaints go to the document, notices stay here."""

    document: Document
    environ: Mapping[str, str]
    notices: list[Remark] = field(default_factory=list)

    def resolved(self, place: Place, written: Scalar) -> str | None:
        """The text with its references resolved; None after a complaint."""
        if not has_reference(written.text):
            return written.text
        try:
            return resolve(written.text, self.environ)
        except ValueError as error:
            problem = str(error)
        except FixConfiguration as error:
            problem = f"{error.what}; {error.remedy}"
        self.document.complain(place, problem)
        return None


class SourceReader(SectionReader):
    """Turns the section into a :class:`SourceConfig`."""

    def source(self, name: str) -> SourceConfig | None:
        given = self.document.data.get("source")
        if not isinstance(given, dict):
            if ("source",) not in self.document.bad:
                message = "required, but not given" if given is None else "expected Debezium's properties"
                self.document.complain(("source",), message)
            return None
        engine = self.engine(given)
        if engine is None:
            return None
        table = property_table(engine)
        values: dict[str, Any] = {}
        for prop, written in given.items():
            if prop == "connector.class" or ("source", prop) in self.document.bad:
                continue
            if row := _row(table, prop, given):
                self.property(row, prop, written, values)
            else:
                self.document.complain(("source", prop), f"unknown property{table.suggestion(prop)}")
        self.required(table, given)
        self.conflicts(values)
        self.other_defaults(table, given)
        return SourceConfig(engine, name, {**values, "connector.class": engine}, self.environ)

    def engine(self, given: Mapping[str, Any]) -> str | None:
        place = ("source", "connector.class")
        written = given.get("connector.class")
        if not isinstance(written, Scalar):
            near = next((key for key in given if did_you_mean(key, ["connector.class"])), None)
            hint = f"; is {near} meant?" if near else "; for PostgreSQL write connector.class: postgresql"
            self.document.complain(place, f"required, but not given{hint}")
            return None
        text = written.text.strip()
        if text in ENGINE_NAMES:
            return ENGINE_NAMES[text]
        if text in LATER_ENGINES:
            self.document.complain(place, f"{LATER_ENGINES[text]} is not yet supported; PostgreSQL is")
        else:
            self.document.complain(place, f"unknown engine{did_you_mean(text, ENGINE_NAMES)}")
        return None

    def property(self, row: Property, prop: str, written: Any, values: dict[str, Any]) -> None:
        place = ("source", prop)
        if row.status == "notice":
            self.notices.append(self.document.remark(place, f"without effect: {row.doc}"))
            return
        if row.status in ("refused", "not yet"):
            self.declined(row, place, written)
            return
        text = _joined(row, written)
        if text is None or (not text and row.secret):
            expects = row.kind.expects if row.kind else "a text"
            self.document.complain(place, f"expected {expects}")
        elif row.secret:
            self.secret(place, text, values)
        elif (resolved := self.resolved(place, Scalar(text, text))) is not None:
            self.value(row, place, (text, resolved), values)

    def declined(self, row: Property, place: Place, written: Any) -> None:
        if isinstance(written, Scalar) and written.text.strip().lower() in row.accepts:
            self.notices.append(self.document.remark(place, f"without effect, it is so already: {row.doc}"))
            return
        status = "not yet supported" if row.status == "not yet" else "not supported"
        self.document.complain(place, f"{status}: {row.doc}")

    def secret(self, place: Place, text: str, values: dict[str, Any]) -> None:
        try:
            check_references(text)
        except ValueError as error:
            self.document.complain(place, str(error))
            return
        reference = SecretRef(text)
        values[place[-1]] = reference
        if reference.reference is None:
            message = "a password stands in the file; better a reference such as ${env:NAME}"
            self.notices.append(self.document.remark(place, message))

    def value(self, row: Property, place: Place, text: tuple[str, str], values: dict[str, Any]) -> None:
        """Parse ``text``, a pair of what the file says and what that stands for."""
        assert row.kind is not None
        written, resolved = text
        word = resolved.strip().lower()
        if word in row.aliases:
            resolved, reason = row.aliases[word]
            self.notices.append(self.document.remark(place, f"taken as {resolved}: {reason}"))
        if word in row.declined:
            self.document.complain(place, f"{word} is refused: {row.declined[word]}")
            return
        problem = ""
        try:
            values[place[-1]] = row.kind.parse(resolved)
        except ValueError as error:
            problem = str(error) if written == resolved else f"expected {row.kind.expects}"
        if problem:
            self.document.complain(place, problem)

    def required(self, table: PropertyTable, given: Mapping[str, Any]) -> None:
        for row in table.rows:
            if row.required and row.name not in given:
                self.document.complain(("source", row.name), "required, but not given")

    def conflicts(self, values: Mapping[str, Any]) -> None:
        for kind in ("schema", "table", "column", "message.prefix"):
            include, exclude = f"{kind}.include.list", f"{kind}.exclude.list"
            if values.get(include) and values.get(exclude):
                self.document.complain(("source", exclude), f"cannot be set together with {include}")

    def other_defaults(self, table: PropertyTable, given: Mapping[str, Any]) -> None:
        """Tell those who bring a Debezium connector which of its silent defaults do not hold here."""
        if not given["connector.class"].text.strip().startswith("io.debezium."):
            return
        for row in table.rows:
            if row.differs and row.differs.tell and row.name not in given:
                message = f"not given, and Debezium's default, {row.differs.debezium}, does not hold here: "
                self.notices.append(self.document.remark(("source", row.name), message + row.differs.why))


def _row(table: PropertyTable, prop: str, given: Mapping[str, Any]) -> Property | None:
    if row := table.find(prop):
        return row
    # Properties of custom converters start with the symbols that `converters` lists.
    converters = given.get("converters")
    symbols = converters.text.split(",") if isinstance(converters, Scalar) else []
    ours = any(prop.startswith(f"{symbol.strip()}.") for symbol in symbols if symbol.strip())
    return table["converters"] if ours else None


def _joined(row: Property, written: Any) -> str | None:
    """The text of a property; of a list, in the form of a comma list. None: no value, or the wrong sort."""
    if isinstance(written, Scalar):
        return None if written.value is None else written.text
    if row.kind is None or not row.kind.is_list or not isinstance(written, list):
        return None
    if not all(isinstance(item, Scalar) and item.text for item in written):
        return None
    return ",".join(re.sub(r"(?<!\\),", r"\\,", item.text) for item in written)
