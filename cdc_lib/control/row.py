"""How a control table is written down: a frozen dataclass whose annotations carry type and comment.

One definition gives the table's DDL, the rows on their way in and the values read back. Every table also
has the column ``pipeline``, so that pipelines can share a control schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

from cdc_lib.delta import Field, Lake, TableRef, Txn
from cdc_lib.delta_upkeep import Condition, delete

R = TypeVar("R")

PIPELINE = Field("pipeline", "STRING", "name of the pipeline that the row belongs to")


@dataclass(frozen=True)
class Stored:
    """Annotation of a row's field: the column's Spark SQL type and comment."""

    type: str
    comment: str


def fields_of(row: type[Any]) -> list[Field]:
    """The columns of a row class, ``pipeline`` first."""
    hints = get_type_hints(row, include_extras=True)
    return [PIPELINE, *(_field(name, hints[name]) for name in names_of(row))]


def names_of(row: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(row)]


def _field(name: str, hint: Any) -> Field:
    stored: Stored = hint.__metadata__[0]
    return Field(name, stored.type, stored.comment)


class ControlTable(Generic[R]):
    """One control table of one pipeline."""

    name: ClassVar[str]
    comment: ClassVar[str]
    row: ClassVar[type[Any]]

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._lake = lake
        self._pipeline = pipeline

    @property
    def ref(self) -> TableRef:
        return self._lake.ref("control", self.name)

    def create(self) -> None:
        """Create the table unless it exists."""
        self._lake.create(self.ref, fields_of(self.row), comment=self.comment)

    def load(self) -> list[R]:
        """All rows of this pipeline, in no order."""
        return self._select()

    def forget(self, conditions: Sequence[Condition]) -> None:
        """Delete the rows of this pipeline that meet all conditions.

        :raises Conflict: others kept committing to the table.
        """
        delete(self._lake, self.ref, [("pipeline", "=", self._pipeline), *conditions])

    def _select(self, **where: Any) -> list[R]:
        found = self._lake.rows(self.ref, names_of(self.row), {"pipeline": self._pipeline, **where})
        return [self._from_dict(row) for row in found]

    def _append(self, rows: Sequence[R], txn: Txn | None = None) -> None:
        if rows:
            self._lake.append_rows(self.ref, [self._to_dict(row) for row in rows], txn=txn)

    def _to_dict(self, row: R) -> dict[str, Any]:
        values = dataclasses.asdict(row)  # type: ignore[call-overload]
        plain = {key: value.value if isinstance(value, Enum) else value for key, value in values.items()}
        return {"pipeline": self._pipeline, **plain}

    def _from_dict(self, data: Mapping[str, Any]) -> R:
        made: R = self.row(**data)
        return made
