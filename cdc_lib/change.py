"""What flows from a source to bronze: changes of one table, columnar, and the events between them.

A log reader yields :data:`LogEvent` values in log order. No Python of ours runs per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from cdc_lib.position import Position
from cdc_lib.schema import Table

STRINGS = pa.list_(pa.string())
SPECIAL = pa.map_(pa.string(), pa.string())
TRANSACTION = pa.struct(
    [
        pa.field("id", pa.string()),
        pa.field("total_order", pa.int64()),
        pa.field("data_collection_order", pa.int64()),
    ]
)


class Op(str, Enum):
    """Debezium's operation codes."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    TRUNCATE = "t"


def change_schema(table: Table, source: pa.DataType) -> pa.Schema:
    """Columns of a :class:`ChangeBatch` of ``table``; ``source`` is the engine's struct of position fields.

    ``before_unavailable`` / ``after_unavailable``
        Columns that the log did not carry in that image (unchanged TOAST, key-only identity). NULL when
        the image is complete or absent; such a column's value in the image is NULL and means "not known".
        With key-only identity, ``before`` holds the key and ``before_unavailable`` all other columns.
    ``special``
        Server text of values that their column cannot hold (infinity, BC, NaN in a decimal, odd array
        bounds), under the column's name; the column itself is NULL. Values of ``before`` in an update
        stand under ``before.<column>``; those of a delete's ``before`` under the plain name; those of
        ``previous_key`` under ``previous_key.<column>``. NULL if none.
    ``previous_key``
        On a create that is half of a key update: the old key. NULL elsewhere. Fields: the table's key.
    ``position``
        Sort key of the commit (or of the snapshot) that the row belongs to.
    ``ordinal``
        Rises by one for each row in log order, across all tables of a reader, counted after key updates
        are split into delete and create, and before filters. Starts anywhere; the batch rebases it.
    """
    row = table.row_type
    return pa.schema(
        [
            pa.field("op", pa.string()),
            pa.field("before", row),
            pa.field("after", row),
            pa.field("before_unavailable", STRINGS),
            pa.field("after_unavailable", STRINGS),
            pa.field("special", SPECIAL),
            pa.field("previous_key", table.key_type),
            pa.field("source", source),
            pa.field("transaction", TRANSACTION),
            pa.field("position", pa.string()),
            pa.field("ordinal", pa.int64()),
        ]
    )


@dataclass(frozen=True)
class ChangeBatch:
    """Changes of one table under one structure, in log order; ``rows`` has :func:`change_schema`."""

    table: Table
    rows: pa.RecordBatch
    partial: bool = False
    """Whether any row has ``after_unavailable`` or ``previous_key``: its reader must look for base values."""


@dataclass(frozen=True)
class SchemaChange:
    """From here on the table has this structure. ``before`` is None at first sight."""

    before: Table | None
    table: Table
    position: Position | None = None


@dataclass(frozen=True)
class TransactionEnd:
    """Everything yielded so far ends exactly at a commit; a batch may be cut here.

    Not every commit is reported: readers report the last one of each decoded chunk.
    ``ordinal`` is the ordinal the next row will have; ``committed_us`` the commit's time at the source
    in microseconds since the epoch.
    """

    position: Position
    ordinal: int
    committed_us: int | None = None


@dataclass(frozen=True)
class Message:
    """An application's message in the log (PostgreSQL ``pg_logical_emit_message``)."""

    prefix: str
    content: bytes
    transactional: bool
    position: Position
    transaction_id: int | None = None


@dataclass(frozen=True)
class Progress:
    """Everything up to ``position`` has been read; no captured table changed since the last event."""

    position: Position


LogEvent: TypeAlias = "ChangeBatch | SchemaChange | TransactionEnd | Message | Progress"
