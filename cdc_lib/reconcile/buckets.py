"""Sums of row hashes by bucket, and the rows that lie in some of them: what Spark's workers compute.

A bucket is a range of key hashes. As with ``hashing``, this module travels by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_lib.reconcile.hashing import FIRST, KEY, SECOND, Layout, Words

BUCKETS = 1 << 16
"""150 rows in each of ten million."""
_SHIFT = np.uint64(48)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

SUMS = "bucket INT, rows BIGINT, a BIGINT, b BIGINT, c BIGINT, d BIGINT"
"""A bucket's row count, and the sums of the four halves of its rows' hashes, which do not overflow."""
HASHES = "key BIGINT, first BIGINT, second BIGINT, unknown BIGINT"


def bucket_of(keys: Words) -> npt.NDArray[np.int64]:
    """The bucket of each key hash: its highest bits."""
    found: npt.NDArray[np.int64] = (keys >> _SHIFT).astype(np.int64)
    return found


class Sums:
    """Of each bucket, the count of its rows and the sum of their hashes: equal for equal sets of rows in any
    order, and, unlike an exclusive or, for equal multisets alone."""

    def __init__(self) -> None:
        self.rows = np.zeros(BUCKETS, np.int64)
        self.first: Words = np.zeros(BUCKETS, np.uint64)
        self.second: Words = np.zeros(BUCKETS, np.uint64)

    def add(self, hashed: Words) -> None:
        """Add rows (:meth:`Layout.hashed`)."""
        bucket = bucket_of(hashed[KEY])
        np.add.at(self.rows, bucket, 1)
        np.add.at(self.first, bucket, hashed[FIRST])
        np.add.at(self.second, bucket, hashed[SECOND])

    def differing(self, other: Sums) -> npt.NDArray[np.bool_]:
        """Which buckets do not hold the same rows."""
        found: npt.NDArray[np.bool_] = (
            (self.rows != other.rows) | (self.first != other.first) | (self.second != other.second)
        )
        return found

    def to_batch(self) -> pa.RecordBatch:
        """The buckets with rows, as :data:`SUMS`."""
        filled = np.flatnonzero(self.rows)
        halves = [
            part.astype(np.int64)
            for sums in (self.first[filled], self.second[filled])
            for part in (sums & _LOW, sums >> _HALF)
        ]
        columns = [filled.astype(np.int32), self.rows[filled], *halves]
        return pa.RecordBatch.from_arrays(
            [pa.array(column) for column in columns], names=["bucket", "rows", "a", "b", "c", "d"]
        )

    @classmethod
    def from_table(cls, table: pa.Table) -> Sums:
        """The inverse, where rows of one bucket may have been added up."""
        made = cls()
        bucket, rows, *halves = (table.column(name).to_numpy() for name in ("bucket", "rows", *"abcd"))
        low_first, high_first, low_second, high_second = (half.astype(np.uint64) for half in halves)
        made.rows[bucket] = rows
        made.first[bucket] = low_first + (high_first << _HALF)
        made.second[bucket] = low_second + (high_second << _HALF)
        return made


@dataclass(frozen=True)
class Selection:
    """Some rows, by the hashes of their keys: those in some buckets (a flag for each), or some hashes, in
    order. Not both."""

    buckets: npt.NDArray[np.bool_] | None = None
    keys: Words | None = None

    def of(self, hashed: Words) -> npt.NDArray[np.bool_]:
        """Which of these rows are among them."""
        if self.buckets is not None:
            chosen: npt.NDArray[np.bool_] = self.buckets[bucket_of(hashed[KEY])]
            return chosen
        return among(hashed[KEY], self.keys) if self.keys is not None else np.zeros(0, np.bool_)


def among(values: Words, known: Words) -> npt.NDArray[np.bool_]:
    """Which values are in ``known``, which is in order."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[places] == values
    return found


# -- over all batches of a part of silver


def with_names(
    batches: Iterable[pa.RecordBatch],
    names: Sequence[str],
    each: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """``each`` of the batches, whose columns get these names."""
    yield from each(pa.RecordBatch.from_arrays(rows.columns, names=list(names)) for rows in batches)


def sums_of(batches: Iterable[pa.RecordBatch], layout: Layout) -> Iterator[pa.RecordBatch]:
    """One batch of :data:`SUMS`."""
    sums = Sums()
    for rows in batches:
        sums.add(layout.hashed_rows(layout.current(rows)))
    yield sums.to_batch()


def hashes_of(
    batches: Iterable[pa.RecordBatch], layout: Layout, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """Hashes of the selected rows, as :data:`HASHES`."""
    for rows in rows_of(batches, layout, selection):
        yield as_batch(layout.hashed_rows(rows))


def rows_of(
    batches: Iterable[pa.RecordBatch], layout: Layout, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """The selected rows themselves."""
    by_key = layout.of_key() if layout.key else layout
    for rows in batches:
        current = layout.current(rows)
        yield current.filter(pa.array(selection.of(by_key.hashed_rows(current))))


def as_batch(hashed: Words) -> pa.RecordBatch:
    """Hashes as :data:`HASHES`."""
    columns = [pa.array(np.ascontiguousarray(lane).view(np.int64)) for lane in hashed]
    return pa.RecordBatch.from_arrays(columns, names=["key", "first", "second", "unknown"])


def from_table(table: pa.Table) -> Words:
    """The inverse."""
    return np.stack([column.to_numpy().astype(np.int64).view(np.uint64) for column in table.columns])
