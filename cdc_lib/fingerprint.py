"""A hash of rows that does not depend on how they were cut into batches.

The seal of a batch holds, per table, count and hash of its log rows. When the batch must be read again,
from other chunk boundaries, the same rows must give the same hash, and any other row must not. So each leaf
column is hashed as one long run: validity, lengths and values of valid slots, never what lies under a NULL.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

_ONES = bytes([1]) * 65536


class RowHash:
    """Running CRC-32 per leaf column; :meth:`hexdigest` combines them with the row count."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: defaultdict[str, int] = defaultdict(int)

    def update(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._column(name, column)

    def hexdigest(self) -> str:
        text = "|".join(f"{name}={value:08x}" for name, value in sorted(self._sums.items()))
        return f"{self.rows:x}-{zlib.crc32(text.encode()):08x}"

    def _column(self, path: str, array: Any) -> None:
        self._validity(path, array)
        if array.null_count == len(array):
            return
        # Only valid slots go on: what lies under a NULL is arbitrary, and depends on the cut.
        valid = array.drop_null() if array.null_count else array
        if pa.types.is_struct(array.type):
            for field, child in zip(array.type, valid.flatten(), strict=True):
                self._column(f"{path}.{field.name}", child)
        elif pa.types.is_map(array.type) or pa.types.is_list(array.type):
            self._list(path, valid)
        elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            self._text(path, valid)
        else:
            self._fixed(path, valid)

    def _validity(self, path: str, array: Any) -> None:
        if array.null_count:
            flags = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.uint8)
            self._add(path + "?", flags.tobytes())
            return
        left = len(array)
        while left > 0:
            self._add(path + "?", _ONES[:left])
            left -= len(_ONES)

    def _list(self, path: str, array: Any) -> None:
        offsets = np.asarray(array.offsets)
        self._add(path + "#", np.diff(offsets).astype(np.int32).tobytes())
        values = (
            pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
            if _is_map(array)
            else array.values
        )
        self._column(path + "[]", values[int(offsets[0]) : int(offsets[-1])])

    def _text(self, path: str, array: Any) -> None:
        _, offsets_buffer, data = array.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
        self._add(path + "#", np.diff(offsets).tobytes())
        if data is not None:
            self._add(path, memoryview(data)[int(offsets[0]) : int(offsets[-1])])

    def _fixed(self, path: str, array: Any) -> None:
        if pa.types.is_boolean(array.type):
            self._add(path, np.asarray(array.to_numpy(zero_copy_only=False), np.uint8).tobytes())
            return
        width = array.type.bit_width // 8
        start = array.offset * width
        self._add(path, memoryview(array.buffers()[1])[start : start + len(array) * width])

    def _add(self, path: str, data: bytes | memoryview) -> None:
        self._sums[path] = zlib.crc32(data, self._sums[path])


def _is_map(array: Any) -> bool:
    return bool(pa.types.is_map(array.type))
