"""Tables and columns as the source has them, and what changed between two versions of a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from cdc_lib.types import arrow_type, spark_type


@dataclass(frozen=True, order=True)
class TableId:
    """Name of a source table: schema and table, without quotes, as the source spells them."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @classmethod
    def parse(cls, text: str) -> TableId:
        """``schema.table``; parts with a dot are wrapped in double quotes (``"my.schema".orders``).

        :raises ValueError: not two parts.
        """
        parts: list[str] = [""]
        quoted = False
        for char in text:
            if char == '"':
                quoted = not quoted
            elif char == "." and not quoted:
                parts.append("")
            else:
                parts[-1] += char
        if quoted or len(parts) != 2 or not all(parts):
            raise ValueError(f"{text!r} is not a table name of the form schema.table")
        return cls(*parts)


class Identity(str, Enum):
    """What the log says of a row before its update or delete."""

    KEY = "key"
    """The key columns, on deletes and when the key changed (PostgreSQL default and index identity)."""
    FULL = "full"
    """All columns."""
    NOTHING = "nothing"
    """Nothing: updates and deletes cannot be assigned to a row."""


@dataclass(frozen=True)
class Column:
    """One column: ``type`` is what bronze and silver hold, ``source_type`` what the server calls it.

    ``id`` stays the same over renames and differs when a column is dropped and added again; the schema
    history gives it out (0: not yet given). ``default`` is the server's expression, or what rows have that
    were there before the column; known only where the catalog was asked: the log does not carry it.
    """

    name: str
    type: pa.DataType
    source_type: str
    nullable: bool = True
    id: int = 0
    comment: str | None = None
    default: str | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": spark_type(self.type),
            "source_type": self.source_type,
            "nullable": self.nullable,
            "id": self.id,
            "comment": self.comment,
            "default": self.default,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Column:
        return cls(**{**data, "type": arrow_type(data["type"])})


@dataclass(frozen=True)
class Table:
    """Structure of a table at one point of its history.

    ``key`` names the columns that identify a row, in key order; empty when there are none.
    ``version`` counts the structures a table has had, from 1; the schema history gives it out (0: not yet).
    """

    id: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    identity: Identity = Identity.KEY
    version: int = 0
    comment: str | None = field(default=None, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def row_type(self) -> pa.StructType:
        return pa.struct([pa.field(column.name, column.type) for column in self.columns])

    @property
    def key_type(self) -> pa.StructType:
        """The key's struct; of all columns' names when the table has no key, so that it is never empty."""
        types = {column.name: column.type for column in self.columns}
        return pa.struct([pa.field(name, types[name]) for name in self.key or self.names])

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def same_structure(self, other: Table) -> bool:
        """Equal but for version, column ids, comments and nullability, which do not change any row."""
        return (self.id, self.key, self.identity) == (other.id, other.key, other.identity) and [
            (c.name, c.type, c.source_type) for c in self.columns
        ] == [(c.name, c.type, c.source_type) for c in other.columns]

    def numbered(self, version: int, columns: tuple[Column, ...] | None = None) -> Table:
        return replace(self, version=version, columns=columns or self.columns)

    def to_json(self) -> str:
        data = {
            "id": [self.id.schema, self.id.name],
            "columns": [column.to_dict() for column in self.columns],
            "key": list(self.key),
            "identity": self.identity.value,
            "version": self.version,
            "comment": self.comment,
        }
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Table:
        data = json.loads(text)
        return cls(
            id=TableId(*data["id"]),
            columns=tuple(Column.from_dict(column) for column in data["columns"]),
            key=tuple(data["key"]),
            identity=Identity(data["identity"]),
            version=data["version"],
            comment=data["comment"],
        )
