"""Rows of Arrow batches as hashes that are equal only if every value is, type for type and bit for bit.

Both sides of a comparison go through this file, the source's rows in this process, silver's here or in
Spark's Python workers. The module travels to those by value, so it imports nothing of the package. No Python
runs per value, except for long texts.

A value becomes two 64-bit hashes of the bits that it is stored in, so -0.0 differs from 0.0 and a trailing
blank counts; NULL has a hash of its own. A row's hash is the sum of its columns' under a seed of each
column's name, mixed once more: values that change places, among columns or among keys, change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]

LANES = 4
KEY, FIRST, SECOND, UNKNOWN = range(LANES)
"""Lanes of :meth:`Layout.hashed`."""
LONG = 256
"""Bytes from which on a text is hashed by itself; shorter ones go word by word, all rows at once."""

_SEEDS: Words = np.array([[0x9E3779B97F4A7C15], [0xC2B2AE3D27D4EB4F]], np.uint64)
_NULL: Words = np.array([[0x8EBC6AF09C88C6E3], [0x589965CC75374CC3]], np.uint64)
_SPECIAL: Words = np.array([[0x1D8E4E27C47D124F], [0xEB44ACCAB455D165]], np.uint64)
_UNAVAILABLE: Words = np.array([[0xA0761D6478BD642F], [0xE7037ED1A0B428DB]], np.uint64)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
# How many of a word's bytes count, as a mask: none to all eight.
_MASKS: Words = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


@dataclass(frozen=True)
class Layout:
    """What is compared: columns with the type both sides are brought to, and the key among them.

    ``special`` and ``unavailable`` name silver's columns of server texts and of values not known, ``ended``
    those that are NULL in its current rows alone; where a side has no such columns, empty.
    """

    columns: tuple[tuple[str, pa.DataType], ...]
    key: tuple[str, ...]
    special: str = ""
    unavailable: str = ""
    ended: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        """All columns that are needed."""
        meta = (self.special, self.unavailable, *self.ended)
        return [*(name for name, _ in self.columns), *filter(None, meta)]

    def of_key(self) -> Layout:
        """The key alone, which gives rows the same :data:`KEY`."""
        only = tuple((name, kind) for name, kind in self.columns if name in self.key)
        return replace(self, columns=only, special="", unavailable="")

    def current(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a silver table that stand for a row of the source."""
        for name in self.ended:
            rows = rows.filter(pc.is_null(rows.column(name)))
        return rows

    def hashed(self, values: Mapping[str, pa.Array], count: int) -> Words:
        """Four numbers a row: hash of the key, two of the row, and whether it has values not known.

        Without a key, the first hash of the row is its key.
        """
        key = np.zeros((1, count), np.uint64)
        row = np.zeros((2, count), np.uint64)
        for name, kind in self.columns:
            column = values[name]
            column = column if column.type.equals(kind) else column.cast(kind)
            found = mixed(lanes(column) ^ _seeds(name))
            row += found
            if name in self.key:
                key += found[:1]
        names = pa.array([name for name, _ in self.columns], pa.string())
        unknown = np.zeros((1, count), np.uint64)
        if self.special:
            _add_texts(row, values[self.special], names)
        if self.unavailable:
            unknown[0] = _add_unavailable(row, values[self.unavailable], names)
        row = mixed(row)
        return np.concatenate([mixed(key) if self.key else row[:1], row, unknown])

    def hashed_rows(self, rows: pa.RecordBatch) -> Words:
        """:meth:`hashed` for rows as silver has them."""
        return self.hashed({name: rows.column(name) for name in self.reads}, rows.num_rows)


def mixed(words: Words) -> Words:
    """Spread every bit over the whole word, in place (the finaliser of splitmix64, which is one to one)."""
    words ^= words >> _SHIFTS[0]
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


def lanes(array: Any) -> Words:
    """Two hashes of each value."""
    if array.null_count == len(array):
        return np.repeat(_NULL, len(array), axis=1)
    if pa.types.is_list(array.type):
        found = _lists(array)
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        found = _texts(array)
    elif pa.types.is_decimal(array.type):
        words = _values(array, np.dtype(np.uint64), 2)
        found = mixed(mixed(words[0::2] + _SEEDS) ^ words[1::2])
    else:
        found = mixed(_bits(array) + _SEEDS)
    if array.null_count:
        found[:, ~_mask(array.is_valid())] = _NULL
    return found


