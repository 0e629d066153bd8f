"""Which columns of a table can be compared, and as which type."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_lib.reconcile.hashing import Layout
from cdc_lib.schema import Table
from cdc_lib.silver.table import DELETED_AT, END_AT, META, SPECIAL, UNAVAILABLE
from cdc_lib.types import widens


@dataclass(frozen=True)
class Columns:
    """``kept``: columns that the source no longer has. ``lacking``: those that silver does not have, or has
    with a type that does not go with the source's."""

    layout: Layout
    kept: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def of_source(self) -> Layout:
        """The layout of the source's rows, whose server texts go by silver's name for them."""
        return replace(self.layout, special=SPECIAL, unavailable="", ended=())


def compared(table: Table, silver: pa.Schema) -> Columns:
    """What to compare of a table with the structure ``table``, whose silver has the columns ``silver``."""
    held = {field.name: field.type for field in silver}
    types = {
        column.name: _common(column.type, held[column.name]) if column.name in held else None
        for column in table.columns
    }
    return Columns(
        Layout(
            columns=tuple((name, kind) for name, kind in types.items() if kind is not None),
            key=table.key,
            special=SPECIAL if SPECIAL in held else "",
            unavailable=UNAVAILABLE if UNAVAILABLE in held else "",
            ended=tuple(name for name in ENDED if name in held),
        ),
        kept=tuple(name for name in held if name not in types and name not in META),
        lacking=tuple(name for name, kind in types.items() if kind is None),
    )


ENDED = (DELETED_AT, END_AT)
"""Columns of silver that are NULL in current rows alone: the others stand for no row of the source."""


def _common(source: pa.DataType, silver: pa.DataType) -> pa.DataType | None:
    """The type that both sides are compared in; None if one holds what the other does not."""
    if source == silver or widens(source, silver):
        return silver
    return source if widens(silver, source) else None
