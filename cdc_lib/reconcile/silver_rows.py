"""Silver's side of a comparison: hashes of its current rows, computed where the rows are.

A table of plain files on a path is read here, file by file. Any other is read by Spark, whose workers hash
with the same code and hand over sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_lib.delta import Lake, TableRef
from cdc_lib.nested_types import quoted
from cdc_lib.reconcile import buckets, hashing
from cdc_lib.reconcile.buckets import HASHES, SUMS, Selection, Sums, from_table, hashes_of, rows_of, sums_of
from cdc_lib.reconcile.hashing import LANES, Layout, Words
from cdc_lib.spark_session import send_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 16_384
"""Rows of a file that are in memory at once."""
PAGES = 1 << 20
"""Bytes of a file's column that are in memory at once; without a limit it would be all of a row group."""

Each = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SilverRows(ABC):
    """The current rows of one version of a silver table."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @abstractmethod
    def sums(self) -> Sums:
        """Of all rows, by bucket."""

    @abstractmethod
    def hashes(self, selection: Selection) -> Words:
        """Hashes of the selected rows (:meth:`Layout.hashed`), which must not be too many for memory."""

    @abstractmethod
    def rows(self, selection: Selection, *, key_only: bool = False) -> pa.Table:
        """The selected rows with the columns of the layout."""


def open_silver(lake: Lake, ref: TableRef, layout: Layout, check: Callable[[int], None]) -> SilverRows:
    """The rows as they are now.

    :param check: called with the count of rows after each few; may raise to end the reading.
    """
    if not lake.exists(ref):
        return NoRows(layout)
    schema = lake.arrow_schema(ref)
    files = lake.plain_files(ref)
    if files is None:
        return SparkRows(lake, ref, layout, check)
    return FileRows(files, schema, layout, check)


class NoRows(SilverRows):
    """Of a table that was never written."""

    def sums(self) -> Sums:
        return Sums()

    def hashes(self, selection: Selection) -> Words:
        return _none()

    def rows(self, selection: Selection, *, key_only: bool = False) -> pa.Table:
        layout = self.layout.of_key() if key_only else self.layout
        return pa.schema(list(layout.columns)).empty_table()


class FileRows(SilverRows):
    """Of Parquet files, read by one thread: the source's rows, read at the same time, take longer."""

    def __init__(
        self, files: Sequence[str], schema: pa.Schema, layout: Layout, check: Callable[[int], None]
    ) -> None:
        super().__init__(layout)
        self._files = files
        self._schema = schema
        self._check = check

    def sums(self) -> Sums:
        total = Sums()
        for rows in self._batches(self.layout):
            current = self.layout.current(rows)
            total.add(self.layout.hashed_rows(current))
            self._check(current.num_rows)
        return total

    def hashes(self, selection: Selection) -> Words:
        found = hashes_of(self._watched(self.layout), self.layout, selection)
        parts = (from_table(pa.Table.from_batches([one])) for one in found)
        return np.concatenate([_none(), *parts], axis=1)

    def rows(self, selection: Selection, *, key_only: bool = False) -> pa.Table:
        layout = self.layout.of_key() if key_only else self.layout
        found = rows_of(self._watched(layout), layout, selection)
        return pa.Table.from_batches([one for one in found if one.num_rows], self._types(layout))

    def _watched(self, layout: Layout) -> Iterator[pa.RecordBatch]:
        for rows in self._batches(layout):
            self._check(0)
            yield rows

    def _batches(self, layout: Layout) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            yield from self._of_file(file, self._types(layout))

    def _of_file(self, file: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Not as a dataset: its scanner's threads may outlive it, and then abort the process as that ends.
        with pq.ParquetFile(file, buffer_size=PAGES) as opened:
            there = [name for name in schema.names if name in opened.schema_arrow.names]
            for rows in opened.iter_batches(ROWS, columns=there, use_threads=False):
                columns = [
                    rows.column(field.name).cast(field.type)
                    if field.name in there
                    else pa.nulls(rows.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _types(self, layout: Layout) -> pa.Schema:
        return pa.schema([self._schema.field(name) for name in layout.reads])


class SparkRows(SilverRows):
    """Of a table that Spark reads."""

    def __init__(self, lake: Lake, ref: TableRef, layout: Layout, check: Callable[[int], None]) -> None:
        super().__init__(layout)
        self._check = check
        send_by_value(lake.spark, hashing, buckets)
        self._spark = lake.spark
        self._frame = lake.table_at(ref, lake.version(ref))
        self._types = {field.name: field.type for field in lake.fields(ref)}

    def sums(self) -> Sums:
        from pyspark.sql import functions as F

        parts = self._mapped(self._frame, partial(sums_of, layout=self.layout), self.layout, SUMS)
        added = [F.sum(name).alias(name) for name in ("rows", *"abcd")]
        total = Sums.from_table(parts.groupBy("bucket").agg(*added).toArrow())
        self._check(int(total.rows.sum()))
        return total

    def hashes(self, selection: Selection) -> Words:
        each = partial(hashes_of, layout=self.layout, selection=selection)
        return from_table(self._mapped(self._narrowed(selection), each, self.layout, HASHES).toArrow())

    def rows(self, selection: Selection, *, key_only: bool = False) -> pa.Table:
        layout = self.layout.of_key() if key_only else self.layout
        frame = self._frame if key_only else self._narrowed(selection)
        columns = ", ".join(f"{quoted(name)} {self._types[name]}" for name in layout.reads)
        return self._mapped(
            frame, partial(rows_of, layout=layout, selection=selection), layout, columns
        ).toArrow()

    def _narrowed(self, selection: Selection) -> DataFrame:
        """At least the selected rows. Workers are sent the key of every row and, thanks to a join, little
        else: to send them whole tables is what takes time."""
        from pyspark.sql import functions as F

        names = self.layout.key
        if not names:
            return self._frame
        places = {name: f"__key{place}" for place, name in enumerate(names)}
        keys = self.rows(selection, key_only=True).select(list(names)).rename_columns(list(places.values()))
        if not keys.num_rows:
            return self._frame.limit(0)
        known = F.broadcast(self._spark.createDataFrame(keys))
        equal = [F.col(quoted(name)).eqNullSafe(F.col(place)) for name, place in places.items()]
        return self._frame.join(known, reduce(and_, equal), "left_semi")

    def _mapped(self, frame: DataFrame, each: Each, layout: Layout, schema: str) -> DataFrame:
        from pyspark.sql import functions as F

        # By place: Spark takes a dot in the name of a column that goes in for a field of it.
        columns = [F.col(quoted(name)).alias(f"c{place}") for place, name in enumerate(layout.reads)]
        work = partial(buckets.with_names, names=layout.reads, each=each)
        return frame.select(*columns).mapInArrow(work, schema)


def _none() -> Words:
    return np.zeros((LANES, 0), np.uint64)
