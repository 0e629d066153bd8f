"""Images to change batches: values converted, and the envelope around them (see ``cdc_lib/change.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.change import SPECIAL, STRINGS, ChangeBatch, change_schema
from cdc_lib.sources.postgresql.convert import Mask
from cdc_lib.sources.postgresql.images import OPS, Images
from cdc_lib.sources.postgresql.relations import CapturedRelation
from cdc_lib.sources.postgresql.tuples import Field, Index, Received, texts
from cdc_lib.sources.postgresql.types import ColumnType

SOURCE = pa.struct(
    [
        pa.field("snapshot", pa.string()),
        pa.field("ts_ms", pa.int64()),
        pa.field("ts_us", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("txId", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("origin", pa.string()),
    ]
)
"""Where a row comes from. ``ts_*``: when its transaction committed, or its snapshot was taken. ``lsn``: of
the change itself. ``commit_lsn``: where the commit record starts, the only LSN of the commit that is known
before the whole transaction was read; NULL on snapshot rows, like ``txId``. ``origin``: name of the
replication origin that the transaction came from, if any."""

_OPS = pa.array([op.value for op in OPS])


@dataclass(frozen=True)
class Stamps:
    """The columns of a batch that do not depend on values, one entry a row."""

    source: pa.StructArray
    transaction: pa.Array
    position: pa.Array
    ordinal: Index


@dataclass
class Specials:
    """Server texts of values that their columns cannot hold, gathered column by column."""

    rows: list[Index] = field(default_factory=list)
    names: list[pa.StringArray] = field(default_factory=list)
    texts: list[pa.StringArray] = field(default_factory=list)

    def maps(self, count: int) -> pa.MapArray:
        if not self.rows:
            return pa.nulls(count, SPECIAL)
        rows = np.concatenate(self.rows)
        order = pa.array(np.argsort(rows, kind="stable"))
        keys, values = (pa.concat_arrays(parts).take(order) for parts in (self.names, self.texts))
        offsets, absent = _extents(np.bincount(rows, minlength=count))
        return pa.MapArray.from_arrays(offsets, keys, values, type=SPECIAL, mask=absent)


@dataclass(frozen=True)
class Naming:
    """Under which name specials are kept: the column's own, with a prefix in some rows."""

    specials: Specials
    prefix: str = ""
    prefixed: Mask | None = None

    def add(self, name: str, misfit: Mask, column: pa.StringArray) -> None:
        rows = np.flatnonzero(misfit)
        names = pa.repeat(name, len(rows))
        if self.prefixed is not None:
            names = pc.if_else(pa.array(self.prefixed[rows]), self.prefix + name, names)
        self.specials.rows.append(rows)
        self.specials.names.append(names)
        self.specials.texts.append(column.take(pa.array(rows)))


def log_batch(received: Received, relation: CapturedRelation, images: Images, stamps: Stamps) -> ChangeBatch:
    """Rows of the log as a batch."""
    specials = Specials()
    updates = images.has_old & images.has_new
    after = _struct(received, relation, images.new, images.has_new, Naming(specials))
    before = _struct(received, relation, images.old, images.has_old, Naming(specials, "before.", updates))
    previous_key = _previous_key(received, relation, images, specials)
    missing = _unavailable_new(relation, images)
    count = len(images.op)
    columns = [
        _OPS.take(pa.array(images.op)),
        before,
        after,
        name_lists(_unavailable_old(relation, images), count),
        name_lists(missing, count),
        specials.maps(count),
        previous_key,
        stamps.source,
        stamps.transaction,
        stamps.position,
        pa.array(stamps.ordinal),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=change_schema(relation.table, SOURCE))
    return ChangeBatch(relation.table, rows, partial=bool(missing) or images.previous_key is not None)


def name_lists(columns: Sequence[tuple[str, Mask]], count: int) -> pa.ListArray:
    """For each row the names of the columns that are marked in it; NULL where there are none."""
    if not columns:
        return pa.nulls(count, STRINGS)
    marks = np.stack([mask for _, mask in columns], axis=1)
    names = pa.array([name for name, _ in columns]).take(pa.array(np.nonzero(marks)[1]))
    offsets, absent = _extents(marks.sum(axis=1))
    return pa.ListArray.from_arrays(offsets, names, type=STRINGS, mask=absent)


def _struct(
    received: Received, relation: CapturedRelation, fields: list[Field] | None, present: Mask, naming: Naming
) -> pa.StructArray:
    row_type = relation.table.row_type
    if fields is None:
        return pa.nulls(len(present), row_type)
    columns = [
        column(received, held, name, one, naming)
        for held, name, one in zip(relation.types, relation.table.names, fields, strict=True)
    ]
    mask = None if present.all() else pa.array(~present)
    return pa.StructArray.from_arrays(columns, fields=list(row_type), mask=mask)


def column(received: Received, held: ColumnType, name: str, one: Field, naming: Naming) -> pa.Array:
    """Values of one column; what it cannot hold goes to the specials."""
    if one.empty:
        return pa.nulls(len(one.start), held.arrow)
    text = texts(received, one)
    converted = held.convert(text)
    if converted.misfit is not None and converted.misfit.any():
        naming.add(name, converted.misfit, text)
    return converted.values


def _previous_key(
    received: Received, relation: CapturedRelation, images: Images, specials: Specials
) -> pa.StructArray:
    key_type = relation.table.key_type
    if images.previous_key is None:
        return pa.nulls(len(images.op), key_type)
    held = dict(zip(relation.table.names, relation.types, strict=True))
    present = images.has_previous_key
    naming = Naming(specials, "previous_key.", present)
    columns = [
        column(received, held[name], name, one, naming)
        for name, one in zip(relation.table.key, images.previous_key, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(key_type), mask=pa.array(~present))


def _unavailable_old(relation: CapturedRelation, images: Images) -> list[tuple[str, Mask]]:
    if images.old is None:
        return []
    masks = []
    for name, one in zip(relation.table.names, images.old, strict=True):
        mask = None if name in relation.carried else images.key_only
        if one.unchanged is not None:
            mask = one.unchanged if mask is None else mask | one.unchanged
        if mask is not None and mask.any():
            masks.append((name, mask))
    return masks


def _unavailable_new(relation: CapturedRelation, images: Images) -> list[tuple[str, Mask]]:
    if images.new is None:
        return []
    return [
        (name, one.unchanged)
        for name, one in zip(relation.table.names, images.new, strict=True)
        if one.unchanged is not None and one.unchanged.any()
    ]


def _extents(counts: Index) -> tuple[pa.Int32Array, pa.BooleanArray]:
    """List offsets for these counts, and the mask of lists that are NULL because they have nothing."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets), pa.array(counts == 0)
