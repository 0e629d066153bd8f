"""pgoutput messages and COPY rows, made after the manual's "Logical Replication Message Formats".

Written apart from the decoder, with nothing of it, so that both can only agree on the manual.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"
EPOCH_2000_US = 946_684_800 * 1_000_000
UNCHANGED = "unchanged TOAST"

Cell = str | None
"""A text value, None for NULL, or :data:`UNCHANGED` itself (by identity)."""


@dataclass(frozen=True)
class WireColumn:
    name: str
    type_oid: int
    typmod: int = -1
    key: bool = False


@dataclass(frozen=True)
class WireTable:
    oid: int
    name: str
    identity: str
    columns: tuple[WireColumn, ...]
    schema: str = "public"

    def describe(self) -> bytes:
        body = struct.pack(">cI", b"R", self.oid) + _text(self.schema) + _text(self.name)
        body += self.identity.encode() + struct.pack(">h", len(self.columns))
        for column in self.columns:
            flag = column.key or self.identity == "f"
            body += struct.pack(">B", flag) + _text(column.name)
            body += struct.pack(">Ii", column.type_oid, column.typmod)
        return body

    def key_only(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell if column.key else None for column, cell in zip(self.columns, cells, strict=True)]


@dataclass
class Log:
    """A log under construction: ``rows`` are what COPY hands over, one bytes object a row."""

    rows: list[bytes] = field(default_factory=list)
    lsn: int = 0x100

    def write(self, message: bytes, lsn: int | None = None, xid: int = 0) -> int:
        """Append a message; its LSN is the next free one, or ``lsn``."""
        at = self.lsn if lsn is None else lsn
        head = struct.pack(">hiqiIi", 3, 8, at, 4, xid, len(message))
        self.rows.append(head + message)
        if lsn is None:
            self.lsn += 0x10
        return at

    def transaction(
        self, xid: int, messages: Sequence[bytes], time_us: int = 0, origin: str | None = None
    ) -> tuple[int, int]:
        """A whole transaction; returns where its commit record starts and ends."""
        final = self.lsn + 0x10 * (len(messages) + 1)
        self.write(begin(final, time_us, xid))
        if origin is not None:
            self.write(struct.pack(">cq", b"O", 7) + _text(origin), lsn=final)
        for message in messages:
            self.write(message, xid=xid)
        self.lsn = final + 0x8
        self.write(commit(final, self.lsn, time_us), lsn=self.lsn)
        return final, self.lsn


def begin(final: int, time_us: int, xid: int) -> bytes:
    return struct.pack(">cqqI", b"B", final, time_us - EPOCH_2000_US, xid)


def commit(start: int, end: int, time_us: int) -> bytes:
    return struct.pack(">cBqqq", b"C", 0, start, end, time_us - EPOCH_2000_US)


def insert(table: WireTable, new: Sequence[Cell]) -> bytes:
    return struct.pack(">cIc", b"I", table.oid, b"N") + _tuple(new)


def update(
    table: WireTable,
    new: Sequence[Cell],
    key: Sequence[Cell] | None = None,
    old: Sequence[Cell] | None = None,
) -> bytes:
    return struct.pack(">cI", b"U", table.oid) + _old(key, old) + b"N" + _tuple(new)


def delete(table: WireTable, key: Sequence[Cell] | None = None, old: Sequence[Cell] | None = None) -> bytes:
    return struct.pack(">cI", b"D", table.oid) + _old(key, old)


def truncate(*tables: WireTable) -> bytes:
    return struct.pack(f">cIB{len(tables)}I", b"T", len(tables), 3, *(table.oid for table in tables))


def message(prefix: str, content: bytes, transactional: bool, lsn: int) -> bytes:
    head = struct.pack(">cBq", b"M", transactional, lsn)
    return head + _text(prefix) + struct.pack(">I", len(content)) + content


def type_name(oid: int, schema: str, name: str) -> bytes:
    return struct.pack(">cI", b"Y", oid) + _text(schema) + _text(name)


def copy_row(cells: Sequence[Cell]) -> bytes:
    """A row of COPY's binary format with text columns."""
    row = struct.pack(">h", len(cells))
    for cell in cells:
        octets = None if cell is None else cell.encode()
        row += struct.pack(">i", -1) if octets is None else struct.pack(">i", len(octets)) + octets
    return row


def _old(key: Sequence[Cell] | None, old: Sequence[Cell] | None) -> bytes:
    if old is not None:
        return b"O" + _tuple(old)
    return b"" if key is None else b"K" + _tuple(key)


def _tuple(cells: Sequence[Cell]) -> bytes:
    body = struct.pack(">h", len(cells))
    for cell in cells:
        if cell is UNCHANGED:
            body += b"u"
        elif cell is None:
            body += b"n"
        else:
            octets = cell.encode()
            body += b"t" + struct.pack(">i", len(octets)) + octets
    return body


def _text(value: str) -> bytes:
    return value.encode() + b"\0"
