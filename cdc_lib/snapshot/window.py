"""Which rows of a piece stay, when changes of the same keys came while it was read.

A piece is read somewhere between the window's low watermark P and its high watermark L, and its rows stand
at P, below every change of the window. A row whose key's first change is a delete, or carries the whole row,
says nothing that the changes do not say better: it would only show the row's future before its past. A row
whose first change is partial stays as the base that the change is filled from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.change import Op
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
    """The changes of one table in one window; only the first of each key counts."""

    table: Table
    truncated: bool = False
    _keys: list[pa.BinaryArray] = field(default_factory=list)
    _whole: list[pa.BooleanArray] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        """Changes in log order."""
        op = rows.column("op")
        is_truncate = pc.equal(op, Op.TRUNCATE.value)
        if pc.any(is_truncate).as_py():
            # What the truncate left was created behind it, and has an event of its own.
            self.truncated = True
            rows = rows.filter(pc.invert(is_truncate))
            op = rows.column("op")
        if self.truncated or not rows.num_rows:
            return
        is_delete = pc.equal(op, Op.DELETE.value)
        after = _key_of(rows.column("after"), rows.column("after_unavailable"), self.table.key)
        before = key_bytes(rows.column("before"), self.table.key)
        self._keys.append(pc.if_else(is_delete, before, pc.fill_null(after, before)))
        complete = pc.equal(pc.fill_null(pc.list_value_length(rows.column("after_unavailable")), 0), 0)
        self._whole.append(pc.or_(is_delete, complete))

    def superseded(self) -> pa.BinaryArray:
        """Keys whose first change says all there is to say."""
        if not self._keys:
            return pa.array([], pa.binary())
        keys, whole = pa.concat_arrays(self._keys), pa.concat_arrays(self._whole)
        # Places rise in log order, so the least one of a key is its first change.
        place = pa.array(np.arange(len(keys)))
        firsts = pa.table({"key": keys, "place": place}).group_by("key").aggregate([("place", "min")])
        first = firsts.column("place_min").combine_chunks()
        return firsts.column("key").combine_chunks().filter(whole.take(first))

    def keeps(self, rows: pa.RecordBatch, superseded: pa.BinaryArray) -> pa.RecordBatch:
        """The rows of a piece that stay."""
        if self.truncated:
            return rows.slice(0, 0)
        keys = key_bytes(rows.column("after"), self.table.key)
        return rows.filter(pc.invert(pc.is_in(keys, value_set=superseded)))


def _key_of(after: pa.StructArray, unavailable: pa.ListArray, key: tuple[str, ...]) -> pa.BinaryArray:
    """The key in the after-image; NULL where the log did not carry it there (it is in the before-image)."""
    keys = key_bytes(after, key)
    lacking = np.zeros(len(after), dtype=bool)
    if unavailable.null_count < len(unavailable):
        named = pc.is_in(unavailable.flatten(), value_set=pa.array(key)).to_numpy(zero_copy_only=False)
        lacking[pc.list_parent_indices(unavailable).to_numpy()[named]] = True
    return pc.if_else(pa.array(lacking), pa.scalar(None, pa.binary()), keys)
