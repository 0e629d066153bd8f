"""One-dimensional arrays: ``{1,2,NULL}`` to a list column.

Arrays with other bounds than 1 (``[0:2]={...}``), of several dimensions, or with an element that the
element type cannot hold are misfits as a whole: half an array is no value.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.sources.postgresql.convert import Converted, Converter, Mask, without

# array_out: an element is quoted when it is empty, spells NULL, or has a brace, comma, quote, backslash or
# white space; inside quotes a backslash guards quote and backslash.
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)
_GUARDED = re.compile(r"\\(.)", re.DOTALL)


def listing(element: Converter) -> Converter:
    """A converter of arrays whose elements ``element`` converts."""

    def convert(column: pa.StringArray) -> Converted:
        odd = _flags(pc.match_substring_regex(column, r"^(\[|\{\{)"))
        lists = _split(without(column, odd) if odd.any() else column)
        items = element(lists.values)
        if items.misfit is not None:
            odd |= _parents(lists, items.misfit)
        built = _rebuilt(lists, items.values)
        return Converted(without_lists(built, odd), odd) if odd.any() else Converted(built)

    return convert


def without_lists(column: pa.ListArray, rows: Mask) -> pa.ListArray:
    """The list column with NULL in the marked rows."""
    keep = _flags(column.is_valid()) & ~rows
    return pa.ListArray.from_arrays(column.offsets, column.values, type=column.type, mask=pa.array(~keep))


def _split(column: pa.StringArray) -> pa.ListArray:
    """Lists of element texts, elements NULL where the array has NULL; contiguous from offset 0."""
    quoted = _flags(pc.match_substring(column, '"'))
    if not quoted.any():
        return _split_plain(column)
    slow = [_parse(value) for value in column.filter(pa.array(quoted)).to_pylist()]
    both = pa.concat_arrays(
        [_split_plain(column.filter(pa.array(~quoted))), pa.array(slow, pa.list_(pa.string()))]
    )
    order = np.empty(len(column), np.int64)
    order[~quoted] = np.arange(int((~quoted).sum()))
    order[quoted] = np.arange(int((~quoted).sum()), len(column))
    return both.take(pa.array(order))


def _split_plain(column: pa.StringArray) -> pa.ListArray:
    inner = pc.utf8_slice_codeunits(column, 1, -1)
    parts = pc.split_pattern(inner, ",")
    # Splitting the empty text gives one empty element; an array's own empty element would be quoted.
    values = parts.flatten()
    kept = pc.not_equal(values, "")
    lengths = pc.list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False)
    lengths = lengths - _flags(pc.equal(inner, ""))
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = values.filter(kept)
    values = pc.if_else(pc.equal(values, "NULL"), pa.scalar(None, pa.string()), values)
    mask = pa.array(~_flags(column.is_valid())) if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _parse(value: str) -> list[str | None]:
    found: list[str | None] = []
    for match in _ELEMENT.finditer(value):
        quoted, plain = match.groups()
        if quoted is not None:
            found.append(_GUARDED.sub(r"\1", quoted))
        else:
            found.append(None if plain == "NULL" else plain)
    return found


def _parents(lists: pa.ListArray, elements: Mask) -> Mask:
    """Which lists have one of the marked elements."""
    counts = np.concatenate([[0], np.cumsum(elements)])
    offsets = _offsets(lists)
    return np.asarray(counts[offsets[1:]] > counts[offsets[:-1]])


def _rebuilt(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    mask = pa.array(~_flags(lists.is_valid())) if lists.null_count else None
    return pa.ListArray.from_arrays(lists.offsets, values, mask=mask)


def _offsets(lists: pa.ListArray) -> npt.NDArray[np.int32]:
    offsets: npt.NDArray[np.int32] = lists.offsets.to_numpy(zero_copy_only=False)
    return offsets


def _flags(column: pa.BooleanArray) -> Mask:
    flags: Mask = column.fill_null(False).to_numpy(zero_copy_only=False)
    return flags
