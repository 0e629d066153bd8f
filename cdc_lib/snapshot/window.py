"""Which rows of a piece stay, when changes of the same keys came while it was read.

A piece is read somewhere between the window's low watermark P and its high watermark L, and its rows stand
at P, below every change of the window. Nobody knows which of those changes a row already shows. So a row is
worth keeping only for what no change says: a column that every update of its key in the window leaves out
(unchanged TOAST, a minimal row image) has had one value all the time. A row whose key was created in the
window may be of another life, and goes; so does one that a change carries whole, or that is only deleted,
unless the deleted row moved to another key without some of its columns.

What stays keeps the columns that no change carries; the others are listed as not known, since the row would
only show its future before its past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.change import STRINGS, Op
from cdc_lib.schema import Table

_NULL = b"-"


def key_bytes(rows: pa.StructArray, key: tuple[str, ...]) -> pa.BinaryArray:
    """One byte string per row that is equal exactly when all key columns are; NULL equals NULL."""
    # flatten() applies the struct's own NULLs and offset; field() would not.
    columns, parts = rows.flatten(), []
    for name in key:
        text = _bytes(columns[rows.type.get_field_index(name)])
        length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        whole = pc.binary_join_element_wise(length, text, b":")
        parts.append(pc.fill_null(whole, _NULL))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b",")


def _bytes(values: pa.Array) -> pa.BinaryArray:
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_floating(kind):
        # By their bits: the text of a float need not come back as the same float.
        values = values.cast(pa.float64()).view(pa.int64())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    return values.cast(pa.string()).cast(pa.binary())


@dataclass
class Changes:
    """The changes of one table in one window."""

    table: Table
    truncated: bool = False
    _created: list[pa.BinaryArray] = field(default_factory=list)
    _deleted: list[pa.BinaryArray] = field(default_factory=list)
    _moved: list[pa.BinaryArray] = field(default_factory=list)
    _updated: list[pa.BinaryArray] = field(default_factory=list)
    _lacking: list[pa.ListArray] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        """Changes in any order."""
        if pc.any(pc.equal(rows.column("op"), Op.TRUNCATE.value)).as_py():
            # What the truncate left was created behind it, in the window.
            self.truncated = True
        if self.truncated or not rows.num_rows:
            return
        self._add_created(_where(rows, Op.CREATE, Op.READ))
        deleted = _where(rows, Op.DELETE)
        self._deleted.append(key_bytes(deleted.column("before"), self.table.key))
        updated = _where(rows, Op.UPDATE)
        lacking = updated.column("after_unavailable")
        self._updated.append(_key_after(updated, self.table.key))
        self._lacking.append(lacking)

    def _add_created(self, created: pa.RecordBatch) -> None:
        self._created.append(key_bytes(created.column("after"), self.table.key))
        lacks = pc.greater(pc.fill_null(pc.list_value_length(created.column("after_unavailable")), 0), 0)
        moved = created.filter(pc.and_(lacks, pc.is_valid(created.column("previous_key"))))
        self._moved.append(key_bytes(moved.column("previous_key"), self.table.key))

    def kept(self) -> Kept:
        """What this means for the rows of the window's pieces."""
        created, deleted, moved, updated = (
            pa.concat_arrays(parts) if parts else pa.array([], pa.binary())
            for parts in (self._created, self._deleted, self._moved, self._updated)
        )
        uncarried: dict[str, pa.BinaryArray] = {}
        if self._lacking:
            lacking = pa.concat_arrays(self._lacking)
            others = set(self.table.names) - set(self.table.key)
            names = [name for name in pc.unique(lacking.flatten()).to_pylist() if name in others]
            uncarried = {name: _always(updated, lacking, name) for name in names}
        partial = pa.concat_arrays([*uncarried.values(), pa.array([], pa.binary())])
        gone = [
            created,
            updated.filter(pc.invert(pc.is_in(updated, value_set=partial))),
            _without(_without(deleted, moved), updated),
        ]
        return Kept(self.table, self.truncated, pc.unique(pa.concat_arrays(gone)), updated, uncarried)