def _bits(array: Any) -> Words:
    """Each value of fixed width as a word."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return _mask(array.fill_null(False)).astype(np.uint64)
    if pa.types.is_floating(kind):
        floats = _values(array, np.dtype(kind.to_pandas_dtype()))
        bits = floats.view(f"u{floats.itemsize}").astype(np.uint64)
        # All that are not numbers are one value.
        bits[np.isnan(floats)] = _MASKS[8]
        return bits
    return _values(array, np.dtype(f"i{kind.bit_width // 8}")).astype(np.int64).view(np.uint64)


def _values(array: Any, dtype: np.dtype[Any], width: int = 1) -> npt.NDArray[Any]:
    """What the array's buffer holds, also under NULLs."""
    start = array.offset * width
    return np.frombuffer(array.buffers()[1], dtype, (array.offset + len(array)) * width)[start:]


def _texts(array: Any) -> Words:
    _, place, data = array.buffers()
    offsets = np.frombuffer(place, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    sizes = np.diff(offsets)
    if array.null_count:
        sizes[~_mask(array.is_valid())] = 0
    found = mixed(sizes.astype(np.uint64) + _SEEDS)
    if data is None or not sizes.any():
        return found
    content = memoryview(data)[int(offsets[0]) : int(offsets[-1])]
    starts = offsets[:-1] - offsets[0]
    _short(found, content, starts, sizes)
    for row in np.flatnonzero(sizes > LONG).tolist():
        text = content[int(starts[row]) : int(starts[row] + sizes[row])]
        found[:, row] = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint64)
    return found


def _short(found: Words, content: memoryview, starts: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> None:
    """The words of all texts up to :data:`LONG`, the first of each, then the second, and so on."""
    padded = np.zeros(len(content) + 8, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    # A word at every byte.
    words: Words = np.ndarray((len(content) + 1,), np.dtype("<u8"), padded, strides=(1,))
    rows = np.flatnonzero((sizes > 0) & (sizes <= LONG))
    place = 0
    while len(rows):
        left = sizes[rows] - place
        word = words[starts[rows] + place] & _MASKS[np.minimum(left, 8)]
        found[:, rows] = mixed(found[:, rows] ^ word)
        rows, place = rows[left > 8], place + 8


def _lists(array: Any) -> Words:
    offsets = np.asarray(array.offsets).astype(np.int64)
    sizes = np.diff(offsets)
    elements = lanes(array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    starts = offsets[:-1] - offsets[0]
    places = np.arange(elements.shape[1]) - np.repeat(starts, sizes)
    elements = mixed(elements + places.astype(np.uint64) * _STEP)
    # Sums wrap around, and so do their differences.
    sums = np.concatenate([np.zeros((2, 1), np.uint64), np.cumsum(elements, axis=1)], axis=1)
    return mixed((sums[:, starts + sizes] - sums[:, starts]) ^ mixed(sizes.astype(np.uint64) + _SEEDS))


def _add_texts(row: Words, special: Any, names: pa.Array) -> None:
    """Server texts of values that their column cannot hold; in any order, those of other columns left out."""
    if special.null_count == len(special):
        return
    rows, chosen = _entries(special)
    columns, texts = special.keys.take(chosen), special.items.take(chosen)
    kept = _mask(pc.is_in(columns, value_set=names))
    found = mixed(mixed(lanes(columns) + _SPECIAL) ^ lanes(texts))
    for lane in range(2):
        np.add.at(row[lane], rows[kept], found[lane, kept])


def _add_unavailable(row: Words, listed: Any, names: pa.Array) -> Words:
    """Makes rows with columns that are not known differ from all others; 1 for each such row."""
    unknown = np.zeros(len(listed), np.uint64)
    if listed.null_count == len(listed):
        return unknown
    rows, chosen = _entries(listed)
    columns = listed.values.take(chosen)
    kept = _mask(pc.is_in(columns, value_set=names))
    found = mixed(lanes(columns) + _UNAVAILABLE)
    for lane in range(2):
        np.add.at(row[lane], rows[kept], found[lane, kept])
    unknown[rows[kept]] = 1
    return unknown


def _entries(array: Any) -> tuple[npt.NDArray[Any], pa.Array]:
    """For each entry of a list or map that is not NULL: its row, and its place among the entries."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    rows = np.repeat(np.arange(len(array)), np.diff(offsets))
    valid = _mask(array.is_valid())[rows]
    return rows[valid], pa.array(np.arange(offsets[0], offsets[-1])[valid])


def _seeds(name: str) -> Words:
    return np.frombuffer(hashlib.blake2b(name.encode(), digest_size=16).digest(), np.uint64).reshape(2, 1)


def _mask(flags: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)
    return found
