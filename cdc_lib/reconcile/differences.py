"""The first few differences of a table down to the cell, both values as text that shows where they differ."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lib.reconcile.buckets import Selection
from cdc_lib.reconcile.hashing import KEY, Layout, Words, lanes
from cdc_lib.reconcile.result import Difference
from cdc_lib.reconcile.silver_rows import SilverRows
from cdc_lib.reconcile.source_rows import values_of
from cdc_lib.silver.table import SPECIAL, UNAVAILABLE
from cdc_lib.source import Chunk

SHOWN = 60
"""Characters of a value that are shown."""
BEFORE = 20
"""Characters shown before the first that differs, where it lies further back."""

Values = Mapping[str, pa.Array]


@dataclass(frozen=True)
class Row:
    """A row of one side: each column one value long."""

    values: Values

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        return self.values[name].cast(kind)

    def special(self, name: str) -> str | None:
        """The server's text where the column cannot hold the value."""
        if SPECIAL not in self.values:
            return None
        return dict(self.values[SPECIAL][0].as_py() or ()).get(name)

    def unknown(self, name: str) -> bool:
        return UNAVAILABLE in self.values and name in (self.values[UNAVAILABLE][0].as_py() or ())


class Sample:
    """Rows of the source without an equal in silver, as many as will be shown."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: dict[int, Row] = {}
        self._lock = threading.Lock()

    def take(self, chunk: Chunk, rows: pa.RecordBatch, hashed: Words, doubled: Words) -> None:
        with self._lock:
            room = self._count - len(self._rows)
            if room <= 0:
                return
            # A copy: a slice would keep the whole batch.
            part = rows.take(pa.array(np.arange(min(room, rows.num_rows))))
            values = values_of(part)
            for place, key in enumerate(hashed[KEY, : part.num_rows].tolist()):
                self._rows[key] = _row(values, place)

    def differences(self, silver: SilverRows, extras: Words) -> tuple[Difference, ...]:
        """The differences of these rows, and rows that only silver has, in order of their keys.

        :param extras: key hashes of the latter, as often as there are rows.
        """
        keys = np.union1d(np.array([*self._rows], np.uint64), extras[: self._count])
        alone = Counter(extras[: self._count].tolist())
        if not silver.layout.key or not len(keys):
            return ()
        held: defaultdict[int, list[Row]] = defaultdict(list)
        for rows in silver.rows(Selection(keys=keys)).to_batches():
            values = {name: rows.column(name) for name in silver.layout.reads}
            for place, key in enumerate(silver.layout.hashed_rows(rows)[KEY].tolist()):
                held[key].append(_row(values, place))
        every: list[tuple[Row | None, list[Row]]] = [(row, held[key]) for key, row in self._rows.items()]
        every += [(None, held[key][:count]) for key, count in alone.items()]
        chosen = sorted(every, key=lambda pair: _order(silver.layout, pair[0] or pair[1][0]))
        found = [one for row, others in chosen for one in _compared(silver.layout, row, others)]
        return tuple(found[: self._count])


def _row(values: Values, place: int) -> Row:
    return Row({name: column.slice(place, 1) for name, column in values.items()})


def _compared(layout: Layout, source: Row | None, silver: list[Row]) -> Iterator[Difference]:
    if source is not None and not silver:
        yield Difference("missing in silver", _key(layout, source))
        return
    if source is not None:
        yield from _cells(layout, source, silver[0])
    for extra in silver[1 if source is not None else 0 :]:
        yield Difference("only in silver", _key(layout, extra))


def _cells(layout: Layout, source: Row, silver: Row) -> Iterator[Difference]:
    key = _key(layout, source)
    for name, kind in layout.columns:
        ours, theirs = source.column(name, kind), silver.column(name, kind)
        texts = source.special(name), silver.special(name)
        if silver.unknown(name):
            yield Difference("not known", key, name, _text(ours, texts[0], 0), None)
        elif texts[0] != texts[1] or (lanes(ours) != lanes(theirs)).any():
            place = _first_difference(ours, theirs)
            shown = (_text(ours, texts[0], place), _text(theirs, texts[1], place))
            yield Difference("different", key, name, *shown)


def _key(layout: Layout, row: Row) -> dict[str, str]:
    types = dict(layout.columns)
    return {name: _text(row.column(name, types[name]), row.special(name), 0) for name in layout.key}


def _order(layout: Layout, row: Row) -> list[tuple[bool, Any]]:
    types = dict(layout.columns)
    values = [row.column(name, types[name])[0].as_py() for name in layout.key]
    # NULL has no order with others, and a damaged key may be NULL.
    return [(value is not None, value if value is not None else 0) for value in values]


def _text(column: pa.Array, special: str | None, place: int) -> str:
    """A value as it is shown, from around ``place``."""
    if special is not None:
        return f"{_cut(special, 0)} (server text)"
    value = column[0]
    if not value.is_valid:
        return "NULL"
    if pa.types.is_string(column.type):
        return _cut(value.as_py(), place, quote=True)
    if pa.types.is_binary(column.type):
        return _cut(value.as_py()[max(0, place - BEFORE) : place + SHOWN].hex(), 0, lead=place > BEFORE)
    if pa.types.is_list(column.type):
        items = [_text(pa.array([item], column.type.value_type), None, 0) for item in value.as_py()[:SHOWN]]
        return _cut(f"[{', '.join(items)}]", 0)
    return str(column.cast(pa.string())[0].as_py())


def _cut(text: str, place: int, *, quote: bool = False, lead: bool = False) -> str:
    start = place - BEFORE if place > SHOWN - BEFORE else 0
    part = text[start : start + SHOWN]
    shown = json.dumps(part, ensure_ascii=False) if quote else part
    return ("…" if start or lead else "") + shown + ("…" if start + SHOWN < len(text) else "")


def _first_difference(one: pa.Array, other: pa.Array) -> int:
    """Where two texts part; 0 for other types. By halves, since a text may be large."""
    if not (pa.types.is_string(one.type) or pa.types.is_binary(one.type)):
        return 0
    first, second = one[0].as_py(), other[0].as_py()
    if first is None or second is None:
        return 0
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
