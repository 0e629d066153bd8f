"""Server text to Arrow, whole columns at a time; the one conversion that snapshot and log both end in.

The session is fixed by the reader: time zone UTC, ``datestyle`` ISO, ``bytea_output`` hex,
``extra_float_digits`` 3. A value that the column cannot hold becomes NULL and is marked in ``misfit``; the
caller keeps its server text.

Each conversion tries the bulk cast first. Only when Arrow refuses are the offenders looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lib.types import TIMESTAMP, TIMESTAMP_NTZ

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Converted:
    """A column of values, and which rows had one that the type cannot hold (None: no row)."""

    values: pa.Array
    misfit: Mask | None = None


Converter = Callable[[pa.StringArray], Converted]

_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+$"
_TIMESTAMPTZ = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+\+00$"
_DAY_US = 86_400_000_000


def text(column: pa.StringArray) -> Converted:
    """The server's text is the value."""
    return Converted(column)


def boolean(column: pa.StringArray) -> Converted:
    values = pc.equal(column, "t")
    wrong = _mask(pc.and_not(pc.not_equal(column, "f"), values))
    if not wrong.any():
        return Converted(values)
    return Converted(pc.if_else(pa.array(wrong), pa.scalar(None, pa.bool_()), values), wrong)


def casting(to: pa.DataType, pattern: str) -> Converter:
    """A converter by Arrow's own parser. ``pattern``: what a value must look like to stand a chance."""

    def convert(column: pa.StringArray) -> Converted:
        try:
            return Converted(column.cast(to))
        except pa.ArrowInvalid:
            return _cast_the_rest(column, to, pattern)

    return convert


def floating(to: pa.DataType) -> Converter:
    """NaN and the infinities are values; a finite number beyond the type's range is a misfit."""
    cast = casting(to, "^-?([0-9]|NaN|Infinity)")

    def convert(column: pa.StringArray) -> Converted:
        done = cast(column)
        infinite = _mask(pc.is_inf(done.values))
        if not infinite.any():
            return done
        wrong = infinite & ~_mask(pc.match_substring_regex(column, "^-?Infinity$"))
        if not wrong.any():
            return done
        values = pc.if_else(pa.array(wrong), pa.scalar(None, to), done.values)
        return Converted(values, wrong if done.misfit is None else wrong | done.misfit)

    return convert


def decimal(precision: int, scale: int) -> Converter:
    return casting(pa.decimal128(precision, scale), _NUMBER)


small = casting(pa.int16(), _NUMBER)
tiny = casting(pa.int8(), _NUMBER)
integer = casting(pa.int32(), _NUMBER)
big = casting(pa.int64(), _NUMBER)
real = floating(pa.float32())
double = floating(pa.float64())
date = casting(pa.date32(), _DATE)
timestamp = casting(TIMESTAMP_NTZ, _TIMESTAMP)
timestamptz = casting(TIMESTAMP, _TIMESTAMPTZ)


def epoch_days(column: pa.StringArray) -> Converted:
    """Debezium's ``io.debezium.time.Date``: days since 1970-01-01."""
    done = date(column)
    return Converted(done.values.cast(pa.int32()), done.misfit)


def epoch_micros(column: pa.StringArray) -> Converted:
    """Debezium's ``MicroTimestamp``: the timestamp read as UTC, in microseconds since the epoch."""
    done = timestamp(column)
    return Converted(done.values.cast(pa.int64()), done.misfit)


def epoch_millis(column: pa.StringArray) -> Converted:
    """Debezium's ``Timestamp``: milliseconds since the epoch; finer digits are cut off downwards."""
    done = timestamp(column)
    cut = pc.floor_temporal(done.values, unit="millisecond").cast(pa.timestamp("ms"))
    return Converted(cut.cast(pa.int64()), done.misfit)


def midnight_micros(column: pa.StringArray) -> Converted:
    """Debezium's ``MicroTime``: microseconds past midnight; 24:00:00 is a whole day."""
    whole = pc.equal(column, "24:00:00")
    clock = pc.if_else(whole, "00:00:00", column)
    done = timestamp(pc.binary_join_element_wise("1970-01-01", clock, " "))
    micros = pc.if_else(whole, pa.scalar(_DAY_US, pa.int64()), done.values.cast(pa.int64()))
    return Converted(micros, done.misfit)


def midnight_millis(column: pa.StringArray) -> Converted:
    """Debezium's ``Time``: milliseconds past midnight; finer digits are cut off."""
    done = midnight_micros(column)
    return Converted(pc.divide(done.values, 1000).cast(pa.int32()), done.misfit)


def without(column: pa.Array, rows: Mask) -> pa.Array:
    """The column with NULL in the marked rows."""
    return pc.if_else(pa.array(rows), pa.scalar(None, column.type), column)


def _cast_the_rest(column: pa.StringArray, to: pa.DataType, pattern: str) -> Converted:
    misfit = ~_mask(pc.match_substring_regex(column, pattern), null=True)
    misfit |= _refused(without(column, misfit), to)
    return Converted(without(column, misfit).cast(to), misfit)


def _refused(column: pa.StringArray, to: pa.DataType) -> Mask:
    """Halve until the values that Arrow refuses stand alone; few offenders cost few casts."""
    count = len(column)
    try:
        column.cast(to)
    except pa.ArrowInvalid:
        if count == 1:
            return np.ones(1, np.bool_)
        half = count // 2
        return np.concatenate([_refused(column.slice(0, half), to), _refused(column.slice(half), to)])
    return np.zeros(count, np.bool_)


def _mask(flags: pa.BooleanArray, null: bool = False) -> Mask:
    mask: Mask = flags.fill_null(null).to_numpy(zero_copy_only=False)
    return mask
