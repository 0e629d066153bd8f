"""pgoutput's protocol 1: the messages that are rare enough to be read one at a time.

Source: PostgreSQL manual, "Logical Replication Message Formats". Row changes are read in bulk, in
``tuples.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cdc_lib.errors import CdcError
from cdc_lib.schema import TableId

HEADER = 26
"""Octets of a COPY BINARY row (lsn pg_lsn, xid xid, data bytea) before pgoutput's message."""
LSN_AT = 6
EPOCH_US = 946_684_800_000_000
"""PostgreSQL's epoch, 2000-01-01, in microseconds after 1970-01-01."""

BEGIN, COMMIT, ORIGIN, RELATION, TYPE = b"BCORY"
INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = b"IUDTM"

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_COPY_HEADER = len(_SIGNATURE) + 8
_COPY_TRAILER = b"\xff\xff"


@dataclass(frozen=True)
class RelationColumn:
    """``identity``: part of the replica identity (all columns are, under FULL)."""

    name: str
    identity: bool
    type_oid: int
    typmod: int


@dataclass(frozen=True)
class Relation:
    """Structure of a table at the time of the changes that follow; ``identity`` is ``relreplident``."""

    oid: int
    table: TableId
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class LogicalMessage:
    """What ``pg_logical_emit_message`` wrote; ``lsn`` is the end of its record."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


def trim(rows: list[bytes]) -> list[bytes]:
    """COPY's data without the header and trailer of the binary format, wherever the list is cut.

    libpq hands out the header glued to the first row, the trailer on its own, and both glued together when
    there is no row. No row starts like either: it begins with its number of fields.
    """
    if rows and rows[0].startswith(_SIGNATURE):
        rows = [rows[0][_COPY_HEADER:], *islice(rows, 1, None)]
        if not rows[0]:
            del rows[0]
    if rows and rows[-1] == _COPY_TRAILER:
        rows = rows[:-1]
    return rows


def parse_relation(data: bytes) -> Relation:
    (oid,) = struct.unpack_from(">I", data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity, count = struct.unpack_from(">cH", data, at)
    at += 3
    columns = []
    for _ in range(count):
        column, end = _string(data, at + 1)
        columns.append(RelationColumn(column, bool(data[at] & 1), *struct.unpack_from(">Ii", data, end)))
        at = end + 8
    # An empty namespace stands for pg_catalog.
    return Relation(oid, TableId(schema or "pg_catalog", name), identity.decode(), tuple(columns))


def parse_type(data: bytes) -> tuple[int, str]:
    """OID and qualified name of a type that is not built in."""
    (oid,) = struct.unpack_from(">I", data, 1)
    schema, at = _string(data, 5)
    return oid, f"{schema}.{_string(data, at)[0]}"


def parse_origin(data: bytes) -> str:
    return _string(data, 9)[0]


def parse_truncate(data: bytes) -> list[int]:
    """OIDs of the truncated tables, those reached by CASCADE included."""
    (count,) = struct.unpack_from(">I", data, 1)
    return list(struct.unpack_from(f">{count}I", data, 6))


def parse_message(data: bytes) -> LogicalMessage:
    flags, lsn = struct.unpack_from(">Bq", data, 1)
    prefix, at = _string(data, 10)
    (size,) = struct.unpack_from(">I", data, at)
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at + 4 : at + 4 + size])


def malformed(what: str) -> CdcError:
    """The error for a log that breaks the protocol."""
    return CdcError(
        what,
        why="the log does not follow pgoutput's protocol 1, or part of it was not read",
        remedy="run again; if it happens again, report it with the server's version",
    )


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


_ROW_TAGS = np.zeros(256, np.bool_)
_ROW_TAGS[[INSERT, UPDATE, DELETE, TRUNCATE]] = True
ROW_TAGS = _ROW_TAGS
"""By tag: whether a message changes rows."""