@dataclass(frozen=True)
class Kept:
    """``gone``: keys whose rows go. ``updated``: keys that were updated; of these, ``uncarried`` names the
    columns, and for each the keys, that no update carries."""

    table: Table
    truncated: bool
    gone: pa.BinaryArray
    updated: pa.BinaryArray
    uncarried: Mapping[str, pa.BinaryArray]

    @property
    def everything(self) -> bool:
        """Whether all rows stay as they are."""
        return not (self.truncated or len(self.gone) or len(self.updated))

    def rows(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a piece that stay, with what is known of them."""
        if self.truncated:
            return piece.slice(0, 0)
        keys = key_bytes(piece.column("after"), self.table.key)
        stays = pc.invert(pc.is_in(keys, value_set=self.gone))
        piece, keys = piece.filter(stays), keys.filter(stays)
        touched = pc.is_in(keys, value_set=self.updated)
        if not pc.any(touched).as_py():
            return piece
        hidden = {
            name: pc.and_(touched, pc.invert(pc.is_in(keys, value_set=self.uncarried[name])))
            if name in self.uncarried
            else touched
            for name in self.table.names
            if name not in self.table.key
        }
        return _hiding(piece, hidden)


def _hiding(piece: pa.RecordBatch, hidden: Mapping[str, pa.BooleanArray]) -> pa.RecordBatch:
    """The rows with these columns listed as not known, where the masks say so."""
    after = piece.column("after")
    columns = [
        pc.if_else(hidden[each.name], pa.scalar(None, each.type), column) if each.name in hidden else column
        for each, column in zip(after.type, after.flatten(), strict=True)
    ]
    names = pa.array(list(hidden))
    marks = np.stack([mask.to_numpy(zero_copy_only=False) for mask in hidden.values()], axis=1)
    counts = marks.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    listed = pa.ListArray.from_arrays(
        pa.array(offsets), names.take(pa.array(np.nonzero(marks)[1])), mask=pa.array(counts == 0)
    )
    changed = {
        "after": pa.StructArray.from_arrays(columns, fields=list(after.type)),
        "after_unavailable": listed.cast(STRINGS),
    }
    arrays = [
        changed.get(name, column) for name, column in zip(piece.schema.names, piece.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=piece.schema)


def _where(rows: pa.RecordBatch, *ops: Op) -> pa.RecordBatch:
    return rows.filter(pc.is_in(rows.column("op"), value_set=pa.array([op.value for op in ops])))


def _without(keys: pa.BinaryArray, others: pa.BinaryArray) -> pa.BinaryArray:
    return keys.filter(pc.invert(pc.is_in(keys, value_set=others)))


def _always(keys: pa.BinaryArray, lacking: pa.ListArray, name: str) -> pa.BinaryArray:
    """The keys all of whose updates lack a column."""
    carries = np.ones(len(keys), dtype=bool)
    named = pc.equal(lacking.flatten(), name).to_numpy(zero_copy_only=False)
    carries[pc.list_parent_indices(lacking).to_numpy()[named]] = False
    return pc.unique(_without(keys, keys.filter(pa.array(carries))))


def _key_after(updated: pa.RecordBatch, key: tuple[str, ...]) -> pa.BinaryArray:
    """The key of updates, from the before-image where the after-image lacks a column of it."""
    lists = updated.column("after_unavailable")
    lacking = np.zeros(len(lists), dtype=bool)
    if lists.null_count < len(lists):
        named = pc.is_in(lists.flatten(), value_set=pa.array(key)).to_numpy(zero_copy_only=False)
        lacking[pc.list_parent_indices(lists).to_numpy()[named]] = True
    after = key_bytes(updated.column("after"), key)
    return pc.if_else(pa.array(lacking), key_bytes(updated.column("before"), key), after)
