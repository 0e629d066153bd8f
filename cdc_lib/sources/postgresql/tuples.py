"""Values inside received rows: found by walking all tuples at once, column by column.

The rows are joined to one buffer. ``starts`` and ``lengths`` of a column's values come from numpy gathers on
unaligned views of it; strings are built as views onto it and copied out once, by Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_lib.sources.postgresql.convert import Mask

Index = npt.NDArray[np.int64]

MAX_COLUMNS = 1664
"""PostgreSQL's limit for a target list (``MaxTupleAttributeNumber``); a table has at most 1600."""

_TEXT = ord("t")
_UNCHANGED = ord("u")
_NO_TUPLE = MAX_COLUMNS.to_bytes(2, "big") + b"n" * MAX_COLUMNS
_PADDING = bytes(32)
_INLINE = 12  # longest value that a string view holds in itself
_KEEP = np.zeros((_INLINE + 1, 3), np.int32)
for _length in range(_INLINE + 1):
    _KEEP[_length] = np.frombuffer((b"\xff" * _length).ljust(12, b"\0"), np.int32)


class Received:
    """Received rows as one buffer, read at any offset.

    ``starts``: where each row begins. ``no_tuple``: a tuple of NULLs behind the rows, for events that have
    no old or no new tuple.
    """

    def __init__(self, rows: list[bytes]) -> None:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ends = np.cumsum(lengths)
        self.starts: Index = ends - lengths
        self.no_tuple = int(ends[-1]) if len(rows) else 0
        self.octets = np.frombuffer(b"".join([*rows, _NO_TUPLE, _PADDING]), np.uint8)
        self.int16 = self._view(">i2")
        self.int32 = self._view(">i4")
        self.uint32 = self._view(">u4")
        self.int64 = self._view(">i8")
        self.word = self._view("<u8")
        self.prefix = self._view("<i4")
        self.twelve = np.lib.stride_tricks.as_strided(self.prefix, (len(self.prefix) - 8, 3), (1, 4))
        self.shared = pa.py_buffer(self.octets)

    def _view(self, dtype: str) -> npt.NDArray[np.int64]:
        kind = np.dtype(dtype)
        first = self.octets[: kind.itemsize].view(kind)
        size = len(self.octets) - 16
        return np.lib.stride_tricks.as_strided(first, (size,), (1,))


@dataclass(frozen=True)
class Field:
    """One column of many tuples: where its values stand in the buffer.

    ``null``: rows without a value (None: every row has one). ``unchanged``: those of them whose value the
    log left out because it is large and did not change (None: no row).
    """

    start: Index
    length: Index
    null: Mask | None = None
    unchanged: Mask | None = None

    @property
    def empty(self) -> bool:
        return self.null is not None and bool(self.null.all())

    def repeated(self, counts: Index, dropped: Mask) -> Field:
        """Each row ``counts`` times; then the ``dropped`` ones of the result without their value."""
        null = dropped if self.null is None else np.repeat(self.null, counts) | dropped
        unchanged = None if self.unchanged is None else np.repeat(self.unchanged, counts) & ~dropped
        return Field(np.repeat(self.start, counts), np.repeat(self.length, counts), null, unchanged)

    def scattered(self, rows: Index, count: int) -> Field:
        """The field of ``count`` rows, of which ``rows`` are these and the others have no value."""
        start, length = np.zeros(count, np.int64), np.zeros(count, np.int64)
        null = np.ones(count, np.bool_)
        start[rows], length[rows] = self.start, self.length
        null[rows] = False if self.null is None else self.null
        if self.unchanged is None:
            return Field(start, length, null)
        unchanged = np.zeros(count, np.bool_)
        unchanged[rows] = self.unchanged
        return Field(start, length, null, unchanged)

    def filled_from(self, other: Field, where: Mask) -> Field:
        """Values left out as unchanged, taken from ``other`` in the rows ``where`` it has them."""
        if self.unchanged is None:
            return self
        fill = self.unchanged & where
        if other.unchanged is not None:
            fill &= ~other.unchanged
        null = np.zeros(len(fill), np.bool_) if other.null is None else other.null
        return Field(
            np.where(fill, other.start, self.start),
            np.where(fill, other.length, self.length),
            null if self.null is None else np.where(fill, null, self.null),
            self.unchanged & ~fill,
        )


