"""The log decoder again, the plain way: one message, one value at a time. The vectorised one must agree."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MISFIT = object()
"""What a value function returns for a text that the column cannot hold."""

Row = dict[str, Any]
Values = Mapping[int, Callable[[str], Any]]
"""By type OID: from server text to what the column should hold."""


@dataclass
class Described:
    name: str
    identity: str
    columns: list[tuple[str, bool, int]]

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.columns]

    def key(self, keys: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        flagged = tuple(name for name, flag, _ in self.columns if flag)
        return flagged if self.identity in "di" and flagged else keys.get(self.name, ())


@dataclass
class ScalarDecoder:
    """``keys``: keys of tables with identity FULL; ``captured``: table names."""

    values: Values
    keys: Mapping[str, tuple[str, ...]]
    captured: set[str]
    after: int
    upto: int
    rows: list[Row] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tables: dict[int, Described] = {}
        self._final = self._time = self._xid = 0
        self._origin: str | None = None
        self._in_transaction: list[str] = []

    def read(self, log: list[bytes]) -> None:
        for row in log:
            (lsn,) = struct.unpack_from(">q", row, 6)
            self._message(lsn, row[26:])

    def _message(self, lsn: int, data: bytes) -> None:
        kind = data[:1].decode()
        if kind == "B":
            self._final, time, self._xid = struct.unpack(">qqI", data[1:])
            self._time = time + 946_684_800_000_000
            self._origin, self._in_transaction = None, []
        elif kind == "C":
            end = struct.unpack_from(">q", data, 10)[0]
            if self._wanted():
                self.ends.append((end, len(self.rows)))
        elif kind == "O":
            self._origin = data[9:-1].decode()
        elif kind == "R":
            self._describe(data)
        elif kind == "T":
            count = struct.unpack_from(">I", data, 1)[0]
            for oid in struct.unpack_from(f">{count}I", data, 6):
                self._emit(lsn, self._tables[oid], "t", {})
        elif kind in "IUD":
            self._change(lsn, kind, data)

    def _wanted(self) -> bool:
        return self.after <= self._final < self.upto

    def _describe(self, data: bytes) -> None:
        oid = struct.unpack_from(">I", data, 1)[0]
        _, name, rest = data[5:].split(b"\0", 2)
        columns = []
        count = struct.unpack_from(">h", rest, 1)[0]
        at = 3
        for _ in range(count):
            end = rest.index(b"\0", at + 1)
            type_oid = struct.unpack_from(">I", rest, end + 1)[0]
            columns.append((rest[at + 1 : end].decode(), rest[at] == 1, type_oid))
            at = end + 9
        self._tables[oid] = Described(name.decode(), chr(rest[0]), columns)

    def _change(self, lsn: int, kind: str, data: bytes) -> None:
        table = self._tables[struct.unpack_from(">I", data, 1)[0]]
        at, images = 5, {}
        while at < len(data):
            tag = chr(data[at])
            images[tag], at = self._tuple(data, at + 1)
        old = images.get("O") or images.get("K")
        new = images.get("N")
        if old and new:
            self._fill(table, new, old, "O" in images)
        key_only = table if "K" in images else None
        if kind == "U" and old and new and self._key_changed(table, new, old, key_only is not None):
            self._emit(lsn, table, "d", {"old": old, "key_only": key_only})
            self._emit(lsn, table, "c", {"new": new, "previous": old})
        else:
            op = {"I": "c", "U": "u", "D": "d"}[kind]
            self._emit(lsn, table, op, {"old": old, "new": new, "key_only": key_only})

    def _tuple(self, data: bytes, at: int) -> tuple[list[Any], int]:
        count = struct.unpack_from(">h", data, at)[0]
        at += 2
        cells: list[Any] = []
        for _ in range(count):
            kind = chr(data[at])
            if kind == "t":
                size = struct.unpack_from(">i", data, at + 1)[0]
                cells.append(("t", data[at + 5 : at + 5 + size].decode()))
                at += 5 + size
            else:
                cells.append((kind, None))
                at += 1
        return cells, at

    def _fill(self, table: Described, new: list[Any], old: list[Any], whole: bool) -> None:
        for place, (_, flag, _) in enumerate(table.columns):
            if new[place][0] == "u" and old[place][0] != "u" and (whole or flag):
                new[place] = old[place]

    def _key_changed(self, table: Described, new: list[Any], old: list[Any], key_only: bool) -> bool:
        for name in table.key(self.keys):
            place = table.names.index(name)
            carried = not key_only or table.columns[place][1]
            if carried and "u" not in (new[place][0], old[place][0]) and new[place] != old[place]:
                return True
        return False

    def _emit(self, lsn: int, table: Described, op: str, parts: Mapping[str, Any]) -> None:
        if not self._wanted() or table.name not in self.captured:
            return
        self._in_transaction.append(table.name)
        special: dict[str, str] = {}
        old, new, previous = parts.get("old"), parts.get("new"), parts.get("previous")
        after = new and self._image(table, new, special, "")
        before = old and self._image(table, old, special, "before." if op == "u" else "")
        key = table.key(self.keys)
        old_key = previous and self._image(table, previous, special, "previous_key.", key)
        self.rows.append(
            {
                "table": table.name,
                "columns": table.names,
                "op": op,
                "before": before,
                "after": after,
                "before_unavailable": self._unavailable(table, old, parts.get("key_only")),
                "after_unavailable": self._unavailable(table, new, None),
                "special": sorted(special.items()) or None,
                "previous_key": old_key,
                "lsn": lsn,
                "commit_lsn": self._final,
                "ts_us": self._time,
                "txId": self._xid,
                "origin": self._origin,
                "transaction": (
                    str(self._xid),
                    len(self._in_transaction),
                    self._in_transaction.count(table.name),
                ),
                "ordinal": len(self.rows),
            }
        )

    def _image(
        self,
        table: Described,
        cells: list[Any],
        special: dict[str, str],
        prefix: str,
        only: tuple[str, ...] | None = None,
    ) -> Row:
        image = {}
        for (name, _, type_oid), (_, text) in zip(table.columns, cells, strict=True):
            if only is not None and name not in only:
                continue
            value = None if text is None else self.values[type_oid](text)
            if value is MISFIT:
                special[prefix + name], value = text, None
            image[name] = value
        return image

    def _unavailable(
        self, table: Described, cells: list[Any] | None, key_only: Described | None
    ) -> list[str] | None:
        if not cells:
            return None
        names = [
            name
            for (name, flag, _), (kind, _) in zip(table.columns, cells, strict=True)
            if kind == "u" or (key_only is not None and not flag)
        ]
        return names or None
