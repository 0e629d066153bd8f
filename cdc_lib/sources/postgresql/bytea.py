"""bytea columns: hex text to bytes, and the text forms of ``binary.handling.mode``."""

from __future__ import annotations

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.sources.postgresql.convert import Converted, without

_HEX_TEXT = r"^\\x([0-9a-fA-F]{2})*$"
_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_NIBBLE[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)

Octets = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


def binary(column: pa.StringArray) -> Converted:
    r"""The bytes of ``\x...`` texts."""
    fits = pc.match_substring_regex(column, _HEX_TEXT).fill_null(True)
    if pc.all(fits).as_py() is not False:
        return Converted(_unhex(column))
    misfit = ~fits.to_numpy(zero_copy_only=False)
    return Converted(_unhex(without(column, misfit)), misfit)


def hexadecimal(column: pa.StringArray) -> Converted:
    """Mode ``hex``: the digits alone."""
    return Converted(pc.utf8_slice_codeunits(column, 2))


def base64(column: pa.StringArray) -> Converted:
    """Mode ``base64`` (RFC 4648, section 4, padded)."""
    return Converted(_base64(_unhex(column)))


def base64_url_safe(column: pa.StringArray) -> Converted:
    """Mode ``base64-url-safe`` (RFC 4648, section 5, padded)."""
    plain = _base64(_unhex(column))
    return Converted(pc.replace_substring(pc.replace_substring(plain, "+", "-"), "/", "_"))


def _contents(column: pa.Array) -> tuple[Octets, Offsets]:
    """Bytes of a string or binary array, and where its values start and end in them; NULLs are empty."""
    column = pc.fill_null(column, pa.scalar(b"" if pa.types.is_binary(column.type) else "", column.type))
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1].astype(
        np.int64
    )
    data = column.buffers()[2]
    octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return octets[offsets[0] : offsets[-1]], offsets - offsets[0]


def _unhex(column: pa.StringArray) -> pa.BinaryArray:
    octets, offsets = _contents(column)
    nibbles = _NIBBLE[octets]
    pairs = nibbles[0::2] << 4 | nibbles[1::2]
    filled = np.diff(offsets) > 0
    # Each text is the two characters \x and pairs of digits, so pairs never straddle two values.
    data = np.delete(pairs, offsets[:-1][filled] // 2)
    ends = np.zeros(len(offsets), np.int32)
    np.cumsum(np.diff(offsets) // 2 - filled, out=ends[1:])
    return _array(pa.binary(), column, ends, data)


def _base64(column: pa.BinaryArray) -> pa.StringArray:
    octets, offsets = _contents(column)
    sizes = np.diff(offsets)
    groups = (sizes + 2) // 3
    starts = np.zeros(len(offsets), np.int64)
    np.cumsum(groups, out=starts[1:])
    # Every value padded to whole groups of three, so that one call encodes them all.
    padded = np.zeros(int(starts[-1]) * 3, np.uint8)
    padded[np.arange(len(octets)) + np.repeat(starts[:-1] * 3 - offsets[:-1], sizes)] = octets
    data = np.frombuffer(binascii.b2a_base64(padded.tobytes(), newline=False), np.uint8).copy()
    missing = groups * 3 - sizes
    data[starts[1:][missing >= 1] * 4 - 1] = ord("=")
    data[starts[1:][missing == 2] * 4 - 2] = ord("=")
    return _array(pa.string(), column, (starts * 4).astype(np.int32), data)


def _array(to: pa.DataType, like: pa.Array, offsets: npt.NDArray[np.int32], data: Octets) -> pa.Array:
    valid = None if like.null_count == 0 else pa.py_buffer(_packed(like))
    return pa.Array.from_buffers(to, len(like), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _packed(like: pa.Array) -> Octets:
    return np.packbits(like.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