def walk_log(received: Received, tuples: Index, columns: int) -> tuple[list[Field], Index]:
    """Fields of pgoutput's TupleData at these offsets, and the offsets just behind them."""
    fields = []
    at = tuples + 2
    for _ in range(columns):
        field, at = _log_field(received, at)
        fields.append(field)
    return fields, at


def _log_field(received: Received, at: Index) -> tuple[Field, Index]:
    kind = received.octets[at]
    null = kind != _TEXT
    if not null.any():
        length = received.int32[at + 1].astype(np.int64)
        return Field(at + 5, length), at + 5 + length
    marked = kind == _UNCHANGED
    unchanged = marked if marked.any() else None
    if null.all():
        nothing = np.zeros(len(at), np.int64)
        return Field(nothing, nothing, null, unchanged), at + 1
    length = np.where(null, 0, received.int32[at + 1])
    return Field(np.where(null, 0, at + 5), length, null, unchanged), at + np.where(null, 1, length + 5)


def walk_copy(received: Received, columns: int) -> list[Field]:
    """Fields of rows in COPY's binary format."""
    fields = []
    at = received.starts + 2
    for _ in range(columns):
        length = received.int32[at].astype(np.int64)
        null = length < 0
        if null.any():
            length[null] = 0
            fields.append(Field(np.where(null, 0, at + 4), length, null))
        else:
            fields.append(Field(at + 4, length))
        at = at + 4 + length
    return fields


def texts(received: Received, field: Field) -> pa.StringArray:
    """The field's values as an Arrow string array of their own."""
    count = len(field.start)
    if field.empty:
        return pa.nulls(count, pa.string())
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = field.length
    short = field.length <= _INLINE
    if short.all():
        views[:, 1:] = received.twelve[field.start] & _KEEP[field.length]
    else:
        views[:, 1] = received.prefix[field.start]
        views[:, 3] = field.start
        rows = np.flatnonzero(short)
        views[rows, 1:] = received.twelve[field.start[rows]] & _KEEP[field.length[rows]]
    buffers = [packed(field.null), pa.py_buffer(views), received.shared]
    return pa.Array.from_buffers(pa.string_view(), count, buffers).cast(pa.string())


def packed(null: Mask | None) -> pa.Buffer | None:
    """Arrow's validity bitmap."""
    return None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))


def differ(received: Received, one: Field, other: Field) -> Mask:
    """Rows whose values differ, byte by byte; NULL equals NULL, and an unchanged value equals any."""
    count = len(one.start)
    absent = np.zeros(count, np.bool_)
    null_one = absent if one.null is None else one.null
    null_other = absent if other.null is None else other.null
    differs: Mask = (null_one != null_other) | (~null_one & (one.length != other.length))
    _compare_bytes(received, one, other, differs)
    for field in (one, other):
        if field.unchanged is not None:
            differs &= ~field.unchanged
    return differs


def _compare_bytes(received: Received, one: Field, other: Field, differs: Mask) -> None:
    rows = np.flatnonzero(~differs)
    done = 0
    while len(rows):
        left = one.length[rows] - done
        rows, left = rows[left > 0], left[left > 0]
        difference = received.word[one.start[rows] + done] ^ received.word[other.start[rows] + done]
        # Bytes of the last word that lie behind the value are shifted out.
        shift = np.where(left < 8, 64 - 8 * np.minimum(left, 8), 0).astype(np.uint64)
        unequal = difference << shift != 0
        differs[rows[unequal]] = True
        rows = rows[~unequal]
        done += 8
