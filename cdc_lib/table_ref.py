"""Names and columns of our own tables, as they stand in statements: quoted, whatever is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from cdc_lib.nested_types import arrow_of_ddl, quoted

Layer = Literal["bronze", "silver", "control"]
LAYERS: tuple[Layer, ...] = ("bronze", "silver", "control")


@dataclass(frozen=True)
class TableRef:
    """Where a table is: at ``path``, or in ``catalog`` and ``schema``."""

    layer: Layer
    name: str
    path: str | None
    catalog: str | None
    schema: str

    @property
    def sql(self) -> str:
        """The table's name in a statement, quoted."""
        if self.path is not None:
            return f"delta.{quoted(self.path)}"
        return f"{self.schema_sql}.{quoted(self.name)}"

    @property
    def schema_sql(self) -> str:
        """The table's schema in a statement, quoted."""
        return ".".join(quoted(part) for part in (self.catalog or "", self.schema) if part)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Field:
    """A column of a table of ours; ``type`` is Spark SQL DDL text."""

    name: str
    type: str
    comment: str | None = None
    nullable: bool = True
    arrow: pa.DataType | None = None
    """The same type for Arrow, where the text has names that only Spark's parser reads."""

    @property
    def sql(self) -> str:
        """The column's definition in CREATE TABLE."""
        text = f"{quoted(self.name)} {self.type}"
        if not self.nullable:
            text += " NOT NULL"
        return f"{text} COMMENT {literal(self.comment)}" if self.comment else text


def literal(value: str) -> str:
    """A string literal where Spark's grammar takes nothing else (comments, properties)."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """The columns of a table to be created, as Arrow has them."""
    return pa.schema(
        [
            pa.field(
                field.name,
                field.arrow or arrow_of_ddl(field.type),
                field.nullable,
                {"comment": field.comment} if field.comment else None,
            )
            for field in fields
        ]
    )
