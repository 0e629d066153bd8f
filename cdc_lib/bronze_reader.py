"""Staged Arrow files as a Spark data source, one partition a file.

The classes travel to Spark's Python workers, over Spark Connect by value, so this module imports nothing of
the package. A file may have been written under an older structure of its table; its rows are brought to the
newest one here, whole columns at a time (:func:`conform`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

FORMAT = "cdc_staging"
IMAGES = ("before", "after")
VERSION = "_schema_version"


class StagedFiles(DataSource):  # type: ignore[misc]
    """``format("cdc_staging")``. Options: ``files``, JSON list of path, schema version and ordinal of the
    first row; ``arrow``, the rows' Arrow schema, serialized, as base64."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        raise NotImplementedError("give the schema to the reader: spark.read.schema(...)")

    def reader(self, schema: Any) -> StagedReader:
        files = [(path, int(version), int(base)) for path, version, base in json.loads(self.options["files"])]
        return StagedReader(files, base64.b64decode(self.options["arrow"]))


class StagedReader(DataSourceReader):  # type: ignore[misc]
    """Reads each file in one task."""

    def __init__(self, files: Sequence[tuple[str, int, int]], arrow: bytes) -> None:
        self._files = files
        self._arrow = arrow

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        path, version, base = partition.value
        target = pa.ipc.read_schema(pa.py_buffer(self._arrow))
        with pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield conform(batch, target, version, base)


def conform(batch: pa.RecordBatch, target: pa.Schema, version: int, base: int = 0) -> pa.RecordBatch:
    """``batch`` with the columns and types of ``target``, its ordinals moved up by ``base``.

    A column that its structure did not have is NULL and, where the row has that image, listed in
    ``<image>_unavailable``: not known, which is not the same as NULL.
    """
    columns: dict[str, pa.Array] = {name: batch.column(name) for name in batch.schema.names}
    for image in IMAGES:
        lacking = _lacking(columns[image].type, target.field(image).type)
        listed = f"{image}_unavailable"
        columns[listed] = _listing(columns[listed], columns[image], lacking)
    columns["ordinal"] = pc.add(columns["ordinal"], base) if base else columns["ordinal"]
    columns[VERSION] = pa.repeat(pa.scalar(version, pa.int32()), batch.num_rows)
    arrays = [cast(columns[field.name], field.type) for field in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _lacking(old: pa.StructType, new: pa.StructType) -> list[str]:
    return [field.name for field in new if old.get_field_index(field.name) < 0]


def _listing(lists: pa.Array, image: pa.Array, names: Sequence[str]) -> pa.Array:
    """``lists`` with ``names`` appended in each row that has an image."""
    if not names:
        return lists
    present = pc.is_valid(image).to_numpy(zero_copy_only=False)
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    old = lists.flatten()
    offsets = np.concatenate([[0], np.cumsum(sizes + present * len(names))])
    source = np.empty(int(offsets[-1]), dtype=np.int64)
    into_old = np.arange(len(old)) + np.repeat(offsets[:-1] - np.cumsum(sizes) + sizes, sizes)
    source[into_old] = np.arange(len(old))
    for place in range(len(names)):
        source[(offsets[:-1] + sizes + place)[present]] = len(old) + place
    values = pa.concat_arrays([old, pa.array(names, old.type)]).take(pa.array(source))
    absent = np.append(~present & ~pc.is_valid(lists).to_numpy(zero_copy_only=False), False)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32(), mask=absent), values)


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """``column`` as ``wanted``; in structs, absent fields are NULL and unknown ones are left out."""
    if column.type.equals(wanted):
        return column
    if not pa.types.is_struct(wanted):
        return column.cast(wanted)
    return _cast_struct(column, wanted)


def _cast_struct(column: pa.StructArray, wanted: pa.StructType) -> pa.Array:
    """Fields by name: absent ones NULL, those that the newest structure has no longer left out."""
    children = []
    for field in wanted:
        index = column.type.get_field_index(field.name)
        if index < 0:
            children.append(pa.nulls(len(column), field.type))
        else:
            # flatten() applies the struct's own NULLs and offset; field() would not.
            children.append(cast(column.flatten()[index], field.type))
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=pc.is_null(column))
